"""The MLflow server that a control plane keeps: started once, adopted, ended, and nothing else."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from octad.control.clock import Clock
from octad.control.tracking import TrackingServer, clean_environment, command, free_port
from octad.spec.home import Home


def test_nothing_meant_for_another_mlflow_reaches_ours() -> None:
    given = {"PATH": "/bin", "MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_URI": "http://elsewhere"}
    cleaned = clean_environment(given)
    assert cleaned["PATH"] == "/bin"
    assert "MLFLOW_RUN_ID" not in cleaned
    assert "MLFLOW_TRACKING_URI" not in cleaned
    assert cleaned["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"


def test_it_listens_on_loopback_alone_with_one_worker() -> None:
    line = command("sqlite:///db", Path("/home"), 5000)
    assert line[line.index("--host") + 1] == "127.0.0.1"
    assert line[line.index("--workers") + 1] == "1"


def test_a_port_in_use_is_passed_over() -> None:
    first = free_port(0)
    assert free_port(first) == first


def test_one_that_is_ended_while_it_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TrackingServer(Home(tmp_path / "home"), Clock())

    def upgrade(*_: object, **__: object) -> None:
        server.end()

    def spawn(*_: object, **__: object) -> None:
        pytest.fail("it was started after its end")

    monkeypatch.setattr(subprocess, "run", upgrade)
    monkeypatch.setattr(subprocess, "Popen", spawn)
    server.tick()
    assert not server.is_up


class _Healthy(BaseHTTPRequestHandler):
    """Somebody else's server, which answers as ours would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_another_server_that_answers_on_the_port_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with HTTPServer(("127.0.0.1", 0), _Healthy) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        server = TrackingServer(home, Clock())
        home.mlflow.mkdir(parents=True)
        record = {"pid": dead.pid, "created_at": 0.0, "port": other.server_port}
        (home.mlflow / "server.json").write_text(json.dumps(record))
        monkeypatch.setattr(server, "_start", lambda: None)
        server.tick()
        assert server._answers()
        assert not server.is_up
        other.shutdown()


@pytest.mark.slow
@pytest.mark.long
def test_it_is_started_once_adopted_and_ended(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    first = TrackingServer(home, Clock())
    try:
        first.tick()
        assert first.is_up
        assert httpx.get(f"{first.url}/health", trust_env=False).text == "OK"
        with sqlite3.connect(home.mlflow / "mlflow.sqlite") as database:
            assert database.execute("select count(*) from alembic_version").fetchone() == (1,)
        database.close()
        process = first._process()
        assert process is not None
        second = TrackingServer(home, Clock())  # after a restart of the control plane
        second.tick()
        assert second.is_up
        assert second._process() == process
        url = first.url
        assert first._child is not None
        process.kill()
        first._child.wait()
        second.tick()
        assert second.url == url
        assert second._process() != process
        assert second._child is not None
        child = second._child
        second.end()
        child.wait()
        assert not psutil.pid_exists(child.pid)
        assert not second._answers()
    finally:
        first.end()
