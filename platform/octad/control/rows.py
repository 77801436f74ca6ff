"""Whole runs out of the database: every row of a run, wired together, usable after the session."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, defer

from octad.control.tables import Attempt, Run, Stage
from octad.spec.states import AttemptState


def load_runs(session: Session, wanted: ColumnElement[bool], *, has_spec: bool = True) -> list[Run]:
    """The runs that a condition on `Run` picks, oldest first; without their `spec`, which is large,
    where nobody asks for it.
    """
    query = select(Run).where(wanted).order_by(Run.seq)
    if not has_spec:
        query = query.options(defer(Run.spec, raiseload=True))
    runs = list(session.scalars(query))
    for run in runs:
        for stage in run.stages:
            assert stage.run is run  # found in the session without a query, and kept
            for attempt in stage.attempts:
                assert attempt.stage is stage
    return runs


def load_attempts(
    session: Session, states: list[AttemptState], *, is_settled: bool | None = None
) -> list[Attempt]:
    """All attempts in some states, with their stages and runs."""
    query = select(Stage.run_seq).join(Attempt, Attempt.stage_id == Stage.id)
    condition: ColumnElement[bool] = Attempt.state.in_(states)
    if is_settled is not None:
        condition = condition & Attempt.is_settled.is_(is_settled)
    runs = load_runs(session, Run.seq.in_(query.where(condition)))
    return [
        attempt
        for run in runs
        for stage in run.stages
        for attempt in stage.attempts
        if attempt.state in states and is_settled in {None, attempt.is_settled}
    ]
