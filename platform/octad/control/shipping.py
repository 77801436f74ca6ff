"""Ships what jobs left in the store on to the tracker: in order, each thing once.

It runs beside everything else. While the tracker is away nothing waits for it: cursors lie in the
database, what is to be shipped lies in the store, and it catches up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy import select

from octad.control.clock import Clock, pause_s
from octad.control.database import Database
from octad.control.rows import load_runs
from octad.control.tables import Attempt, Run, ShippedCheckpoint, Stage
from octad.errors import OctadError
from octad.ports.registry import load
from octad.ports.trackers import Outcome, Tracker
from octad.spec.checkpoints import Manifest
from octad.spec.flat import flattened
from octad.spec.keys import StageKeys
from octad.spec.stages import AttemptResult, Epoch, MetricPoint, Position, StageSpec, TrackerSpec
from octad.spec.states import RunState, StageState
from octad.storage import ObjectStore
from octad.storage.lineage import epochs, positions
from octad.storage.objects import digest_of

log = logging.getLogger(__name__)

SHIP_EVERY_S = 1.0
_RETRY_MOST_S = 30.0
# The kind of stage whose final metrics are a run's own: what runs are compared by.
_COMPARED_BY = "validate"
_OUTCOMES: dict[str, Outcome] = {
    StageState.SUCCEEDED: "FINISHED",
    StageState.FAILED: "FAILED",
    StageState.CANCELLED: "KILLED",
}


@dataclass
class Late:
    """A run that could not be shipped: why, how often it was tried, and when it is tried again."""

    reason: str = ""
    tries: int = 0
    until_s: float = 0.0


class Shipper:
    """One thread that ships for all runs.

    Args:
        database: Cursors.
        store: What jobs left.
        spec: Which tracker.
        url: Where it is now; empty while it is not up.
        clock: Time.
    """

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        spec: TrackerSpec,
        *,
        url: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._database = database
        self._store = store
        self._spec = spec
        self._url = url
        self._clock = clock
        self._tracker: Tracker | None = None
        self._tracker_url = ""
        self._tagged: dict[int, tuple[str, ...]] = {}
        self._unusable = ""
        self._late: dict[int, Late] = {}

    @property
    def failure(self) -> str:
        """Why some run is not shipped yet; empty if nothing is in the way."""
        return self._unusable or next((late.reason for late in self._late.values()), "")

    @property
    def url(self) -> str:
        """Where the tracker is; empty while that is not known."""
        return self._url()

    def run(self, stop: threading.Event) -> None:
        """Ship until told to stop."""
        while not stop.is_set():
            try:
                self.tick()
            except OctadError as error:
                log.warning("shipping was cut short: %s", error)
            except Exception:
                log.exception("shipping failed")
            stop.wait(SHIP_EVERY_S)

    def tick(self) -> None:
        """Ship all there is, of all runs that are not wholly shipped; one that goes wrong does not
        keep the others.
        """
        open_runs = self._open_runs() if self._url() or self._spec.kind == "none" else []
        if not open_runs:
            return
        try:
            tracker = self._ready_tracker()
        except OctadError as error:
            self._unusable = str(error)
            return
        self._unusable = ""
        for run in open_runs:
            late = self._late.get(run.seq)
            if late is not None and self._clock.s() < late.until_s:
                continue
            try:
                _Shipment(self, run, tracker).ship()
            except OctadError as error:
                log.info("run %s is not shipped yet: %s", run.id, error)
                self._put_off(run, str(error))
            except Exception as error:
                log.exception("run %s cannot be shipped", run.id)
                self._put_off(run, f"a bug in octad: {type(error).__name__}: {error}")
            else:
                self._late.pop(run.seq, None)

    def _put_off(self, run: Run, reason: str) -> None:
        late = self._late.setdefault(run.seq, Late())
        wait_s = pause_s(late.tries, SHIP_EVERY_S, _RETRY_MOST_S)
        late.reason, late.tries, late.until_s = reason, late.tries + 1, self._clock.s() + wait_s

    def _ready_tracker(self) -> Tracker:
        url = self._url()
        if self._tracker is None or url != self._tracker_url:
            self._tracker = load("octad.trackers", self._spec.kind, "tracker.kind").build(url)
            self._tracker_url = url
        return self._tracker

    def _open_runs(self) -> list[Run]:
        """Those of which the tracker may have something to learn."""
        has_begun = Run.stages.any(Stage.attempts.any())
        is_new = Run.tracked_id.is_(None) | (Run.state != Run.shipped_state)
        with self._database.read() as session:
            return load_runs(session, Run.is_shipped.is_(False) & (is_new | has_begun))


class _Shipment:
    """One run's turn."""

    def __init__(self, shipper: Shipper, run: Run, tracker: Tracker) -> None:
        self._shipper = shipper
        self._database = shipper._database  # noqa: SLF001  one thing in two classes
        self._store = shipper._store  # noqa: SLF001
        self._tagged = shipper._tagged  # noqa: SLF001
        self._run = run
        self._tracker = tracker

    def ship(self) -> None:
        run = self._run
        parent = run.tracked_id
        if parent is None:
            parent = self._begin_run()
        for stage in run.stages:
            if stage.attempts and stage.attempts[-1].number >= stage.since:
                self._ship_stage(parent, stage)
        self._ship_outcome(parent)
        is_done = run.state.is_terminal and all(
            a.is_settled for s in run.stages for a in s.attempts
        )
        if is_done:
            with self._database.write() as session:
                row = session.get(Run, run.seq)
                if row is not None and row.state is run.state:
                    row.is_shipped = True
            for stage in run.stages:
                self._tagged.pop(stage.id, None)

    def _begin_run(self) -> str:
        run = self._run
        spec = run.parsed()
        tags = {"octad.pipeline": run.pipeline, "octad.sweep": run.sweep, "octad.id": run.id}
        parent = self._tracker.ensure_run(
            run.id, run.title, {k: v for k, v in tags.items() if v}, spec.config or spec.plain()
        )
        url = self._tracker.page_url(parent)
        with self._database.write() as session:
            row = session.get(Run, run.seq)
            assert row is not None
            row.tracked_id, row.tracked_url = parent, url
        return parent

    def _ship_stage(self, parent: str, stage: Stage) -> None:
        tracked = self._ensure_stage(parent, stage)
        keys = StageKeys(self._run.id, stage.name)
        fences = epochs(self._store, keys)
        for attempt in stage.attempts:
            if attempt.number >= stage.since and not _is_drained(attempt, fences):
                self._ship_metrics(tracked, stage, attempt, keys, fences)
        self._ship_checkpoints(tracked, stage, keys)
        if stage.state == stage.shipped_state:
            return
        if stage.state is StageState.SUCCEEDED and stage.result:
            metrics = AttemptResult.parse(stage.result).metrics
            self._tracker.log_final(tracked, metrics)
            if stage.parsed().kind == _COMPARED_BY:
                self._tracker.log_final(parent, self._compared(stage, metrics))
        self._tracker.set_outcome(tracked, _OUTCOMES.get(stage.state, "RUNNING"))
        with self._database.write() as session:
            row = session.get(Stage, stage.id)
            assert row is not None
            row.shipped_state = stage.state

    def _ensure_stage(self, parent: str, stage: Stage) -> str:
        """Its own run; a stage that is done anew gets a new one, beside the old."""
        jobs = tuple(a.submission_id for a in stage.attempts if a.number >= stage.since)
        if (
            stage.tracked_id is not None
            and stage.tracked_since == stage.since
            and self._tagged.get(stage.id) == jobs
        ):
            return stage.tracked_id
        spec = stage.parsed()
        name = stage.name if stage.since == 1 else f"{stage.name}@{stage.since}"
        tags = {
            "octad.run": self._run.id,
            "octad.kind": spec.kind,
            "octad.submissions": " ".join(jobs),
            "octad.cluster": stage.attempts[-1].cluster,
            "octad.cards": str(stage.attempts[-1].cards),
            # As the submissions: one for each attempt.
            "octad.attempt_cards": " ".join(
                str(a.cards) for a in stage.attempts if a.number >= stage.since
            ),
        }
        tracked = self._tracker.ensure_stage(parent, name, tags, _params(spec))
        with self._database.write() as session:
            row = session.get(Stage, stage.id)
            assert row is not None
            row.tracked_id, row.tracked_since = tracked, stage.since
        self._tagged[stage.id] = jobs
        return tracked

    def _ship_metrics(
        self,
        tracked: str,
        stage: Stage,
        attempt: Attempt,
        keys: StageKeys,
        fences: Sequence[Epoch],
    ) -> None:
        """Closed segments in order. A step that was shipped once is not shipped again: after a
        restart it is redone, and comes out the same.

        What is about to be sent is written down first. If this process dies before it knows the
        outcome, the same points are sent again, which the tracker takes as one, even if a newer
        attempt has passed them by meanwhile: its own would be a second point of the same step.
        """
        limit = _limit(attempt.number, fences)
        segment, shipped = attempt.next_segment, stage.shipped_step
        while (raw := self._store.find(keys.attempt(attempt.number).segment(segment))) is not None:
            fresh = [
                point
                for point in parsed_points(raw)
                if point.step > shipped
                and (limit is None or point.step <= max(limit, attempt.sent_step))
            ]
            if fresh:
                newest = max(point.step for point in fresh)
                self._intend(attempt, newest)
                self._tracker.log_points(tracked, fresh)
                shipped = newest
            segment += 1
            self._move_cursor(stage, attempt, segment, shipped)
        stage.shipped_step = shipped

    def _intend(self, attempt: Attempt, step: int) -> None:
        with self._database.write() as session:
            row = session.get(Attempt, attempt.id)
            assert row is not None
            row.sent_step = attempt.sent_step = step

    def _move_cursor(self, stage: Stage, attempt: Attempt, segment: int, shipped: int) -> None:
        with self._database.write() as session:
            attempt_row, stage_row = session.get(Attempt, attempt.id), session.get(Stage, stage.id)
            assert attempt_row is not None
            assert stage_row is not None
            attempt_row.next_segment = segment
            if stage_row.since == stage.since:
                stage_row.shipped_step = shipped

    def _ship_checkpoints(self, tracked: str, stage: Stage, keys: StageKeys) -> None:
        with self._database.read() as session:
            query = select(ShippedCheckpoint.attempt, ShippedCheckpoint.step).where(
                ShippedCheckpoint.stage_id == stage.id
            )
            known = {(attempt, step) for attempt, step in session.execute(query)}
        for position in positions(self._store, keys, stage.since):
            if (position.attempt, position.step) not in known:
                self._ship_checkpoint(tracked, stage, keys, position)

    def _ship_checkpoint(
        self, tracked: str, stage: Stage, keys: StageKeys, position: Position
    ) -> None:
        attempt = keys.attempt(position.attempt)
        raw = self._store.find(attempt.manifest(position.step))
        if raw is None:
            return  # it made room for a newer one this moment
        tags = {
            "octad.run": self._run.id,
            "octad.stage": stage.name,
            "uri": self._store.url(attempt.checkpoint(position.step)),
            "step": str(position.step),
            "attempt": str(position.attempt),
            "digest": digest_of(raw),
            **_manifest_tags(raw),
        }
        name = f"{stage.name}-step-{position.step}"
        model = self._tracker.log_checkpoint(tracked, name, tags)
        with self._database.write() as session:
            session.merge(
                ShippedCheckpoint(
                    stage_id=stage.id,
                    attempt=position.attempt,
                    step=position.step,
                    tracked_id=model,
                )
            )

    def _ship_outcome(self, parent: str) -> None:
        run = self._run
        if run.state == run.shipped_state:
            return
        outcomes: dict[RunState, Outcome] = {
            RunState.SUCCEEDED: "FINISHED",
            RunState.FAILED: "FAILED",
            RunState.CANCELLED: "KILLED",
        }
        self._tracker.set_outcome(parent, outcomes.get(run.state, "RUNNING"))
        with self._database.write() as session:
            row = session.get(Run, run.seq)
            assert row is not None
            row.shipped_state = run.state

    def _compared(self, stage: Stage, metrics: dict[str, float]) -> dict[str, float]:
        """Names as they are where one stage validates, with the stage's in front where several."""
        several = sum(s.parsed().kind == _COMPARED_BY for s in self._run.stages) > 1
        return {f"{stage.name}.{k}" if several else k: v for k, v in metrics.items()}


def parsed_points(segment: bytes) -> list[MetricPoint]:
    """The points of a segment; a line that is none is passed over: it must not block the others."""
    points = []
    for line in segment.splitlines():
        try:
            points.append(MetricPoint.model_validate_json(line))
        except ValidationError:
            log.warning("a metric line cannot be read: %r", line[:200])
    return points


def _limit(attempt: int, fences: Sequence[Epoch]) -> int | None:
    """The last step of an attempt that counts, once a newer one has claimed its base."""
    bases = [f.base.step if f.base else -1 for f in fences if f.attempt > attempt]
    return min(bases) if bases else None


def _is_drained(attempt: Attempt, fences: Sequence[Epoch]) -> bool:
    """Nothing that counts can come any more from one whose base a newer one has passed by."""
    return attempt.is_settled and _limit(attempt.number, fences) == -1


def _params(spec: StageSpec) -> dict[str, str]:
    plain = {k: v for k, v in spec.as_asked().items() if k not in {"name", "settings"}}
    return flattened({**plain, **spec.settings})


def _manifest_tags(raw: bytes) -> dict[str, str]:
    try:
        return Manifest.model_validate_json(raw).tags
    except ValidationError:
        return {}
