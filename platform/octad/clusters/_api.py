"""Calls to one Ray dashboard over HTTP: the token, the retries, and what each answer means."""

from __future__ import annotations

import re
import ssl
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from octad.errors import AccessError, ConfigError, OctadError, UnreachableError

# What the Jobs API itself is versioned by, and the oldest Ray without a known open hole.
JOBS_API_VERSION = "4"
OLDEST_RAY = (2, 56)
WRITTEN_FOR_RAY = "2.60.0"
TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0
_TRIES = 3
_Errors = tuple[type[httpx.TransportError], ...]
_NEVER_SENT: _Errors = (httpx.ConnectError,)
_RAY_VERSION = re.compile(r"(\d+)\.(\d+)\.")


class RayApi:
    """One Ray dashboard.

    Args:
        address: `http(s)://host:port`.
        cluster: The cluster's name, for messages.
        token_file: Holds the cluster's token; read on each call, so that a new one is taken up.
            None for a cluster that asks for none.
        ca_file: Certificates to trust beside the system's own.
        timeout_s: How long an answer may take, where a call does not say otherwise.

    Raises:
        ConfigError: The certificates cannot be read.
    """

    def __init__(
        self,
        address: str,
        *,
        cluster: str,
        token_file: Path | None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.address = address.rstrip("/")
        self.cluster = cluster
        self._token_file = token_file
        # Proxies of the environment are for the world outside, never for a cluster.
        self._client = httpx.Client(
            base_url=self.address,
            trust_env=False,
            timeout=_timeout(timeout_s),
            verify=_tls(ca_file),
        )
        # Providers come and go; connections must not be left to the collector.
        weakref.finalize(self, self._client.close)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, **params: str) -> httpx.Response:
        """An idempotent read, tried again where the connection fails."""
        return self.send("GET", path, params=params)

    def send(
        self,
        method: str,
        path: str,
        *,
        is_repeatable: bool = True,
        timeout_s: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """One call; what comes back may still be a 4xx or 500, for the caller to read.

        Args:
            method: Of HTTP.
            path: From the root of the dashboard.
            is_repeatable: Whether a call that may have arrived can be sent again. A connection
                that was never made is tried again in any case.
            timeout_s: How long the answer may take.
            options: As `httpx.Client.request` takes them.

        Raises:
            UnreachableError: No connection, no answer in time, or a gateway that says so.
            AccessError: No token was sent, or it is not this cluster's.
        """
        headers = self._headers()
        # A call that timed out has cost its time; what comes next asks again.
        again = (httpx.NetworkError, httpx.RemoteProtocolError) if is_repeatable else _NEVER_SENT
        if timeout_s is not None:
            options["timeout"] = _timeout(timeout_s)
        with self._unreachable():
            answer = self._send(again, method, path, headers=headers, **options)
        self._check_access(answer, was_sent=bool(headers))
        if answer.status_code in {502, 503, 504}:
            raise self.failed(answer)
        return answer

    def _send(self, again: _Errors, method: str, path: str, **options: Any) -> httpx.Response:
        for attempt in Retrying(
            retry=retry_if_exception_type(again),
            stop=stop_after_attempt(_TRIES),
            wait=wait_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        ):
            with attempt:
                return self._client.request(method, path, **options)
        raise AssertionError

    def check_version(self) -> str:
        """The cluster's Ray version, if this octad can work with it.

        Raises:
            ConfigError: It cannot; the message names both versions.
            UnreachableError: What answers is not a Ray dashboard.
        """
        body = self.json("/api/version")
        api, ray = str(body.get("version")), str(body.get("ray_version"))
        match = _RAY_VERSION.match(ray)
        if match is None:
            raise UnreachableError(
                f"what answers is no Ray dashboard (it says its version is {ray[:40]!r})",
                where=self.address,
                hint="give the address of the cluster's dashboard, such as http://head:8265",
            )
        theirs = (int(match[1]), int(match[2]))
        if api != JOBS_API_VERSION or theirs[0] != OLDEST_RAY[0] or theirs < OLDEST_RAY:
            raise ConfigError(
                f"cluster {self.cluster} runs Ray {ray} (Jobs API {api}); this octad is written "
                f"for Ray {WRITTEN_FOR_RAY} (Jobs API {JOBS_API_VERSION})",
                where=self.address,
                hint=f"run Ray {WRITTEN_FOR_RAY} on the cluster, or an octad made for Ray {ray}",
            )
        return ray

    def json(self, path: str, **params: str) -> dict[str, Any]:
        """The JSON object at `path`.

        Raises:
            UnreachableError: The answer is no JSON object, or not a success.
        """
        answer = self.get(path, **params)
        try:
            body = answer.json() if answer.is_success else None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self.failed(answer)
        return body

    def failed(self, answer: httpx.Response) -> OctadError:
        """The error of an answer that nobody can use."""
        return UnreachableError(
            f"cluster {self.cluster} answers {answer.status_code}: {last_line(answer.text)}",
            where=f"{self.address}{answer.request.url.path}",
        )

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text().strip()
        except OSError as error:
            raise AccessError(
                f"the token of cluster {self.cluster} cannot be read: {error.strerror}",
                where=str(self._token_file),
            ) from None
        if not token:
            raise AccessError(
                f"the token file of cluster {self.cluster} is empty", where=str(self._token_file)
            )
        return {"Authorization": f"Bearer {token}"}

    def _check_access(self, answer: httpx.Response, *, was_sent: bool) -> None:
        if answer.status_code not in {401, 403}:
            return
        text = last_line(answer.text)
        if answer.status_code == 401 and not was_sent:
            raise AccessError(
                f"cluster {self.cluster} wants a token and none is configured ({text})",
                where=self.address,
                hint="name the file that holds it: token_file",
            )
        # Ray answers 401 for a token that did not arrive, 403 for one that is not its own; a 403
        # that does not speak of tokens comes from something in between.
        if "token" not in text.lower():
            raise AccessError(
                f"cluster {self.cluster} answers {answer.status_code}: {text}",
                where=f"{self.address}{answer.request.url.path}",
            )
        what = "did not receive the token" if answer.status_code == 401 else "refuses the token"
        raise AccessError(
            f"cluster {self.cluster} {what} ({text})",
            where=self.address,
            hint=f"compare {self._token_file} with the token the cluster was started with",
        )

    @contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise UnreachableError(
                f"cluster {self.cluster} does not answer in time", where=self.address
            ) from None
        except (httpx.TransportError, httpx.InvalidURL, httpx.DecodingError) as error:
            raise UnreachableError(
                f"cluster {self.cluster} does not answer: {error}", where=self.address
            ) from None


def _timeout(timeout_s: float) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if ca_file is not None:
            context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"no certificates can be read: {error}", where=str(ca_file)) from None
    return context


def last_line(text: str) -> str:
    """The last line that says something, cut to 300 characters: where a traceback has its point."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .\t")]
    return lines[-1][:300] if lines else "nothing"
