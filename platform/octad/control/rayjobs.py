"""Ray's Jobs API over octad's runs: a job is a run of one stage of kind `job`."""

from __future__ import annotations

import asyncio
import codecs
import importlib.metadata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from anyio import to_thread
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, selectinload

from octad.control.database import Database
from octad.control.dispatch import Extras
from octad.control.joblogs import JobLogs
from octad.control.ray_packages import RayPackages
from octad.control.ray_requests import STAGE, AskedJob, read_job, slug
from octad.control.runs import Runs
from octad.control.tables import RayJob, Run, Stage
from octad.errors import ConflictError, NotFoundError, UnreachableError
from octad.ports.clusters import JobState
from octad.spec.names import NAME, new_run_id
from octad.spec.runs import RunSubmission
from octad.spec.states import StageState

# What Ray's Jobs API itself is versioned by; its clients ask before they follow a log.
JOBS_API_VERSION = "4"
MOST_JOBS = 1000
MOST_LOG_BYTES = 64 * 1024**2
# Ray's clients take messages of up to 4 MiB; a byte that is no text becomes three.
_CHUNK_BYTES = 256 * 1024
_FOLLOW_EVERY_S = 0.5
# The log of a job that has ended is waited for so long, from a cluster that may not answer.
_LAST_WORDS_S = 30.0

_STATES: dict[StageState, JobState] = {
    StageState.WAITING: "PENDING",
    StageState.QUEUED: "PENDING",
    StageState.STARTING: "PENDING",
    StageState.RUNNING: "RUNNING",
    StageState.RECOVERING: "RUNNING",
    StageState.SUCCEEDED: "SUCCEEDED",
    StageState.FAILED: "FAILED",
    StageState.CANCELLED: "STOPPED",
}
# Ray's own words, where there is nothing better to say.
_MESSAGES: dict[JobState, str] = {
    "PENDING": "Job has not started yet.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}


@dataclass(frozen=True, slots=True)
class _Attempts:
    """What there is to follow of a job."""

    run: str
    numbers: tuple[int, ...]
    is_over: bool


class RayJobs:
    """The service behind the routes of Ray's Jobs API.

    Args:
        database: Rows.
        runs: Makes and ends runs.
        logs: Reads logs.
        packages: What clients uploaded.
        session_name: Of this control plane, as Ray's clients ask for it.
    """

    def __init__(
        self,
        database: Database,
        *,
        runs: Runs,
        logs: JobLogs,
        packages: RayPackages,
        session_name: str,
    ) -> None:
        self._database = database
        self._runs = runs
        self._logs = logs
        self.packages = packages
        self._session_name = session_name

    def version(self) -> dict[str, str]:
        """What clients ask first."""
        return {
            "version": JOBS_API_VERSION,
            "ray_version": importlib.metadata.version("ray"),
            "ray_commit": "octad",
            "session_name": self._session_name,
        }

    def submit(self, raw: dict[str, Any]) -> str:
        """Accept a job, or find the one that the same call made before; its submission id.

        Raises:
            ConfigError: It asks for what cannot be, or cannot be honoured.
            ConflictError: The id has been used for something else.
            CapacityError: No cluster could ever hold it.
            NotFoundError: A package was not uploaded.
        """
        asked = read_job(raw)
        submission_id = asked.submission_id or new_run_id("raysubmit")
        if self._is_known(submission_id, asked):
            return submission_id
        digests = [
            self.packages.needed(name, "runtime_env.py_modules") for name in asked.py_modules
        ]
        own = self.packages.own_code()
        folder = (
            self.packages.needed(asked.working_dir, "runtime_env.working_dir")
            if asked.working_dir
            else own
        )
        submission = RunSubmission(
            spec=asked.spec,
            package=folder,
            run=_run_id(submission_id),
            idempotency_key=f"ray-job/{submission_id}",
        )

        def also(session: Session, run: Run) -> None:
            session.add(_row(submission_id, run, asked, [own, *digests]))

        try:
            _, is_new = self._runs.submit(submission, also)
        except (ConflictError, IntegrityError):
            is_new = False
        # Two calls with one id may come at once, and an id may be that of another run.
        if not is_new and not self._is_known(submission_id, asked):
            raise _taken(submission_id)
        return submission_id

    def info(self, name: str) -> dict[str, Any]:
        """One job, as Ray tells it.

        Raises:
            NotFoundError: There is none of this id.
        """
        with self._database.read() as session:
            return _details(_found(session, name))

    def all(self) -> list[dict[str, Any]]:
        """The newest jobs, newest first."""
        with self._database.read() as session:
            query = (
                select(RayJob)
                .where(RayJob.is_deleted.is_(False))
                .order_by(RayJob.run_seq.desc())
                .limit(MOST_JOBS)
                .options(selectinload(RayJob.run).defer(Run.spec))
            )
            return [_details(job) for job in session.scalars(query)]

    def stop(self, name: str) -> bool:
        """End a job; whether it had not ended before."""
        with self._database.read() as session:
            job = _found(session, name)
            run, has_ended = job.run.id, job.run.state.is_terminal
        if not has_ended:
            self._runs.cancel(run)
        return not has_ended

    def delete(self, name: str) -> None:
        """Forget a job that has ended, and the values of its environment. The run stays.

        Raises:
            ConflictError: It has not ended.
        """
        with self._database.write() as session:
            job = _found(session, name)
            if not job.run.state.is_terminal:
                raise ConflictError(
                    f"Attempted to delete job '{job.submission_id}', "
                    f"but it is in a non-terminal state {_state(_stage(job.run))}",
                    hint="stop it first",
                )
            job.is_deleted = True
            job.env = {}

    def extras(self, run: str) -> Extras | None:
        """What a run has beside its orders; None if it did not come by this API."""
        with self._database.read() as session:
            query = select(RayJob).join(Run, Run.seq == RayJob.run_seq).where(Run.id == run)
            job = session.scalar(query)
        if job is None:
            return None
        return Extras(
            env=job.env, modules=tuple(job.modules), pip=job.pip, holds_cards=job.holds_cards
        )

    # --- logs -----------------------------------------------------------------------------------

    def log(self, name: str) -> str:
        """The log of all attempts of a job; of a long one, the end.

        Raises:
            UnreachableError: The cluster that has it does not answer.
        """
        attempts = self._attempts(name)
        parts = [self._logs.whole(attempts.run, STAGE, n)[0] for n in attempts.numbers]
        data = b"".join(parts)
        left_out = len(data) - MOST_LOG_BYTES
        if left_out <= 0:
            return data.decode(errors="replace")
        text = data[left_out:].decode(errors="replace")
        return f"[octad leaves out the first {left_out:,} bytes; ray job logs --follow has them]\n{text}"

    async def follow(self, name: str) -> AsyncIterator[str]:
        """The log of a job from its beginning to its end, attempt after attempt, as it comes."""
        place, offset, silent_s = 0, 0, 0.0
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            attempts = await to_thread.run_sync(self._attempts, name)
            is_last = place >= len(attempts.numbers) - 1
            data, is_complete = b"", not attempts.numbers
            if attempts.numbers:
                data, is_complete = await to_thread.run_sync(
                    self._read, attempts.run, attempts.numbers[place], offset
                )
            offset += len(data)
            for start in range(0, len(data), _CHUNK_BYTES):
                if text := decoder.decode(data[start : start + _CHUNK_BYTES]):
                    yield text
            silent_s = 0.0 if data else silent_s + _FOLLOW_EVERY_S
            if is_last and attempts.is_over and (is_complete or silent_s > _LAST_WORDS_S):
                break
            if not is_last and (is_complete or silent_s > _LAST_WORDS_S):
                place, offset, silent_s = place + 1, 0, 0.0
            elif not data:
                await asyncio.sleep(_FOLLOW_EVERY_S)
        if text := decoder.decode(b"", final=True):
            yield text

    def _attempts(self, name: str) -> _Attempts:
        with self._database.read() as session:
            run = _found(session, name).run
            numbers = tuple(attempt.number for attempt in _stage(run).attempts)
            return _Attempts(run.id, numbers, is_over=run.state.is_terminal)

    def _read(self, run: str, number: int, offset: int) -> tuple[bytes, bool]:
        try:
            part = self._logs.read(run, STAGE, number, offset)
        except UnreachableError:
            return b"", False  # it may answer again
        return part.data, part.is_complete

    def _is_known(self, submission_id: str, asked: AskedJob) -> bool:
        """Whether the same call made this job before.

        Raises:
            ConflictError: Another one did.
        """
        with self._database.read() as session:
            job = session.get(RayJob, submission_id)
        if job is not None and (job.body_digest != asked.digest or job.is_deleted):
            raise _taken(submission_id)
        return job is not None


def _row(submission_id: str, run: Run, asked: AskedJob, modules: list[str]) -> RayJob:
    return RayJob(
        submission_id=submission_id,
        run_seq=run.seq,
        body_digest=asked.digest,
        told=asked.told,
        env=asked.env,
        modules=modules,
        pip=asked.pip,
        holds_cards=asked.holds_cards,
    )


def _run_id(submission_id: str) -> str:
    return submission_id if NAME.fullmatch(submission_id) else new_run_id(slug(submission_id))


def _taken(submission_id: str) -> ConflictError:
    return ConflictError(
        f"Job with submission_id {submission_id} already exists. "
        "Please use a different submission_id."
    )


def _found(session: Session, name: str) -> RayJob:
    """The job that a submission id names, or the id of its run.

    Raises:
        NotFoundError: None does.
    """
    job = session.get(RayJob, name)
    if job is None:
        query = select(RayJob).join(Run, Run.seq == RayJob.run_seq).where(Run.id == name)
        job = session.scalar(query)
    if job is None or job.is_deleted:
        raise NotFoundError(f"Job {name[:120]} does not exist")
    return job


def _stage(run: Run) -> Stage:
    return run.stages[0]


def _state(stage: Stage) -> JobState:
    return _STATES[stage.state]


def _details(job: RayJob) -> dict[str, Any]:
    """A job in the fields of Ray's `JobDetails`."""
    run, stage = job.run, _stage(job.run)
    state = _state(stage)
    attempt = stage.attempts[-1] if stage.attempts else None
    where = {"octad.run": run.id, "octad.state": str(stage.state)}
    driver = None
    if attempt is not None:
        where |= {"octad.cluster": attempt.cluster, "octad.cards": str(attempt.cards)}
        # Which node and process it is, its cluster alone knows.
        driver = {"id": attempt.submission_id, "node_ip_address": "", "pid": ""}
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": job.submission_id,
        "driver_info": driver,
        "status": state,
        "entrypoint": job.told["entrypoint"],
        "message": _message(stage, state),
        "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR" if state == "FAILED" else None,
        "start_time": run.created_at_ms,
        "end_time": run.ended_at_ms,
        "metadata": {**job.told["metadata"], **where},
        "runtime_env": job.told["runtime_env"],
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": 0 if state == "SUCCEEDED" else None,
    }


def _message(stage: Stage, state: JobState) -> str:
    if state in {"PENDING", "RUNNING", "FAILED"} and stage.reason:
        return f"{_MESSAGES[state]} {stage.reason}"
    return _MESSAGES[state]
