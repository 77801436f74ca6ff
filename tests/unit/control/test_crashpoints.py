"""The control plane dies at every boundary, comes back, and every job still runs exactly once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import octad.control
from octad.control import crashpoints, dispatch, leftovers, reconciler, runs
from octad.control.server import read_spec
from octad.spec.home import Home
from octad.spec.keys import blob_key
from octad.spec.server import Endpoint
from octad.spec.states import RunState
from octad.storage import ObjectStore

if TYPE_CHECKING:
    from types import ModuleType

    from tests.unit.control.conftest import World

MODULES = (dispatch, leftovers, reconciler, runs)
CANCELS = [name for name in crashpoints.POINTS if name.startswith("cancel")]
BY_PROCESS = {"submit.after_row", "dispatch.after_remote_accept"}
OTHERS = [name for name in crashpoints.POINTS if not name.startswith("cancel")]


class PowerCut(BaseException):
    """Nothing catches it."""


def test_the_list_of_points_is_the_list_in_the_code() -> None:
    folder = Path(octad.control.__file__).parent
    used = [
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'crashpoint\("([a-z_.]+)"\)', path.read_text())
    ]
    assert sorted(used) == sorted(crashpoints.POINTS)


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[list[str]]:
    """The first time the point is reached, the power goes."""
    hits: list[str] = []

    def crashpoint(name: str) -> None:
        if name == point and not hits:
            hits.append(name)
            raise PowerCut

    with monkeypatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "crashpoint", crashpoint)
        yield hits


@pytest.mark.parametrize("point", OTHERS)
def test_each_job_runs_once_whatever_the_moment_of_death(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    asked = world.submission(
        world.spec("one"), world.spec("two", needs={"base": "one.out"}), key="the-key-1"
    )
    with cut_at(monkeypatch, point) as hits:
        for _ in range(12):
            try:
                run = world.runs.submit(asked)[0].id  # the laptop sends it again and again
                world.tick(6)
                for job, state in world.fleet.clusters["alpha"].job_states().items():
                    if state == "RUNNING":
                        world.succeed(job)
            except PowerCut:
                world = world.restart()
    assert hits == [point]
    world.tick(6)
    assert world.runs.view(run).state is RunState.SUCCEEDED
    assert world.accepted() == [f"{run}-one-1", f"{run}-two-1"]
    assert len(world.runs.page(limit=10, before=None, sweep=None).runs) == 1
    world.database.close()


@pytest.mark.parametrize("point", CANCELS)
def test_a_cancel_that_was_cut_short_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    run = world.submit(run="r1").id
    world.tick(6)
    with cut_at(monkeypatch, point) as hits:
        for _ in range(6):
            try:
                world.runs.cancel(run)
                world.tick(6)
            except PowerCut:
                world = world.restart()
    assert hits == [point]
    assert world.runs.view(run).state is RunState.CANCELLED
    assert world.fleet.clusters["alpha"].job_states() == {"r1-one-1": "STOPPED"}
    world.database.close()


# --- the same with a real process and SIGKILL ---------------------------------------------------


class Process:
    """A control plane as a process of its own."""

    def __init__(self, home: Home, fake_path: Path, crash_at: str = "") -> None:
        self.home = home
        path = os.pathsep.join([str(Path(octad.__file__).parents[1]), str(fake_path)])
        env = {**os.environ, "PYTHONPATH": path, crashpoints.VARIABLE: crash_at}
        home.endpoint.unlink(missing_ok=True)
        self.log = (home.root / "out.log").open("ab")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "octad.control", "--home", str(home.root)],
            env=env,
            stdout=self.log,
            stderr=self.log,
        )
        wait_for(lambda: home.endpoint.exists() or self.child.poll() is not None)
        assert home.endpoint.exists(), (home.root / "out.log").read_text()
        url = Endpoint.model_validate_json(home.endpoint.read_text()).url
        self.http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {home.token.read_text()}"},
            trust_env=False,
            timeout=20,
        )

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.http.close()
        if self.child.poll() is None:
            self.child.send_signal(how)
        self.child.wait(20)
        self.log.close()


def wait_for(is_so: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)  # between looks at a condition


@pytest.fixture
def home(tmp_path: Path, config_maker: Callable[..., str], fake: ModuleType) -> Home:
    home = Home(tmp_path / "home")
    home.root.mkdir(mode=0o700)
    home.config.write_text(config_maker(home.root))
    return home


def accepted(home: Home, fake: ModuleType, config_maker: Callable[..., str]) -> list[str]:
    spec = read_spec(home).fleet.clusters[0]
    jobs: list[str] = fake.build(spec, home.cluster("alpha")).accepted()
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in BY_PROCESS else [pytest.mark.long])
        for point in ["", *OTHERS]
    ],
)
def test_a_killed_process_is_followed_by_one_that_goes_on(
    home: Home,
    fake: ModuleType,
    fake_path: Path,
    world: World,
    config_maker: Callable[..., str],
    point: str,
) -> None:
    asked = world.submission(
        world.spec("one"), world.spec("two", needs={"base": "one.out"}), key="the-key-1"
    )
    body = asked.model_dump_json()
    first = Process(home, fake_path, crash_at=point)
    store = ObjectStore(world.store.spec.model_copy(update={"url": home.store.as_uri()}))
    store.put(blob_key(asked.package), b"code")
    first.http.post("/api/fleet/up")
    try:
        first.http.post("/api/runs", content=body)
    except httpx.TransportError:
        assert point.startswith("submit")
    if point:
        wait_for(lambda: first.child.poll() is not None)
        assert first.child.returncode == -signal.SIGKILL
    first.end(signal.SIGKILL)
    second = Process(home, fake_path)
    try:
        run = second.http.post("/api/runs", content=body).json()["id"]
        wait_for(lambda: second.http.get(f"/api/runs/{run}").json()["state"] == "succeeded")
        assert accepted(home, fake, config_maker) == [f"{run}-one-1", f"{run}-two-1"]
    finally:
        second.end()
    assert second.child.returncode == 0
    assert not home.endpoint.exists()


def test_one_home_has_one_control_plane_and_health_comes_at_once(
    home: Home, fake_path: Path
) -> None:
    first = Process(home, fake_path)
    try:
        assert httpx.get(f"{first.http.base_url}/api/health", trust_env=False).json()["api"] == 1
        assert home.endpoint.stat().st_mode & 0o777 == 0o600
        assert home.token.stat().st_mode & 0o777 == 0o600
        second = subprocess.run(
            [sys.executable, "-m", "octad.control", "--home", str(home.root)],
            env={**os.environ, "PYTHONPATH": str(Path(octad.__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == 4
        assert second.stderr.count("\n") == 1
        assert "another control plane" in second.stderr
        first.http.post("/api/shutdown", json={"fleet": True})
        first.child.wait(20)
        assert first.child.returncode == 0
    finally:
        first.end()
