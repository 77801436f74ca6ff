"""Blocks of free ports on this machine, one for each node.

A block is held by a lock on a file. The lock's descriptor is handed to the node's first process
and lives as long as that process, so a block is never given twice, not between threads or
control planes, and is free again by itself when the node is gone, however it ended.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from octad.errors import ConfigError, PortError

SIZE = 128
# Below what systems take for outgoing connections (32768 on Linux, 49152 elsewhere).
_FIRST, _END = 20000, 32640
_NUM_BLOCKS = (_END - _FIRST) // SIZE
_NUM_SERVICES = 16


@dataclass(frozen=True, slots=True)
class PortBlock:
    """The ports of one node.

    Attributes:
        first: The first of `SIZE` ports in a row.
        lock: A descriptor that keeps the block for whoever holds it open.
        dashboard_port: Another one than the block's own, if one was asked for.
    """

    first: int
    lock: int
    dashboard_port: int = 0

    @property
    def gcs(self) -> int:
        """Of the head's cluster store: the address that drivers connect to."""
        return self.first

    @property
    def dashboard(self) -> int:
        """Of the head's dashboard, and so of the Jobs API."""
        return self.dashboard_port or self.first + 1

    @property
    def agent(self) -> int:
        """Of the node's dashboard agent, over HTTP."""
        return self.first + 2

    @property
    def agent_grpc(self) -> int:
        """Of the node's dashboard agent, over gRPC."""
        return self.first + 3

    @property
    def client_server(self) -> int:
        """Of the head's Ray Client server."""
        return self.first + 4

    @property
    def node_manager(self) -> int:
        """Of the raylet."""
        return self.first + 5

    @property
    def object_manager(self) -> int:
        """Of the raylet's object transfer."""
        return self.first + 6

    @property
    def runtime_env_agent(self) -> int:
        """Of what prepares a job's working folder."""
        return self.first + 7

    @property
    def metrics(self) -> int:
        """Of the Prometheus metrics."""
        return self.first + 8

    @property
    def workers(self) -> tuple[int, int]:
        """First and last port for worker processes."""
        return self.first + _NUM_SERVICES, self.first + SIZE - 1

    @property
    def address(self) -> str:
        """A loopback address of the node's own, so that nodes look apart as machines do."""
        # Only Linux answers to all of 127.0.0.0/8 unasked.
        if sys.platform != "linux":
            return "127.0.0.1"
        index = (self.first - _FIRST) // SIZE
        return f"127.8.0.{index + 1}"

    def release(self) -> None:
        """Close this process' hold; a node that inherited it keeps the block."""
        os.close(self.lock)


def claim(dashboard_port: int = 0) -> PortBlock:
    """A block whose ports are all free, held by its lock.

    Args:
        dashboard_port: A port that must be used for the dashboard; 0 for one of the block.

    Raises:
        PortError: That port is in use, or no block is free.
    """
    if dashboard_port and not is_free(dashboard_port):
        raise in_use(dashboard_port)
    folder = _folder()
    start = secrets.randbelow(_NUM_BLOCKS)
    for step in range(_NUM_BLOCKS):
        index = (start + step) % _NUM_BLOCKS
        first = _FIRST + index * SIZE
        lock = _try_lock(folder / str(index))
        if lock is None:
            continue
        if all(is_free(port) for port in range(first, first + SIZE) if port != dashboard_port):
            return PortBlock(first=first, lock=lock, dashboard_port=dashboard_port)
        os.close(lock)
    raise PortError(
        f"no {SIZE} ports in a row are free between {_FIRST} and {_END}",
        hint="end something that holds ports there",
    )


def is_free(port: int) -> bool:
    """Whether nothing on this machine listens on a port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it a port stays taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 (bound, never listening)
        except OSError:
            return False
    return True


def in_use(port: int) -> PortError:
    """The error that names a taken port and, where the system tells, who holds it."""
    holder = holder_of(port)
    by = f" by {holder}" if holder else ""
    return PortError(
        f"port {port} is in use{by}",
        where="port",
        hint="end what holds it, choose another port, or leave it at 0 to have one chosen",
    )


def holder_of(port: int) -> str:
    """`pid 123 (name)` of the process that listens on a port; empty where nobody may know."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            laddr = tuple(connection.laddr)
            if connection.status == psutil.CONN_LISTEN and laddr[1:] == (port,) and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"octad-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError(
            "this folder is somebody else's; it holds the locks of ports",
            where=str(folder),
            hint="have it removed, or set TMPDIR to a folder of your own",
        )
    return folder


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
