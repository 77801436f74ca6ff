"""A dashboard that answers as Ray 2.60 was seen to, on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

EXISTS = "Traceback (most recent call last):\nRuntimeError: Request failed with status code 400: "
NO_AGENT = "No available agent to submit job, please try again later."


class Dashboard:
    """What the tests set and read; the handler below serves it."""

    def __init__(self) -> None:
        self.token = ""
        self.refusal = ""
        self.version: dict[str, Any] = {"version": "4", "ray_version": "2.60.0"}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        self.packages: dict[str, bytes] = {}
        self.stopped: list[str] = []
        self.resources: dict[str, float] = {"card": 8.0, "CPU": 32.0}
        self.used: dict[str, list[float]] = {}
        self.calls: list[str] = []
        self.drop_next = 0
        self.delay_s = 0.0
        self.no_agent = False
        self.address = ""

    def answer(self, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
        usage = {"clusterStatus": {"loadMetricsReport": {"usage": self.used}}}
        plain = {
            "/api/version": self.version,
            "/nodes": self._nodes(),
            "/api/cluster_status": {"data": usage},
        }
        if path in plain:
            return 200, json.dumps(plain[path]).encode()
        if path.startswith("/api/packages/gcs/"):
            return self._package(method, path.rpartition("/")[2], body)
        if path == "/api/v0/logs/file":
            name = query.partition("job-driver-")[2].partition(".log")[0]
            return 200, self.logs[name]
        if path == "/api/jobs/":
            return self._submit(json.loads(body))
        return self._job(path.removeprefix("/api/jobs/"))

    def _nodes(self) -> dict[str, Any]:
        raylet = {
            "nodeId": "ab12",
            "nodeName": "head",
            "nodeManagerAddress": "10.0.0.1",
            "isHeadNode": True,
            "state": "ALIVE",
            "resourcesTotal": {**self.resources, "node:10.0.0.1": 1.0},
        }
        return {"data": {"summary": [{"raylet": raylet}]}}

    def _package(self, method: str, name: str, body: bytes) -> tuple[int, bytes]:
        if method == "PUT":
            self.packages[name] = body
            return 200, b""
        return (200, b"") if name in self.packages else (404, b"does not exist")

    def _submit(self, body: dict[str, Any]) -> tuple[int, bytes]:
        name = body["submission_id"]
        if self.no_agent:
            return 500, NO_AGENT.encode()
        if name in self.jobs:
            return 500, f"{EXISTS}ValueError: Job with {name} already exists.\n.".encode()
        self.jobs[name] = {"status": "PENDING", "message": "", **body}
        self.logs.setdefault(name, b"")
        return 200, json.dumps({"submission_id": name}).encode()

    def _job(self, rest: str) -> tuple[int, bytes]:
        name, _, action = rest.partition("/")
        if name not in self.jobs:
            return 404, f"Job {name} does not exist".encode()
        if action == "stop":
            self.stopped.append(name)
            return 200, b'{"stopped": true}'
        if action == "logs":
            try:
                return 200, json.dumps({"logs": self.logs[name].decode()}).encode()
            except UnicodeDecodeError as error:
                return 500, f"UnicodeDecodeError: {error}".encode()
        return 200, json.dumps(self.jobs[name]).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    dashboard: Dashboard

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fake = self.dashboard
        fake.calls.append(f"{self.command} {path}")
        if fake.drop_next > 0:
            fake.drop_next -= 1
            self.close_connection = True
            return
        time.sleep(fake.delay_s)
        status, text = self._allowed() or fake.answer(self.command, path, query, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _allowed(self) -> tuple[int, bytes] | None:
        if self.dashboard.refusal:
            return 403, self.dashboard.refusal.encode()
        sent = self.headers.get("Authorization", "")
        if not self.dashboard.token or sent == f"Bearer {self.dashboard.token}":
            return None
        if not sent:
            return 401, b"Unauthorized: Missing authentication token"
        return 403, b"Forbidden: Invalid authentication token"

    do_GET = do_PUT = do_POST = _serve  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    fake = Dashboard()
    handler = type("Bound", (Handler,), {"dashboard": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
