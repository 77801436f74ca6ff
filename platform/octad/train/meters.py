"""What one step took, as rank 0 sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class StepMeter:
    """Times one step after the other.

    Attributes:
        cards: Of the whole stage.
        blocked_s: Seconds that checkpoints have blocked so far, at the last step.
    """

    cards: int
    blocked_s: float = 0.0
    _since: float = 0.0

    def start(self) -> None:
        """The first step begins now."""
        self._since = time.perf_counter()

    def stop(self, *, tokens: int, waited_s: float, blocked_s: float) -> dict[str, float]:
        """A step has ended, and the next one begins.

        Args:
            tokens: Of this step, over all cards.
            waited_s: Seconds of this step spent waiting for data.
            blocked_s: Seconds that checkpoints have blocked since the start.
        """
        now = time.perf_counter()
        taken, self._since = now - self._since, now
        blocked, self.blocked_s = blocked_s - self.blocked_s, blocked_s
        rate = tokens / taken
        return {
            "step_time_s": taken,
            "tokens_per_s": rate,
            "tokens_per_s_per_card": rate / self.cards,
            "data_wait_share": min(1.0, waited_s / taken),
            "checkpoint_blocked_s": blocked,
        }
