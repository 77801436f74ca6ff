"""Which of many workers' errors explains the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octad.errors import ConfigError, StageError
from octad.spec.keys import StageKeys
from octad.spec.stages import StoreSpec
from octad.storage.objects import ObjectStore
from octad.train import group
from octad.train.group import reason
from octad.train.stage import on_workers
from octad.train.watchdog import teller


class WorkerHealthCheckFailedError(Exception):
    """Named as Ray names it."""


def test_what_a_worker_raised_on_purpose_comes_out_as_it_was() -> None:
    own = ConfigError("no", where="model.vocab", hint="less")
    found = reason({0: RuntimeError("Connection closed by peer"), 3: own})
    assert found is own


def test_a_cause_counts_too() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = own = ConfigError("no")
    assert reason({1: outer}) is own


def test_an_outcome_that_a_worker_states_would_come_again() -> None:
    found = reason({1: StageError("step 7: loss nan")})
    assert found.is_final


def test_a_dead_worker_is_named_before_those_who_missed_it() -> None:
    failures = {0: RuntimeError("Connection closed by peer"), 2: WorkerHealthCheckFailedError("x")}
    found = reason(failures)
    assert isinstance(found, StageError)
    assert not found.is_final
    assert "rank 2 died" in found.what


def test_a_lost_connection_is_no_bug() -> None:
    found = reason({1: RuntimeError("[gloo] Connection reset by peer [10.0.0.1]:1")})
    assert "rank 1 lost its connection" in found.what


def test_anything_else_names_rank_and_error() -> None:
    assert "rank 4 failed: ValueError: odd" in reason({4: ValueError("odd")}).what


def test_a_step_that_hung_explains_why_workers_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **_options: Any) -> None:
        raise StageError("the worker of rank 0 died")

    monkeypatch.setattr(group, "run_group", dies)
    store = ObjectStore(StoreSpec(url=tmp_path.as_uri()))
    stage = SimpleNamespace(name="pretrain", cards=2)
    order = SimpleNamespace(run="run", attempt=3, stage=stage)
    context: Any = SimpleNamespace(order=order, store=store)
    with pytest.raises(StageError, match="rank 0 died"):
        on_workers(context, "a:b", {})
    keys = StageKeys("run", "pretrain").attempt(3)
    teller(store, keys, 1, None)("no step since step 4 for 300 s on rank 1", "stacks")
    with pytest.raises(StageError, match="no step since step 4") as caught:
        on_workers(context, "a:b", {})
    assert not caught.value.is_final
