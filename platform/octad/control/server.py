"""The process: one control plane for each home."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

import octad
from octad.control.app import build_app
from octad.control.auth import read_token
from octad.control.blobs import Blobs
from octad.control.clock import Clock
from octad.control.database import Database, sqlite_url
from octad.control.dispatch import Dispatcher
from octad.control.doctor import Doctor
from octad.control.fleet import Fleet
from octad.control.joblogs import JobLogs
from octad.control.lanes import ThreadLanes
from octad.control.leftovers import Leftovers
from octad.control.migrate import migrate
from octad.control.ray_packages import RayPackages
from octad.control.rayjobs import RayJobs
from octad.control.reconciler import Reconciler
from octad.control.runs import Runs
from octad.control.services import Services
from octad.control.shipping import Shipper
from octad.control.tables import Setting
from octad.control.tracking import TrackingServer
from octad.control.watch import Watch
from octad.errors import ConfigError, ConflictError, PortError
from octad.spec.home import Home
from octad.spec.server import API_VERSION, Endpoint, ServerSpec
from octad.spec.stages import StoreSpec
from octad.storage import ObjectStore

log = logging.getLogger(__name__)

USUAL_PORT = 8470
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FLEET_DOWN_TIMEOUT_S = 60.0


def serve(home: Home) -> None:
    """Be the control plane of a home until told to end.

    Raises:
        ConfigError: It is not configured, or wants to be reached from elsewhere.
        ConflictError: Another one has this home.
        PortError: Its port is in use.
        StorageError: Its database or store cannot be used.
    """
    spec = read_spec(home)
    with _only_one(home), _listening(spec) as listener:
        plane = ControlPlane(home, spec)
        try:
            plane.serve(listener)
        finally:
            home.endpoint.unlink(missing_ok=True)


def read_spec(home: Home) -> ServerSpec:
    """What this control plane is to be.

    Raises:
        ConfigError: There is no config, it cannot be read, or its host is not loopback.
    """
    try:
        raw = json.loads(home.config.read_text())
    except FileNotFoundError:
        raise ConfigError(
            "this home has no control plane", where=str(home.config), hint="start it: octad up"
        ) from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=str(home.config)) from None
    if not isinstance(raw, dict):
        raise ConfigError("must be a JSON object", where=str(home.config))
    spec = ServerSpec.parse(raw, where="server")
    if spec.host not in _LOOPBACK:
        raise ConfigError(
            f"will not listen on {spec.host}: the token would travel in clear, and is everybody's",
            where="server.host",
            hint="use 127.0.0.1; being reached from elsewhere needs TLS and teams",
        )
    return spec


class ControlPlane:
    """Everything of one control plane, put together.

    Args:
        home: Its private folder.
        spec: What it is to be.
        clock: Time.
    """

    def __init__(self, home: Home, spec: ServerSpec, clock: Clock | None = None) -> None:
        self.home = home
        self.spec = spec
        self.clock = clock or Clock()
        self.token = read_token(home.token)
        with suppress(OSError):  # SQLite says it better
            # Private before it is opened: what SQLite puts beside it takes its mode.
            home.database.touch(mode=0o600)
            home.database.chmod(0o600)
        self.database = Database(sqlite_url(home.database))
        migrate(self.database)
        storage = spec.storage
        if not storage.url:
            storage = StoreSpec(url=home.store.absolute().as_uri(), options=storage.options)
        self.store = ObjectStore(storage)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ends_fleet = False
        self._server: uvicorn.Server | None = None
        self._build(storage)

    def _build(self, storage: StoreSpec) -> None:
        spec, clock, database, store = self.spec, self.clock, self.database, self.store
        control_id = _control_id(database)
        self.fleet = Fleet(spec.fleet, self.home, database, clock=clock, changed=self._wake.set)
        self.lanes = ThreadLanes(self._wake.set)
        watch = Watch(store, self.fleet, self.lanes, clock)
        leftovers = Leftovers(
            database,
            store,
            self.fleet,
            lanes=self.lanes,
            watch=watch,
            clock=clock,
            control_id=control_id,
        )
        self.reconciler = Reconciler(
            database,
            storage,
            self.fleet,
            lanes=self.lanes,
            watch=watch,
            dispatcher=Dispatcher(
                store,
                self.fleet,
                python=spec.python,
                control_id=control_id,
                is_wanted=lambda attempt: self.reconciler.is_intended(attempt),  # noqa: PLW0108
                extras=lambda run: self.services.ray_jobs.extras(run),  # noqa: PLW0108
            ),
            leftovers=leftovers,
            clock=clock,
            control_id=control_id,
        )
        own_tracker = spec.tracker.kind == "mlflow" and not spec.tracker.url
        self.tracking = TrackingServer(self.home, clock) if own_tracker else None
        self.shipper = Shipper(
            database, store, spec.tracker, url=self._tracker_url_if_up, clock=clock
        )
        runs = Runs(database, store, rooms=self.reconciler.rooms, wake=self._wake.set, clock=clock)
        logs = JobLogs(database, store, self.fleet, control_id)
        blobs = Blobs(store, self.home.root / "spool")
        self.services = Services(
            runs=runs,
            logs=logs,
            blobs=blobs,
            ray_jobs=RayJobs(
                database,
                runs=runs,
                logs=logs,
                packages=RayPackages(database, store, blobs),
                session_name=f"octad-{control_id[:12]}",
            ),
            waiting=self.reconciler.waiting,
            fleet=self.fleet,
            doctor=Doctor(self.home, store, self.fleet, self.tracking, self.shipper),
            tracker_url=self.tracker_url,
            shut_down=self.shut_down,
        )
        self.app = build_app(self.services, self.token)

    def tracker_url(self) -> str:
        """Where people look at runs; empty if nothing is tracked."""
        return self.tracking.url if self.tracking is not None else self.spec.tracker.url

    def _tracker_url_if_up(self) -> str:
        if self.tracking is not None and not self.tracking.is_up:
            return ""
        return self.tracker_url()

    def serve(self, listener: socket.socket) -> None:
        """Listen until told to end."""
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=64 * 1024,
            timeout_graceful_shutdown=3,
        )
        self._server = _Server(config, lambda: self._began(listener))
        try:
            asyncio.run(self._server.serve(sockets=[listener]))
        finally:
            self._end()

    def start_threads(self) -> None:
        """Begin to reconcile, to look at the fleet, and to ship."""
        self.fleet.start_threads()
        if self.tracking is not None:
            self.tracking.start_thread()
        for name, target, args in (
            ("reconciler", self.reconciler.run, (self._stop, self._wake)),
            ("shipper", self.shipper.run, (self._stop,)),
        ):
            thread = threading.Thread(target=target, args=args, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def shut_down(self, ends_fleet: bool) -> None:  # noqa: FBT001  a value from the wire
        """End this control plane, after the call that asked for it was answered."""
        self._ends_fleet = ends_fleet
        if self._server is not None:
            self._server.should_exit = True

    def _began(self, listener: socket.socket) -> None:
        self.start_threads()
        host, port = listener.getsockname()[:2]
        endpoint = Endpoint(
            url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
            pid=os.getpid(),
            version=octad.__version__,
            api=API_VERSION,
            python=sys.executable,
            started_at_ms=self.clock.ms(),
        )
        _write_private(self.home.endpoint, endpoint.model_dump_json())
        log.info("listening on %s", endpoint.url)

    def _end(self) -> None:
        if self._ends_fleet:
            self.fleet.down()
            if not self.fleet.wait_down(_FLEET_DOWN_TIMEOUT_S):
                log.warning("some clusters did not end in time")
        self._stop.set()
        self._wake.set()
        self.fleet.stop_threads(timeout_s=1.0)
        if self.tracking is not None:
            self.tracking.stop_thread()
            if self._ends_fleet:
                self.tracking.end()
        for thread in self._threads:
            thread.join(2.0)
        self.lanes.close()
        self.database.close()


class _Server(uvicorn.Server):
    """Says when it listens, and ends by a signal as by any other word: in order, with code 0."""

    def __init__(self, config: uvicorn.Config, began: Callable[[], None]) -> None:
        super().__init__(config)
        self._began = began

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take SIGINT and SIGTERM as the wish to end; they are not raised again at the end."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._began()


def _control_id(database: Database) -> str:
    """What tells this control plane's jobs from those of any other; made once."""
    with database.write() as session:
        row = session.get(Setting, "control_id")
        if row is None:
            row = Setting(name="control_id", value=uuid.uuid4().hex)
            session.add(row)
        return row.value


@contextmanager
def _only_one(home: Home) -> Iterator[None]:
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConflictError(
                "another control plane has this home", where=str(home.root), hint="use that one"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _listening(spec: ServerSpec) -> Iterator[socket.socket]:
    """A socket that listens; where no port was asked for, the usual one if it is free."""
    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    for port in [spec.port] if spec.port else [USUAL_PORT, 0]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((spec.host, port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if port == spec.port and port:
                raise PortError(
                    f"port {port} is in use", where="server.port", hint="choose another, or 0"
                ) from error
            continue
        with listener:
            yield listener
        return
    raise PortError(f"no port is free on {spec.host}", where="server.port")


def _write_private(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.part")
    with suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)
