"""What needs a card: skipped where there is none. `make test-gpu` runs these alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "bench" / "gpu_loop.py"
# A head of 64 features, as flash attention's kernels want; sizes that fp8 can multiply.
MODEL = {
    "kind": "decoder",
    "vocab": 512,
    "width": 256,
    "depth": 4,
    "heads": 4,
    "kv_heads": 2,
    "context": 128,
    "positions": "rotary",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "mlp_width": 512,
    "bias": False,
}
Curve = Callable[..., list[float]]


@pytest.fixture(autouse=True)
def _has_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")


@pytest.fixture(scope="session")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Training in this process, which is a group of one card."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    spec = spec_from_file_location("gpu_loop", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    before = dict(os.environ)
    module.join_alone("cuda", tmp_path_factory.mktemp("meeting"))
    yield module
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def curve(loop: ModuleType) -> Curve:
    """Losses of a few steps with these settings of training."""

    def losses(**changes: Any) -> list[float]:
        settings = {
            "model": MODEL,
            "optimizer": {"lr": 6e-4, "warmup_steps": 4},
            "steps": 20,
            "sequence": 128,
            "global_batch": 8,
            "micro_batch": 4,
            **changes,
        }
        return [step["loss"] for step in loop.train(settings, "cuda").steps]

    return losses
