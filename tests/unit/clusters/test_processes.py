from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from octad.clusters import _processes

WAIT = "import time; print('ready', flush=True); time.sleep(600)"
# A job that leaves a child in a session of its own, and one that has lost its environment.
FAMILY = f"""
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(sleep, env={{}}, start_new_session=True)
{WAIT}
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAIT}"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: str, code: str, *more: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, _processes.MARK: mark} if mark else dict(os.environ)
        child = subprocess.Popen(
            [sys.executable, "-c", code, *more], env=env, stdout=subprocess.PIPE
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def mark(tmp_path: Path) -> str:
    return f"test-{tmp_path.name}-{os.getpid()}/alpha/"


def test_all_that_is_marked_ends_with_its_children(start: Start, mark: str) -> None:
    start(f"{mark}alpha-0/", FAMILY)
    assert len(_processes.marked(mark)) == 3
    assert _processes.end(mark, grace_s=5) == []
    assert _processes.marked(mark) == []


def test_what_will_not_end_by_itself_is_killed(start: Start, mark: str) -> None:
    child = start(f"{mark}alpha-0/", STUBBORN)
    assert _processes.end(mark, grace_s=0.1) == []
    assert child.wait(timeout=5) is not None


def test_what_was_stopped_can_end_by_itself(start: Start, mark: str) -> None:
    code = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n{WAIT}"
    child = start(f"{mark}alpha-0/", code)
    psutil.Process(child.pid).suspend()
    assert _processes.end(mark, grace_s=10) == []
    assert child.poll() is not None


def test_nobody_elses_process_is_touched(start: Start, mark: str) -> None:
    foreign = [
        start("", WAIT),
        start("", WAIT, "ray", "start", "--head", "--block", "gcs_server", "raylet"),
        start(mark.replace("alpha", "beta") + "beta-0/", WAIT),
        start("another-home/alpha/alpha-0/", WAIT),
        start(f"{mark}alpha-10/", WAIT),
    ]
    ours = start(f"{mark}alpha-1/", WAIT)
    assert _processes.end(f"{mark}alpha-1/", grace_s=5) == []
    assert ours.wait(timeout=5) is not None
    assert [child.poll() for child in foreign] == [None] * 5


def test_ending_nothing_is_no_error(mark: str) -> None:
    assert _processes.end(mark, grace_s=5) == []


def test_a_process_is_known_by_id_and_time(start: Start, mark: str) -> None:
    child = start(mark, WAIT)
    created_at = psutil.Process(child.pid).create_time()
    assert _processes.is_alive(child.pid, created_at)
    assert not _processes.is_alive(child.pid, created_at - 60)
    # Not waited for, it is a zombie: dead all the same.
    child.kill()
    psutil.wait_procs([psutil.Process(child.pid)], timeout=5)
    assert not _processes.is_alive(child.pid, created_at)


def test_a_spawned_process_has_its_own_session_and_log(tmp_path: Path, mark: str) -> None:
    read_end, write_end = os.pipe()
    log = tmp_path / "log"
    process = _processes.spawn(
        [sys.executable, "-c", "import os; print(os.getcwd()); print(sorted(os.environ)); input()"],
        env={_processes.MARK: mark, "LC_ALL": "C.UTF-8"},
        folder=tmp_path,
        log=log,
        keep=write_end,
    )
    os.close(write_end)
    # The pipe is closed when the process, which inherited its end, has ended.
    assert os.read(read_end, 1) == b""
    os.close(read_end)
    psutil.wait_procs([process], timeout=5)
    text = log.read_text()
    assert text.startswith(f"{tmp_path}\n['LC_ALL', 'OCTAD_NODE']")
    assert "EOFError" in text


def test_a_spawned_process_leads_its_own_session(tmp_path: Path, mark: str) -> None:
    read_end, write_end = os.pipe()
    process = _processes.spawn(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={_processes.MARK: mark},
        folder=tmp_path,
        log=tmp_path / "log",
        keep=write_end,
    )
    os.close(read_end)
    os.close(write_end)
    assert os.getsid(process.pid) == process.pid
    created_at = process.create_time()
    assert _processes.is_alive(process.pid, created_at)
    assert _processes.end(mark, grace_s=5) == []
    assert not _processes.is_alive(process.pid, created_at)
