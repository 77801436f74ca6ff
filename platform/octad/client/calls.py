"""Typed calls to a control plane."""

from __future__ import annotations

from typing import IO, TypeVar

from octad.client.blobs import has_blob, put_blob
from octad.client.logs import LogChunk, read_log
from octad.client.wire import Wire
from octad.spec.clusters import FleetView
from octad.spec.frozen import Spec
from octad.spec.queues import QueueView
from octad.spec.runs import DoctorView, RunPage, RunResume, RunSubmission, RunView, ServerView

_View = TypeVar("_View", bound=Spec)


class Client:
    """A control plane. Every call may raise UnreachableError, AccessError and NotFoundError."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def health(self) -> ServerView:
        """Its version; needs no token."""
        return self._typed(ServerView, "GET", "/api/health")

    def submit(self, submission: RunSubmission) -> RunView:
        """Start a run; sent again safely, because it carries its idempotency key."""
        return self._typed(RunView, "POST", "/api/runs", submission)

    def runs(self, *, limit: int = 20, before: str | None = None, sweep: str = "") -> RunPage:
        """A page of runs, newest first."""
        query = {"limit": limit, "before": before, "sweep": sweep}
        return RunPage.parse(self.wire.json("GET", "/api/runs", query=query))

    def run(self, run: str) -> RunView:
        """One run, by any of its ids."""
        return self._typed(RunView, "GET", f"/api/runs/{run}")

    def cancel(self, run: str) -> RunView:
        """Ask a run to end; idempotent."""
        return self._typed(RunView, "POST", f"/api/runs/{run}/cancel")

    def resume(self, run: str, resume: RunResume) -> RunView:
        """Go on with a run that failed or was cancelled, under its id."""
        path = f"/api/runs/{run}/resume"
        return RunView.parse(
            self.wire.json("POST", path, resume.plain(), is_repeatable=False), where=path
        )

    def log(self, run: str, stage: str, attempt: int, offset: int = 0) -> LogChunk:
        """The log of one attempt, from a byte offset."""
        return read_log(self.wire, run, stage, attempt, offset)

    def has_blob(self, digest: str) -> bool:
        """Whether the store holds this content."""
        return has_blob(self.wire, digest)

    def put_blob(self, digest: str, body: bytes | IO[bytes]) -> None:
        """Give the store some content; idempotent."""
        put_blob(self.wire, digest, body)

    def queue(self) -> QueueView:
        """What waits for cards, in its order, with reasons."""
        return self._typed(QueueView, "GET", "/api/queue")

    def fleet(self) -> FleetView:
        """The clusters as last seen."""
        return self._typed(FleetView, "GET", "/api/fleet")

    def fleet_up(self) -> FleetView:
        """Ask for the fleet to be up; returns at once."""
        return self._typed(FleetView, "POST", "/api/fleet/up")

    def fleet_down(self) -> FleetView:
        """Ask for the fleet to be down."""
        return self._typed(FleetView, "POST", "/api/fleet/down")

    def doctor(self) -> DoctorView:
        """What the control plane finds out about its surroundings."""
        return self._typed(DoctorView, "GET", "/api/doctor")

    def _typed(self, kind: type[_View], method: str, path: str, body: Spec | None = None) -> _View:
        answer = self.wire.json(method, path, None if body is None else body.plain())
        return kind.parse(answer, where=path)
