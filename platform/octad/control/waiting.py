"""What waits for cards, laid before the scheduler, and its answer for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import lazyload, load_only

from octad.control.clock import Clock
from octad.control.database import Database
from octad.control.placement import SETTLE_S, Held, cluster_of
from octad.control.rows import load_runs
from octad.control.shares import share_of, teams
from octad.control.tables import Attempt, Run, Stage
from octad.control.watch import Clusters
from octad.scheduler.decide import decide
from octad.scheduler.decisions import Decisions
from octad.scheduler.snapshot import Cluster, Snapshot, Waiting
from octad.spec.queues import QueuedStage, QueueView
from octad.spec.states import RunState, StageState


class WaitingStages:
    """Asks the scheduler.

    Args:
        database: Rows.
        clusters: The fleet.
        clock: Time.
    """

    def __init__(self, database: Database, clusters: Clusters, clock: Clock) -> None:
        self._database = database
        self._clusters = clusters
        self._clock = clock

    def clusters(self) -> list[Cluster]:
        """The fleet with what is free, by our books and by Ray's report."""
        return self._held()[0]

    def decide(self, queued: Sequence[Stage]) -> Decisions:
        """What of these stages starts where, and why the others wait.

        Nothing is asked to make room: attempts cannot yet be ended so that they go on elsewhere.
        """
        now_ms = self._clock.ms()
        clusters, known = self._held()
        waiting = tuple(_waiting(stage, now_ms) for stage in queued)
        return decide(Snapshot(tuple(clusters), waiting, known), now_ms / 1000)

    def view(self) -> QueueView:
        """Everything that waits for cards, and until when."""
        is_open = Run.state.in_([RunState.QUEUED, RunState.RUNNING])
        with self._database.read() as session:
            runs = load_runs(session, is_open, has_spec=False)
        stages = {s.id: s for run in runs for s in run.stages if s.state is StageState.QUEUED}
        decided = self.decide(list(stages.values()))
        shown = [_shown(stages[start.key], reason="starts now") for start in decided.starts]
        for wait in decided.waits:
            at_s = wait.starts_at_s
            shown.append(
                _shown(
                    stages[wait.key],
                    reason=wait.reason,
                    starts_at_ms=None if at_s is None else int(at_s * 1000),
                    unknown=wait.unknown,
                    helps=wait.helps,
                )
            )
        return QueueView(stages=tuple(shown))

    def _held(self) -> tuple[list[Cluster], tuple[Any, ...]]:
        held: dict[str, dict[str, Held]] = {}
        now_s = self._clock.ms() / 1000
        query = (
            select(Attempt, Stage.progress, Run)
            .join(Stage, Attempt.stage_id == Stage.id)
            .join(Run, Stage.run_seq == Run.seq)
            .where(Attempt.is_settled.is_(False), Attempt.is_over.is_(False))
            .options(lazyload(Attempt.stage), lazyload(Run.stages))
            .options(load_only(Run.id, raiseload=True))
        )
        with self._database.read() as session:
            for attempt, progress, run in session.execute(query):
                share = share_of(run)
                held.setdefault(attempt.cluster, {})[attempt.submission_id] = Held(
                    attempt.cards,
                    is_ending=attempt.state.is_terminal,
                    key=attempt.id,
                    team=share.team,
                    member=share.member,
                    priority=share.priority,
                    started_at_s=attempt.intended_at_ms / 1000,
                    ends_at_s=_ends_at_s(progress, now_s),
                )
            known = teams(session)
        return [
            cluster_of(spec, self._clusters.view(spec.name), held.get(spec.name, {}))
            for spec in self._clusters.specs
        ], known


def _ends_at_s(progress: dict[str, Any] | None, now_s: float) -> float | None:
    """When an attempt's steps will be done at its present pace; None for one that has no steps."""
    if not progress:
        return None
    left = progress.get("total", 0) - progress.get("step", 0)
    step_s = progress.get("metrics", {}).get("step_time_s")
    if left <= 0 or not isinstance(step_s, int | float):
        return None
    return now_s + float(left * step_s)


def _queued_at_ms(stage: Stage) -> int:
    return max([stage.ready_at_ms or 0, *(a.ended_at_ms or 0 for a in stage.attempts)])


def _waiting(stage: Stage, now_ms: int) -> Waiting:
    share = share_of(stage.run)
    return Waiting(
        key=stage.id,
        team=share.team,
        member=share.member,
        priority=share.priority,
        sizes=stage.sizes,
        # Its place in line is that of its first attempt: a lost one does not send it to the end.
        queued_at_s=(stage.ready_at_ms or 0) / 1000,
        cluster=stage.cluster,
        asks=tuple(sorted(stage.asks.items())),
        is_fresh=now_ms - _queued_at_ms(stage) < SETTLE_S * 1000,
    )


def _shown(
    stage: Stage,
    *,
    reason: str,
    starts_at_ms: int | None = None,
    unknown: str = "",
    helps: str = "",
) -> QueuedStage:
    share = share_of(stage.run)
    return QueuedStage(
        run=stage.run.id,
        stage=stage.name,
        cards=stage.sizes[0],
        team=share.team,
        priority=share.priority,
        queued_at_ms=_queued_at_ms(stage),
        starts_at_ms=starts_at_ms,
        unknown=unknown,
        reason=reason,
        helps=helps,
    )
