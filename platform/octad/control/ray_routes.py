"""The routes of Ray's own Jobs API: thin, each calls one service. Errors are text, as Ray's are."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import anyio
from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.websockets import WebSocketDisconnect

from octad.control.rayjobs import RayJobs
from octad.errors import ConfigError, NotFoundError, OctadError, PackageError

MAX_BODY_BYTES = 1024**2
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
# What browsers send and programs do not; as Ray's own dashboard has it.
_OF_BROWSERS = (
    "origin",
    "referer",
    "sec-fetch-mode",
    "sec-fetch-dest",
    "sec-fetch-site",
    "sec-fetch-user",
    "access-control-request-method",
    "access-control-request-headers",
)


class _RayRoute(APIRoute):
    """Refuses writes of browsers, whatever token they bring, and tells errors as text."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of FastAPI, with this around it."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method not in _READS and _is_browser(request.headers):
                return _text("Method Not Allowed for browser traffic.", 405)
            try:
                return await inner(request)
            except OctadError as error:
                return _text(str(error), error.http_status)

        return handle


router = APIRouter(prefix="/api", route_class=_RayRoute)


@router.get("/version")
def version(request: Request) -> Response:
    """What clients ask first."""
    return JSONResponse(_jobs(request).version())


@router.get("/packages/{protocol}/{package}")
def has_package(request: Request, protocol: str, package: str) -> Response:
    """Whether a package is there."""
    if protocol != "gcs" or _jobs(request).packages.digest(package) is None:
        raise NotFoundError(f"Package {protocol[:20]}://{package[:120]} does not exist")
    return Response()


@router.put("/packages/{protocol}/{package}")
async def put_package(request: Request, protocol: str, package: str) -> Response:
    """Take a package."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else None
    await _jobs(request).packages.put(protocol, package, request.stream(), size)
    return Response()


@router.post("/jobs/")
async def submit(request: Request) -> Response:
    """Accept a job; the same id and body find the job they made."""
    job = await run_in_threadpool(_jobs(request).submit, await _body(request))
    return JSONResponse({"job_id": job, "submission_id": job})


@router.get("/jobs/")
def list_jobs(request: Request) -> Response:
    """The newest jobs."""
    return JSONResponse(_jobs(request).all())


@router.get("/jobs/{job}")
def show(request: Request, job: str) -> Response:
    """One job."""
    return JSONResponse(_jobs(request).info(job))


@router.delete("/jobs/{job}")
def delete(request: Request, job: str) -> Response:
    """Forget a job that has ended."""
    _jobs(request).delete(job)
    return JSONResponse({"deleted": True})


@router.post("/jobs/{job}/stop")
def stop(request: Request, job: str) -> Response:
    """End a job."""
    return JSONResponse({"stopped": _jobs(request).stop(job)})


@router.get("/jobs/{job}/logs")
def log(request: Request, job: str) -> Response:
    """The log so far."""
    return JSONResponse({"logs": _jobs(request).log(job)})


@router.websocket("/jobs/{job}/logs/tail")
async def tail(socket: WebSocket, job: str) -> None:
    """The log as it comes, until the job has ended or the client goes."""
    jobs = _jobs(socket)
    try:
        await run_in_threadpool(jobs.info, job)
    except OctadError as error:
        await socket.send_denial_response(_text(str(error), error.http_status))
        return
    await socket.accept()
    with anyio.CancelScope() as until_left:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wait_until_left, socket, until_left)
            try:
                async for text in jobs.follow(job):
                    await socket.send_text(text)
                await socket.close()
            except OctadError as error:
                await socket.close(1011, str(error)[:100])
            until_left.cancel()


async def _wait_until_left(socket: WebSocket, scope: anyio.CancelScope) -> None:
    try:
        while True:
            await socket.receive_text()
    except (WebSocketDisconnect, KeyError):
        scope.cancel()


def _jobs(request: Request | WebSocket) -> RayJobs:
    jobs = request.app.state.services.ray_jobs
    assert isinstance(jobs, RayJobs)
    return jobs


def _is_browser(headers: Headers) -> bool:
    if headers.get("user-agent", "").startswith("Mozilla"):
        return True
    return any(name in headers for name in _OF_BROWSERS)


def _text(text: str, status: int) -> PlainTextResponse:
    return PlainTextResponse(text, status)


async def _body(request: Request) -> dict[str, Any]:
    declared = request.headers.get("content-length", "")
    _check_size(int(declared) if declared.isdecimal() else 0)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        _check_size(len(data))
    try:
        # A lone surrogate is JSON, and no text.
        plain = json.loads(data, parse_constant=_refuse_number)
        json.dumps(plain, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {str(error)[:200]}", where="body") from None
    if not isinstance(plain, dict):
        raise ConfigError("must be a JSON object", where="body")
    return plain


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise PackageError(f"a job may have at most {MAX_BODY_BYTES:,} bytes", where="body")


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
