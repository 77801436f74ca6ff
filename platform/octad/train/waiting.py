"""How long a step of this process is held up by collectives.

Of two kinds, as a host waits for gloo, but only queues what an accelerator is to do:

    HostClock     gloo: the time that the training's thread is blocked in collectives, at every step
    KernelClock   accelerators: the time in which the device runs collectives and nothing else, at
                  steps that are sampled with torch's profiler

Both count what a step is longer for: the transfer as far as nothing is computed meanwhile, and the
wait for ranks that come later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_COLLECTIVES = ("nccl", "hccl")
_NS = 1e-9
Interval = tuple[int, int]


class HostClock:
    """Seconds that this thread waits for other processes, of every step.

    gloo has no hook for this, so the two functions in which a thread can wait are replaced while
    training: `Work.wait`, below all of `torch.distributed`, FSDP and pipelines, and `wait_tensor`,
    below DTensor. DDP waits elsewhere: `watch`. What another thread waits for (a checkpoint's)
    does not count. Not seen is what tensor parallelism waits for within a compiled block.

    Attributes:
        is_waiting: Read from a watchdog's thread.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._thread = threading.get_ident()
        self._waited_s = self._began_s = 0.0

    def __enter__(self) -> Self:
        self._wait, self._wait_tensor = dist.Work.wait, functional.wait_tensor
        dist.Work.wait = self._timed(self._wait)  # type: ignore[method-assign]
        functional.wait_tensor = self._timed(self._wait_tensor)
        return self

    def __exit__(self, *_: object) -> None:
        dist.Work.wait = self._wait  # type: ignore[method-assign]
        functional.wait_tensor = self._wait_tensor

    def start(self, *, is_sampled: bool) -> None:
        """A step begins."""
        self._waited_s = 0.0

    def stop(self) -> float:
        """Seconds of the step that were spent waiting."""
        return self._waited_s

    def watch(self, module: nn.Module) -> None:
        """Count what DDP waits for: gradients still on their way when all of its own are computed.

        It does so in C++, in a callback at the end of the backward pass. One of ours is queued
        before it, and queues another one after it.
        """

        def backward_began(_: Tensor) -> None:
            _queue(self._computed)

        def called(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(backward_began)

        if isinstance(module, DistributedDataParallel):
            module.register_forward_hook(called)

    def _computed(self) -> None:
        self.is_waiting, self._began_s = True, time.perf_counter()
        _queue(self._came)

    def _came(self) -> None:
        self.is_waiting = False
        self._waited_s += time.perf_counter() - self._began_s

    def _timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():  # it is traced, and waits later
                return wait(*args, **options)
            if self.is_waiting or threading.get_ident() != self._thread:
                return wait(*args, **options)
            self.is_waiting, began = True, time.perf_counter()
            try:
                return wait(*args, **options)
            finally:
                self.is_waiting = False
                self._waited_s += time.perf_counter() - began

        return timed


class KernelClock:
    """Seconds in which the device runs collectives and nothing else, of the steps sampled."""

    is_waiting = None  # the host cannot tell

    def __init__(self, activity: torch.profiler.ProfilerActivity) -> None:
        self._activity = activity
        self._profile: torch.profiler.profile | None = None

    def __enter__(self) -> Self:
        # The first profile sets the profiler up, which takes seconds: not within a step.
        self.start(is_sampled=True)
        self.stop()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self.stop()

    def start(self, *, is_sampled: bool) -> None:
        """A step begins."""
        if is_sampled:
            self._profile = torch.profiler.profile(activities=[self._activity])
            self._profile.start()

    def watch(self, module: nn.Module) -> None:
        """Nothing: kernels are seen whoever starts them."""

    def stop(self) -> float | None:
        """Seconds in collectives alone."""
        if self._profile is None:
            return None
        profile, self._profile = self._profile, None
        profile.stop()  # after the device has ended all that it was given
        assert profile.profiler is not None
        results = profile.profiler.kineto_results
        assert results is not None
        collectives: list[Interval] = []
        others: list[Interval] = []
        for event in results.events():
            if not event.is_user_annotation():
                is_one = any(word in event.name().lower() for word in _COLLECTIVES)
                (collectives if is_one else others).append((event.start_ns(), event.end_ns()))
        return alone_ns(collectives, others) * _NS


def clock_of(device: torch.device) -> HostClock | KernelClock | None:
    """What measures collectives there; None where torch cannot."""
    if device.type == "cpu":
        return HostClock()
    if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        return KernelClock(torch.profiler.ProfilerActivity.CUDA)
    return None


def _queue(callback: Callable[[], None]) -> None:
    """Call it at the end of the backward pass that is running, after those queued before."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # noqa: SLF001


def alone_ns(collectives: Sequence[Interval], others: Sequence[Interval]) -> int:
    """The time covered by `collectives` and not by `others`. Intervals may overlap."""
    return _covered_ns([*collectives, *others]) - _covered_ns(others)


def _covered_ns(intervals: Sequence[Interval]) -> int:
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
