"""Logs of attempts, by offset: from the cluster while the job is there, from the store after."""

from __future__ import annotations

from dataclasses import dataclass

from octad.control.database import Database
from octad.control.runs import find, find_stage
from octad.control.tables import Attempt
from octad.control.watch import Clusters, is_ours, job_mark
from octad.errors import NotFoundError
from octad.spec.keys import StageKeys
from octad.spec.states import AttemptState
from octad.storage import ObjectStore

MOST_BYTES = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log.

    Attributes:
        data: The bytes from the offset on, at most 4 MiB.
        next_offset: Where to go on.
        is_complete: Nothing more will come.
    """

    data: bytes
    next_offset: int
    is_complete: bool


class JobLogs:
    """The service behind the route of logs."""

    def __init__(
        self, database: Database, store: ObjectStore, clusters: Clusters, control_id: str
    ) -> None:
        self._database = database
        self._store = store
        self._clusters = clusters
        self._control_id = control_id

    def read(self, run: str, stage: str, number: int, offset: int) -> LogPart:
        """A part of an attempt's log.

        Raises:
            NotFoundError: No such run, stage or attempt.
            UnreachableError: The cluster that has it does not answer.
        """
        data, is_whole = self.whole(run, stage, number)
        return _part(data, offset, is_whole=is_whole)

    def whole(self, run: str, stage: str, number: int) -> tuple[bytes, bool]:
        """All there is of an attempt's log, and whether nothing more will come.

        Raises:
            NotFoundError: No such run, stage or attempt.
            UnreachableError: The cluster that has it does not answer.
        """
        with self._database.read() as session:
            attempt = next(
                (a for a in find_stage(find(session, run), stage).attempts if a.number == number),
                None,
            )
            if attempt is None:
                raise NotFoundError(f"stage {stage} of run {run} has no attempt {number}")
            run_id, stage_name = attempt.stage.run.id, attempt.stage.name
        if attempt.is_log_kept:
            kept = self._store.find(StageKeys(run_id, stage_name).attempt(number).log)
            return kept or b"", True
        return self._live(attempt, run_id, stage_name), False

    def _live(self, attempt: Attempt, run: str, stage: str) -> bytes:
        provider = self._clusters.provider(attempt.cluster)
        if provider is None or attempt.state is AttemptState.INTENDED:
            return b""
        job = provider.jobs.status(attempt.submission_id)
        mark = job_mark(self._control_id, run, stage, attempt.number)
        if job is None or not is_ours(job, mark):
            return b""
        return provider.jobs.log(attempt.submission_id)


def _part(data: bytes, offset: int, *, is_whole: bool) -> LogPart:
    offset = max(0, offset)
    part = data[offset : offset + MOST_BYTES]
    end = offset + len(part)
    return LogPart(part, end, is_complete=is_whole and end >= len(data))
