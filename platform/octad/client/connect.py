"""Find the control plane: a remote one from the environment, else the one of this home."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octad import __version__
from octad.client.endpoint import (
    answering,
    check_version,
    checked_token,
    read_endpoint,
    read_token,
)
from octad.client.wire import Address, Wire
from octad.errors import AccessError, ConfigError, UnreachableError
from octad.spec.home import Home, expanded


def connect(
    environ: Mapping[str, str] = os.environ, *, patience_s: float = 5.0, may_start: bool = True
) -> Wire:
    """The control plane that commands speak to; one on loopback is started if none answers.

    Args:
        environ: OCTAD_URL with OCTAD_TOKEN or OCTAD_TOKEN_FILE names a remote one; OCTAD_HOME the
            home of a local one.
        patience_s: How long a call goes on trying.
        may_start: Whether one may be started here.

    Raises:
        UnreachableError: None answers.
        ConflictError: It speaks another version.
        AccessError: OCTAD_URL is set, but no token.
        ConfigError: OCTAD_URL is no address.
    """
    url = environ.get("OCTAD_URL", "").rstrip("/")
    if url:
        _check_url(url)
        wire = Wire(Address(url, _remote_token(environ)), patience_s=patience_s)
        check_version(wire)
        return wire
    home = Home.of(environ)
    address = local_address(home, may_start=may_start)
    return Wire(address, patience_s=patience_s, revive=lambda: _revived(home))


def local_address(home: Home, *, may_start: bool = True) -> Address:
    """Where the control plane of a home listens; starts it if it does not answer.

    Raises:
        UnreachableError: It does not answer and may not, or could not, be started.
        ConflictError: It speaks another version.
    """
    token = read_token(home)
    running = answering(home, token)
    if running is not None and not _is_outdated(running):
        address = Address(str(running["url"]), token)
        check_version(Wire(address))
        return address
    if not may_start:
        raise UnreachableError(
            "no control plane runs here", where=str(home.root), hint="start it with 'octad up'"
        )
    starter: Any = importlib.import_module("octad.client.start")  # composes: slow to import
    started: Address = starter.start(home, outdated=running)
    return started


def _is_outdated(endpoint: Mapping[str, Any]) -> bool:
    """Another version of octad, or one whose Python has been removed from under it."""
    python = str(endpoint.get("python") or "")
    return endpoint.get("version") != __version__ or bool(python and not Path(python).exists())


def _revived(home: Home) -> Address:
    """The address after a control plane died; one that was shut down on purpose stays down."""
    if read_endpoint(home) is None:
        raise UnreachableError(
            "the control plane was shut down", where=str(home.root), hint="'octad up' starts it"
        )
    return local_address(home)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not parts.path.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(
            f"{url!r} is no address of a control plane",
            where="OCTAD_URL",
            hint="it looks like https://octad.example:8470",
        )


def _remote_token(environ: Mapping[str, str]) -> str:
    token = environ.get("OCTAD_TOKEN", "").strip()
    named = environ.get("OCTAD_TOKEN_FILE", "")
    if not token and named:
        try:
            token = expanded(Path(named)).read_text(errors="replace").strip()
        except OSError as error:
            raise AccessError(
                f"cannot read the token ({error.strerror})", where=named, hint="OCTAD_TOKEN_FILE"
            ) from None
    if not token:
        raise AccessError(
            "OCTAD_URL is set, but there is no token",
            where=environ["OCTAD_URL"],
            hint="set OCTAD_TOKEN or OCTAD_TOKEN_FILE",
        )
    return checked_token(token, where="OCTAD_TOKEN" if environ.get("OCTAD_TOKEN") else named)
