"""What becomes of an attempt and of its stage. Pure: facts in, decision out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octad.ports.clusters import JobStatus
from octad.spec.stages import AttemptFailure, AttemptResult
from octad.spec.states import AttemptState, StageState

# A result may reach the store a moment after the job is seen to have ended.
LATE_RESULT_S = 1.0
# A job that a reachable cluster does not know may be one that is just being accepted.
UNKNOWN_GRACE_S = 5.0
# A driver that wrote error.json has this long to end by itself.
LEAVE_S = 10.0
# A driver that wrote its result may hold its cards this long while it ends.
TEARDOWN_S = 60.0
# Clusters that die with a stage again and again are not given it for ever.
MAX_LOSSES = 10
_MAX_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a cluster last said about one job.

    Attributes:
        kind: `known`, `unknown` (the cluster answers, and has no such job), `gone` (the cluster
            itself is known to be down), `silent` (no answer), `foreign` (somebody else's job has
            this id).
        job: If it is known.
        text: Of the error, for a person.
        since_s: Since when the cluster has said the same without a break, by a rising clock.
    """

    kind: Literal["known", "unknown", "gone", "silent", "foreign"]
    job: JobStatus | None = None
    text: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """All that a judgement of one attempt rests on.

    Attributes:
        result, failure: What it left in the store.
        has_signs: It claimed its epoch or wrote progress: it lives.
        sight: None while nobody has looked.
        failure_since_s: Since when `failure` is known.
    """

    state: AttemptState
    cluster: str
    result: AttemptResult | None = None
    failure: AttemptFailure | None = None
    has_signs: bool = False
    sight: Sight | None = None
    failure_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attempt is found to be, and why.

    Attributes:
        state: The state it should have.
        reason: For a person.
        is_final: For a failed one: another attempt would fail the same way.
    """

    state: AttemptState
    reason: str = ""
    is_final: bool = False


def judge(facts: AttemptFacts, now_s: float) -> Verdict:
    """What an attempt that has not ended is now.

    A result in the store is success, whatever the cluster says; a job that ended without one is
    failure; silence is neither.
    """
    if facts.result is not None:
        return Verdict(AttemptState.SUCCEEDED)
    if facts.failure is not None and _has_left(facts, now_s):
        return Verdict(AttemptState.FAILED, said(facts.failure), facts.failure.is_final)
    sight = facts.sight
    if sight is None:
        return Verdict(_alive(facts))
    age_s = now_s - sight.since_s
    if sight.job is not None:
        return _judge_known(facts, sight.job, age_s)
    return _judge_absent(facts, sight, age_s)


def _judge_absent(facts: AttemptFacts, sight: Sight, age_s: float) -> Verdict:
    """Of an attempt whose job the cluster does not show."""
    if sight.kind == "foreign":
        return Verdict(AttemptState.FAILED, sight.text, is_final=True)
    if sight.kind == "silent":
        return Verdict(
            _alive(facts), f"unreachable: cluster {facts.cluster} does not answer: {sight.text}"
        )
    if sight.kind == "unknown" and facts.state is AttemptState.INTENDED:
        return Verdict(AttemptState.INTENDED)  # it is still to be sent
    what = "does not know the job any more" if sight.kind == "unknown" else "went down"
    reason = f"cluster {facts.cluster} {what}"
    if age_s < UNKNOWN_GRACE_S:
        return Verdict(_alive(facts), reason)
    return Verdict(AttemptState.LOST, reason)


def _judge_known(facts: AttemptFacts, job: JobStatus, age_s: float) -> Verdict:
    if not job.is_terminal:
        is_running = facts.has_signs or job.state == "RUNNING"
        wanted = AttemptState.RUNNING if is_running else AttemptState.SUBMITTED
        return Verdict(_later(facts.state, wanted))
    if age_s < LATE_RESULT_S:
        return Verdict(_alive(facts), "its job has ended; looking for its result")
    reason = f"its job ended as {job.state} without a result"
    return Verdict(AttemptState.FAILED, reason + (f": {_line(job.message)}" if job.message else ""))


def _has_left(facts: AttemptFacts, now_s: float) -> bool:
    """Whether a driver that said it failed has also ended, or had time to."""
    sight = facts.sight
    has_ended = sight is not None and (
        sight.kind in {"unknown", "gone"} or (sight.job is not None and sight.job.is_terminal)
    )
    return has_ended or now_s - facts.failure_since_s > LEAVE_S


def _alive(facts: AttemptFacts) -> AttemptState:
    return _later(facts.state, AttemptState.RUNNING) if facts.has_signs else facts.state


def _later(state: AttemptState, wanted: AttemptState) -> AttemptState:
    order = [AttemptState.INTENDED, AttemptState.SUBMITTED, AttemptState.RUNNING]
    return max(state, wanted, key=order.index)


def said(failure: AttemptFailure) -> str:
    """An attempt's own word on why it failed, in one line."""
    error = failure.error
    where = f"{error['where']}: " if error.get("where") else ""
    hint = f"; {error['hint']}" if error.get("hint") else ""
    return _line(f"{where}{error.get('what', 'it failed')}{hint}")


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


# --- stages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageFacts:
    """All that a stage's next move rests on.

    Attributes:
        needs: States of the stages it takes from.
        has_run_failed: Another stage of its run failed.
    """

    state: StageState
    needs: Mapping[str, StageState]
    has_run_failed: bool
    reason: str
    not_before_ms: int


def advance(facts: StageFacts, now_ms: int) -> tuple[StageState, str]:
    """Where a stage that waits goes, and why it is there."""
    if facts.state is StageState.WAITING:
        if facts.has_run_failed:
            return facts.state, "its run has failed"
        open_needs = [n for n, state in facts.needs.items() if state is not StageState.SUCCEEDED]
        if open_needs:
            return facts.state, f"needs {', '.join(open_needs)}"
        return StageState.QUEUED, ""
    if facts.state is StageState.RECOVERING and now_ms >= facts.not_before_ms:
        return StageState.QUEUED, facts.reason
    return facts.state, facts.reason


@dataclass(frozen=True, slots=True)
class After:
    """What a stage does after its attempt failed or was lost."""

    state: StageState
    reason: str
    not_before_ms: int = 0


def after_end(  # noqa: PLR0913  all that the decision rests on
    verdict: Verdict,
    *,
    number: int,
    failures: int,
    losses: int,
    retries: int,
    has_run_failed: bool,
    now_ms: int,
) -> After:
    """Whether a stage tries again after an attempt that ended badly.

    Args:
        verdict: On the attempt.
        number: The attempt's.
        failures: Failed attempts of this life of the stage, this one counted.
        losses: Lost ones, likewise.
        retries: How often a failed attempt may be followed by another.
        has_run_failed: Another stage of its run failed.
        now_ms: The time.
    """
    what = "was lost" if verdict.state is AttemptState.LOST else "failed"
    told = f"attempt {number} {what}: {verdict.reason}"
    if verdict.is_final:
        return After(StageState.FAILED, told)
    if failures > retries:
        times = f"{failures} attempts failed, the last" if failures > 1 else "attempt"
        return After(StageState.FAILED, f"{times} {number}: {verdict.reason}")
    if losses > MAX_LOSSES:
        return After(StageState.FAILED, f"{losses} attempts were lost; {told}")
    if has_run_failed:
        return After(StageState.CANCELLED, f"{told}; it is not tried again: its run has failed")
    # The first new try is made at once: most failures are of a machine, and time is cards.
    wait_s = 0.0 if failures + losses <= 1 else min(2.0 ** (failures + losses - 2), _MAX_WAIT_S)
    return After(StageState.RECOVERING, told, now_ms + int(wait_s * 1000))


# --- what is left of an attempt that has ended --------------------------------------------------


def leftover(
    state: AttemptState, sight: Sight | None, *, ended_for_s: float, watched_for_s: float
) -> Literal["look", "stop", "over"]:
    """What to do about the job of an attempt that has ended.

    Args:
        state: How it ended.
        sight: What the cluster last said.
        ended_for_s: Since it ended.
        watched_for_s: Since this control plane began to look at it.
    """
    if sight is None or sight.kind == "silent":
        return "look"
    if sight.kind in {"foreign", "gone"}:
        return "over"
    if sight.kind == "unknown":
        # A submission that was sent before a crash may still be on its way.
        is_sure = min(ended_for_s, watched_for_s) > UNKNOWN_GRACE_S
        return "over" if is_sure else "look"
    assert sight.job is not None
    if sight.job.is_terminal:
        return "over"
    if state is AttemptState.SUCCEEDED and ended_for_s < TEARDOWN_S:
        return "look"
    return "stop"
