"""The command line with a real control plane on loopback; its fleet is empty, so no Ray is needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octad.errors import PortError
from octad.spec.home import Home

Octad = Callable[..., "subprocess.CompletedProcess[str]"]
MAIN = "from octad.cli.main import main; raise SystemExit(main())"
EMPTY = ["fleet=none", "tracker=none"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "My Home 日本")


@pytest.fixture
def octad(home: Home) -> Iterator[Octad]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OCTAD_")}
    env |= {"OCTAD_HOME": str(home.root), "http_proxy": "http://127.0.0.1:9", "NO_COLOR": "1"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            env=env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    yield call
    call("down")


def endpoint(home: Home) -> Any:
    return json.loads(home.endpoint.read_text())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_up_use_down(octad: Octad, home: Home) -> None:
    assert octad("up", *EMPTY).returncode == 0
    first = endpoint(home)
    assert json.loads(octad("runs", "--json").stdout)["runs"] == []
    assert endpoint(home) == first
    assert octad("run", "nobody").returncode == 3
    assert octad("doctor").returncode == 0
    assert octad("down").returncode == 0
    wait_for(lambda: not is_alive(first["pid"]))
    assert not home.endpoint.exists()


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["host=0.0.0.0", "storage.url=ftp://x"])
def test_a_set_up_that_cannot_be_leaves_the_one_before(octad: Octad, wrong: str) -> None:
    assert octad("up", *EMPTY).returncode == 0
    assert octad("up", *EMPTY, wrong).returncode == 2
    assert octad("runs").returncode == 0


def test_files_are_private(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    for path in (home.root, home.token, home.endpoint, home.logs):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_killed_control_plane_is_started_again(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    killed = endpoint(home)["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not is_alive(killed))
    assert octad("runs").returncode == 0
    assert endpoint(home)["pid"] != killed


@pytest.mark.long
def test_down_after_a_kill_leaves_nothing(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    killed = endpoint(home)["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not is_alive(killed))
    assert octad("down").returncode == 0
    assert not home.endpoint.exists()


@pytest.mark.long
def test_first_commands_at_once_share_one_control_plane(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    octad("down")
    home.token.unlink()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: octad("runs", "--json"), range(4)))
    assert [d.returncode for d in done] == [0] * 4, [d.stderr for d in done]


@pytest.mark.long
def test_another_version_is_replaced(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    old = endpoint(home)
    home.endpoint.write_text(json.dumps({**old, "python": "/gone/python"}))
    assert octad("runs").returncode == 0
    assert endpoint(home)["pid"] != old["pid"]
    wait_for(lambda: not is_alive(old["pid"]))


@pytest.mark.long
def test_another_set_up_is_taken_while_no_cluster_is_up(octad: Octad, home: Home) -> None:
    octad("up", *EMPTY)
    first = endpoint(home)["pid"]
    assert octad("up", *EMPTY).returncode == 0
    assert endpoint(home)["pid"] == first
    store = home.root / "elsewhere"
    assert octad("up", *EMPTY, f"storage.url={store.as_uri()}").returncode == 0
    assert endpoint(home)["pid"] != first
    assert json.loads(home.config.read_text())["storage"]["url"] == store.as_uri()


def test_why_it_cannot_start_is_said_in_one_line(octad: Octad, home: Home) -> None:
    done = octad("up", *EMPTY, "host=0.0.0.0")
    assert done.returncode == 2
    assert "will not listen on 0.0.0.0" in done.stderr
    assert done.stderr.count("\n") == 1
    home.config.write_text("{")
    done = octad("runs")
    assert done.returncode == 2
    assert "not JSON" in done.stderr
    home.config.unlink()


def test_a_run_that_can_never_fit_is_refused(octad: Octad) -> None:
    octad("up", *EMPTY)
    done = octad("submit", "pipeline=quickstart")
    assert done.returncode == 8
    assert done.stdout == ""


def test_down_without_a_home_starts_nothing(octad: Octad, home: Home) -> None:
    assert octad("down").returncode == 0
    assert not home.root.exists()


def test_a_port_in_use_is_one_line_and_another_one_works(octad: Octad) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = octad("up", f"port={port}", *EMPTY)
        assert done.returncode == PortError.exit_code
        assert f"port {port} is in use" in done.stderr
        assert "Traceback" not in done.stderr
    assert octad("up", f"port={port}", *EMPTY).returncode == 0
