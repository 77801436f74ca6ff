"""Which of many workers' errors explains the others."""

from __future__ import annotations

from octad.errors import ConfigError, StageError
from octad.train.group import reason


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
