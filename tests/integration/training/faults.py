"""Training with something wrong on one rank: a stage's function with a fault put in.

Each config has `job`, the `rank` that is at fault and `after`, the steps that go well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from octad.train import parallelise, watchdog, worker

_LEAST_S = 0.04  # more than a busy machine adds to a step of a few milliseconds


def slow(config: dict[str, Any]) -> Any:
    """Each step takes the rank more than three times the processor time that a good one does."""

    def burn(good_s: float) -> None:
        until = time.thread_time() + 2 * good_s + _LEAST_S
        while time.thread_time() < until:
            torch.ones(64, 64).sum()

    return _with_fault(config, burn)


def hanging(config: dict[str, Any]) -> Any:
    """The rank never comes back from a forward pass."""
    watchdog._GRACE_S = 1.0
    return _with_fault(config, lambda _: threading.Event().wait())


def _with_fault(config: dict[str, Any], fault: Callable[[float], Any]) -> Any:
    spread = parallelise.spread
    began_s: list[float] = []

    def faulty(*_: Any) -> None:
        if len(began_s) <= config["after"]:
            began_s.append(time.thread_time())
        if dist.get_rank() == config["rank"] and len(began_s) > config["after"]:
            fault(median(end - start for start, end in pairwise(began_s)))

    def spread_with_fault(*args: Any, **options: Any) -> Any:
        model = spread(*args, **options)
        model.parts[0].register_forward_pre_hook(faulty)
        return model

    with patch.object(worker, "spread", spread_with_fault):
        return worker.train(config["job"])
