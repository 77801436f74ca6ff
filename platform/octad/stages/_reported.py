"""Metrics that a script appends to a file, as JSON lines."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Protocol

_LOOK_S = 0.5
_MOST_BYTES = 16 * 1024 * 1024  # read at once
_MOST_KEYS, _LONGEST_KEY, _LONGEST_LINE = 64, 200, 64 * 1024


class Steps(Protocol):
    """Who takes the metrics of a step."""

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record that a step has ended."""


class ReportedMetrics:
    """Follows the file on a thread.

    Args:
        path: The file; it need not exist.
        steps: Who takes what it says.

    Attributes:
        num_bad: Lines that were no metrics, or of a step that was told before.
        last: The newest values of all metrics.
    """

    def __init__(self, path: Path, steps: Steps) -> None:
        self.num_bad = 0
        self.last: dict[str, float] = {}
        self._path, self._steps = path, steps
        self._offset = 0
        self._newest_step = -1
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="reported", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the rest, a last line without an end too."""
        self._is_ending.set()
        self._thread.join()
        self._read(is_last=True)

    def _follow(self) -> None:
        while not self._is_ending.wait(_LOOK_S):
            self._read(is_last=False)

    def _read(self, *, is_last: bool) -> None:
        while True:
            try:
                with self._path.open("rb") as opened:
                    opened.seek(self._offset)
                    raw = opened.read(_MOST_BYTES)
            except OSError:
                return
            whole = len(raw) if is_last or len(raw) == _MOST_BYTES else 0
            whole = raw.rfind(b"\n") + 1 or whole
            self._offset += whole
            for line in raw[:whole].split(b"\n"):
                if line.strip():
                    self._take(line)
            if not whole:
                return

    def _take(self, line: bytes) -> None:
        found = parsed(line)
        if found is None or found[0] <= self._newest_step:
            self.num_bad += 1
            return
        self._newest_step, metrics = found
        self.last |= metrics
        self._steps.step(self._newest_step, metrics)


def parsed(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of one line, or None if it is not a good one."""
    try:
        raw = json.loads(line) if len(line) <= _LONGEST_LINE else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or len(raw) > _MOST_KEYS:
        return None
    step = raw.pop("step", None)
    is_good = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**53
    if not is_good or not all(_is_good(name, value) for name, value in raw.items()):
        return None
    return step, {name: float(value) for name, value in raw.items()}


def _is_good(name: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and isinstance(value, int) and not math.isfinite(_as_float(value)):
        return False
    return is_number and 0 < len(name) <= _LONGEST_KEY and name.isprintable()


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
