"""A Ray cluster of simulated cards on this machine: real Ray, one `ray start` for each node.

Its nodes outlive the process that started them, and are found again by whoever comes next with
the same private folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from octad.clusters import _node, _ports, _processes, _records
from octad.clusters._api import RayApi
from octad.clusters._jobs import RayJobs
from octad.clusters._ports import PortBlock
from octad.clusters._records import ClusterRecord, NodeRecord
from octad.clusters._view import Seen, look
from octad.errors import ConfigError, ConflictError, OctadError, PortError, UnreachableError
from octad.ports.clusters import Jobs, Step
from octad.spec.clusters import CARD_RESOURCE, ClusterSpec, ClusterView, NodeView
from octad.spec.frozen import Spec
from octad.spec.layouts import CARDS_PER_NODE

_LOG_LINES = 8
_POLL_S = 0.1
# A head that lives but is silent may only be busy; its work is worth the wait.
_PATIENCE_S = 30.0


class Settings(Spec):
    """The local provider's own keys.

    Attributes:
        nodes: How many nodes of eight simulated cards.
        port: Of the Jobs API and dashboard, on 127.0.0.1; 0 to have a free one chosen.
        num_cpus: What each node claims to have; it bounds how many processes may run.
        object_store_mib: Shared memory of each node for objects, MiB.
        start_timeout_s: How long the cluster may take to come up.
        stop_grace_s: How long its processes may take to end by themselves.
    """

    nodes: int = Field(default=1, ge=1, le=16)
    port: int = Field(default=0, ge=0, le=65535)
    num_cpus: int = Field(default=32, ge=1, le=512)
    object_store_mib: int = Field(default=256, ge=80, le=1024 * 1024)
    start_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    stop_grace_s: float = Field(default=5.0, ge=0, le=600)


class LocalCluster:
    """Fills `octad.ports.clusters.Provider`.

    Args:
        spec: The cluster.
        home: A private folder of this cluster alone; made if it is missing.

    Attributes:
        spec: The cluster.
        mark: What the mark of every process of this cluster starts with.
    """

    def __init__(self, spec: ClusterSpec, home: Path) -> None:
        if spec.card.kind != "sim":
            raise ConfigError(
                f"the local provider simulates its cards, and cannot give {spec.card.kind} cards",
                where=f"fleet.clusters.{spec.name}.card",
                hint="use card=sim, or kind=existing for a cluster that has real ones",
            )
        self.spec = spec
        self._settings = Settings.parse(spec.settings, where=f"fleet.clusters.{spec.name}")
        self._home = home.absolute()
        self.mark = f"{hashlib.sha256(str(self._home).encode()).hexdigest()[:12]}/{spec.name}/"
        self._starting = threading.Event()
        self._stopping = threading.Event()
        self._api_lock = threading.Lock()
        self._api: RayApi | None = None

    def plan(self) -> list[Step]:
        """What `start` would do; pure."""
        return [
            Step(
                action="start node",
                detail=f"{name}: {CARDS_PER_NODE} {self.spec.card.name} cards on this machine, "
                + ("head" if index == 0 else f"joins {self._names[0]}"),
            )
            for index, name in enumerate(self._names)
        ]

    def start(self) -> None:
        """Bring the cluster up and wait until jobs can be sent; idempotent; adopts what is up.

        Raises:
            PortError: The fixed port is in use, or no ports are free.
            UnreachableError: It did not come up in time; holds the last lines of a node's log.
            ConflictError: It was stopped meanwhile.
        """
        self._starting.set()
        try:
            with self._exclusive():
                self._stopping.clear()
                _records.token(self._token_file)
                adopted = self._adopt()
                try:
                    self._bring_up(adopted)
                except OctadError:
                    self._keep_only(adopted)
                    raise
        finally:
            self._starting.clear()

    def stop(self) -> None:
        """End what `start` made, and nothing else; idempotent."""
        self._stopping.set()
        if not self._home.is_dir():
            return
        with self._exclusive():
            self._clear()

    def observe(self) -> ClusterView:
        """The cluster as it is now; never raises for one that does not answer."""
        record = _records.read(self._record_file)
        head = record.head
        if self._starting.is_set():
            return self._view("starting", "its nodes are coming up", head)
        if head is None:
            return self._view("down", "it is not started", None)
        if not _lives(head):
            return self._view("down", f"the process of its head node {head.name} is gone", head)
        try:
            seen = look(self._api_of(head))
        except OctadError as error:
            return self._view("unreachable", str(error), head)
        seen_names = {node.id for node in seen.nodes}
        missing = [node for node in record.nodes if node.name not in seen_names]
        lost = tuple(
            NodeView(id=node.name, address=node.address, cards=0, is_alive=False)
            for node in missing
        )
        reason = f"without node {', '.join(node.name for node in missing)}" if missing else ""
        seen = replace(seen, nodes=(*seen.nodes, *lost))
        return self._view("up", reason, head, seen)

    @property
    def jobs(self) -> Jobs:
        """Its Jobs API.

        Raises:
            UnreachableError: The cluster is not started.
        """
        return RayJobs(self._api_of(self._head()))

    @property
    def job_env(self) -> dict[str, str]:
        """What every job needs in its environment.

        Raises:
            UnreachableError: The cluster is not started.
        """
        head = self._head()
        return {
            "RAY_ADDRESS": f"{head.address}:{head.gcs}",
            "OCTAD_CARD_RESOURCE": CARD_RESOURCE,
            "OCTAD_CARD_KIND": self.spec.card.kind,
        }

    # --- up ---------------------------------------------------------------------------------

    def _bring_up(self, record: ClusterRecord) -> None:
        deadline = time.monotonic() + self._settings.start_timeout_s
        if record.head is None:
            record = self._start_node(record, self._names[0])
        head = record.nodes[0]
        # The others can join as soon as the head's store listens, long before its dashboard does.
        self._wait_until(lambda: _listens(head.gcs), record, deadline)
        for name in self._names[1:]:
            if name not in {node.name for node in record.nodes}:
                record = self._start_node(record, name)
        self._wait_until(lambda: self._is_ready(head), record, deadline)

    def _adopt(self) -> ClusterRecord:
        """What is up and healthy; everything else of ours is cleared away."""
        record = _records.read(self._record_file)
        head = record.head
        if head is None or not self._answers(head):
            self._clear()
            return ClusterRecord()
        lost = self._lost(head, [node for node in record.nodes if _lives(node)])
        kept = [n for n in record.nodes if n.name in self._names and _lives(n) and n not in lost]
        return self._keep_only(ClusterRecord(nodes=tuple(kept)))

    def _lost(self, head: NodeRecord, nodes: list[NodeRecord]) -> list[NodeRecord]:
        """Nodes whose process lives but that Ray has given up, or that never come up."""
        while True:
            alive = self._alive(head)
            missing = [node for node in nodes if node.name not in alive]
            # One that is young may still be joining.
            if all(time.time() - node.created_at > _PATIENCE_S for node in missing):
                return missing
            if self._stopping.wait(_POLL_S):
                return missing

    def _alive(self, head: NodeRecord) -> set[str]:
        """Names of the nodes that Ray sees; none if it does not answer."""
        try:
            return {node.id for node in look(self._api_of(head)).nodes}
        except UnreachableError:
            return set()

    def _keep_only(self, kept: ClusterRecord) -> ClusterRecord:
        """End all nodes but these; work on them goes on."""
        if kept.head is None:
            self._clear()
            return kept
        record = _records.read(self._record_file)
        gone = [node for node in record.nodes if node not in kept.nodes]
        # A node whose starter died before it could write it down is known by its mark alone.
        for name in {n.name for n in gone} | set(self._names) - {n.name for n in kept.nodes}:
            _processes.end(f"{self.mark}{name}/", self._settings.stop_grace_s)
        for node in gone:
            shutil.rmtree(node.temp, ignore_errors=True)
        _records.write(self._record_file, kept)
        return kept

    def _answers(self, head: NodeRecord) -> bool:
        """Whether a head can be adopted; one that lives is given time to answer."""
        patience = time.monotonic() + min(_PATIENCE_S, self._settings.start_timeout_s)
        while _lives(head):
            try:
                self._api_of(head).check_version()
            except UnreachableError:
                if time.monotonic() > patience or self._stopping.wait(_POLL_S):
                    return False
            except OctadError:
                return False
            else:
                return True
        return False

    def _start_node(self, record: ClusterRecord, name: str) -> ClusterRecord:
        head = record.head
        ports = _ports.claim(0 if head else self._settings.port)
        try:
            log = self._home / f"{name}.log"
            node = NodeRecord(
                name=name,
                address=ports.address,
                gcs=ports.gcs,
                dashboard=ports.dashboard,
                agent=ports.agent,
                temp=str(_node.make_temp_folder()),
                log=str(log),
            )
            # Written before and after: a starter that dies between leaves its folder named.
            _records.write(self._record_file, record.with_node(node))
            node = self._spawn(node, ports, f"{head.address}:{head.gcs}" if head else "")
        finally:
            ports.release()
        record = record.with_node(node)
        _records.write(self._record_file, record)
        return record

    def _spawn(self, node: NodeRecord, ports: PortBlock, join: str) -> NodeRecord:
        log = Path(node.log)
        with suppress(FileNotFoundError):
            log.unlink()
        process = _processes.spawn(
            _node.command(
                node.name,
                ports,
                temp=Path(node.temp),
                num_cpus=self._settings.num_cpus,
                object_store_mib=self._settings.object_store_mib,
                join=join,
            ),
            env=_node.environment(
                os.environ,
                mark=f"{self.mark}{node.name}/",
                token_file=self._token_file,
                temp=Path(node.temp),
                addresses=["127.0.0.0/8", node.address, join.partition(":")[0]],
            ),
            folder=Path(node.temp),
            log=log,
            keep=ports.lock,
        )
        return node.model_copy(update={"pid": process.pid, "created_at": process.create_time()})

    def _is_ready(self, head: NodeRecord) -> bool:
        """Jobs can be sent: the API answers, all nodes are there, the head's agent is too."""
        if not (_listens(head.dashboard) and _listens(head.agent)):
            return False
        return set(self._names) <= self._alive(head)

    def _wait_until(
        self, is_done: Callable[[], bool], record: ClusterRecord, deadline: float
    ) -> None:
        while not is_done():
            for node in record.nodes:
                if not _lives(node):
                    raise self._did_not_start(node, "ended at once")
            if time.monotonic() > deadline:
                raise self._did_not_start(
                    record.nodes[-1], f"was not up after {self._settings.start_timeout_s:.0f} s"
                )
            if self._stopping.wait(_POLL_S):
                raise ConflictError(f"cluster {self.spec.name} was stopped while it started")

    def _did_not_start(self, node: NodeRecord, what: str) -> OctadError:
        tail = _tail(Path(node.log))
        if "already occupied" in tail and self._settings.port:
            return _ports.in_use(self._settings.port)
        if "already occupied" in tail or "Address already in use" in tail:
            return PortError(f"a port of node {node.name} was taken while it started: {tail}")
        return UnreachableError(
            f"node {node.name} of cluster {self.spec.name} {what}; its log ends: {tail}",
            where=node.log,
        )

    # --- down -------------------------------------------------------------------------------

    def _clear(self) -> None:
        """End every process of this cluster, whoever started it, and remove what it left."""
        record = _records.read(self._record_file)
        left = _processes.end(self.mark, self._settings.stop_grace_s)
        if left:
            raise UnreachableError(
                f"processes {', '.join(str(p.pid) for p in left)} of cluster {self.spec.name} "
                "do not end",
                hint="they wait for a disk or device; look at them with ps",
            )
        for node in record.nodes:
            shutil.rmtree(node.temp, ignore_errors=True)
        with suppress(FileNotFoundError):
            self._record_file.unlink()
        self._close_api()

    # --- what it keeps ----------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return [f"{self.spec.name}-{index}" for index in range(self._settings.nodes)]

    @property
    def _record_file(self) -> Path:
        return self._home / "nodes.json"

    @property
    def _token_file(self) -> Path:
        return self._home / "ray-token"

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One start or stop at a time, among threads and processes."""
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _head(self) -> NodeRecord:
        head = _records.read(self._record_file).head
        if head is None:
            raise UnreachableError(
                f"cluster {self.spec.name} is not started", hint="start it with `octad up`"
            )
        return head

    def _api_of(self, head: NodeRecord) -> RayApi:
        address = _url(head)
        with self._api_lock:
            if self._api is None or self._api.address != address:
                self._api = RayApi(address, cluster=self.spec.name, token_file=self._token_file)
            return self._api

    def _close_api(self) -> None:
        with self._api_lock:
            if self._api is not None:
                self._api.close()
                self._api = None

    def _view(
        self, state: str, reason: str, head: NodeRecord | None, seen: Seen | None = None
    ) -> ClusterView:
        nodes: tuple[NodeView, ...] = seen.nodes if seen else ()
        return ClusterView.model_validate(
            {
                "name": self.spec.name,
                "kind": self.spec.kind,
                "card": self.spec.card,
                "state": state,
                "reason": reason,
                "nodes": nodes,
                "cards": seen.cards if seen else 0,
                "cards_free": seen.cards_free if seen else 0,
                "address": _url(head) if head else "",
            }
        )


def build(spec: ClusterSpec, home: Path) -> LocalCluster:
    """The provider of one local cluster.

    Raises:
        ConfigError: A setting is wrong, or real cards are asked for.
    """
    return LocalCluster(spec, home)


def _url(head: NodeRecord) -> str:
    return f"http://127.0.0.1:{head.dashboard}"


def _lives(node: NodeRecord) -> bool:
    return node.pid > 0 and _processes.is_alive(node.pid, node.created_at)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _tail(log: Path) -> str:
    """The last lines of a log on one line."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    said = [line.strip() for line in lines if line.strip()]
    return " | ".join(said[-_LOG_LINES:])[-1500:]
