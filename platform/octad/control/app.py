"""The HTTP application: the guard around the routes, and errors as one line."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import octad
from octad.control import ray_routes
from octad.control.auth import Guard
from octad.control.routes import router
from octad.control.services import Services
from octad.errors import ConfigError, NotFoundError, OctadError, SurroundingsError

log = logging.getLogger(__name__)


def build_app(services: Services, token: str) -> FastAPI:
    """The application. Everything but health wants the token."""
    app = FastAPI(
        title="octad", version=octad.__version__, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.services = services
    app.include_router(router)
    app.include_router(ray_routes.router)
    app.add_exception_handler(OctadError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_leave)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(Guard, token=token)
    return app


def answer(error: OctadError, status: int | None = None) -> JSONResponse:
    """An error as it travels."""
    headers = {"Retry-After": "1"} if isinstance(error, SurroundingsError) else None
    return JSONResponse({"error": error.to_wire()}, status or error.http_status, headers)


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, OctadError)
    return answer(error)


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return answer(ConfigError(str(first["msg"]), where=where))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return answer(NotFoundError("no such page", where=request.url.path[:200]))
    refused = ConfigError(str(error.detail), where=request.url.path[:200])
    return answer(refused, error.status_code)


async def _on_leave(request: Request, _error: Exception) -> Response:
    """Whoever called has gone before all was said: a laptop that was closed, for one."""
    log.info("%s %s was broken off", request.method, request.url.path)
    return Response(status_code=400)


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("a bug in %s %s", request.method, request.url.path, exc_info=error)
    what = f"a bug in octad: {type(error).__name__}"
    return answer(OctadError(what, hint="see logs/control.log in the control plane's home"), 500)
