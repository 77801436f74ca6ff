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
