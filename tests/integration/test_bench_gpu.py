"""`make bench-gpu` works where it can be tried: without a GPU, in sizes for a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "gpu.py"


@pytest.mark.slow
@pytest.mark.long
def test_it_measures_both_sides_of_each_model() -> None:
    asked = ["--device", "cpu", "--tiny", "--eager"]
    done = subprocess.run(
        [sys.executable, BENCH, *asked], stdout=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert done.returncode == 0
    head, *lines = done.stdout.splitlines()
    assert "no figure counts" in head
    assert [line.split(",")[0] for line in lines] == ["gpt2_124m", "llama_1b"]
    assert all("by hand" in line and "ratio" in line for line in lines)
