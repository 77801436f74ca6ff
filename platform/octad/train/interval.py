"""How far apart checkpoints are, where that is chosen from what was measured. No torch."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

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


def _mean(measures: deque[float]) -> float:
    return sum(measures) / len(measures)
