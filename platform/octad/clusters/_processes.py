"""Processes of ours: started apart from this one, marked, and ended by their mark.

The mark is an environment variable that children inherit, so what a job left behind in a session
of its own is found too, and nobody else's process ever is.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "OCTAD_NODE"
# Kept, so that those which end while we run are reaped.
_children: dict[int, subprocess.Popen[bytes]] = {}
_children_lock = threading.Lock()


def spawn(
    command: Sequence[str], *, env: Mapping[str, str], folder: Path, log: Path, keep: int
) -> psutil.Process:
    """Start a process in a session of its own, that outlives this one.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        folder: Where it runs.
        log: Where its output is appended.
        keep: A descriptor that it inherits.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 (a command of ours, no shell)
            command,
            env=dict(env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(keep,),
        )
    with _children_lock:
        _children[child.pid] = child
    return psutil.Process(child.pid)


def is_alive(pid: int, created_at: float) -> bool:
    """Whether the very process that was recorded still runs; a zombie does not.

    Args:
        pid: Its process id.
        created_at: Its creation time as psutil gave it: a process id can come again.
    """
    _reap(pid)
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.create_time() == created_at and process.status() != psutil.STATUS_ZOMBIE
    return False


def marked(prefix: str) -> list[psutil.Process]:
    """All live processes whose mark starts with `prefix`, with all their descendants."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK, "").startswith(prefix):
                found[process.pid] = process
    for process in list(found.values()):
        with suppress(psutil.Error):
            found.update((child.pid, child) for child in process.children(recursive=True))
    return [process for process in found.values() if _runs(process)]


def end(prefix: str, grace_s: float) -> list[psutil.Process]:
    """End all processes that carry a mark: SIGTERM, and SIGKILL for what is left after a while.

    Args:
        prefix: Of their marks.
        grace_s: How long they may take to end by themselves.

    Returns:
        What would not end even then: an empty list, as a rule.
    """
    left = marked(prefix)
    _signal(left, psutil.Process.terminate)
    # One that hangs, stopped, takes no signal before it goes on.
    _signal(left, psutil.Process.resume)
    _, left = psutil.wait_procs(left, timeout=grace_s)
    # What was started meanwhile is found by looking again.
    for _ in range(5):
        left = marked(prefix)
        if not left:
            break
        _signal(left, psutil.Process.kill)
        psutil.wait_procs(left, timeout=2)
    for pid in list(_children):
        _reap(pid)
    return left


def _signal(processes: Sequence[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            send(process)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _reap(pid: int) -> None:
    with _children_lock:
        child = _children.get(pid)
        if child is not None and child.poll() is not None:
            del _children[pid]
