"""Metrics reach the store once, in order, whatever the store does; and no step waits for it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octad.errors import StorageError
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.stages import MetricPoint, Progress, StoreSpec
from octad.storage.objects import ObjectStore
from octad.train import recorder as module
from octad.train.recorder import Recorder

KEYS: AttemptKeys = StageKeys("run", "pretrain").attempt(1)
LIMIT_S = 20.0


class Flaky(ObjectStore):
    """Fails or hangs as it is told to; `loses_answers` does the work and then fails."""

    is_down = False
    loses_answers = False
    hangs = threading.Event()  # set: does not hang

    def put(self, key: str, data: bytes) -> None:
        assert Flaky.hangs.wait(LIMIT_S)
        if Flaky.is_down:
            raise StorageError("down", where=key)
        super().put(key, data)
        if Flaky.loses_answers:
            raise StorageError("the connection broke", where=key)


@pytest.fixture(autouse=True)
def flaky(monkeypatch: pytest.MonkeyPatch) -> None:
    Flaky.is_down = Flaky.loses_answers = False
    Flaky.hangs.set()
    monkeypatch.setattr(module, "ObjectStore", Flaky)
    monkeypatch.setattr(module, "_CADENCE_S", ((math.inf, 0.02),))
    monkeypatch.setattr(module, "_LAST_RETRY_S", 0.05)
    monkeypatch.setattr(module, "_FIRST_RETRY_S", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri()))


def recorder(store: ObjectStore, tmp_path: Path, total: int = 100) -> Recorder:
    return Recorder(store.spec, KEYS, tmp_path / "spool", total)


def points(store: ObjectStore) -> list[MetricPoint]:
    raw = b"".join(store.get(meta.key) for meta in store.walk(KEYS.metrics))
    return [MetricPoint.parse(json.loads(line)) for line in raw.splitlines()]


def steps(store: ObjectStore) -> list[int]:
    return [point.step for point in points(store)]


def progress(store: ObjectStore) -> Progress:
    return Progress.parse(store.read_json(KEYS.progress) or {"phase": "starting"})


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_step_arrives_once_and_in_order(store: ObjectStore, tmp_path: Path) -> None:
    made = recorder(store, tmp_path)
    made.phase("working")
    for step in range(1, 101):
        made.step(step, {"loss": 1 / step, "lr": 0.1})
        if step % 20 == 0:
            assert made.flush(LIMIT_S)
            assert steps(store) == list(range(1, step + 1))
    assert made.close()
    assert steps(store) == list(range(1, 101))
    assert next(meta.key for meta in store.walk(KEYS.metrics)) == KEYS.segment(0)
    last = progress(store)
    assert (last.phase, last.step, last.total) == ("working", 100, 100)
    assert last.metrics == {"loss": 0.01, "lr": 0.1}
    assert last.first_step_at_ms == points(store)[0].time_ms
    assert list((tmp_path / "spool").rglob("*.jsonl")) == []


def test_a_store_that_fails_for_a_while_loses_and_doubles_nothing(
    store: ObjectStore, tmp_path: Path
) -> None:
    made = recorder(store, tmp_path)
    for step in range(1, 201):
        if step % 50 == 10:
            Flaky.is_down = True
        if step % 50 == 30:
            Flaky.is_down, Flaky.loses_answers = False, True
        if step % 50 == 40:
            Flaky.loses_answers = False
            assert made.flush(LIMIT_S)
        made.step(step, {"loss": float(step)})
        if step % 10 == 0:
            made.flush(0.03)
    assert made.close()
    assert steps(store) == list(range(1, 201))


def test_no_step_waits_for_a_store_that_hangs(store: ObjectStore, tmp_path: Path) -> None:
    made = recorder(store, tmp_path)
    made.step(1, {"loss": 1.0})
    Flaky.hangs.clear()
    made.step(2, {"loss": 1.0})
    started = time.perf_counter()
    for step in range(3, 1003):
        made.step(step, {"loss": 1.0})
    made.note("something")
    made.phase("saving")
    took_s = time.perf_counter() - started
    assert took_s < 2.0, "2 ms a step is far more than a line on a local disk takes"
    assert not made.flush(0.05)
    Flaky.hangs.set()
    assert made.flush(LIMIT_S)
    assert made.close()
    assert steps(store) == list(range(1, 1003))


def test_a_local_disk_that_is_full_loses_nothing(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorder(store, tmp_path)
    made.step(1, {"loss": 1.0})
    real = Path.open
    is_full = threading.Event()

    def fails(path: Path, mode: str = "r") -> object:
        if is_full.is_set() and "spool" in path.parts and mode != "rb":
            raise OSError(28, "No space left on device")
        return real(path, mode)

    monkeypatch.setattr(Path, "open", fails)
    is_full.set()
    for step in range(2, 20):
        made.step(step, {"loss": 1.0})
    made.flush(LIMIT_S)
    is_full.clear()
    for step in range(20, 40):
        made.step(step, {"loss": 1.0})
    assert made.close()
    assert steps(store) == list(range(1, 40))


def test_values_that_json_has_not_are_words(store: ObjectStore, tmp_path: Path) -> None:
    made = recorder(store, tmp_path)
    made.step(1, {"loss": math.nan, "up": math.inf, "down": -math.inf, "tokens": 3})
    assert made.close()
    (point,) = points(store)
    assert point.metrics == {"loss": "nan", "up": "inf", "down": "-inf", "tokens": 3}
    assert progress(store).metrics == {"tokens": 3}


def test_notes_are_kept_and_one_topic_has_one_note(store: ObjectStore, tmp_path: Path) -> None:
    earlier = Progress(phase="starting", notes=("from the driver",))
    store.put(KEYS.progress, earlier.model_dump_json().encode())
    made = recorder(store, tmp_path)
    made.note("bad bytes")
    made.note("first", topic="checkpoint")
    made.note("bad bytes")
    made.note("second", topic="checkpoint")
    assert made.close()
    assert progress(store).notes == ("from the driver", "bad bytes", "second")


def test_progress_appears_without_a_step(store: ObjectStore, tmp_path: Path) -> None:
    made = recorder(store, tmp_path)
    made.phase("loading")
    until(lambda: progress(store).phase == "loading")
    assert progress(store).first_step_at_ms is None
    assert made.close()
    assert steps(store) == []


def test_closing_does_not_wait_for_ever(store: ObjectStore, tmp_path: Path) -> None:
    made = recorder(store, tmp_path)
    Flaky.is_down = True
    made.step(1, {"loss": 1.0})
    assert not made.close(0.1)
    until(lambda: not made._thread.is_alive())


CHILD = """
import os, sys
from pathlib import Path
from octad.spec.keys import StageKeys
from octad.spec.stages import StoreSpec
from octad.train.recorder import Recorder

keys = StageKeys("run", "pretrain").attempt(1)
made = Recorder(StoreSpec(url=sys.argv[1]), keys, Path(sys.argv[2]), 0)
for step in range(1, 1_000_000):
    made.step(step, {"loss": 1.0})
    if step % 100 == 0:
        assert made.flush(20)
        print(step, flush=True)
"""


def test_killed_it_loses_at_most_what_was_not_flushed(store: ObjectStore, tmp_path: Path) -> None:
    platform = Path(module.__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, store.spec.url, str(tmp_path / "spool")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(platform)},
    )
    assert child.stdout is not None
    flushed = [int(child.stdout.readline()) for _ in range(3)][-1]
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=LIMIT_S)
    arrived = steps(store)
    assert arrived == list(range(1, len(arrived) + 1))
    assert len(arrived) >= flushed
