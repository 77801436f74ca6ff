"""What people ask of runs: submit, look, cancel, resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from octad.control import moves, views
from octad.control.clock import Clock
from octad.control.crashpoints import crashpoint
from octad.control.database import Database
from octad.control.placement import check_capacity
from octad.control.tables import Attempt, Run, Stage
from octad.errors import ConflictError, NotFoundError
from octad.scheduler.snapshot import Cluster
from octad.spec.frozen import nearest
from octad.spec.keys import blob_key
from octad.spec.names import new_run_id
from octad.spec.pipelines import split_need
from octad.spec.runs import RunPage, RunResume, RunSubmission, RunView
from octad.spec.stages import StageSpec
from octad.spec.states import AttemptState, RunState, StageState
from octad.storage import ObjectStore

MOST_RUNS = 500


class Runs:
    """The service behind the routes of runs.

    Args:
        database: Rows.
        store: Holds packages.
        rooms: What the fleet has, for refusing what it never could hold.
        wake: Brings the reconciler's next tick forward.
        clock: Time.
    """

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        *,
        rooms: Callable[[], Sequence[Cluster]],
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._database = database
        self._store = store
        self._rooms = rooms
        self._wake = wake
        self._clock = clock

    def submit(
        self, asked: RunSubmission, also: Callable[[Session, Run], None] | None = None
    ) -> tuple[RunView, bool]:
        """Accept a run, or find the one that the same call made before; whether it is new.

        Args:
            asked: The run.
            also: What is to be written in the transaction that makes it.

        Raises:
            ConflictError: The id exists, or the key was used for something else.
            CapacityError: No cluster could ever hold a stage of it.
            NotFoundError: Its code package was not uploaded.
        """
        digest = hashlib.sha256(
            json.dumps(asked.plain(), sort_keys=True, ensure_ascii=False).encode()
        ).hexdigest()
        known = self._known(asked, digest)
        if known is not None:
            return known, False
        check_capacity(asked.spec.stages, self._rooms())
        self._check_package(asked.package)
        self._check_unused(asked.run)
        crashpoint("submit.before_row")
        try:
            view = self._insert(asked, digest, also)
        except IntegrityError:
            # Another call with this id or key came first.
            known = self._known(asked, digest)
            if known is None:
                raise
            return known, False
        crashpoint("submit.after_row")
        self._wake()
        return view, True

    def page(self, *, limit: int, before: str | None, sweep: str | None) -> RunPage:
        """Runs, newest first.

        Raises:
            NotFoundError: `before` names no run.
        """
        limit = max(1, min(limit, MOST_RUNS))
        with self._database.read() as session:
            query = select(Run).order_by(Run.seq.desc()).limit(limit + 1)
            if before:
                query = query.where(Run.seq < find(session, before).seq)
            if sweep:
                query = query.where(Run.sweep == sweep)
            rows = list(session.scalars(query))
            shown = rows[:limit]
            return RunPage(
                runs=tuple(views.run_summary(run) for run in shown),
                next_before=shown[-1].id if len(rows) > limit else None,
            )

    def view(self, name: str) -> RunView:
        """One run, by any of its ids."""
        with self._database.read() as session:
            return views.run_view(find(session, name))

    def cancel(self, name: str) -> RunView:
        """End a run; one that has ended already stays as it is."""
        now_ms = self._clock.ms()
        with self._database.write() as session:
            run = find(session, name)
            if not run.state.is_terminal:
                for stage in run.stages:
                    _cancel_stage(session, stage, now_ms)
            view = views.run_view(run)
        crashpoint("cancel.after_mark")
        self._wake()
        return view

    def resume(self, name: str, asked: RunResume) -> RunView:
        """Go on with a run that failed or was cancelled, or do a part of one again.

        Raises:
            ConflictError: It still goes on, or there is nothing to do.
            NotFoundError: No such run, stage or package.
        """
        if asked.package is not None:
            self._check_package(asked.package)
        now_ms = self._clock.ms()
        with self._database.write() as session:
            run = find(session, name)
            _check_resumable(run, asked)
            again = _from_stage(run, asked.from_stage)
            if asked.package is not None:
                run.package = asked.package
            for stage in run.stages:
                _reopen(session, stage, is_anew=stage.name in again, now_ms=now_ms)
            moves.settle_run(session, run, now_ms=now_ms)
            view = views.run_view(run)
        self._wake()
        return view

    # --- submitting ---------------------------------------------------------------------------

    def _known(self, asked: RunSubmission, digest: str) -> RunView | None:
        with self._database.read() as session:
            by_key = session.scalar(select(Run).where(Run.idempotency_key == asked.idempotency_key))
            if by_key is not None:
                if by_key.body_digest == digest:
                    return views.run_view(by_key)
                raise ConflictError(
                    f"this idempotency key made run {by_key.id} ({by_key.state}) from another "
                    "submission",
                    hint="use a new key for a new run",
                )
            by_id = asked.run and session.scalar(select(Run).where(Run.id == asked.run))
            if by_id:
                raise ConflictError(
                    f"run {by_id.id} exists already; it is {by_id.state}",
                    where="run",
                    hint=f"look at it with `octad run {by_id.id}`, or choose another id",
                )
        return None

    def _check_package(self, digest: str) -> None:
        if self._store.size(blob_key(digest)) is None:
            raise NotFoundError(
                "the code package was not uploaded",
                where=f"package {digest[:12]}",
                hint=f"PUT /api/blobs/{digest} first",
            )

    def _check_unused(self, run: str | None) -> None:
        """A store may outlive the database that knew its runs."""
        if run and self._store.folders(f"runs/{run}/"):
            raise ConflictError(
                f"the store holds a run {run} that this control plane does not know",
                where=self._store.url(f"runs/{run}"),
                hint="choose another id",
            )

    def _insert(
        self,
        asked: RunSubmission,
        digest: str,
        also: Callable[[Session, Run], None] | None,
    ) -> RunView:
        spec = asked.spec
        now_ms = self._clock.ms()
        with self._database.write() as session:
            run = Run(
                id=asked.run or new_run_id(spec.pipeline),
                title=spec.title,
                pipeline=spec.pipeline,
                spec=spec.plain(),
                package=asked.package,
                sweep=asked.sweep,
                idempotency_key=asked.idempotency_key,
                body_digest=digest,
                state=RunState.QUEUED,
                created_at_ms=now_ms,
                stages=[
                    Stage(position=i, name=s.name, spec=s.plain(), state=StageState.WAITING)
                    for i, s in enumerate(spec.stages)
                ],
            )
            session.add(run)
            session.flush()
            if also is not None:
                also(session, run)
            return views.run_view(run)


# --- finding ------------------------------------------------------------------------------------


def find(session: Session, name: str) -> Run:
    """The run that any id names: its own, a job's, or one of the tracker's.

    Raises:
        NotFoundError: None does.
    """
    run = session.scalar(select(Run).where(or_(Run.id == name, Run.tracked_id == name)))
    if run is None:
        stage = session.scalar(
            select(Stage)
            .outerjoin(Attempt, Attempt.stage_id == Stage.id)
            .where(or_(Stage.tracked_id == name, Attempt.submission_id == name))
            .limit(1)
        )
        run = stage.run if stage is not None else None
    if run is None:
        recent = session.scalars(select(Run.id).order_by(Run.seq.desc()).limit(50))
        hint = nearest(name, recent).partition("; valid here")[0].partition("? valid")
        text = f"{hint[0]}?" if hint[1] else "list them with `octad runs`"
        raise NotFoundError(f"no run is called {name[:80]!r}", hint=text)
    return run


def find_stage(run: Run, name: str) -> Stage:
    """A stage of a run.

    Raises:
        NotFoundError: It has none of this name.
    """
    for stage in run.stages:
        if stage.name == name:
            return stage
    raise NotFoundError(
        f"run {run.id} has no stage {name[:80]!r}", hint=nearest(name, [s.name for s in run.stages])
    )


# --- cancelling and resuming --------------------------------------------------------------------


def _cancel_stage(session: Session, stage: Stage, now_ms: int) -> None:
    for attempt in stage.attempts:
        if not attempt.state.is_terminal:
            moves.move_attempt(session, attempt, AttemptState.CANCELLED, "cancelled", now_ms=now_ms)
    if not stage.state.is_terminal:
        moves.move_stage(session, stage, StageState.CANCELLED, "cancelled", now_ms=now_ms)


def _check_resumable(run: Run, asked: RunResume) -> None:
    if not run.state.is_terminal:
        raise ConflictError(
            f"run {run.id} is {run.state}", hint=f"cancel it first: octad cancel {run.id}"
        )
    if run.state is RunState.SUCCEEDED and asked.from_stage is None:
        raise ConflictError(
            f"run {run.id} has succeeded: there is nothing to go on with",
            hint="name a stage to do again: --from STAGE",
        )


def _from_stage(run: Run, name: str | None) -> set[str]:
    """A stage and all that need it, however far down."""
    if name is None:
        return set()
    again = {find_stage(run, name).name}
    # Stages are in an order in which each comes after what it needs.
    for stage in run.stages:
        if again & _sources(stage.parsed()):
            again.add(stage.name)
    return again


def _sources(spec: StageSpec) -> set[str]:
    return {split_need(need, f"{spec.name}.needs")[0] for need in spec.needs.values()}


def _reopen(session: Session, stage: Stage, *, is_anew: bool, now_ms: int) -> None:
    unfinished = stage.state in {StageState.FAILED, StageState.CANCELLED}
    if is_anew:
        # Checkpoints of earlier attempts no longer count, whoever still writes them.
        stage.since = max((a.number for a in stage.attempts), default=0) + 1
        stage.result = None
        stage.progress = None
        stage.shipped_step = -1
    if unfinished or (is_anew and stage.state is StageState.SUCCEEDED):
        stage.failures = stage.losses = stage.not_before_ms = 0
        stage.ready_at_ms = None
        moves.move_stage(session, stage, StageState.WAITING, "resumed", now_ms=now_ms)
