"""Moves every run on: load rows, decide with pure functions, act, write back.

Level-triggered: each tick looks at everything that is open, so nothing depends on a message that
could be lost. Writes are guarded by the row's version: what was decided on an older row is dropped,
and decided anew at the next tick. No network call is made inside a transaction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from octad.control import decide, moves
from octad.control.clock import Clock, pause_s
from octad.control.crashpoints import crashpoint
from octad.control.database import Database
from octad.control.decide import AttemptFacts, StageFacts, Verdict
from octad.control.dispatch import Dispatcher, Parcel, Receipt
from octad.control.lanes import Lanes
from octad.control.leftovers import Leftovers
from octad.control.rows import load_attempts, load_runs
from octad.control.tables import Attempt, Run, Stage
from octad.control.waiting import WaitingStages
from octad.control.watch import Clusters, Outcome, Watch, job_mark
from octad.errors import OctadError, StorageError, SurroundingsError
from octad.scheduler.decisions import Start
from octad.scheduler.snapshot import Cluster
from octad.spec.artefacts import Artefact
from octad.spec.keys import StageKeys
from octad.spec.names import submission_id
from octad.spec.stages import AttemptOrder, AttemptResult, StoreSpec
from octad.spec.states import AttemptState, RunState, StageState

log = logging.getLogger(__name__)

TICK_S = 0.25
# How long a parcel that could not be sent waits for the next try.
_HELD_S = 1.0
_HELD_MOST_S = 15.0
_MOST_PASSES = 8


@dataclass
class Delay:
    """Of a parcel that could not be sent: how often it was tried, and when it is tried again."""

    tries: int = 0
    until_s: float = 0.0


@dataclass
class Outbox:
    """What lanes hand back to the loop."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    receipts: dict[int, Receipt] = field(default_factory=dict)

    def put(self, attempt_id: int, receipt: Receipt) -> None:
        """From a lane."""
        with self.lock:
            self.receipts[attempt_id] = receipt

    def take(self) -> dict[int, Receipt]:
        """By the loop."""
        with self.lock:
            taken, self.receipts = self.receipts, {}
            return taken


class Reconciler:
    """One loop for all runs.

    Args:
        database: Rows.
        store_spec: For the orders of attempts.
        clusters: The fleet.
        lanes: Where slow calls run.
        watch: Looks at attempts.
        dispatcher: Sends them.
        leftovers: Clears up after them.
        clock: Time.
        control_id: Marks our jobs.
    """

    def __init__(  # noqa: PLR0913  it is where everything meets
        self,
        database: Database,
        store_spec: StoreSpec,
        clusters: Clusters,
        *,
        lanes: Lanes,
        watch: Watch,
        dispatcher: Dispatcher,
        leftovers: Leftovers,
        clock: Clock,
        control_id: str,
    ) -> None:
        self._database = database
        self._store_spec = store_spec
        self._clusters = clusters
        self._lanes = lanes
        self._watch = watch
        self._dispatcher = dispatcher
        self._leftovers = leftovers
        self._clock = clock
        self._control_id = control_id
        self._outbox = Outbox()
        self.waiting = WaitingStages(database, clusters, clock)
        self._held: dict[int, Delay] = {}

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        """Tick until told to stop; `wake` brings the next tick forward."""
        while not stop.is_set():
            wake.clear()
            try:
                self.tick()
            except OctadError as error:
                log.warning("this tick was cut short: %s", error)
            except Exception:
                log.exception("this tick failed")
            wake.wait(TICK_S)

    def tick(self) -> None:
        """Look at everything that is open, and move on what can be moved."""
        for _ in range(_MOST_PASSES):
            if not self._one_pass():
                break
        self._leftovers.tick()

    def _one_pass(self) -> bool:
        """One round; whether anything changed, so that another may find more to do."""
        changed = self._record_receipts()
        stages = self._open_stages()
        for move in (self._judge, self._advance):
            if self._each(stages, move):
                changed = True
                stages = self._open_stages()
        changed |= self._place([s for s in stages if s.state is StageState.QUEUED])
        return self._send() or changed

    def _each(self, stages: Sequence[Stage], move: Callable[[Stage], bool]) -> bool:
        """Give every stage its turn; one that goes wrong does not keep the others."""
        changed = False
        for stage in stages:
            try:
                changed |= move(stage)
            except SurroundingsError:
                raise  # the database: it is everybody's
            except Exception as error:
                reason = f"a bug in octad: {type(error).__name__}: {error}"
                if reason != stage.reason:
                    log.exception("%s/%s cannot be moved on", stage.run.id, stage.name)
                self._say({stage: reason})
        return changed

    # --- what has become of attempts --------------------------------------------------------

    def _judge(self, stage: Stage) -> bool:
        attempt = stage.attempts[-1] if stage.attempts else None
        if attempt is None or attempt.state.is_terminal or not moves.is_going(stage):
            return False
        try:
            seen = self._watch.outcome(
                attempt.id, StageKeys(stage.run.id, stage.name), attempt.number
            )
        except StorageError as error:
            return self._say({stage: f"the store does not answer: {error}"})
        if attempt.state is AttemptState.INTENDED:
            self._watch.note_standing(attempt.id, attempt.cluster)
        else:
            self._watch.look(
                attempt.id, attempt.cluster, attempt.submission_id, self._mark(attempt)
            )
        verdict = decide.judge(self._facts(attempt, seen), self._clock.s())
        return self._record(stage, attempt, verdict, seen)

    def _facts(self, attempt: Attempt, seen: Outcome) -> AttemptFacts:
        return AttemptFacts(
            state=attempt.state,
            cluster=attempt.cluster,
            result=seen.result,
            failure=seen.failure,
            has_signs=seen.has_claimed or seen.progress is not None,
            sight=self._watch.sight(attempt.id),
            failure_since_s=self._watch.failed_since_s(attempt.id),
        )

    def _record(self, stage: Stage, attempt: Attempt, verdict: Verdict, seen: Outcome) -> bool:
        progress = seen.progress.plain() if seen.progress is not None else None
        reason = verdict.reason
        if attempt.state is AttemptState.INTENDED and verdict.state is AttemptState.INTENDED:
            reason = reason or stage.reason  # the last try to send it said why it waits
        news = verdict.state is not attempt.state
        if not news and reason == stage.reason and progress == stage.progress:
            return False

        def change(session: Session, row: Attempt) -> None:
            now_ms = self._clock.ms()
            if progress is not None:
                row.stage.progress = progress
                if seen.progress is not None and seen.progress.first_step_at_ms is not None:
                    row.first_step_at_ms = row.first_step_at_ms or seen.progress.first_step_at_ms
            if not news:
                row.stage.reason = reason
                return
            moves.move_attempt(session, row, verdict.state, verdict.reason, now_ms=now_ms)
            self._move_stage(session, row, verdict, seen.result, now_ms)

        if verdict.state is AttemptState.SUCCEEDED:
            crashpoint("success.before_record")
        done = self._write(attempt, change)
        if verdict.state is AttemptState.SUCCEEDED:
            crashpoint("success.after_record")
        return done and news

    def _move_stage(
        self,
        session: Session,
        attempt: Attempt,
        verdict: Verdict,
        result: AttemptResult | None,
        now_ms: int,
    ) -> None:
        stage = attempt.stage
        if verdict.state is AttemptState.SUCCEEDED:
            assert result is not None
            stage.result = result.plain()
            moves.move_stage(session, stage, StageState.SUCCEEDED, now_ms=now_ms)
        elif verdict.state is AttemptState.RUNNING:
            moves.move_stage(session, stage, StageState.RUNNING, verdict.reason, now_ms=now_ms)
        elif verdict.state in {AttemptState.FAILED, AttemptState.LOST}:
            stage.failures += verdict.state is AttemptState.FAILED
            stage.losses += verdict.state is AttemptState.LOST
            after = decide.after_end(
                verdict,
                number=attempt.number,
                failures=stage.failures,
                losses=stage.losses,
                retries=stage.parsed().retries,
                has_run_failed=moves.has_failed(stage.run),
                now_ms=now_ms,
            )
            stage.not_before_ms = after.not_before_ms
            moves.move_stage(session, stage, after.state, after.reason, now_ms=now_ms)
        else:
            stage.reason = verdict.reason

    # --- what can go on ---------------------------------------------------------------------

    def _advance(self, stage: Stage) -> bool:
        if stage.state not in {StageState.WAITING, StageState.RECOVERING}:
            return False
        run = stage.run
        states = {s.name: s.state for s in run.stages}
        sources = dict.fromkeys(need.partition(".")[0] for need in stage.needs.values())
        facts = StageFacts(
            state=stage.state,
            needs={name: states[name] for name in sources},
            has_run_failed=moves.has_failed(run),
            reason=stage.reason,
            not_before_ms=stage.not_before_ms,
        )
        now_ms = self._clock.ms()
        to, reason = decide.advance(facts, now_ms)
        if to is stage.state:
            return self._say({stage: reason})
        with self._database.write() as session:
            row = session.get(Stage, stage.id)
            if row is None or row.version != stage.version:
                return False
            if to is StageState.QUEUED and row.state is StageState.WAITING:
                row.ready_at_ms = now_ms
            moves.move_stage(session, row, to, reason, now_ms=now_ms)
        return True

    def _place(self, queued: Sequence[Stage]) -> bool:
        """Start what the scheduler says."""
        if not queued:
            return False
        by_id = {stage.id: stage for stage in queued}
        ordered = sorted(queued, key=lambda s: (s.ready_at_ms or 0, s.run_seq, s.position))
        decided = self.waiting.decide(ordered)
        changed = False
        for start in decided.starts:
            changed |= self._intend(by_id[start.key], start)
        return self._say({by_id[wait.key]: wait.reason for wait in decided.waits}) or changed

    def _intend(self, stage: Stage, start: Start) -> bool:
        """Commit the attempt before anything is sent."""
        crashpoint("dispatch.before_intent")
        now_ms = self._clock.ms()
        with self._database.write() as session:
            row = session.get(Stage, stage.id)
            if row is None or row.version != stage.version:
                return False
            number = max((a.number for a in row.attempts), default=0) + 1
            # Names of two runs may run together into one id: such a number is passed over.
            while _is_taken(session, submission_id(row.run.id, row.name, number)):
                number += 1
            row.attempts.append(
                Attempt(
                    number=number,
                    state=AttemptState.INTENDED,
                    cluster=start.cluster,
                    cards=start.cards,
                    submission_id=submission_id(row.run.id, row.name, number),
                    package=row.run.package,
                    since=row.since,
                    intended_at_ms=now_ms,
                )
            )
            moves.move_stage(session, row, StageState.STARTING, now_ms=now_ms)
            row.progress = None
        crashpoint("dispatch.after_intent")
        return True

    def rooms(self) -> list[Cluster]:
        """The fleet with what is free, by our books and by Ray's report."""
        return self.waiting.clusters()

    # --- sending ----------------------------------------------------------------------------

    def _send(self) -> bool:
        with self._database.read() as session:
            intended = load_attempts(session, [AttemptState.INTENDED])
        for attempt in intended:
            held = self._held.get(attempt.id)
            if held is not None and self._clock.s() < held.until_s:
                continue
            if self._watch.standing(attempt.cluster) is not None:
                continue
            parcel = self._parcel(attempt)
            self._lanes.run(attempt.cluster, ("job", attempt.id), self._work(parcel))
        return self._record_receipts()

    def _work(self, parcel: Parcel) -> Callable[[], None]:
        def work() -> None:
            try:
                receipt = self._dispatcher.send(parcel)
            except Exception as error:
                log.exception("%s cannot be sent", parcel.submission_id)
                receipt = Receipt("held", f"a bug in octad: {type(error).__name__}: {error}")
            self._outbox.put(parcel.attempt_id, receipt)

        return work

    def _parcel(self, attempt: Attempt) -> Parcel:
        stage, run = attempt.stage, attempt.stage.run
        spec = stage.parsed().sized(attempt.cards)
        order = AttemptOrder(
            run=run.id,
            attempt=attempt.number,
            stage=spec,
            inputs=_inputs(spec.needs, {s.name: s for s in run.stages}),
            store=self._store_spec,
            seed=run.parsed().seed,
            cluster=attempt.cluster,
            since=attempt.since,
        )
        return Parcel(attempt.id, attempt.submission_id, attempt.package, order)

    def _record_receipts(self) -> bool:
        changed = False
        for attempt_id, receipt in self._outbox.take().items():
            changed |= self._record_receipt(attempt_id, receipt)
        return changed

    def _record_receipt(self, attempt_id: int, receipt: Receipt) -> bool:
        if receipt.kind == "held":
            held = self._held.setdefault(attempt_id, Delay())
            wait_s = pause_s(held.tries, _HELD_S, _HELD_MOST_S)
            held.tries, held.until_s = held.tries + 1, self._clock.s() + wait_s
        else:
            self._held.pop(attempt_id, None)
        now_ms = self._clock.ms()
        with self._database.write() as session:
            attempt = session.get(Attempt, attempt_id)
            # It may have been cancelled, or found running, while it was being sent.
            if attempt is None or attempt.state is not AttemptState.INTENDED:
                return False
            if receipt.kind == "sent":
                moves.move_attempt(
                    session, attempt, AttemptState.SUBMITTED, receipt.text, now_ms=now_ms
                )
                attempt.stage.reason = ""
            elif receipt.kind == "refused":
                verdict = Verdict(AttemptState.FAILED, receipt.text, is_final=True)
                moves.move_attempt(
                    session, attempt, AttemptState.FAILED, receipt.text, now_ms=now_ms
                )
                self._move_stage(session, attempt, verdict, None, now_ms)
            else:
                attempt.stage.reason = receipt.text
                return False
        if receipt.kind == "sent":
            self._watch.refresh(attempt_id)
            crashpoint("dispatch.after_record")
        return True

    def is_intended(self, attempt_id: int) -> bool:
        """Whether an attempt is still to be sent."""
        with self._database.read() as session:
            state = session.scalar(select(Attempt.state).where(Attempt.id == attempt_id))
            return state is AttemptState.INTENDED

    # --- rows -------------------------------------------------------------------------------

    def _open_stages(self) -> list[Stage]:
        is_open = Run.state.in_([RunState.QUEUED, RunState.RUNNING])
        with self._database.read() as session:
            runs = load_runs(session, is_open, has_spec=False)
        return [stage for run in runs for stage in run.stages]

    def _say(self, reasons: Mapping[Stage, str]) -> bool:
        """Tell why stages stand where they stand. Never counts as a change."""
        news = {stage: reason for stage, reason in reasons.items() if stage.reason != reason}
        if news:
            with self._database.write() as session:
                for stage, reason in news.items():
                    session.execute(
                        update(Stage)
                        .where(Stage.id == stage.id, Stage.version == stage.version)
                        .values(reason=reason, version=stage.version + 1)
                    )
        return False

    def _write(self, seen: Attempt, change: Callable[[Session, Attempt], None]) -> bool:
        with self._database.write() as session:
            row = session.get(Attempt, seen.id)
            if (
                row is None
                or row.version != seen.version
                or row.stage.version != seen.stage.version
            ):
                return False
            change(session, row)
        return True

    def _mark(self, attempt: Attempt) -> dict[str, str]:
        stage = attempt.stage
        return job_mark(self._control_id, stage.run.id, stage.name, attempt.number)


def _is_taken(session: Session, job: str) -> bool:
    return session.scalar(select(Attempt.id).where(Attempt.submission_id == job)) is not None


def _inputs(needs: dict[str, str], stages: dict[str, Stage]) -> dict[str, Artefact]:
    """The artefacts behind a stage's needs; one that was not made is left out."""
    found: dict[str, Artefact] = {}
    for key, need in needs.items():
        source, _, name = need.partition(".")
        result = AttemptResult.parse(stages[source].result or {})
        for artefact in result.artefacts:
            if artefact.name == name:
                found[key] = artefact
    return found
