"""Judgements on attempts, without any I/O."""

from __future__ import annotations

from typing import Any

import pytest

from octad.control.decide import (
    LEAVE_S,
    MAX_LOSSES,
    TEARDOWN_S,
    UNKNOWN_GRACE_S,
    AttemptFacts,
    Sight,
    StageFacts,
    Verdict,
    advance,
    after_end,
    judge,
    leftover,
)
from octad.ports.clusters import JobStatus
from octad.spec.stages import AttemptFailure, AttemptResult
from octad.spec.states import AttemptState, StageState

A, S = AttemptState, StageState
NOW_S = 1000.0
RESULT = AttemptResult(attempt=1, artefacts=())
FINAL = AttemptFailure(attempt=1, is_final=True, error={"what": "no text", "where": "data"})


def known(state: Any, since_s: float = 0.0, message: str = "") -> Sight:
    return Sight("known", JobStatus(state, message), since_s=since_s)


@pytest.mark.parametrize(
    ("state", "changed", "wanted"),
    [
        (A.SUBMITTED, {"result": RESULT, "sight": known("FAILED")}, A.SUCCEEDED),
        (A.SUBMITTED, {"result": RESULT, "sight": Sight("silent")}, A.SUCCEEDED),
        (A.INTENDED, {"result": RESULT}, A.SUCCEEDED),
        (A.SUBMITTED, {"sight": known("PENDING")}, A.SUBMITTED),
        (A.SUBMITTED, {"sight": known("PENDING"), "has_signs": True}, A.RUNNING),
        (A.SUBMITTED, {"sight": known("RUNNING")}, A.RUNNING),
        (A.RUNNING, {"sight": known("FAILED", NOW_S - 0.5)}, A.RUNNING),
        (A.RUNNING, {"sight": known("FAILED", NOW_S - 1.5)}, A.FAILED),
        (A.RUNNING, {"sight": known("SUCCEEDED", NOW_S - 1.5)}, A.FAILED),
        (A.RUNNING, {"sight": known("STOPPED", NOW_S - 1.5)}, A.FAILED),
        (A.RUNNING, {"sight": Sight("silent", since_s=0)}, A.RUNNING),
        (A.RUNNING, {"sight": Sight("unknown", since_s=NOW_S - 1)}, A.RUNNING),
        (A.RUNNING, {"sight": Sight("unknown", since_s=NOW_S - UNKNOWN_GRACE_S)}, A.LOST),
        (A.RUNNING, {"sight": Sight("gone", since_s=0)}, A.LOST),
        (A.INTENDED, {"sight": Sight("unknown", since_s=0)}, A.INTENDED),
        (A.INTENDED, {"sight": Sight("gone", since_s=0)}, A.LOST),
        (A.INTENDED, {"has_signs": True}, A.RUNNING),
        (A.SUBMITTED, {"sight": Sight("foreign", text="not ours")}, A.FAILED),
        (A.RUNNING, {"failure": FINAL, "failure_since_s": NOW_S - 1, "sight": known("RUNNING")}, A.RUNNING),
        (A.RUNNING, {"failure": FINAL, "failure_since_s": NOW_S - 1, "sight": known("FAILED", NOW_S)}, A.FAILED),
        (A.RUNNING, {"failure": FINAL, "failure_since_s": NOW_S - LEAVE_S - 1, "sight": known("RUNNING")}, A.FAILED),
    ],
)  # fmt: skip
def test_judge(state: AttemptState, changed: dict[str, Any], wanted: AttemptState) -> None:
    verdict = judge(AttemptFacts(state=state, cluster="alpha", **changed), NOW_S)
    assert verdict.state is wanted


def test_an_attempts_own_word_is_the_reason_and_may_be_final() -> None:
    facts = AttemptFacts(A.RUNNING, "alpha", failure=FINAL, sight=known("FAILED", NOW_S))
    assert judge(facts, NOW_S) == Verdict(A.FAILED, "data: no text", is_final=True)


def test_rays_word_is_told_in_one_line() -> None:
    facts = AttemptFacts(A.RUNNING, "alpha", sight=known("FAILED", 0, "a\n  traceback\n" * 90))
    reason = judge(facts, NOW_S).reason
    assert "\n" not in reason
    assert len(reason) < 600


@pytest.mark.parametrize(
    ("state", "needs", "failed", "now_ms", "wanted"),
    [
        (S.WAITING, {}, False, 0, S.QUEUED),
        (S.WAITING, {"a": S.SUCCEEDED}, False, 0, S.QUEUED),
        (S.WAITING, {"a": S.RUNNING}, False, 0, S.WAITING),
        (S.WAITING, {"a": S.SUCCEEDED}, True, 0, S.WAITING),
        (S.RECOVERING, {}, False, 99, S.RECOVERING),
        (S.RECOVERING, {}, False, 100, S.QUEUED),
        (S.RUNNING, {}, False, 100, S.RUNNING),
    ],
)
def test_advance(
    state: StageState, needs: dict[str, StageState], failed: bool, now_ms: int, wanted: StageState
) -> None:
    facts = StageFacts(state, needs, has_run_failed=failed, reason="", not_before_ms=100)
    assert advance(facts, now_ms)[0] is wanted


def test_retries_are_spent_by_failures_and_not_by_lost_clusters() -> None:
    failed, lost = Verdict(A.FAILED, "why"), Verdict(A.LOST, "head gone")

    def after(verdict: Verdict, failures: int, losses: int, *, has_run_failed: bool = False) -> Any:
        return after_end(
            verdict,
            number=3,
            failures=failures,
            losses=losses,
            retries=2,
            has_run_failed=has_run_failed,
            now_ms=1000,
        )

    assert after(failed, 1, 0).not_before_ms == 1000
    assert after(failed, 2, 0).not_before_ms == 2000
    assert after(failed, 3, 0).state is S.FAILED
    assert after(lost, 2, 5).state is S.RECOVERING
    assert after(lost, 2, 50).state is S.FAILED
    assert after(lost, 0, MAX_LOSSES).not_before_ms <= 1000 + 60_000
    assert after(Verdict(A.FAILED, "x", is_final=True), 1, 0).state is S.FAILED
    assert after(lost, 0, 1, has_run_failed=True).state is S.CANCELLED
    assert after(failed, 3, 0, has_run_failed=True).state is S.FAILED


@pytest.mark.parametrize(
    ("state", "sight", "ended_s", "watched_s", "wanted"),
    [
        (A.SUCCEEDED, known("RUNNING"), 1, 1, "look"),
        (A.SUCCEEDED, known("RUNNING"), TEARDOWN_S, 1, "stop"),
        (A.SUCCEEDED, known("SUCCEEDED"), 1, 1, "over"),
        (A.CANCELLED, known("RUNNING"), 0, 0, "stop"),
        (A.CANCELLED, known("STOPPED"), 0, 0, "over"),
        (A.CANCELLED, Sight("unknown"), 99, 1, "look"),
        (A.CANCELLED, Sight("unknown"), 1, 99, "look"),
        (A.CANCELLED, Sight("unknown"), 99, 99, "over"),
        (A.CANCELLED, Sight("silent"), 999, 999, "look"),
        (A.CANCELLED, Sight("gone"), 0, 0, "over"),
        (A.FAILED, Sight("foreign"), 0, 0, "over"),
        (A.CANCELLED, None, 999, 999, "look"),
    ],
)
def test_leftover(
    state: AttemptState, sight: Sight | None, ended_s: float, watched_s: float, wanted: str
) -> None:
    assert leftover(state, sight, ended_for_s=ended_s, watched_for_s=watched_s) == wanted
