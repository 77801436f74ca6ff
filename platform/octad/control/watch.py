"""What can be seen of attempts: in the store, and on their clusters."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pydantic import ValidationError

from octad.control.clock import Clock
from octad.control.decide import Sight
from octad.control.lanes import Lanes
from octad.errors import OctadError
from octad.ports.clusters import JobStatus, Provider
from octad.spec.clusters import ClusterSpec, ClusterView
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.stages import AttemptFailure, AttemptResult, Progress
from octad.storage import ObjectStore

# How often a cluster is asked about a job, and the store for what changes slowly.
LOOK_EVERY_S = 1.0
_Said = TypeVar("_Said", AttemptResult, AttemptFailure, Progress)


class Clusters(Protocol):
    """The fleet, as those see it who send and watch jobs."""

    @property
    def specs(self) -> tuple[ClusterSpec, ...]:
        """All clusters, as asked for."""
        ...

    def provider(self, name: str) -> Provider | None:
        """Who provides a cluster; None if it is not in the fleet."""
        ...

    def view(self, name: str) -> ClusterView | None:
        """A cluster as last seen; None if nobody has looked yet."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt left in the store so far."""

    result: AttemptResult | None = None
    failure: AttemptFailure | None = None
    progress: Progress | None = None
    has_claimed: bool = False


def job_mark(control_id: str, run: str, stage: str, attempt: int) -> dict[str, str]:
    """The metadata of a job of ours."""
    return {
        "octad.control": control_id,
        "octad.run": run,
        "octad.stage": stage,
        "octad.attempt": str(attempt),
    }


def is_ours(job: JobStatus, mark: dict[str, str]) -> bool:
    """Whether a job that a cluster knows was sent by this control plane for this attempt."""
    return all(job.metadata.get(key) == value for key, value in mark.items())


class Watch:
    """Looks, and remembers what it saw; decides nothing, and writes nothing down."""

    def __init__(self, store: ObjectStore, clusters: Clusters, lanes: Lanes, clock: Clock) -> None:
        self._store = store
        self._clusters = clusters
        self._lanes = lanes
        self._clock = clock
        self._lock = threading.Lock()
        self._sights: dict[int, Sight] = {}
        self._looked_s: dict[int, float] = {}
        self._slow_s: dict[int, float] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._failed_since_s: dict[int, float] = {}

    def sight(self, attempt_id: int) -> Sight | None:
        """What was last seen of a job."""
        with self._lock:
            return self._sights.get(attempt_id)

    def look(self, attempt_id: int, cluster: str, submission_id: str, mark: dict[str, str]) -> None:
        """Ask a cluster about a job, on its lane, unless that was done a moment ago."""
        now_s = self._clock.s()
        if now_s - self._looked_s.get(attempt_id, float("-inf")) < LOOK_EVERY_S:
            return
        standing = self.standing(cluster)
        if standing is not None:
            self._looked_s[attempt_id] = now_s
            self._see(attempt_id, standing)
            return

        def work() -> None:
            self._see(attempt_id, self._ask(cluster, submission_id, mark))
            self._looked_s[attempt_id] = self._clock.s()

        self._lanes.run(cluster, ("look", attempt_id), work)

    def standing(self, cluster: str) -> Sight | None:
        """What is known of all jobs of a cluster that cannot be asked; None if it can."""
        if self._clusters.provider(cluster) is None:
            return Sight("gone", text="is not in the fleet any more", since_s=self._clock.s())
        view = self._clusters.view(cluster)
        if view is None:
            return Sight("silent", text="it is being looked at", since_s=self._clock.s())
        if view.state == "down":
            return Sight("gone", text=view.reason, since_s=self._clock.s())
        if view.state == "starting":
            return Sight("silent", text="it is starting", since_s=self._clock.s())
        return None

    def note_standing(self, attempt_id: int, cluster: str) -> None:
        """Remember `standing` as the sight of an attempt that was not sent yet."""
        standing = self.standing(cluster)
        if standing is None:
            with self._lock:
                self._sights.pop(attempt_id, None)
        else:
            self._see(attempt_id, standing)

    def outcome(self, attempt_id: int, keys: StageKeys, number: int) -> Outcome:
        """What an attempt left in the store: its result on each call, the rest now and then.

        Raises:
            StorageError: The store does not answer.
        """
        attempt = keys.attempt(number)
        known = self._outcomes.get(attempt_id, Outcome())
        raw = self._store.find(attempt.result)
        result = _parsed(AttemptResult, raw)
        now_s = self._clock.s()
        is_time = now_s - self._slow_s.get(attempt_id, float("-inf")) >= LOOK_EVERY_S
        # With the result comes the last word on progress.
        if is_time or (result is not None and known.result is None):
            self._slow_s[attempt_id] = now_s
            known = self._slowly(attempt, keys, number, known)
            if raw is not None and result is None:
                known = replace(known, failure=self._unreadable(attempt, number))
            if known.failure is not None:
                self._failed_since_s.setdefault(attempt_id, now_s)
        known = replace(known, result=result)
        self._outcomes[attempt_id] = known
        return known

    def failed_since_s(self, attempt_id: int) -> float:
        """When an attempt's own word of failure was first seen."""
        return self._failed_since_s.get(attempt_id, 0.0)

    def refresh(self, attempt_id: int) -> None:
        """Look at everything again at the next chance."""
        self._slow_s.pop(attempt_id, None)
        self._looked_s.pop(attempt_id, None)

    def forget(self, attempt_id: int) -> None:
        """Drop what is remembered of an attempt that is settled."""
        with self._lock:
            self._sights.pop(attempt_id, None)
        for memory in (self._looked_s, self._slow_s, self._outcomes, self._failed_since_s):
            memory.pop(attempt_id, None)

    def _slowly(
        self, attempt: AttemptKeys, keys: StageKeys, number: int, known: Outcome
    ) -> Outcome:
        progress = _parsed(Progress, self._store.find(attempt.progress)) or known.progress
        has_claimed = known.has_claimed or self._store.size(keys.epoch(number)) is not None
        failure = _parsed(AttemptFailure, self._store.find(attempt.error)) or known.failure
        return Outcome(failure=failure, progress=progress, has_claimed=has_claimed)

    def _unreadable(self, attempt: AttemptKeys, number: int) -> AttemptFailure:
        """Of an attempt that says it succeeded, in words that are none."""
        what = "its result cannot be read: it was written by another octad, or damaged"
        error = {"kind": "StageError", "what": what, "where": self._store.url(attempt.result)}
        return AttemptFailure(attempt=number, is_final=True, error=error)

    def _ask(self, cluster: str, submission_id: str, mark: dict[str, str]) -> Sight:
        provider = self._clusters.provider(cluster)
        assert provider is not None
        try:
            job = provider.jobs.status(submission_id)
        except OctadError as error:
            return Sight("silent", text=error.what)
        if job is None:
            return Sight("unknown")
        if not is_ours(job, mark):
            return Sight("foreign", text=foreign_text(cluster, submission_id))
        return Sight("known", job=job)

    def _see(self, attempt_id: int, sight: Sight) -> None:
        now_s = self._clock.s()
        with self._lock:
            before = self._sights.get(attempt_id)
            same = before is not None and before.kind == sight.kind and before.job == sight.job
            since_s = before.since_s if before is not None and same else now_s
            self._sights[attempt_id] = replace(sight, since_s=since_s)


def foreign_text(cluster: str, submission_id: str) -> str:
    """Said of a job that has our id and is not ours: it is left alone."""
    return (
        f"cluster {cluster} has a job {submission_id} that this control plane did not send; "
        "it was left alone: submit the run under another id"
    )


def _parsed(kind: type[_Said], raw: bytes | None) -> _Said | None:
    if raw is None:
        return None
    try:
        return kind.model_validate_json(raw)
    except ValidationError:
        return None
