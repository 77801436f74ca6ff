"""Ends every process that carries a mark in its environment. Standard library only.

Process groups and sessions do not hold what a script starts with `setsid`, `nohup` or a double
fork; an environment variable that all of them inherit does. As a program of its own,
`python _guard.py MARK GRACE_S`, it waits for the end of its input and then ends what is left: so
nothing stays behind even if the one who started it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "OCTAD_MARK"
ALL_IS_WELL = b"done"
_PROC = Path("/proc")
_LOOK_S = 0.05
_KILL_LIMIT_S = 5.0


def marked(mark: str) -> list[int]:
    """Ids of the processes that carry this mark; empty where the system cannot tell."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and not _is_dead(folder):
                found.append(int(folder.name))
    return found


def end_marked(mark: str, grace_s: float = 0.0) -> bool:
    """Ask them to end, wait, and kill what is left. True if none is left."""
    if grace_s > 0:
        _signal(marked(mark), signal.SIGTERM)
        _wait_for_none(mark, grace_s)
    until_s = time.monotonic() + _KILL_LIMIT_S
    while left := marked(mark):
        _signal(left, signal.SIGKILL)
        if time.monotonic() > until_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _wait_for_none(mark: str, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while marked(mark) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _is_dead(folder: Path) -> bool:
    """Ended, and only waiting to be reaped."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}


if __name__ == "__main__":
    if ALL_IS_WELL not in sys.stdin.buffer.read():
        end_marked(sys.argv[1], float(sys.argv[2]))
