"""The local provider with stand-ins for `ray start`: what it does when things go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from octad.clusters import _node, _processes, _records
from octad.clusters.local import LocalCluster, build
from octad.errors import ConfigError, ConflictError, PortError, UnreachableError
from octad.spec.clusters import CardSpec, ClusterSpec

SIM = CardSpec(kind="sim", name="sim")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home" / "alpha"
    build_cluster(tmp_path / "home" / "alpha").stop()


def build_cluster(home: Path, **settings: Any) -> LocalCluster:
    return build(ClusterSpec(name="alpha", kind="local", card=SIM, settings=settings), home)


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run `code` where a node would run."""
    monkeypatch.setattr(_node, "command", lambda *_, **__: [sys.executable, "-c", code])


def test_a_plan_names_every_node_and_does_nothing(home: Path) -> None:
    steps = build_cluster(home, nodes=2).plan()
    assert [step.detail for step in steps] == [
        "alpha-0: 8 sim cards on this machine, head",
        "alpha-1: 8 sim cards on this machine, joins alpha-0",
    ]
    assert not home.exists()


def test_real_cards_are_not_made_here(home: Path) -> None:
    card = CardSpec(kind="gpu", name="H100-SXM-80GB")
    with pytest.raises(ConfigError, match="cannot give gpu cards") as caught:
        build(ClusterSpec(name="alpha", kind="local", card=card), home)
    assert caught.value.where == "fleet.clusters.alpha.card"


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"node": 2}, "fleet.clusters.alpha.node"),
        ({"nodes": 0}, "fleet.clusters.alpha.nodes"),
        ({"nodes": "2"}, "fleet.clusters.alpha.nodes"),
        ({"port": 70000}, "fleet.clusters.alpha.port"),
    ],
)
def test_settings_that_cannot_be(home: Path, settings: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_cluster(home, **settings)
    assert caught.value.where == where


def test_before_it_is_started_it_is_down(home: Path) -> None:
    cluster = build_cluster(home)
    view = cluster.observe()
    assert (view.state, view.reason, view.cards) == ("down", "it is not started", 0)
    with pytest.raises(UnreachableError, match="is not started"):
        _ = cluster.jobs
    with pytest.raises(UnreachableError):
        _ = cluster.job_env
    cluster.stop()
    cluster.stop()
    assert not home.exists()


def test_a_node_that_ends_at_once_shows_its_last_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "print('one'); print('no memory for it'); raise SystemExit(3)")
    with pytest.raises(UnreachableError, match=r"alpha-0 .* ended at once.*no memory") as caught:
        build_cluster(home).start()
    assert caught.value.where == str(home / "alpha-0.log")
    assert build_cluster(home).observe().state == "down"


def test_a_node_that_never_comes_up_is_given_up_and_cleared_away(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "import time; print('wait for me', flush=True); time.sleep(600)")
    cluster = build_cluster(home, start_timeout_s=0.5)
    temps: list[str] = []
    spawn = _processes.spawn

    def spy(*args: Any, **options: Any) -> psutil.Process:
        temps.append(str(options["folder"]))
        return spawn(*args, **options)

    monkeypatch.setattr(_processes, "spawn", spy)
    with pytest.raises(UnreachableError, match=r"was not up after 0 s|was not up after 1 s"):
        cluster.start()
    assert _processes.marked(cluster.mark) == []
    assert len(temps) == 1
    assert not Path(temps[0]).exists()
    assert not (home / "nodes.json").exists()


def test_a_fixed_port_in_use_starts_nothing(home: Path, unused_port: int) -> None:
    cluster = build_cluster(home, port=unused_port)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                f"import socket, sys; s = socket.create_server(('127.0.0.1', {unused_port}));"
                "print('ready', flush=True); sys.stdin.read()"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(PortError, match=f"port {unused_port} is in use by pid {holder.pid}"):
        cluster.start()
    holder.communicate()
    assert cluster.observe().state == "down"


def test_stop_ends_a_start_that_is_under_way(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import time; time.sleep(600)")
    cluster = build_cluster(home)
    errors: list[Exception] = []

    def start() -> None:
        try:
            cluster.start()
        except ConflictError as error:
            errors.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    while not _processes.marked(cluster.mark):
        assert starter.is_alive()
    assert cluster.observe().state == "starting"
    cluster.stop()
    starter.join(timeout=30)
    assert [str(error) for error in errors] == ["cluster alpha was stopped while it started"]
    assert _processes.marked(cluster.mark) == []


def test_leftovers_of_a_killed_starter_are_cleared_and_others_survive(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = build_cluster(home)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    env = {**os.environ, _processes.MARK: f"{cluster.mark}alpha-0/"}
    leftover = subprocess.Popen(sleep, env=env, start_new_session=True)
    foreign = subprocess.Popen([*sleep, "raylet", "gcs_server"], start_new_session=True)
    temp = _node.make_temp_folder()
    home.mkdir(parents=True)
    lost = _records.NodeRecord(
        name="alpha-0", address="127.8.0.1", gcs=1, dashboard=1, agent=1, temp=str(temp), log=""
    )
    _records.write(home / "nodes.json", _records.ClusterRecord(nodes=(lost,)))
    try:
        stand_in(monkeypatch, "raise SystemExit(1)")
        with pytest.raises(UnreachableError):
            cluster.start()
        assert leftover.wait(timeout=5) is not None
        assert foreign.poll() is None
        assert not temp.exists()
    finally:
        for child in (leftover, foreign):
            child.kill()
            child.wait()


def test_clusters_of_one_name_in_other_homes_are_apart(tmp_path: Path) -> None:
    marks = {build_cluster(tmp_path / name / "alpha").mark for name in ("a", "b")}
    assert len(marks) == 2
