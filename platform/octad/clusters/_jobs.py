"""The Ray Jobs API of one cluster, over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from octad.clusters._api import RayApi, last_line
from octad.errors import ConfigError, ConflictError, PackageError, UnreachableError
from octad.ports.clusters import JobRequest, JobStatus
from octad.spec.clusters import CARD_RESOURCE

# A package may take a while on a thin line, and a job waits up to 10 s for its node's agent.
UPLOAD_TIMEOUT_S = 300.0
SUBMIT_TIMEOUT_S = 30.0
# What a Ray dashboard takes in one request.
MAX_PACKAGE_BYTES = 100 * 1024**2
# One string of an environment or command line on Linux (MAX_ARG_STRLEN), with room for what Ray
# puts around it; longer ones leave a Ray job pending for ever.
MAX_STRING_BYTES = 128 * 1024 - 4096
# All of them together; Linux allows a quarter of the stack limit (8 MiB), shared with Ray's own.
MAX_ENV_BYTES = 1024**2


class RayJobs:
    """Fills `octad.ports.clusters.Jobs`.

    Args:
        api: The cluster's dashboard.
        card_resource: The Ray resource that counts its cards.
    """

    def __init__(self, api: RayApi, card_resource: str = CARD_RESOURCE) -> None:
        self._api = api
        self._card_resource = card_resource

    def has_package(self, uri: str) -> bool:
        """Whether the cluster holds this package."""
        answer = self._api.get(_package_path(uri))
        if answer.status_code == 404:
            return False
        return self._ok(answer)

    def put_package(self, uri: str, data: bytes) -> None:
        """Give the cluster a package; idempotent.

        Raises:
            PackageError: Ray would not take one of this size.
        """
        path = _package_path(uri)
        if len(data) > MAX_PACKAGE_BYTES:
            raise PackageError(
                f"the package has {len(data) / 1024**2:.1f} MiB; Ray takes at most "
                f"{MAX_PACKAGE_BYTES // 1024**2}",
                where=uri,
                hint="leave data and build results out of it",
            )
        self._ok(self._api.send("PUT", path, content=data, timeout_s=UPLOAD_TIMEOUT_S))

    def submit(self, request: JobRequest) -> None:
        """Start a job; a second one under the same id is refused by Ray itself.

        Raises:
            ConflictError: The id is known already.
            ConfigError: The environment or command line is longer than Linux can start.
            UnreachableError: It may or may not have arrived: ask `status`, then try again.
        """
        check_size(request)
        answer = self._api.send(
            "POST",
            "/api/jobs/",
            is_repeatable=False,
            timeout_s=SUBMIT_TIMEOUT_S,
            json=self._body(request),
        )
        if answer.is_success:
            return
        if "already exists" in answer.text:
            raise ConflictError(
                f"cluster {self._api.cluster} has a job {request.submission_id} already",
                where=self._api.address,
            )
        if answer.status_code in {400, 422}:
            raise ConfigError(
                f"Ray refuses job {request.submission_id}: {last_line(answer.text)}",
                where=self._api.address,
            )
        raise self._api.failed(answer)

    def status(self, submission_id: str) -> JobStatus | None:
        """The job's state, or None if the cluster does not know the id."""
        answer = self._api.get(_job_path(submission_id))
        if answer.status_code == 404:
            return None
        self._ok(answer)
        body = _object(answer)
        if body.get("status") not in {"PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"}:
            raise UnreachableError(
                f"cluster {self._api.cluster} says nothing sensible about job {submission_id}",
                where=self._api.address,
            )
        return JobStatus(
            state=body["status"],
            message=body.get("message") or "",
            metadata=dict(body.get("metadata") or {}),
        )

    def log(self, submission_id: str) -> bytes:
        """The whole log of the driver so far; empty before there is one."""
        answer = self._api.get(f"{_job_path(submission_id)}/logs")
        if answer.is_success:
            text = _object(answer).get("logs") or ""
            return str(text).encode("utf-8", "surrogateescape")
        if answer.status_code == 404:
            return b""
        if "UnicodeDecodeError" in answer.text:
            return self._raw_log(submission_id)
        raise self._api.failed(answer)

    def stop(self, submission_id: str) -> None:
        """Ask a job to end (SIGTERM, then SIGKILL); idempotent, does not wait."""
        answer = self._api.send("POST", f"{_job_path(submission_id)}/stop")
        if answer.status_code != 404:
            self._ok(answer)

    def _raw_log(self, submission_id: str) -> bytes:
        """The log as bytes: Ray's Jobs API gives only text, and fails on anything else."""
        job = _object(self._api.get(_job_path(submission_id)))
        answer = self._api.get(
            "/api/v0/logs/file",
            node_id=str(job.get("driver_node_id") or ""),
            filename=f"job-driver-{submission_id}.log",
            lines="-1",
        )
        self._ok(answer)
        return answer.content

    def _body(self, request: JobRequest) -> dict[str, Any]:
        runtime_env: dict[str, Any] = {"env_vars": dict(request.env)}
        if request.package_uri:
            runtime_env["working_dir"] = request.package_uri
        if request.py_modules:
            runtime_env["py_modules"] = list(request.py_modules)
        if request.pip is not None:
            runtime_env["pip"] = request.pip
        body: dict[str, Any] = {
            "entrypoint": request.entrypoint,
            "submission_id": request.submission_id,
            "runtime_env": runtime_env,
            "metadata": dict(request.metadata),
        }
        if request.cards:
            body["entrypoint_resources"] = {self._card_resource: request.cards}
        return body

    def _ok(self, answer: httpx.Response) -> bool:
        if not answer.is_success:
            raise self._api.failed(answer)
        return True


def check_size(request: JobRequest) -> None:
    """Refuse what the node could never start.

    Raises:
        ConfigError: Names the variable, its size and the limit.
    """
    strings = {f"environment variable {key}": f"{key}={v}" for key, v in request.env.items()}
    strings["the command line"] = request.entrypoint
    sizes = {name: len(text.encode("utf-8", "surrogateescape")) for name, text in strings.items()}
    name, size = max(sizes.items(), key=lambda item: item[1])
    if size > MAX_STRING_BYTES:
        raise ConfigError(
            f"{name} of job {request.submission_id} has {size} bytes; a node can start at most "
            f"{MAX_STRING_BYTES}",
            hint="put it in a file and name the file",
        )
    if sum(sizes.values()) > MAX_ENV_BYTES:
        raise ConfigError(
            f"the environment of job {request.submission_id} has {sum(sizes.values())} bytes; "
            f"a node can start at most {MAX_ENV_BYTES}",
            hint="put it in a file and name the file",
        )


def _package_path(uri: str) -> str:
    protocol, _, name = uri.partition("://")
    if not protocol or not name or "/" in name:
        raise ConfigError(f"{uri!r} is not the URI of a package", hint="gcs://<name>.zip")
    return f"/api/packages/{quote(protocol, safe='')}/{quote(name, safe='')}"


def _job_path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"


def _object(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
