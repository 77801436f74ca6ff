"""A stand-in for a control plane, for tests of what speaks to one.

It fills the documented routes with scripted answers, and can lose answers, which the real one cannot be
made to do at a chosen moment. That the real one answers alike is for tests/integration to say.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import octad
from octad.errors import AccessError, ConflictError, NotFoundError, OctadError, StorageError
from octad.spec.runs import RunSubmission

Json = dict[str, Any]
TOKEN = "a-token"
LAYOUT = {
    "pp": 1,
    "dp_replicate": 1,
    "dp_shard": 2,
    "cp": 1,
    "tp": 2,
    "zero": 2,
    "pp_schedule": "1f1b",
    "pp_parts_per_card": 2,
}


def attempt(number: int = 1, state: str = "running", **more: Any) -> Json:
    return {
        "number": number,
        "state": state,
        "cluster": "alpha",
        "cards": 4,
        "layout": LAYOUT,
        "submission_id": f"r-s-{number}",
        "package": "0" * 64,
        "intended_at_ms": 1_000,
        "submitted_at_ms": 2_000,
        "started_at_ms": 3_000,
        "first_step_at_ms": None,
        "ended_at_ms": None,
        "reason": "",
        **more,
    }


def stage(name: str, state: str = "running", **more: Any) -> Json:
    return {
        "name": name,
        "kind": name,
        "state": state,
        "reason": "",
        "cluster": None,
        "cards": 4,
        "layout": LAYOUT,
        "cards_asked": None,
        "needs": {},
        "attempts": [],
        "artefacts": [],
        "metrics": {},
        "progress": None,
        "mlflow_run_id": None,
        "ready_at_ms": None,
        "ended_at_ms": None,
        **more,
    }


def run_view(run: str, state: str, *stages: Json, **more: Any) -> Json:
    return {
        "id": run,
        "title": "a run",
        "pipeline": "quickstart",
        "state": state,
        "stage": stages[0]["name"] if stages else "",
        "sweep": "",
        "created_at_ms": 1_000,
        "ended_at_ms": 61_000 if state in {"succeeded", "failed", "cancelled"} else None,
        "seed": 0,
        "stages": list(stages),
        "mlflow_run_id": None,
        "mlflow_url": "http://127.0.0.1:5000/#/run",
        "config": {},
        **more,
    }


class StandIn(ThreadingHTTPServer):
    """A scripted control plane.

    Attributes:
        views: For each run, the answers to come; the last one stays.
        logs: Of attempts, by run, stage and number; complete unless the run is in `growing`.
        losses: How many answers still to lose after the work is done.
        requests: Method and path of each request, health left out.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api: object = 1
        self.views: dict[str, list[Json]] = {}
        self.logs: dict[tuple[str, str, int], bytes] = {}
        self.growing: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.is_store_down = False
        self.submitted: dict[str, Json] = {}
        self.resumed: list[Json] = []
        self.queue: list[Json] = []
        self.fleet: list[Json] = [{"clusters": [], "tracker_url": "http://127.0.0.1:5000"}]
        self.refusal: OctadError | None = None
        self.losses = 0
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def show(self, run: str) -> Json:
        if run not in self.views:
            raise NotFoundError(f"no run is called {run!r}")
        answers = self.views[run]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def submit(self, body: Json) -> Json:
        asked = RunSubmission.parse(body)
        if asked.package not in self.blobs:
            raise NotFoundError("no such package")
        known = self.submitted.get(asked.idempotency_key)
        if known is not None:
            return known
        run = asked.run or f"quickstart-{len(self.submitted) + 1}"
        if run in self.views and asked.run:
            raise ConflictError(f"{run} exists already and is running", where=run)
        stages = [stage(s.name, "waiting", kind=s.kind) for s in asked.spec.stages]
        view = run_view(run, "queued", *stages, title=asked.spec.title, sweep=asked.sweep)
        self.submitted[asked.idempotency_key] = {**view, "config": asked.spec.config}
        self.views.setdefault(run, [run_view(run, "succeeded", *stages)])
        return self.submitted[asked.idempotency_key]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path)
        if path.path == "/api/health":
            self._answer(200, {"version": octad.__version__, "api": self.server.api})
            return
        self.server.requests.append(f"{self.command} {path.path}")
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise AccessError("the token is wrong")
            if self.server.refusal is not None and self.command == "POST":
                raise self.server.refusal
            query = {key: values[0] for key, values in parse_qs(path.query).items()}
            answer = self._route([unquote(p) for p in path.path.split("/")[2:]], query, body)
        except OctadError as error:
            self._answer(error.http_status, {"error": error.to_wire()})
            return
        if self.server.losses:
            self.server.losses -= 1
            self.close_connection = True
            return
        if isinstance(answer, tuple):
            self._answer(200, *answer)
        else:
            self._answer(200, answer)

    do_GET = do_POST = do_PUT = do_HEAD = _serve  # noqa: N815

    def _route(self, parts: list[str], query: Json, body: bytes) -> Any:  # noqa: C901, PLR0911, PLR0912
        server = self.server
        match self.command, parts:
            case "GET", ["runs"]:
                rows = [{k: v[0][k] for k in _SUMMARY} for v in server.views.values()]
                wanted = [r for r in rows if query.get("sweep", r["sweep"]) == r["sweep"]]
                return {"runs": wanted[: int(query["limit"])], "next_before": None}
            case "POST", ["runs"]:
                return server.submit(json.loads(body))
            case "GET", ["runs", run]:
                return server.show(run)
            case "POST", ["runs", run, "cancel"]:
                return {**server.show(run), "state": "cancelled"}
            case "POST", ["runs", run, "resume"]:
                server.resumed.append(json.loads(body))
                return server.show(run)
            case "GET", ["runs", run, "stages", name, "attempts", number, "log"]:
                return self._log(run, name, int(number), int(query["offset"]))
            case _, ["blobs", _] if server.is_store_down:
                raise StorageError("the store failed: no answer", where="s3://bucket")
            case "HEAD", ["blobs", digest]:
                if digest not in server.blobs:
                    raise NotFoundError("no such blob")
                return b""
            case "PUT", ["blobs", digest]:
                assert hashlib.sha256(body).hexdigest() == digest
                server.blobs[digest] = body
                return {"digest": digest}
            case "GET", ["queue"]:
                return {"stages": server.queue}
            case "GET" | "POST", ["fleet", *_]:
                return server.fleet.pop(0) if len(server.fleet) > 1 else server.fleet[0]
            case "GET", ["doctor"]:
                check = {"name": "store", "is_ok": True, "detail": "it is there", "hint": ""}
                return {"checks": [check]}
        raise NotFoundError(f"no route {self.path}")

    def _log(self, run: str, name: str, number: int, offset: int) -> tuple[bytes, Json]:
        whole = self.server.logs.get((run, name, number), b"")
        part = whole[offset : offset + 10]  # in small pieces, to have them joined
        end = offset + len(part)
        is_complete = end >= len(whole) and run not in self.server.growing
        return part, {
            "X-Octad-Next-Offset": str(end),
            "X-Octad-Complete": "true" if is_complete else "false",
        }

    def _answer(self, status: int, content: Any, headers: Json | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": len(data)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


_SUMMARY = ("id", "title", "pipeline", "state", "stage", "sweep", "created_at_ms", "ended_at_ms")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A control plane that commands find through the environment."""
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OCTAD_URL", server.url)
    monkeypatch.setenv("OCTAD_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def conftest() -> Any:
    """The makers of views above, for tests that script answers."""
    return SimpleNamespace(attempt=attempt, stage=stage, run_view=run_view, LAYOUT=LAYOUT)
