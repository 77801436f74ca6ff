"""The control plane of a home: where it says that it listens, its token, its version."""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from octad import __version__
from octad.client.wire import Address, Wire
from octad.errors import AccessError, ConflictError, OctadError, UnreachableError
from octad.spec.home import Home

# Equal to octad.spec.server.API_VERSION (a test says so); that module costs too much to import here.
API_VERSION = 1


def answering(home: Home, token: str) -> dict[str, Any] | None:
    """The recorded endpoint of a home, if a control plane answers there."""
    endpoint = read_endpoint(home)
    if endpoint is None or not _is_alive(endpoint.get("pid")):
        return None
    try:
        health = Wire(Address(endpoint["url"], token), patience_s=0).json("GET", "/api/health")
    except OctadError:
        return None
    return {**endpoint, "version": health.get("version"), "api": health.get("api")}


def _is_alive(pid: Any) -> bool:
    """Whether the recorded process is there: where it is not, another may listen in its place."""
    if not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def read_endpoint(home: Home) -> dict[str, Any] | None:
    """What `endpoint.json` says, or None."""
    try:
        endpoint = json.loads(home.endpoint.read_text())
        return endpoint if isinstance(endpoint["url"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_token(home: Home) -> str:
    """The token of a home, made if there is none.

    Raises:
        AccessError: What is there is none.
    """
    try:
        token = home.token.read_text(errors="replace").strip()
    except FileNotFoundError:
        token = ""
    return checked_token(token or _make_token(home), where=str(home.token))


def checked_token(text: str, *, where: str) -> str:
    """`text`, if it can travel in a header.

    Raises:
        AccessError: It cannot.
    """
    if text.isascii() and text.isprintable():
        return text
    raise AccessError("what is there is no token", where=where)


def check_version(wire: Wire) -> None:
    """Refuse a control plane that speaks another version of the wire types.

    Raises:
        ConflictError: It does.
        UnreachableError: It does not answer, or is something else.
    """
    health = wire.json("GET", "/api/health")
    api = health.get("api") if isinstance(health, dict) else None
    if not isinstance(api, int):
        raise UnreachableError(
            "answers, but is not a control plane", where=wire.address.url, hint="see OCTAD_URL"
        )
    if api != API_VERSION:
        theirs = health.get("version")
        older = "this command" if api > API_VERSION else "the control plane"
        raise ConflictError(
            f"the control plane is octad {theirs} (API {api}), this command is octad {__version__} "
            f"(API {API_VERSION})",
            where=wire.address.url,
            hint=f"update {older}",
        )


def _make_token(home: Home) -> str:
    """Make the token; where two do so at once, both get the same."""
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = home.root / f".token-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    try:
        os.link(fresh, home.token)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return home.token.read_text().strip()
