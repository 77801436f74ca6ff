"""HTTP to one control plane: JSON in, JSON out, octad's errors.

Plain standard library, because every command waits for this module's imports.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

from octad.errors import AccessError, NotFoundError, OctadError, UnreachableError

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_TIMEOUT_S = 30.0
_LOST = (OSError, http.client.HTTPException)
FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Address:
    """Where a control plane listens, and the token it knows us by."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """One control plane, as a sender of requests.

    A call that fails on the way is sent again until `patience_s` has passed, unless it may do its work
    twice. `revive` is asked first: it brings back a control plane that died, or says why not.

    Attributes:
        address: Where it listens now.
        patience_s: How long to go on trying when it does not answer.
    """

    def __init__(
        self,
        address: Address,
        *,
        patience_s: float = 5.0,
        revive: Callable[[], Address] | None = None,
    ) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self.address = address
        self.patience_s = patience_s
        self._revive = revive
        self._skew_s = 0.0

    def json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, object] | None = None,
        is_repeatable: bool = True,
    ) -> Any:
        """Send a request with a JSON body and return the JSON of the answer.

        Raises:
            OctadError: What the control plane refused it with.
            UnreachableError: It does not answer, or what answers is no control plane.
        """
        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        target = f"{path}?{urlencode(given)}" if given else path
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        answer = self.send(method, target, data, headers, is_repeatable=is_repeatable)
        try:
            return json.loads(answer.body)
        except ValueError:
            raise self._no_control_plane(f"answered {path} with something else than JSON") from None

    def send(
        self,
        method: str,
        target: str,
        body: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_repeatable: bool = True,
    ) -> Answer:
        """Send a request and return the answer; of HEAD also one of a server that fails, since it
        cannot say why.

        Raises:
            OctadError: See `json`.
        """
        deadline = time.monotonic() + self.patience_s
        pause_s = 0.1
        if not is_repeatable:
            self.close()  # a connection that idled may be gone without our knowing
        while True:
            try:
                answer = self._once(method, target, body, headers or {})
            except _LOST as error:
                self.close()
                was_sent = not isinstance(error, ConnectionRefusedError)
                if was_sent and not is_repeatable:
                    raise self._lost(error, "it may or may not have been done") from None
                if self._revive is not None:
                    self.address = self._revive()
                if time.monotonic() + pause_s > deadline:
                    raise self._lost(error) from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 2.0)
                continue
            if method != "HEAD" or answer.status < FIRST_SERVER_ERROR:
                self._check(answer)
            return answer

    def now_ms(self) -> int:
        """Unix time by the control plane's clock, to about a second."""
        return int((time.time() + self._skew_s) * 1000)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self.close()

    def _once(
        self,
        method: str,
        target: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
    ) -> Answer:
        if self._connection is None:
            self._connection = _connection(self.address.url)
        if body is not None and not isinstance(body, bytes):
            body.seek(0)
        path = urlsplit(self.address.url).path.rstrip("/") + target
        if self._connection.host != urlsplit(self.address.url).hostname and not _tunnels(
            self.address.url
        ):
            path = self.address.url.rstrip("/") + target  # through a proxy, in full
        allowed = {"Authorization": f"Bearer {self.address.token}"} if self.address.token else {}
        self._connection.request(method, path, body, {**headers, **allowed})
        response = self._connection.getresponse()
        answer = Answer(
            response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()
        )
        self._note_clock(answer)
        return answer

    def _note_clock(self, answer: Answer) -> None:
        try:
            there = parsedate_to_datetime(answer.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return
        skew_s = there - time.time()
        self._skew_s = skew_s if abs(skew_s) > 2 else 0.0  # the header has whole seconds

    def _check(self, answer: Answer) -> None:
        if answer.status < 300:
            return
        try:
            wire = json.loads(answer.body)["error"]
            error = OctadError.from_wire(wire)
        except (ValueError, KeyError, TypeError, AttributeError):
            error = self._foreign(answer)
        raise error

    def _foreign(self, answer: Answer) -> OctadError:
        """The error for an answer that is not in octad's words."""
        where = self.address.url
        if answer.status in {401, 403}:
            what = "the token was refused" if self.address.token else "no token was sent"
            return AccessError(f"{what} ({answer.status})", where=where, hint="see OCTAD_TOKEN")
        if answer.status == 404:
            return NotFoundError("there is nothing at that address (404)", where=where)
        return self._no_control_plane(f"answered {answer.status}")

    def _no_control_plane(self, what: str) -> UnreachableError:
        return UnreachableError(
            f"{what}: is this a control plane?", where=self.address.url, hint="see OCTAD_URL"
        )

    def _lost(self, error: Exception, more: str = "") -> UnreachableError:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        what = f"no answer from the control plane ({cause or type(error).__name__})"
        return UnreachableError(
            f"{what}; {more}" if more else what,
            where=self.address.url,
            hint="runs go on without it; try again, and see 'octad doctor'",
        )


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    return urlsplit(url).hostname in _LOOPBACK


def _tunnels(url: str) -> bool:
    return urlsplit(url).scheme == "https"


def _proxy(url: str) -> str:
    """The proxy that the environment names for a URL; never one for this machine."""
    parts = urlsplit(url)
    if is_loopback(url) or urllib.request.proxy_bypass(parts.netloc):
        return ""
    return urllib.request.getproxies().get(parts.scheme, "")


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if _tunnels(url) else 80)
    proxy = urlsplit(_proxy(url))
    through = (proxy.hostname or host, proxy.port or 80) if proxy.hostname else (host, port)
    if not _tunnels(url):
        return http.client.HTTPConnection(*through, timeout=_TIMEOUT_S)
    secure = http.client.HTTPSConnection(
        *through, timeout=_TIMEOUT_S, context=ssl.create_default_context()
    )
    if proxy.hostname:
        secure.set_tunnel(host, port)
    return secure
