"""When what waits is likely to start: what is ahead of it, laid one after another on the cards.

An estimate: it counts cards, not nodes, and knows nothing of what will come.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from octad.scheduler.board import Board
from octad.scheduler.place import FOREVER
from octad.scheduler.snapshot import Waiting


@dataclass(slots=True, eq=False)
class _Flow:
    """Cards of a board and when they are free.

    Attributes:
        endless: Work whose end nobody knows, once it matters.
    """

    at_s: float
    free: int
    ends: list[tuple[float, int]] = field(default_factory=list)
    endless: str = ""


class Outlook:
    """Tells those that wait, in their order.

    Args:
        now_s: The time.
    """

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._flows: dict[int, _Flow] = {}
        self._ends: dict[int, list[tuple[float, int]]] = {}

    def of(self, stage: Waiting, board: Board) -> tuple[float | None, str]:
        """When a stage is likely to start, or None and why that cannot be known."""
        if not board.places:
            return None, "no cluster that could run it is up"
        flow = self._flows.get(id(board))
        if flow is None:
            flow = self._flows[id(board)] = self._flow(board)
        cards = stage.sizes[0]
        while flow.free < cards and flow.ends and flow.ends[0][0] < FOREVER:
            end_s, freed = heapq.heappop(flow.ends)
            flow.at_s = max(flow.at_s, end_s)
            flow.free += freed
        if flow.free < cards:
            flow.endless = flow.endless or _endless(board)
            return None, f"nobody can tell when {flow.endless} ends"
        flow.free -= cards
        end_s = FOREVER if stage.estimate_s is None else flow.at_s + stage.estimate_s
        heapq.heappush(flow.ends, (end_s, cards))
        return flow.at_s, ""

    def _flow(self, board: Board) -> _Flow:
        flow = _Flow(self._now_s, 0)
        for place in board.places:
            flow.free += place.num_free
            ends = self._ends.get(place.index)
            if ends is None:
                ends = self._ends[place.index] = [(e[0], e[2]) for e in place.ending(self._now_s)]
            flow.ends += ends
        heapq.heapify(flow.ends)
        return flow


def _endless(board: Board) -> str:
    """Whose end nobody knows."""
    for place in board.places:
        for job in place.spec.jobs:
            if job.ends_at_s is None and not job.is_ending:
                return job.name
    return "what is ahead of it"
