"""What the ranks of a stage tell each other about their steps."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

from octad.train.mesh import Ranks
from octad.train.stragglers import Slow, Stragglers

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """One rank's last few steps.

    Attributes:
        own_s: Seconds of a step in which it was not held up by others; nan if not measured.
        comm_share: Of a step, in which it was; nan if not measured.
        peak_memory_bytes: Since the process began.
        cost_s: What measuring took.
    """

    own_s: float
    comm_share: float
    peak_memory_bytes: float
    cost_s: float


class Peers:
    """All ranks of the stage, as each of them knows them. Made on every rank at once.

    Args:
        ranks: This process among the others.
        note: On the first rank. Tells the person something; a later note takes the place of an
            earlier one.
    """

    def __init__(self, ranks: Ranks, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        own = (os.environ.get("NODE_RANK", "0"), socket.gethostname(), ranks.pp_rank)
        found = [own] * ranks.world_size
        dist.all_gather_object(found, own)
        self._names = [f"rank {r} on node {n} ({host})" for r, (n, host, _) in enumerate(found)]
        self._stragglers = Stragglers([pp_rank for *_, pp_rank in found])
        self._told: dict[int, str] = {}  # by rank

    def exchange(
        self, step: int, window: Window, *, is_judged: bool
    ) -> tuple[dict[str, float], float]:
        """Every rank must call this at the same steps. Metrics, and the highest cost of measuring.

        A few numbers from host memory to host memory.

        Args:
            step: That has ended.
            window: Of this rank.
            is_judged: The window is long enough to say who is slow.
        """
        own = torch.tensor(astuple(window), dtype=torch.float64)
        parts = [torch.empty_like(own) for _ in self._names]
        dist.all_gather(parts, own)
        windows = [Window(*part.tolist()) for part in parts]
        metrics = {"peak_memory_bytes": max(each.peak_memory_bytes for each in windows)}
        own_s = [each.own_s for each in windows]
        if not any(map(math.isnan, own_s)):
            metrics["comm_share"] = sum(each.comm_share for each in windows) / len(windows)
            metrics |= {f"own_time_s/rank_{rank}": value for rank, value in enumerate(own_s)}
            if is_judged and len(own_s) > 1:
                metrics |= self._judge(step, own_s)
        return metrics, max(each.cost_s for each in windows)

    def _judge(self, step: int, own_s: list[float]) -> dict[str, float]:
        slowest = self._stragglers.judge(own_s)
        named = self._stragglers.named
        if self._note is not None and set(named) != set(self._told):
            self._tell(step, named, self._note)
        return {
            "slowest_rank": float(slowest.rank),
            "slowest_ratio": slowest.ratio,
            "stragglers": float(len(named)),
        }

    def _tell(self, step: int, named: dict[int, Slow], note: Callable[[str], None]) -> None:
        """Only when it has changed who is slow."""
        for rank, slow in named.items():
            self._told.setdefault(rank, f"{self._said(slow)}, seen at step {step}")
        lines = []
        for rank, said in sorted(self._told.items()):
            if rank not in named:
                del self._told[rank]
            is_well = f"{said}; well again at step {step}"
            lines.append(said if rank in named else is_well)
        text = "; ".join(lines)
        _LOG.warning("%s", text)
        note(text)

    def _said(self, slow: Slow) -> str:
        reason = "" if slow.has_peers else ", or its part of the pipeline holds more"
        return (
            f"{self._names[slow.rank]} is slow{reason}: its own work takes {slow.own_s:.3g} s of a "
            f"step, {slow.ratio:.1f} times the {slow.usual_s:.3g} s of the others"
        )
