"""What a file of `octad.clusters` fills.

class Settings(Spec): ...                                 the provider's own keys
def build(spec: ClusterSpec, home: Path) -> Provider      `home` is a private folder (0700) of
                                                          this cluster alone; not made yet, maybe
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from octad.spec.clusters import ClusterSpec, ClusterView

JobState = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A Ray job to submit.

    Attributes:
        submission_id: Chosen by us, the same on every try.
        entrypoint: A shell command line.
        package_uri: `gcs://...zip`, put there with `put_package`.
        env: Environment of the driver and of all its workers.
        py_modules: Further packages, for Python's path.
        pip: Packages of Python that the job needs, as Ray's `runtime_env` takes them.
        cards: Cards that the driver itself holds while it runs.
        metadata: Shown in Ray's dashboard.
    """

    submission_id: str
    entrypoint: str
    package_uri: str
    env: dict[str, str] = field(default_factory=dict)
    cards: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    py_modules: tuple[str, ...] = ()
    pip: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A Ray job as its cluster reports it.

    Attributes:
        state: Ray's own word.
        message: What Ray says about it.
        metadata: What it was submitted with: who it belongs to.
    """

    state: JobState
    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        """It has ended."""
        return self.state in {"STOPPED", "SUCCEEDED", "FAILED"}


class Jobs(Protocol):
    """The Ray Jobs API of one cluster. Every call may raise UnreachableError or AccessError."""

    def has_package(self, uri: str) -> bool:
        """Whether the cluster holds this package."""
        ...

    def put_package(self, uri: str, data: bytes) -> None:
        """Give the cluster a package; idempotent."""

    def submit(self, request: JobRequest) -> None:
        """Start a job. Raises ConflictError if the id is known already."""

    def status(self, submission_id: str) -> JobStatus | None:
        """The job's state, or None if the cluster does not know the id."""
        ...

    def log(self, submission_id: str) -> bytes:
        """The whole log of the driver so far."""
        ...

    def stop(self, submission_id: str) -> None:
        """Ask a job to end (SIGTERM, then SIGKILL); idempotent, does not wait."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a plan: what would be done."""

    action: str
    detail: str


class Provider(Protocol):
    """Who makes one cluster."""

    spec: ClusterSpec

    def plan(self) -> list[Step]:
        """What `start` would do; pure."""
        ...

    def start(self) -> None:
        """Bring the cluster up and wait until jobs can be sent; idempotent; adopts what is up.

        Raises:
            PortError, UnreachableError, ConfigError: It could not be brought up.
        """

    def stop(self) -> None:
        """End what `start` made, and nothing else; idempotent, and may be called while it runs."""

    def observe(self) -> ClusterView:
        """The cluster as it is now; never raises for one that does not answer."""
        ...

    @property
    def jobs(self) -> Jobs:
        """Its Jobs API."""
        ...

    @property
    def job_env(self) -> dict[str, str]:
        """What every job on this cluster needs in its environment (RAY_ADDRESS among it)."""
        ...
