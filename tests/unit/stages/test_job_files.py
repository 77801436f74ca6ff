"""The files of `jobs/`: one for each kind of stage, thin, and with the command in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from octad.ports.registry import kinds

JOBS = Path(__file__).parents[3] / "jobs"


def test_each_kind_has_its_file() -> None:
    assert sorted(path.stem for path in JOBS.glob("*.py")) == kinds("octad.stages")


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.py")), ids=lambda path: path.stem)
def test_a_job_file_is_thin_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python jobs/{path.stem}.py " in (ast.get_docstring(ast.parse(text)) or "")
    assert f'main("{path.stem}")' in text
