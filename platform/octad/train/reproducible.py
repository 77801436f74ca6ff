"""The same numbers from the same start, bit for bit, also on an accelerator.

Nothing in training draws from torch's global random state, nor from numpy's or Python's: weights
come from generators keyed by seed and name, the order of samples from (seed, epoch, place), a
sample of text from the run's seed. What is left are operations that sum in whatever order an
accelerator's threads come. On a CPU there is none among those that the models use.
"""

from __future__ import annotations

import os

import torch

_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; NVIDIA's own advice


def set_deterministic(*, is_on: bool) -> None:
    """Use only operations that always sum in one order; one that cannot fails, by its name.

    It holds for the process. Some operations are slower.
    """
    if is_on:
        os.environ.setdefault(*_CUBLAS)
    torch.use_deterministic_algorithms(is_on)
