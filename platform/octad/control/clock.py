"""The control plane's clocks: one for records, one for waiting, so that a step of the first
never ends a wait.
"""

from __future__ import annotations

import time


class Clock:
    """The machine's own."""

    def ms(self) -> int:
        """Unix milliseconds, for records."""
        return int(time.time() * 1000)

    def s(self) -> float:
        """Seconds that only rise, for waiting."""
        return time.monotonic()


def pause_s(tries: int, first_s: float, most_s: float) -> float:
    """How long to wait after so many tries in vain: each time twice as long, up to `most_s`."""
    # A float has no room for many more doublings, and something may be away for days.
    return min(first_s * 2.0 ** min(tries, 60), most_s)
