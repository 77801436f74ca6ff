"""A process whose steps no longer end says where it stands, and ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from octad.errors import StageError, StorageError
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.stages import StoreSpec
from octad.storage.objects import ObjectStore
from octad.train import watchdog as module
from octad.train.watchdog import Watchdog, hang_of, teller

KEYS: AttemptKeys = StageKeys("run", "pretrain").attempt(1)
LIMIT_S = 30
CHILD = """
import ctypes, sys, threading
from octad.train import watchdog as module
from octad.train.watchdog import Watchdog

module._GRACE_S = module._TELL_LIMIT_S = 0.1

def told(text, stacks):
    print(text, flush=True)
    if "store" in sys.argv:
        stuck_in_the_store.wait()

def stuck_in_a_step():
    if "lock" in sys.argv:
        ctypes.PyDLL(None).pause()  # and never lets go of the interpreter
    threading.Event().wait()

stuck_in_the_store = threading.Event()
with Watchdog(0.2, rank=3, is_waiting=lambda: False, tell=told) as watchdog:
    watchdog.step_ended(7)
    stuck_in_a_step()
"""


def child(*faults: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, *faults],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri()))


@pytest.fixture
def watchdog() -> Watchdog:
    """Not started: the test says how time goes on. A tick is a second."""
    return Watchdog(10.0, rank=0, is_waiting=lambda: None, tell=lambda *_: None)


def passes(watchdog: Watchdog, seconds: int) -> bool:
    return any(watchdog._is_hung(1.0) for _ in range(seconds))


@pytest.mark.parametrize("fault", ["", "store"])
def test_a_step_that_hangs_ends_the_process_whatever_the_store_does(fault: str) -> None:
    ended = child(fault)
    assert ended.returncode == StageError.exit_code
    assert ended.stdout.startswith("no step since step 7 for 0.")
    assert "on rank 3: it is in its own work" in ended.stdout
    assert "in stuck_in_a_step" in ended.stderr
    assert "(most recent call first)" in ended.stderr


def test_a_step_that_holds_the_interpreter_is_ended_too() -> None:
    ended = child("lock")
    assert ended.returncode == 1
    assert "in stuck_in_a_step" in ended.stderr


def test_a_loop_that_ends_leaves_nothing_behind() -> None:
    with Watchdog(10.0, rank=0, is_waiting=lambda: None, tell=lambda *_: None):
        assert "watchdog" in {thread.name for thread in threading.enumerate()}
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


def test_the_first_step_may_take_four_times_as_long(watchdog: Watchdog) -> None:
    assert not passes(watchdog, 40)
    assert passes(watchdog, 1)


def test_each_step_begins_anew(watchdog: Watchdog) -> None:
    for step in range(1, 6):
        watchdog.step_ended(step)
        assert not passes(watchdog, 10)
    assert passes(watchdog, 1)


def test_waiting_for_a_checkpoint_or_a_store_is_no_hang(watchdog: Watchdog) -> None:
    watchdog.step_ended(1)
    with watchdog.paused():
        assert not passes(watchdog, 1000)
        with watchdog.paused():
            pass
        assert not passes(watchdog, 1000)
    assert not passes(watchdog, 10)
    assert passes(watchdog, 1)


def test_a_process_that_was_stopped_has_not_been_idle_by_itself(watchdog: Watchdog) -> None:
    watchdog.step_ended(1)
    assert not watchdog._is_hung(3600.0)
    assert not passes(watchdog, 8)


def test_the_driver_names_the_rank_that_does_not_wait_for_others(store: ObjectStore) -> None:
    assert hang_of(store, KEYS) is None
    notes: list[str] = []
    for rank in range(4):
        doing = module._WORKS if rank == 2 else module._WAITS
        text = f"no step since step 4 for 300 s on rank {rank}{doing}"
        teller(store, KEYS, rank, notes.append)(text, "Thread 1: ...")
    found = hang_of(store, KEYS)
    assert found is not None
    assert found.what == "no step since step 4 for 300 s on rank 2: it is in its own work"
    assert not found.is_final
    assert "step_timeout_s" in found.hint
    assert len(notes) == 4


def test_a_store_that_is_down_still_gets_the_note_told(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise StorageError("down")

    monkeypatch.setattr(store, "put", down)
    notes: list[str] = []
    teller(store, KEYS, 0, notes.append)("no step", "stacks")
    assert notes == ["no step"]
    assert hang_of(store, KEYS) is None
