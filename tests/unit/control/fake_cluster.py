"""A stand-in for a Ray cluster, as a provider: it fills `octad.ports.clusters`, and no Ray is behind it.

Its jobs lie in a file, so that they survive the death of the control plane that sent them, as a real
cluster's would. It refuses a second job of one id, as Ray does. With `behaviour: instant` a job that is
asked for has done what a stage's driver does in the store: it has claimed its epoch and created its
result; with `manual` nothing happens until a test says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from octad.errors import ConflictError, UnreachableError
from octad.ports.clusters import JobRequest, JobState, JobStatus, Step
from octad.spec.artefacts import Artefact
from octad.spec.clusters import ClusterSpec, ClusterView, NodeView
from octad.spec.frozen import Spec
from octad.spec.keys import StageKeys
from octad.spec.stages import AttemptOrder, AttemptResult, Epoch, StoreSpec
from octad.storage import ObjectStore

ENDED = {"STOPPED", "SUCCEEDED", "FAILED"}


class Settings(Spec):
    """Of the fake provider."""

    nodes: int = 1
    behaviour: Literal["instant", "manual"] = "manual"
    start_fails: str = ""


class FakeJobs:
    """Fills `Jobs`; `silent` and `lose` break the line to it, and `is_deaf` jobs do not stop."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.silent = False
        self.is_deaf = False
        self.lose: Literal["", "request", "reply"] = ""
        self.calls = 0

    def has_package(self, uri: str) -> bool:
        with self._line():
            return (self._cluster.home / "packages" / uri.rpartition("/")[2]).exists()

    def put_package(self, uri: str, data: bytes) -> None:
        with self._line():
            path = self._cluster.home / "packages" / uri.rpartition("/")[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def submit(self, request: JobRequest) -> None:
        with self._line(), self._cluster.state() as state:
            if request.submission_id in state["jobs"]:
                raise ConflictError(f"job {request.submission_id} exists already")
            state["jobs"][request.submission_id] = {
                "state": "RUNNING",
                "message": "",
                "metadata": request.metadata,
                "entrypoint": request.entrypoint,
                "env": request.env,
                "package": request.package_uri,
                "py_modules": request.py_modules,
                "pip": request.pip,
                "cards": request.cards,
                "log": f"log of {request.submission_id}\n",
            }
            state["accepted"].append(request.submission_id)

    def status(self, submission_id: str) -> JobStatus | None:
        with self._line(), self._cluster.state() as state:
            job = state["jobs"].get(submission_id)
            # Not when it is sent: the sender may be killed there, and with it what runs here.
            if job and job["state"] == "RUNNING" and self._cluster.settings.behaviour == "instant":
                finish(job["entrypoint"])
                job["state"] = "SUCCEEDED"
            return JobStatus(job["state"], job["message"], job["metadata"]) if job else None

    def log(self, submission_id: str) -> bytes:
        with self._line(), self._cluster.state() as state:
            job = state["jobs"].get(submission_id)
            return str(job["log"]).encode(errors="surrogateescape") if job else b""

    def stop(self, submission_id: str) -> None:
        with self._line(), self._cluster.state() as state:
            job = state["jobs"].get(submission_id)
            state["stopped"].append(submission_id)
            if job and job["state"] not in ENDED and not self.is_deaf:
                job["state"] = "STOPPED"

    @contextmanager
    def _line(self) -> Iterator[None]:
        self.calls += 1
        lose, self.lose = self.lose, ""
        if self.silent or lose == "request":
            raise UnreachableError(f"cluster {self._cluster.spec.name} does not answer in time")
        yield
        if lose == "reply":
            raise UnreachableError(f"cluster {self._cluster.spec.name} does not answer in time")


class FakeCluster:
    """Fills `Provider`."""

    def __init__(self, spec: ClusterSpec, home: Path) -> None:
        self.spec = spec
        self.home = home
        self.settings = Settings.parse(spec.settings)
        self.fake_jobs = FakeJobs(self)

    def plan(self) -> list[Step]:
        return [Step("start", self.spec.name)]

    def start(self) -> None:
        if self.settings.start_fails:
            raise UnreachableError(self.settings.start_fails)
        with self.state() as state:
            state["up"] = True

    def stop(self) -> None:
        """Its jobs die with it, and are forgotten."""
        with self.state() as state:
            state["up"] = False
            state["jobs"] = {}

    def observe(self) -> ClusterView:
        with self.state() as state:
            is_up, lost = state["up"], state.get("lost_nodes", 0)
        cards = (self.settings.nodes - lost) * 8 if is_up else 0
        return ClusterView(
            name=self.spec.name,
            kind=self.spec.kind,
            card=self.spec.card,
            state=("unreachable" if self.fake_jobs.silent else "up") if is_up else "down",
            reason="" if is_up else "it is not started",
            nodes=tuple(NodeView(id=f"n{i}", address="") for i in range(cards // 8)),
            cards=cards,
            cards_free=cards,
            address="fake://",
        )

    @property
    def jobs(self) -> FakeJobs:
        return self.fake_jobs

    @property
    def job_env(self) -> dict[str, str]:
        return {"RAY_ADDRESS": "fake:1"}

    # --- the world, for tests -------------------------------------------------------------------

    @contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """Everything the cluster holds; written back at the end."""
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / "jobs.json"
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            state = (
                json.loads(path.read_text())
                if path.exists()
                else {"up": False, "jobs": {}, "accepted": [], "stopped": []}
            )
            yield state
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(state))
            partial.replace(path)
        finally:
            os.close(descriptor)

    def job_states(self) -> dict[str, JobState]:
        with self.state() as state:
            return {name: job["state"] for name, job in state["jobs"].items()}

    def accepted(self) -> list[str]:
        """Every submission that was ever accepted, in order."""
        with self.state() as state:
            return list(state["accepted"])

    def stopped(self) -> list[str]:
        with self.state() as state:
            return list(state["stopped"])

    def end(self, submission_id: str, how: JobState, message: str = "") -> None:
        """The job ends by itself."""
        with self.state() as state:
            state["jobs"][submission_id].update(state=how, message=message)

    def add_foreign(self, submission_id: str) -> None:
        """Somebody else's job."""
        with self.state() as state:
            state["jobs"][submission_id] = {
                "state": "RUNNING",
                "message": "",
                "metadata": {"owner": "somebody"},
                "entrypoint": "true",
                "env": {},
                "log": "",
            }

    def forget_all(self) -> None:
        """The head is restarted: it knows no job any more."""
        with self.state() as state:
            state["jobs"] = {}

    def lose_node(self) -> None:
        """One node dies."""
        with self.state() as state:
            state["lost_nodes"] = state.get("lost_nodes", 0) + 1

    def regain_nodes(self) -> None:
        """All nodes are back."""
        with self.state() as state:
            state["lost_nodes"] = 0

    def entrypoint(self, submission_id: str) -> str:
        with self.state() as state:
            return str(state["jobs"][submission_id]["entrypoint"])

    def succeed(self, submission_id: str) -> None:
        """The job does its work and ends well."""
        finish(self.entrypoint(submission_id))
        self.end(submission_id, "SUCCEEDED")


def read_order(entrypoint: str) -> tuple[AttemptOrder, ObjectStore]:
    """What a driver reads first."""
    words = shlex.split(entrypoint)
    options = json.loads(words[words.index("--store-options") + 1])
    store = ObjectStore(StoreSpec(url=words[words.index("--store") + 1], options=options))
    key = store.key(words[words.index("--order") + 1])
    return AttemptOrder.model_validate_json(store.get(key)), store


def claim(entrypoint: str) -> bool:
    """A driver's first act; whether this attempt is the newest."""
    order, store = read_order(entrypoint)
    keys = StageKeys(order.run, order.stage.name)
    epoch = Epoch(attempt=order.attempt)
    is_first = store.create(keys.epoch(order.attempt), epoch.model_dump_json().encode())
    newest = max(int(m.key[-11:-5]) for m in store.walk(keys.epochs))
    return is_first and newest == order.attempt


def finish(entrypoint: str, metrics: dict[str, float] | None = None) -> None:
    """A driver's last act: artefacts that fit every need, and the result."""
    claim(entrypoint)
    order, store = read_order(entrypoint)
    keys = StageKeys(order.run, order.stage.name).attempt(order.attempt)
    key = f"{keys.artefacts}out"
    data = f"made by {order.stage.name} {order.attempt}".encode()
    store.put(key, data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    result = AttemptResult(
        attempt=order.attempt,
        artefacts=(Artefact(name="out", type="files", uri=store.url(key), digest=digest),),
        metrics=metrics or {"loss": 1.5},
    )
    store.create(keys.result, result.model_dump_json().encode())


def build(spec: ClusterSpec, home: Path) -> FakeCluster:
    return FakeCluster(spec, home)
