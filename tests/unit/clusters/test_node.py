from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from octad.clusters import _node
from octad.clusters._ports import PortBlock
from octad.errors import ConfigError

PORTS = PortBlock(first=20000, lock=-1)
OPTIONS = {"temp": Path("/tmp/x"), "num_cpus": 32, "object_store_mib": 256}


def options(command: list[str]) -> dict[str, str]:
    return dict(o.removeprefix("--").split("=", 1) for o in command if "=" in o)


def test_every_port_of_a_head_is_set() -> None:
    command = _node.command("a-0", PORTS, join="", **OPTIONS)  # type: ignore[arg-type]
    assert command[0] == sys.executable
    assert "--head" in command
    found = options(command)
    ports = {k: int(v) for k, v in found.items() if k == "port" or k.endswith("-port")}
    assert len(ports) == 11
    assert len(set(ports.values())) == 11
    assert all(20000 <= port < 20128 for port in ports.values())
    assert found["dashboard-host"] == "127.0.0.1"
    assert found["temp-dir"] == "/tmp/x/r"
    assert found["resources"] == '{"card": 8}'
    assert found["object-store-memory"] == str(256 * 1024**2)


def test_a_node_that_joins_has_no_option_of_a_head() -> None:
    command = _node.command("a-1", PORTS, join="127.8.0.1:20000", **OPTIONS)  # type: ignore[arg-type]
    found = options(command)
    assert found["address"] == "127.8.0.1:20000"
    assert "--head" not in command
    assert not {"port", "dashboard-port", "dashboard-host"} & set(found)


def test_the_environment_is_clean_and_its_own() -> None:
    given = {
        "HOME": "/home/a",
        "PATH": "/usr/bin",
        "RAY_ADDRESS": "elsewhere:6379",
        "RAY_AUTH_TOKEN": "somebody's",
        "MLFLOW_RUN_ID": "1",
        "OCTAD_HOME": "/x",
        "PYTHONPATH": "platform",
        "http_proxy": "http://proxy:3128",
        "no_proxy": "example.org",
    }
    env = _node.environment(
        given,
        mark="home/alpha/alpha-0/",
        token_file=Path("/x/ray-token"),
        temp=Path("/tmp/y"),
        addresses=["127.8.0.1"],
    )
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN", "MLFLOW_RUN_ID", "OCTAD_HOME"} & set(env)
    assert "PYTHONPATH" not in env
    assert env["HOME"] == "/home/a"
    assert env["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/x/ray-token")
    assert env["OCTAD_NODE"] == "home/alpha/alpha-0/"
    assert env["TMPDIR"] == "/tmp/y"
    # A proxy stays for the world outside; the cluster itself goes without.
    assert env["http_proxy"] == "http://proxy:3128"
    assert env["no_proxy"] == "example.org,localhost,127.0.0.1,127.8.0.1"


def test_a_temporary_folder_is_private_and_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = _node.make_temp_folder()
    try:
        assert folder.parent == Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
        session = "r/session_2026-12-01_02-25-27_892321_4194304/sockets/dash_TaskEventsHead"
        assert len(f"{folder}/{session}") <= 107
    finally:
        folder.rmdir()


def test_nowhere_to_put_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ConfigError, match="no temporary folder"):
        _node.make_temp_folder()
