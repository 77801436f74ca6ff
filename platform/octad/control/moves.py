"""The only place where states change: each move is checked, and leaves one event row."""

from __future__ import annotations

from sqlalchemy.orm import Session

from octad.control.tables import Attempt, Event, Run, Stage
from octad.spec.states import ATTEMPT_MOVES, MOVES, AttemptState, StageState, run_state

_GOING = {StageState.STARTING, StageState.RUNNING}
_PENDING = {StageState.QUEUED, StageState.RECOVERING}


class IllegalMoveError(AssertionError):
    """A bug of ours: the table of moves does not hold this one."""


def move_stage(
    session: Session, stage: Stage, to: StageState, reason: str = "", *, now_ms: int
) -> None:
    """Move a stage, and its run with it; standing still only sets the reason."""
    if stage.state is to:
        stage.reason = reason
        return
    if to not in MOVES[stage.state]:
        raise IllegalMoveError(f"{stage.run.id}/{stage.name}: {stage.state} -> {to}")
    _note(session, stage.run.id, stage.state, to, reason, now_ms, stage=stage.name)
    stage.state = to
    stage.reason = reason
    stage.ended_at_ms = now_ms if to.is_terminal else None
    stage.run.is_shipped = False
    if to is StageState.FAILED:
        _give_up_siblings(session, stage, now_ms)
    settle_run(session, stage.run, now_ms=now_ms)


def move_attempt(
    session: Session, attempt: Attempt, to: AttemptState, reason: str = "", *, now_ms: int
) -> None:
    """Move an attempt; standing still only sets the reason."""
    if attempt.state is to:
        attempt.reason = reason
        return
    if to not in ATTEMPT_MOVES[attempt.state]:
        raise IllegalMoveError(f"{attempt.submission_id}: {attempt.state} -> {to}")
    stage = attempt.stage
    _note(
        session,
        stage.run.id,
        attempt.state,
        to,
        reason,
        now_ms,
        stage=stage.name,
        attempt=attempt.number,
    )
    attempt.state = to
    attempt.reason = reason
    if to is AttemptState.SUBMITTED:
        attempt.submitted_at_ms = now_ms
    if to is AttemptState.RUNNING:
        attempt.started_at_ms = now_ms
        attempt.submitted_at_ms = attempt.submitted_at_ms or now_ms
    if to.is_terminal:
        attempt.ended_at_ms = now_ms


def settle_run(session: Session, run: Run, *, now_ms: int) -> None:
    """Derive a run's state from its stages."""
    state = run_state([stage.state for stage in run.stages])
    if state is run.state:
        return
    _note(session, run.id, run.state, state, "", now_ms)
    run.state = state
    run.ended_at_ms = now_ms if state.is_terminal else None
    run.is_shipped = False


def _give_up_siblings(session: Session, failed: Stage, now_ms: int) -> None:
    """A run with a failed stage starts nothing more; what runs may end."""
    for other in failed.run.stages:
        if other is not failed and other.state in _PENDING:
            move_stage(
                session,
                other,
                StageState.CANCELLED,
                f"stage {failed.name} failed",
                now_ms=now_ms,
            )


def has_failed(run: Run) -> bool:
    """Whether nothing more of it is to be started."""
    return any(stage.state is StageState.FAILED for stage in run.stages)


def is_going(stage: Stage) -> bool:
    """Whether an attempt of it is on its way."""
    return stage.state in _GOING


def _note(  # noqa: PLR0913  one row has this many columns
    session: Session,
    run: str,
    before: str,
    after: str,
    reason: str,
    now_ms: int,
    *,
    stage: str = "",
    attempt: int | None = None,
) -> None:
    session.add(
        Event(
            at_ms=now_ms,
            run=run,
            stage=stage,
            attempt=attempt,
            before=str(before),
            after=str(after),
            reason=reason,
        )
    )
