"""Who may speak to this control plane: whoever holds the token of its home, from this machine."""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from octad.errors import AccessError

OPEN_PATHS = frozenset({"/api/health"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def read_token(path: Path) -> str:
    """The token of a home, made if there is none yet; the file is for its owner only.

    Raises:
        AccessError: It is empty, or others could read it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make_token(path)
    if path.stat().st_mode & 0o077:
        raise AccessError("others can read the token", where=str(path), hint=f"chmod 600 {path}")
    token = path.read_text().strip()
    if not token:
        raise AccessError("the token is empty", where=str(path), hint="delete it, and start again")
    return token


def _make_token(path: Path) -> None:
    """Of any number of makers one wins, and none can be seen half done."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        path.hardlink_to(partial)
    partial.unlink()


class Guard:
    """Lets nothing through but calls with the token, made by this machine's own programs.

    Browsers send the name they looked up as `Host` and the page's as `Origin`; both are checked,
    so that a web page cannot reach this control plane by a name that resolves to loopback.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer it with 401 or 403."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] not in {"http", "websocket"}:
            return
        headers = Headers(scope=scope)
        if not _is_local(headers.get("host", "")) or not _is_local_origin(headers.get("origin")):
            error = AccessError("this host name is not served here", hint="use 127.0.0.1")
            await _refuse(error, 403)(scope, receive, send)
            return
        if scope["path"] not in OPEN_PATHS:
            given = headers.get("authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._wanted):
                what = "the token is not good here" if given else "no token was sent"
                error = AccessError(what, hint="send the one in the home's file `token`")
                await _refuse(error, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refuse(error: AccessError, status: int) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": error.to_wire()}, status, headers)


def _is_local(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in _LOOPBACK
    except ValueError:
        return False


def _is_local_origin(origin: str | None) -> bool:
    if origin is None:
        return True
    try:
        return urlsplit(origin).hostname in _LOOPBACK
    except ValueError:
        return False
