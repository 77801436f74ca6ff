"""How an attempt ends, and what it leaves in the store."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.stages.conftest import LIMIT_S, ROOT, Bench
from tests.unit.storage.test_lineage import commit as saved

from octad.errors import (
    CheckpointError,
    DataError,
    FencedError,
    NotFoundError,
    StageError,
    StorageError,
)
from octad.spec.artefacts import Artefact
from octad.spec.frozen import Spec
from octad.spec.keys import StageKeys
from octad.spec.stages import Epoch, Position
from octad.stages import _entry, main
from octad.stages._attempt import Attempt
from octad.stages._entry import run_attempt
from octad.storage import lineage

Outcome = tuple[tuple[Artefact, ...], dict[str, float]]


class NoSettings(Spec):
    """A stage of the test takes none."""


@pytest.fixture
def runs(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[[Attempt], Outcome]], None]]:
    """Make a function what the stage does."""
    before = signal.getsignal(signal.SIGTERM)

    def use(work: Callable[[Attempt], Outcome]) -> None:
        stage = SimpleNamespace(run=work)
        module = SimpleNamespace(Settings=NoSettings, build=lambda _settings: stage)
        monkeypatch.setattr(_entry, "load", lambda *_args: module)

    yield use
    signal.signal(signal.SIGTERM, before)


def nothing(_attempt: Attempt) -> Outcome:
    return (), {}


def raising(error: Exception) -> Callable[[Attempt], Outcome]:
    def work(_attempt: Attempt) -> Outcome:
        raise error

    return work


def test_a_result_is_written_once_with_finite_metrics(bench: Bench, runs: Any) -> None:
    def work(attempt: Attempt) -> Outcome:
        attempt.phase("working")
        attempt.progress(1, 2)
        attempt.note("3 bad bytes")
        attempt.note("3 bad bytes")
        made = attempt.publish_object("report", "report", b"{}", "report.json")
        return (made,), {"loss": 2, "ppl": math.inf}

    runs(work)
    assert run_attempt(bench.order({})) == 0
    result = bench.result()
    assert result.metrics == {"loss": 2.0}
    assert result.notes == ("3 bad bytes", "the final ppl is inf")
    assert result.artefacts[0].uri.endswith("artefacts/report/report.json")
    progress = bench.progress()
    assert (progress.phase, progress.step, progress.total) == ("done", 1, 2)
    with pytest.raises(FencedError):
        run_attempt(bench.order({}))


@pytest.mark.parametrize(
    ("error", "code", "is_final", "kind"),
    [
        (DataError("empty"), 6, True, "DataError"),
        (CheckpointError("damaged"), 7, True, "CheckpointError"),
        (StorageError("full"), 11, False, "StorageError"),
        (StageError("the worker of rank 1 died"), 20, False, "StageError"),
        (ZeroDivisionError("bug"), 1, False, "Exception"),
    ],
)
def test_a_failure_is_written_with_its_class(
    bench: Bench,
    runs: Any,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    is_final: bool,
    kind: str,
) -> None:
    runs(raising(error))
    assert run_attempt(bench.order({})) == code
    failure = bench.failure()
    assert (failure.is_final, failure.error["kind"]) == (is_final, kind)
    assert str(error) in failure.error["what"]
    said = capfd.readouterr().err
    assert ("Traceback" in said) == (code == 1)
    assert bench.store.find(bench.keys().result) is None


def test_ctrl_c_is_written_down(bench: Bench, runs: Any) -> None:
    def interrupted(_attempt: Attempt) -> Outcome:
        raise KeyboardInterrupt

    runs(interrupted)
    assert run_attempt(bench.order({})) == 130
    failure = bench.failure()
    assert not failure.is_final
    assert failure.error["what"] == "was stopped by ctrl-C"


def test_a_fenced_attempt_writes_neither_result_nor_reason(bench: Bench, runs: Any) -> None:
    def overtaken(attempt: Attempt) -> Outcome:
        lineage.claim(attempt.store, bench.order({}, attempt=2))
        return (), {}

    runs(overtaken)
    assert run_attempt(bench.order({})) == 21
    assert bench.store.find(bench.keys().result) is None
    assert bench.store.find(bench.keys().error) is None


def test_the_next_attempt_gets_the_newest_whole_checkpoint(bench: Bench, runs: Any) -> None:
    runs(nothing)
    run_attempt(bench.order({}))
    keys = bench.keys(1)
    whole = keys.checkpoint(10)
    for step in (10, 20, 30):
        source = saved(bench.store, 1, step)
        for meta in list(bench.store.walk(f"{source}/")):
            target = meta.key.replace(source, keys.checkpoint(step))
            bench.store.put(target, bench.store.get(meta.key))
    bench.store.put(f"{keys.checkpoint(20)}/.metadata", b"x")
    bench.store.delete([f"{keys.checkpoint(30)}/manifest.json"])
    seen: list[Position | None] = []

    def work(attempt: Attempt) -> Outcome:
        seen.append(attempt.base)
        return (), {}

    runs(work)
    assert run_attempt(bench.order({}, attempt=2)) == 0
    assert seen == [Position(attempt=1, step=10)]
    fence = Epoch.model_validate_json(bench.store.get(StageKeys("run", "own").epoch(2)))
    assert fence.base == Position(attempt=1, step=10)
    (note,) = bench.result(2).notes
    assert note.startswith("the checkpoint at step 20 is damaged and was passed over: ")
    assert ".metadata" in note
    assert list(bench.store.walk(f"{keys.checkpoint(30)}/")) == []
    assert list(bench.store.walk(f"{whole}/"))


def test_an_input_that_was_not_given_is_named(bench: Bench, runs: Any) -> None:
    runs(lambda attempt: attempt.input("corpus"))
    assert run_attempt(bench.order({})) == NotFoundError.exit_code
    assert bench.failure().error["where"] == "own.needs.corpus"


def test_progress_of_workers_and_driver_meet(bench: Bench, runs: Any) -> None:
    def work(attempt: Attempt) -> Outcome:
        attempt.note("first")
        progress = bench.progress().model_copy(
            update={"step": 7, "total": 9, "notes": ("first", "second"), "first_step_at_ms": 5}
        )
        attempt.store.put(attempt.keys.progress, progress.model_dump_json().encode())
        attempt.note("third")
        return (), {}

    runs(work)
    assert run_attempt(bench.order({})) == 0
    progress = bench.progress()
    assert progress.notes == ("first", "second", "third")
    assert (progress.step, progress.total, progress.first_step_at_ms) == (7, 9, 5)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--order", "{store}/none.json", "--store", "{store}"], 3, "there is no order"),
        (["--order", "file:///etc/passwd", "--store", "{store}"], 2, "does not lie in the store"),
        (["--order", "{order}", "--store", "{store}"], 2, "is for a job stage, not for a pretrain"),
    ],
)
def test_an_order_that_cannot_be_is_refused(
    bench: Bench,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    bench.order({"shell": "true"})
    store = bench.store.spec.url
    order = bench.store.url(bench.keys().order)
    given = [word.format(store=store, order=order) for word in arguments]
    assert main("pretrain", given) == code
    said = capfd.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert bench.store.folders("runs/run/stages/own/epochs/") == []


def test_an_order_of_another_version_is_a_users_mistake(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.order({})
    key = bench.keys().order
    raw = json.loads(bench.store.get(key)) | {"from_the_future": 1}
    bench.store.put(key, json.dumps(raw).encode())
    arguments = ["--order", bench.store.url(key), "--store", bench.store.spec.url]
    assert main("job", arguments) == 2
    assert "unknown key 'from_the_future'" in capfd.readouterr().err


HANGS = """
import sys, threading
from types import SimpleNamespace
from octad.stages import _attempt, _entry
from octad.spec.frozen import Spec

def hang(attempt):
    attempt.phase("working")
    print("UP", flush=True)
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass

_attempt.Attempt.grace_s = 1.0
_entry.load = lambda *_: SimpleNamespace(Settings=Spec, build=lambda _: SimpleNamespace(run=hang))
raise SystemExit(_entry.run_job("job", sys.argv[1:]))
"""


def test_asked_to_stop_it_says_so_and_ends_in_time_even_if_it_hangs(bench: Bench) -> None:
    bench.order({})
    order, store = bench.store.url(bench.keys().order), bench.store.spec.url
    driver = subprocess.Popen(
        [sys.executable, "-c", HANGS, "--order", order, "--store", store],
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
        stdout=subprocess.PIPE,
    )
    bench.drivers.append(driver)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"UP\n"
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 143
    failure = bench.failure()
    assert not failure.is_final
    assert failure.error["what"] == "was asked to stop (SIGTERM)"
    assert bench.progress().notes == ("was asked to stop (SIGTERM)",)
