"""When checkpoints are saved: every so many steps, or as often as pays. No torch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["store", "node"]
Decision = tuple[Tier | None, int]

# One save ends well before the next one begins.
_APART = 1.25
_FIRST_STEPS = 10
_AGAIN_STEPS = 5  # asking costs all ranks a message
_MEASURES = 5  # the newest of which count


def young_s(cost_s: float, mtbf_s: float) -> float:
    """The seconds between saves that lose least, to saving and to work done again.

    Young's first-order optimum, sqrt(2 * cost * MTBF): J. W. Young, "A first order approximation to
    the optimum checkpoint interval", CACM 17(9), 1974. Daly's higher orders (FGCS 22(3), 2006)
    differ by less than `cost_s` while that is small beside the MTBF; his bound holds: where a save
    costs half the MTBF or more, the interval is the MTBF.

    Args:
        cost_s: What a save costs the training: the time that it is held up.
        mtbf_s: Mean time between failures of the whole stage.
    """
    if cost_s >= mtbf_s / 2:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s)


def steps_between(*, blocked_s: float, durable_s: float, step_s: float, mtbf_s: float) -> int:
    """The number of steps between saves: Young's optimum, and never so few that saves overlap.

    Args:
        blocked_s: For how long a save holds up the training.
        durable_s: How long it takes from the call to the commit.
        step_s: How long a step takes.
        mtbf_s: Mean time between failures of the whole stage.
    """
    seconds = max(young_s(blocked_s, mtbf_s), _APART * durable_s)
    return max(1, math.ceil(seconds / max(step_s, 1e-6)))


@dataclass(slots=True)
class Plan:
    """When the next checkpoint is due, on the rank that decides for all.

    Begins with a save after a few steps, which gives the first measures.

    Attributes:
        mtbf_s: Mean time between failures of the whole stage.
        saved_at: The step of the last save, or that from which training goes on.
    """

    mtbf_s: float
    saved_at: int
    _blocked_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURES))
    _durable_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURES))
    _steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURES))

    def first_look(self) -> int:
        """The step at which to ask first."""
        return self.saved_at + _FIRST_STEPS

    def measured(self, *, blocked_s: float, durable_s: float) -> None:
        """A save was committed."""
        self._blocked_s.append(blocked_s)
        self._durable_s.append(durable_s)

    def stepped(self, step_s: float) -> None:
        """Steps were taken, at so many seconds each."""
        self._steps_s.append(step_s)

    def at(self, step: int, *, is_saving: bool) -> tuple[bool, int]:
        """Whether to save now, and at which step to ask again.

        Args:
            step: That has just ended.
            is_saving: The save before is not committed yet.
        """
        if is_saving:
            return False, step + _AGAIN_STEPS
        if not self._durable_s or not self._steps_s:
            self.saved_at = step
            return True, step + _FIRST_STEPS
        steps = steps_between(
            blocked_s=_mean(self._blocked_s),
            durable_s=_mean(self._durable_s),
            step_s=_mean(self._steps_s),
            mtbf_s=self.mtbf_s,
        )
        if step < self.saved_at + steps:
            # Again before it is due: what is measured meanwhile may bring it nearer.
            return False, min(self.saved_at + steps, step + max(1, steps // 4))
        self.saved_at = step
        return True, step + max(1, steps // 4)


class Schedule:
    """Where the state after each step goes. Alike on all ranks: what only time can tell is decided
    by one of them (`decided`) and told to the others (`followed`).

    Args:
        start: The step that training goes on from.
        last: The last one; it always goes to the store.
        every: Steps between saves to the store, or `auto` for Young's optimum.
        mtbf_s: Mean time between failures of the whole stage; for `auto`.
        node_every: Steps between saves on the nodes; None saves none.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        *,
        start: int,
        last: int,
        every: int | Literal["auto"],
        mtbf_s: float,
        node_every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last, self._every, self._node_every = last, every, node_every
        self._plan = Plan(mtbf_s, saved_at=start)
        self._look = self._plan.first_look() if every == "auto" else -1
        self._clock = clock
        self._timed = (start, clock())
        self._fresh: tuple[float, float] | None = None

    def is_certain(self, step: int) -> bool:
        """It goes to the store, whatever was measured."""
        return step == self._last or (self._every != "auto" and step % self._every == 0)

    def is_asked(self, step: int) -> bool:
        """It may go somewhere: to be decided."""
        is_for_node = self._node_every is not None and step % self._node_every == 0
        return step == self._look or is_for_node

    def measured(self, *, blocked_s: float, durable_s: float) -> None:
        """A save to the store was committed. May be called on another thread."""
        self._fresh = (blocked_s, durable_s)

    def decided(self, step: int, *, is_store_busy: bool, is_node_busy: bool) -> Decision:
        """On one rank: where this step goes, and the step at which to ask for the store again.

        A save on the nodes that is still under way is not waited for: the next one will do.
        """
        look = self._look
        if step == look:
            is_due, look = self._asked(step, is_saving=is_store_busy)
            if is_due:
                return "store", look
        is_for_node = self._node_every is not None and step % self._node_every == 0
        return ("node" if is_for_node and not is_node_busy else None), look

    def followed(self, decision: Decision) -> Tier | None:
        """On every rank: take what was decided."""
        tier, self._look = decision
        return tier

    def _asked(self, step: int, *, is_saving: bool) -> tuple[bool, int]:
        began, began_s = self._timed
        now_s = self._clock()
        self._timed = (step, now_s)
        self._plan.stepped((now_s - began_s) / (step - began))
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._plan.measured(blocked_s=fresh[0], durable_s=fresh[1])
        return self._plan.at(step, is_saving=is_saving)


def _mean(measures: deque[float]) -> float:
    return sum(measures) / len(measures)
