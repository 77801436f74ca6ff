"""What each step took, on every rank.

    tokens_per_s, tokens_per_s_per_card    of the whole stage, and of one card
    mfu                                    model FLOPs utilisation: see below
    step_time_s                            from the end of one step to the end of the next
    data_wait_share                        of the step: the first rank waited for a batch
    checkpoint_blocked_s                   of the step: the first rank waited for a checkpoint

and, as the ranks exchange them, at the second step, every sixth after it and the last:

    comm_share                             of a step: held up by collectives, mean of the ranks
    peak_memory_bytes                      of the rank that needs most: what tensors took on its
                                           card, on `sim` the whole process's resident memory
    own_time_s/rank_<n>                    of a step of this rank: not held up by others, so its
                                           compute, its data, its host (median over the window)
    slowest_rank, slowest_ratio            whose own time is longest against its peers', and how
                                           many times as long as theirs it is
    stragglers                             ranks that are named as slow (`stragglers.py`)

**MFU** is the model's FLOPs per second over the dense bf16 peak of all cards, whatever the precision
is. FLOPs are those of the model family's `flops_per_token` (PaLM, arXiv 2204.02311, appendix B):
6 for each weight that multiplies, plus attention's 12 x depth x width x sequence, not halved for
the causal mask; what activation checkpointing computes again does not count. There is none on
`sim`, nor where a card's peak is not known (`cards.py`).
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from statistics import median
from typing import Self

import torch
from torch import nn

from octad.train.cards import peak_flops
from octad.train.mesh import Ranks
from octad.train.peers import Peers, Window
from octad.train.waiting import clock_of

_WARM_UP = 2  # steps of an attempt whose times say nothing: compiling, first allocations
_WINDOW = 6  # steps: a straggler is named after two windows, at most 15 steps after it began
_LEAST_WINDOW = 3
_MOST_COST = 0.01  # share of the time that sampling may take
_KIB = 1024


class StepMeter:
    """Times one step after the other. Made on every rank; every rank must end each step.

    Args:
        ranks: This process among the others.
        flops_per_token: Of the model.
        note: Tells the person something; a later note takes the place of an earlier one.
    """

    def __init__(
        self, ranks: Ranks, *, flops_per_token: float, note: Callable[[str], None] | None = None
    ) -> None:
        self._ranks = ranks
        self._peers = Peers(ranks, note)
        self._clock = clock_of(ranks.device)
        peak = _peak_flops(ranks.device)
        # Tokens per second times this are the MFU.
        self._mfu_per_rate = flops_per_token / (peak * ranks.world_size) if peak else None
        self._num_steps = 0
        self._since_s = self._blocked_s = self._cost_s = 0.0
        self._own_s: list[float] = []
        self._shares: list[float] = []
        self._windows_to_sample = 1
        self._is_sampled = False

    @property
    def is_waiting(self) -> bool | None:
        """This process waits for others at the moment; None where it cannot tell."""
        return None if self._clock is None else self._clock.is_waiting

    def watch(self, module: nn.Module) -> None:
        """Say what is called in a step: some of it waits for others in its own way."""
        if self._clock is not None:
            self._clock.watch(module)

    def __enter__(self) -> Self:
        """The first step begins now."""
        if self._clock is not None:
            self._clock.__enter__()
        self._begin(time.perf_counter())
        return self

    def __exit__(self, *_: object) -> None:
        if self._clock is not None:
            self._clock.__exit__()

    def stop(
        self, step: int, *, tokens: int, waited_s: float, blocked_s: float, is_last: bool
    ) -> dict[str, float]:
        """A step has ended, and the next one begins.

        Args:
            step: Its number.
            tokens: Of this step, over all cards.
            waited_s: Seconds of this step spent waiting for data.
            blocked_s: Seconds that checkpoints have blocked since the start.
            is_last: No other step follows.
        """
        held_s = None if self._clock is None else self._costing(self._clock.stop)
        now_s = time.perf_counter()
        taken_s, blocked = now_s - self._since_s, blocked_s - self._blocked_s
        self._blocked_s = blocked_s
        self._num_steps += 1
        if held_s is not None:
            self._own_s.append(max(0.0, taken_s - held_s))
            self._shares.append(min(1.0, held_s / taken_s))
        rate = tokens / taken_s
        metrics = {
            "step_time_s": taken_s,
            "tokens_per_s": rate,
            "tokens_per_s_per_card": rate / self._ranks.world_size,
            "data_wait_share": min(1.0, waited_s / taken_s),
            "checkpoint_blocked_s": blocked,
        }
        if self._mfu_per_rate is not None:
            metrics["mfu"] = rate * self._mfu_per_rate
        if is_last or _ends_window(self._num_steps):
            metrics |= self._exchange(step, taken_s)
        self._begin(now_s)
        return metrics

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        if self._clock is None:
            return
        is_end = _ends_window(self._num_steps + 1)
        self._windows_to_sample -= is_end
        self._is_sampled = is_end and self._windows_to_sample <= 0
        clock, is_sampled = self._clock, self._is_sampled
        self._costing(lambda: clock.start(is_sampled=is_sampled))

    def _costing(self, call: Callable[[], float | None]) -> float | None:
        began_s = time.perf_counter()
        found = call()
        self._cost_s += time.perf_counter() - began_s
        return found

    def _exchange(self, step: int, taken_s: float) -> dict[str, float]:
        is_whole = _ends_window(self._num_steps) and self._num_steps > _WARM_UP
        window = Window(
            own_s=median(self._own_s) if self._own_s else math.nan,
            comm_share=median(self._shares) if self._shares else math.nan,
            peak_memory_bytes=_peak_memory_bytes(self._ranks.device),
            cost_s=self._cost_s,
        )
        metrics, cost_s = self._peers.exchange(
            step, window, is_judged=is_whole or len(self._own_s) >= _LEAST_WINDOW
        )
        self._own_s, self._shares, self._cost_s = [], [], 0.0
        if self._is_sampled:
            # All ranks sample the same steps, so seldom that the dearest keeps to its share.
            self._windows_to_sample = math.ceil(cost_s / (_MOST_COST * _WINDOW * taken_s)) or 1
        return metrics


def _ends_window(number: int) -> bool:
    """After this many steps of the attempt."""
    return number >= _WARM_UP and (number - _WARM_UP) % _WINDOW == 0


def _peak_flops(device: torch.device) -> float | None:
    return None if device.type != "cuda" else peak_flops(torch.cuda.get_device_name(device))


def _peak_memory_bytes(device: torch.device) -> float:
    if device.type == "cpu":
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB)
    return float(torch.accelerator.max_memory_allocated(device))
