"""The MLflow server that a control plane starts for itself, where no other is configured.

It is a process group of its own: it outlives the control plane, and the next one adopts it by its
record. Its database is made whole before it listens, so that no two processes ever make it at once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from octad.control.clock import Clock, pause_s
from octad.control.database import sqlite_url
from octad.spec.home import Home

log = logging.getLogger(__name__)

USUAL_PORT = 5000
_LOOK_EVERY_S = 2.0
_START_TIMEOUT_S = 90.0
_RETRY_MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    """`mlflow/server.json`: the process that was started last, and where it listens."""

    pid: int
    created_at: float
    port: int


class TrackingServer:
    """One `mlflow server` on loopback.

    Args:
        home: Its database, artifacts and record lie in `home.mlflow`.
        clock: Time.
    """

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._spawning = threading.Lock()
        self._is_up = False
        self.failure = ""

    @property
    def url(self) -> str:
        """Where it listens, or will again; empty before its first start."""
        record = self._record()
        return f"http://127.0.0.1:{record.port}" if record else ""

    @property
    def is_up(self) -> bool:
        """Whether it answered when last asked."""
        return self._is_up

    def start_thread(self) -> None:
        """Begin to keep it up."""
        self._thread = threading.Thread(target=self._run, name="tracking-server", daemon=True)
        self._thread.start()

    def stop_thread(self) -> None:
        """Look after it no more; it stays up."""
        self._stop.set()

    def end(self, grace_s: float = 5.0) -> None:
        """End it, and nothing else; one that is about to be started is not started any more."""
        self._stop.set()
        with self._spawning:
            process = self._process()
        if process is None:
            return
        end_group(process, grace_s)
        self._record_file.unlink(missing_ok=True)

    def tick(self) -> None:
        """Adopt it if it runs, start it if it does not."""
        if self._child is not None:
            self._child.poll()  # else a dead one would stay as a zombie
        if self._process() is None:
            self._end_orphans()
            self._start()
        # One that is not ours may answer where ours could not listen.
        self._is_up = self._answers() and self._process() is not None

    # --- the process --------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._stop.is_set():
            try:
                self.tick()
                tries, self.failure = (0, "") if self._is_up else (tries, self.failure)
                wait_s = _LOOK_EVERY_S
            except (OSError, subprocess.SubprocessError, psutil.Error) as error:
                self.failure = str(error)
                log.warning("the tracking server does not start: %s", error)
                wait_s = pause_s(tries, _LOOK_EVERY_S, _RETRY_MOST_S)
                tries += 1
            self._stop.wait(wait_s)

    def _start(self) -> None:
        folder = self._home.mlflow
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite_url(folder / "mlflow.sqlite")
        # One whose starter died before it could write it down has no record.
        for stray in _strays(database):
            end_group(stray, grace_s=5.0)
        with (self._home.logs / "mlflow.log").open("ab") as out:
            environment = clean_environment(dict(os.environ))
            # A start that was cut short in the middle is finished by the next.
            subprocess.run(  # noqa: S603  our own interpreter and words
                [sys.executable, "-m", "mlflow", "db", "upgrade", database],
                env=environment,
                stdout=out,
                stderr=out,
                check=True,
                timeout=_START_TIMEOUT_S,
            )
            with self._spawning:
                if self._stop.is_set():
                    return
                port = free_port(self._last_port() or USUAL_PORT)
                self._child = process = subprocess.Popen(  # noqa: S603
                    command(database, folder, port),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    cwd=folder,
                )
                created_at = psutil.Process(process.pid).create_time()
                self._write(Record(process.pid, created_at, port))
        deadline_s = self._clock.s() + _START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None:
                raise ChildProcessError(
                    f"mlflow server ended at once; see {self._home.logs / 'mlflow.log'}"
                )
            if self._clock.s() > deadline_s or self._stop.wait(0.1):
                return

    def _end_orphans(self) -> None:
        """The leader is dead; the rest of its group may still hold the port."""
        record = self._record()
        if record is not None and not psutil.pid_exists(record.pid):
            # A group's number is not given to another while one of it lives.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(record.pid, signal.SIGKILL)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _process(self) -> psutil.Process | None:
        """The recorded process, if it is still that one."""
        record = self._record()
        if record is None:
            return None
        try:
            process = psutil.Process(record.pid)
            is_same = abs(process.create_time() - record.created_at) < 1.0
            is_alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        return process if is_same and is_alive else None

    # --- the record ---------------------------------------------------------------------------

    @property
    def _record_file(self) -> Path:
        return self._home.mlflow / "server.json"

    def _record(self) -> Record | None:
        try:
            return Record(**json.loads(self._record_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _last_port(self) -> int:
        """The port it had, so that addresses people have noted stay good."""
        try:
            return int((self._home.mlflow / "port").read_text())
        except (OSError, ValueError):
            return 0

    def _write(self, record: Record) -> None:
        partial = self._record_file.with_suffix(".part")
        partial.write_text(json.dumps(asdict(record)))
        partial.replace(self._record_file)
        (self._home.mlflow / "port").write_text(str(record.port))


def command(database: str, folder: Path, port: int) -> list[str]:
    """The command line of the server. One worker: a second one would cost memory and win nothing."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", database, "--serve-artifacts"),
        *("--artifacts-destination", (folder / "artifacts").as_uri()),
    ]


def clean_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment without anything that was meant for another MLflow."""
    kept = {k: v for k, v in environment.items() if not k.startswith("MLFLOW_")}
    return kept | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # No background workers, and no pickles: it keeps records, nothing else.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    }


def free_port(wanted: int) -> int:
    """`wanted` if it is free on loopback, else any that is."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")


def end_group(process: psutil.Process, grace_s: float) -> None:
    """End a process that leads its own group, and the group with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(psutil.Error):
        process.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(psutil.Error):
        process.wait(grace_s)


def _strays(database: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "mlflow" in line and "server" in line and database in line:
                found.append(process)
    return [p for p in found if _leads_group(p)]


def _leads_group(process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == process.pid
    except ProcessLookupError:
        return False
