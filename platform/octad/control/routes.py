"""The routes: thin, each calls one service."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

import octad
from octad.control.services import Services
from octad.errors import ConfigError, NotFoundError, PackageError
from octad.spec.clusters import FleetView
from octad.spec.frozen import Spec
from octad.spec.runs import RunResume, RunSubmission, ServerView
from octad.spec.server import API_VERSION

MAX_BODY_BYTES = 16 * 1024**2
router = APIRouter(prefix="/api")
_Body = TypeVar("_Body", bound=Spec)


@router.get("/health")
def health() -> Response:
    """That it lives, and which version of the wire types it speaks. Needs no token."""
    return _json(ServerView(version=octad.__version__, api=API_VERSION))


@router.post("/runs")
async def submit(request: Request) -> Response:
    """Accept a run; the same key and body find the run they made."""
    asked = await _body(request, RunSubmission)
    view, is_new = await run_in_threadpool(_services(request).runs.submit, asked)
    return _json(view, 201 if is_new else 200)


@router.get("/runs")
def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: str | None = None,
    sweep: str | None = None,
) -> Response:
    """A page of runs, newest first."""
    return _json(_services(request).runs.page(limit=limit, before=before, sweep=sweep))


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """One run, by any of its ids."""
    return _json(_services(request).runs.view(run))


@router.post("/runs/{run}/cancel")
def cancel_run(request: Request, run: str) -> Response:
    """End a run; one that has ended stays as it is."""
    return _json(_services(request).runs.cancel(run))


@router.post("/runs/{run}/resume")
async def resume_run(request: Request, run: str) -> Response:
    """Go on with a run, or do a part of one again."""
    asked = await _body(request, RunResume)
    return _json(await run_in_threadpool(_services(request).runs.resume, run, asked))


@router.get("/runs/{run}/stages/{stage}/attempts/{number}/log")
def read_log(
    request: Request, run: str, stage: str, number: int, offset: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """A part of an attempt's log, and where to go on."""
    part = _services(request).logs.read(run, stage, number, offset)
    return Response(
        part.data,
        media_type="text/plain; charset=utf-8",
        headers={
            "X-Octad-Next-Offset": str(part.next_offset),
            "X-Octad-Complete": "true" if part.is_complete else "false",
        },
    )


@router.head("/blobs/{digest}")
def has_blob(request: Request, digest: str) -> Response:
    """Whether a blob is there."""
    size = _services(request).blobs.size(digest)
    if size is None:
        raise NotFoundError("no such blob", where=digest)
    return Response(headers={"X-Octad-Size": str(size)})


@router.put("/blobs/{digest}")
async def put_blob(request: Request, digest: str) -> Response:
    """Take a blob."""
    declared = _declared_bytes(request)
    is_new = await _services(request).blobs.put(digest, request.stream(), declared)
    return JSONResponse({"digest": digest}, 201 if is_new else 200)


@router.get("/queue")
def show_queue(request: Request) -> Response:
    """What waits for cards, in its order, with reasons."""
    return _json(_services(request).waiting.view())


@router.get("/fleet")
def show_fleet(request: Request) -> Response:
    """All clusters as last seen."""
    return _json(_fleet(_services(request)))


@router.post("/fleet/up")
def bring_fleet_up(request: Request) -> Response:
    """Ask for all clusters to be up; answers at once."""
    services = _services(request)
    services.fleet.up()
    return _json(_fleet(services))


@router.post("/fleet/down")
def bring_fleet_down(request: Request) -> Response:
    """Ask for all clusters to be ended; answers at once."""
    services = _services(request)
    services.fleet.down()
    return _json(_fleet(services))


@router.get("/doctor")
def doctor(request: Request) -> Response:
    """Every check."""
    return _json(_services(request).doctor.check())


@router.post("/shutdown")
async def shut_down(request: Request) -> Response:
    """End the control plane; with `fleet` its clusters and its tracker too. Answers before."""
    asked = await _plain(request)
    services = _services(request)
    is_whole = asked.get("fleet", False)
    if not isinstance(is_whole, bool) or set(asked) - {"fleet"}:
        raise ConfigError('the body is {"fleet": true or false}')
    view = _fleet(services)
    services.shut_down(is_whole)
    return _json(view, 202)


def _services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def _fleet(services: Services) -> FleetView:
    return FleetView(clusters=services.fleet.views(), tracker_url=services.tracker_url())


async def _body(request: Request, kind: type[_Body]) -> _Body:
    return kind.parse(await _plain(request), where="body")


async def _plain(request: Request) -> dict[str, Any]:
    declared = _declared_bytes(request)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if max(len(data), declared or 0) > MAX_BODY_BYTES:
            raise PackageError(f"a request may have at most {MAX_BODY_BYTES} bytes", where="body")
    try:
        plain = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}", where="body") from None
    if not isinstance(plain, dict):
        raise ConfigError("must be a JSON object", where="body")
    return plain


def _declared_bytes(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None


def _json(view: Spec, status: int = 200) -> Response:
    return Response(view.model_dump_json(), status, media_type="application/json")
