"""Start the control plane of a home, in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from octad.client.endpoint import answering, check_version, read_token
from octad.client.wire import Address, Wire
from octad.compose import compose_server
from octad.errors import (
    AccessError,
    ConfigError,
    ConflictError,
    OctadError,
    PortError,
    StorageError,
    UnreachableError,
)
from octad.spec.home import Home
from octad.spec.server import ServerSpec

_START_S = 60.0
_STOP_S = 30.0
# How long an ended control plane is given to turn out to have lost a race against another.
_GRACE_S = 1.0
# A control plane that cannot start says why by its exit code.
_KINDS: dict[int, type[OctadError]] = {
    kind.exit_code: kind
    for kind in (AccessError, ConfigError, ConflictError, StorageError, PortError)
}
# Kept, because they are to outlive this process.
_STARTED: list[subprocess.Popen[bytes]] = []


def start(home: Home, *, outdated: Mapping[str, Any] | None = None) -> Address:
    """Start the control plane of a home and wait until it answers.

    Two callers at once end with one control plane: the second finds the home locked and leaves.

    Args:
        home: Its private folder.
        outdated: The endpoint of an older one that still runs; it is asked to leave first, and
            leaves the fleet alone.

    Raises:
        UnreachableError: It ended, or does not answer in time; with the last line of its log.
    """
    token = read_token(home)
    if outdated is not None:
        _ask_to_leave(home, str(outdated["url"]), token)
    prepare(home)
    log = home.logs / "control.log"
    with log.open("ab") as out:
        begin = out.tell()
        process = _spawn(home, out)
    _STARTED.append(process)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        running = answering(home, token)
        if running is not None:
            address = Address(str(running["url"]), token)
            check_version(Wire(address))
            return address
        if process.poll() is not None and process.returncode != ConflictError.exit_code:
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(0.05)
    how = "did not start" if process.poll() is not None else "does not answer"
    kind = _KINDS.get(process.returncode or 0, UnreachableError)
    raise kind(f"the control plane {how}: {_last_line(log, begin)}", where=str(log))


def prepare(home: Home, overrides: Sequence[str] = (), conf: Path | None = None) -> None:
    """Make the home and write how its control plane is set up, if that is not written yet or is to
    change.

    Raises:
        ConfigError: The set-up cannot be.
        ConflictError: It differs from that of the control plane that runs, and clusters are up.
    """
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.logs.mkdir(mode=0o700, exist_ok=True)
    stored = _stored(home)
    if home.config.exists() and not overrides and conf is None:
        if stored is not None and Path(stored.python).is_absolute():
            _keep_python(home, stored)
        return
    spec = compose_server(overrides, home, conf)
    token = read_token(home)
    running = answering(home, token)
    if running is not None and stored != spec:
        _check_empty(home, Wire(Address(str(running["url"]), token)))
        _ask_to_leave(home, str(running["url"]), token)
    _write(home.config, spec.model_dump_json(indent=2))


@contextmanager
def kept(home: Home) -> Iterator[None]:
    """Put back how the control plane was set up, if inside this it turns out that the new set-up
    cannot be.
    """
    before = home.config.read_text() if home.config.exists() else None
    try:
        yield
    except (ConfigError, PortError, StorageError):
        if before is None:
            home.config.unlink(missing_ok=True)
        else:
            _write(home.config, before)
        raise


def command(home: Home) -> list[str]:
    """The command line of the control plane of a home."""
    return [sys.executable, "-m", "octad.control", "--home", str(home.root)]


def environment() -> dict[str, str]:
    """The environment of a control plane: ours, with paths that hold in any folder."""
    environ = dict(os.environ)
    paths = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if paths:
        environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in paths)
    return environ


def _spawn(home: Home, out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command(home),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=home.root,
        env=environment(),
        start_new_session=True,
    )


def _ask_to_leave(home: Home, url: str, token: str) -> None:
    try:
        Wire(Address(url, token)).json("POST", "/api/shutdown", {"fleet": False})
    except OctadError:
        return  # it is gone, or will not go: the lock tells
    deadline = time.monotonic() + _STOP_S
    while answering(home, token) is not None and time.monotonic() < deadline:
        time.sleep(0.05)


def _check_empty(home: Home, wire: Wire) -> None:
    """Refuse to set a control plane up anew while its clusters are up."""
    clusters = wire.json("GET", "/api/fleet")["clusters"]
    busy = [str(cluster["name"]) for cluster in clusters if cluster["state"] != "down"]
    if busy:
        raise ConflictError(
            f"the control plane here is set up differently, and {', '.join(busy)} are up",
            where=str(home.config),
            hint="'octad down' first, then this again",
        )


def _keep_python(home: Home, stored: ServerSpec) -> None:
    """Have jobs started with an interpreter that is there: environments come and go."""
    if not Path(stored.python).exists():
        fresh = stored.model_copy(update={"python": sys.executable})
        _write(home.config, fresh.model_dump_json(indent=2))


def _stored(home: Home) -> ServerSpec | None:
    try:
        return ServerSpec.model_validate_json(home.config.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read()[-20_000:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
