"""Clear up after attempts that have ended: their jobs hold no cards, and their logs are kept."""

from __future__ import annotations

import logging

from octad.control.clock import Clock
from octad.control.crashpoints import crashpoint
from octad.control.database import Database
from octad.control.decide import leftover
from octad.control.lanes import Lanes
from octad.control.rows import load_attempts
from octad.control.tables import Attempt
from octad.control.watch import Clusters, Watch, job_mark
from octad.errors import OctadError
from octad.spec.keys import StageKeys
from octad.spec.states import AttemptState
from octad.storage import ObjectStore

log = logging.getLogger(__name__)

# A log that cannot be had or kept is given up in the end.
_LOG_PATIENCE_S = 3600.0
_RETRY_S = 1.0


class Leftovers:
    """What is left to do for attempts that have ended; idempotent, and repeated until done."""

    def __init__(  # noqa: PLR0913
        self,
        database: Database,
        store: ObjectStore,
        clusters: Clusters,
        *,
        lanes: Lanes,
        watch: Watch,
        clock: Clock,
        control_id: str,
    ) -> None:
        self._database = database
        self._store = store
        self._clusters = clusters
        self._lanes = lanes
        self._watch = watch
        self._clock = clock
        self._control_id = control_id
        self._first_s: dict[int, float] = {}
        self._tried_s: dict[int, float] = {}

    def tick(self) -> None:
        """One round over all attempts that have ended and are not settled."""
        for attempt in self._open():
            if self._lanes.is_busy(("job", attempt.id)):
                continue  # it is being sent this moment: what is true now will not be
            self._first_s.setdefault(attempt.id, self._clock.s())
            if not attempt.is_over:
                self._clear(attempt)
            elif not attempt.is_log_kept:
                self._later(attempt, self._keep_log)

    def _clear(self, attempt: Attempt) -> None:
        stage = attempt.stage
        mark = job_mark(self._control_id, stage.run.id, stage.name, attempt.number)
        self._watch.look(attempt.id, attempt.cluster, attempt.submission_id, mark)
        sight = self._watch.sight(attempt.id)
        ended_ms = attempt.ended_at_ms or self._clock.ms()
        action = leftover(
            attempt.state,
            sight,
            ended_for_s=(self._clock.ms() - ended_ms) / 1000,
            watched_for_s=self._clock.s() - self._first_s[attempt.id],
        )
        if action == "over":
            has_log = sight is not None and sight.kind == "known"
            self._settle(attempt, is_over=True, is_log_kept=not has_log)
        elif action == "stop":
            self._later(attempt, self._stop)

    def _stop(self, attempt: Attempt) -> None:
        provider = self._clusters.provider(attempt.cluster)
        if provider is not None:
            provider.jobs.stop(attempt.submission_id)
            crashpoint("cancel.after_remote_stop")

    def _keep_log(self, attempt: Attempt) -> None:
        provider = self._clusters.provider(attempt.cluster)
        standing = self._watch.standing(attempt.cluster)
        is_hopeless = provider is None or (standing is not None and standing.kind == "gone")
        waited_s = self._clock.s() - self._first_s[attempt.id]
        if is_hopeless or waited_s > _LOG_PATIENCE_S:
            self._settle(attempt, is_log_kept=True)
            return
        assert provider is not None
        data = provider.jobs.log(attempt.submission_id)
        keys = StageKeys(attempt.stage.run.id, attempt.stage.name).attempt(attempt.number)
        self._store.put(keys.log, data)
        self._settle(attempt, is_log_kept=True)

    def _later(self, attempt: Attempt, work: object) -> None:
        now_s = self._clock.s()
        if now_s - self._tried_s.get(attempt.id, float("-inf")) < _RETRY_S:
            return
        self._tried_s[attempt.id] = now_s

        def guarded() -> None:
            try:
                work(attempt)  # type: ignore[operator]
            except OctadError as error:
                log.info("attempt %s is not settled yet: %s", attempt.submission_id, error)

        self._lanes.run(attempt.cluster, ("job", attempt.id), guarded)

    def _settle(self, attempt: Attempt, *, is_over: bool = False, is_log_kept: bool) -> None:
        with self._database.write() as session:
            row = session.get(Attempt, attempt.id)
            if row is None:
                return
            row.is_over = row.is_over or is_over
            row.is_log_kept = row.is_log_kept or is_log_kept
            row.is_settled = row.is_over and row.is_log_kept
            is_settled = row.is_settled
        if is_settled:
            self._watch.forget(attempt.id)
            self._first_s.pop(attempt.id, None)
            self._tried_s.pop(attempt.id, None)

    def _open(self) -> list[Attempt]:
        ended = [state for state in AttemptState if state.is_terminal]
        with self._database.read() as session:
            return load_attempts(session, ended, is_settled=False)
