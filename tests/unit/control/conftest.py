"""What the control plane's tests share: a fake cluster as an installed kind, and a small world."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from octad.control.clock import Clock
from octad.control.database import Database
from octad.control.dispatch import Dispatcher
from octad.control.joblogs import JobLogs
from octad.control.lanes import InlineLanes
from octad.control.leftovers import Leftovers
from octad.control.migrate import migrate
from octad.control.reconciler import Reconciler
from octad.control.runs import Runs
from octad.control.watch import Watch
from octad.spec.clusters import CardSpec, ClusterSpec, ClusterView
from octad.spec.keys import blob_key
from octad.spec.layouts import Layout
from octad.spec.runs import RunSpec, RunSubmission, RunView, StageView
from octad.spec.stages import StageSpec, StoreSpec
from octad.storage import ObjectStore

if TYPE_CHECKING:
    from tests.unit.control.fake_cluster import FakeCluster

FAKE = Path(__file__).with_name("fake_cluster.py")
SIM = CardSpec(kind="sim", name="sim")
PACKAGE = b"code"
PACKAGE_DIGEST = hashlib.sha256(PACKAGE).hexdigest()


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, put on sys.path, installs the provider kind `fake`."""
    folder = tmp_path_factory.mktemp("fake-distribution")
    shutil.copy(FAKE, folder / "octad_fake.py")
    info = folder / "octad_fake-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: octad-fake\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[octad.clusters]\nfake = octad_fake\n")
    return folder


@pytest.fixture(scope="session")
def fake(fake_path: Path) -> ModuleType:
    """The fake cluster's module."""
    spec = importlib.util.spec_from_file_location("octad_fake", fake_path / "octad_fake.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["octad_fake"] = module
    spec.loader.exec_module(module)
    return module


class FakeClock(Clock):
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def ms(self) -> int:
        return int(self.now_s * 1000)

    def s(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


class StubFleet:
    """Clusters without threads: seen at the moment they are asked for."""

    def __init__(self, clusters: dict[str, FakeCluster]) -> None:
        self.clusters = clusters

    @property
    def specs(self) -> tuple[ClusterSpec, ...]:
        return tuple(c.spec for c in self.clusters.values())

    def provider(self, name: str) -> FakeCluster | None:
        return self.clusters.get(name)

    def view(self, name: str) -> ClusterView | None:
        cluster = self.clusters.get(name)
        return cluster.observe() if cluster else None


@dataclass
class World:
    """A control plane without threads or sockets, on fake clusters that survive it."""

    root: Path
    clock: FakeClock
    fleet: StubFleet
    store: ObjectStore
    database: Database
    reconciler: Reconciler
    runs: Runs
    logs: JobLogs
    restart: Callable[[], World]

    def tick(self, times: int = 1, each_s: float = 0.25) -> None:
        for _ in range(times):
            self.reconciler.tick()
            self.clock.pass_by(each_s)

    def stage(self, run: str, name: str) -> StageView:
        return next(s for s in self.runs.view(run).stages if s.name == name)

    def accepted(self) -> list[str]:
        return [job for c in self.fleet.clusters.values() for job in c.accepted()]

    def spec(self, name: str, **changed: Any) -> StageSpec:
        return stage_spec(name, **changed)

    def submission(
        self, *stages: StageSpec, run: str | None = None, key: str = ""
    ) -> RunSubmission:
        return submission(*stages, run=run, key=key)

    def succeed(self, job: str) -> None:
        """A job does its work and ends well."""
        self.cluster_of(job).succeed(job)

    def cluster_of(self, job: str) -> FakeCluster:
        return next(c for c in self.fleet.clusters.values() if job in c.job_states())

    def submit(self, *stages: StageSpec, run: str | None = None, key: str = "") -> RunView:
        return self.runs.submit(submission(*stages, run=run, key=key))[0]


_KEYS = itertools.count()


def stage_spec(name: str, **changed: Any) -> StageSpec:
    """A stage of one card; `sizes` asks for a range."""
    sizes = changed.get("sizes", [])
    cards = max(sizes) if sizes else changed.pop("cards", 1)
    if sizes:
        changed["cards_asked"] = {"min": min(sizes), "max": cards}
    plain: dict[str, Any] = {
        "name": name,
        "kind": "pretrain",
        "cards": cards,
        "layout": Layout().resolved(cards).plain(),
    }
    return StageSpec.parse(plain | changed)


def submission(*stages: StageSpec, run: str | None = None, key: str = "") -> RunSubmission:
    """A run of these stages."""
    return RunSubmission(
        spec=RunSpec(pipeline="test", title="a test", stages=stages or (stage_spec("one"),)),
        package=PACKAGE_DIGEST,
        run=run,
        idempotency_key=key or f"key-{next(_KEYS):08d}",
    )


def make_world(root: Path, module: ModuleType, clock: FakeClock | None = None) -> World:
    """A world on a folder; a second one on the same folder is the first one restarted."""
    clock = clock or FakeClock()
    clusters = {}
    for name, nodes in (("alpha", 2), ("beta", 1)):
        spec = ClusterSpec(name=name, kind="fake", card=SIM, settings={"nodes": nodes})
        clusters[name] = module.build(spec, root / "clusters" / name)
        with clusters[name].state() as state:
            state["up"] = True
    fleet = StubFleet(clusters)
    store_spec = StoreSpec(url=(root / "store").as_uri())
    store = ObjectStore(store_spec)
    store.put(blob_key(PACKAGE_DIGEST), PACKAGE)
    database = Database(f"sqlite:///{root / 'octad.sqlite'}")
    migrate(database)
    lanes = InlineLanes()
    watch = Watch(store, fleet, lanes, clock)
    holder: list[Reconciler] = []
    reconciler = Reconciler(
        database,
        store_spec,
        fleet,
        lanes=lanes,
        watch=watch,
        dispatcher=Dispatcher(
            store,
            fleet,
            python="python",
            control_id="c1",
            is_wanted=lambda attempt: holder[0].is_intended(attempt),  # noqa: PLW0108
        ),
        leftovers=Leftovers(
            database, store, fleet, lanes=lanes, watch=watch, clock=clock, control_id="c1"
        ),
        clock=clock,
        control_id="c1",
    )
    holder.append(reconciler)

    def restart() -> World:
        database.close()
        return make_world(root, module, clock)

    return World(
        root=root,
        clock=clock,
        fleet=fleet,
        store=store,
        database=database,
        reconciler=reconciler,
        runs=Runs(database, store, rooms=reconciler.rooms, wake=lambda: None, clock=clock),
        logs=JobLogs(database, store, fleet, "c1"),
        restart=restart,
    )


@pytest.fixture
def world(tmp_path: Path, fake: ModuleType) -> Iterator[World]:
    made = make_world(tmp_path, fake)
    yield made
    made.database.close()


def server_json(root: Path, *, behaviour: str = "instant", **changed: Any) -> str:
    """The config of a control plane with one fake cluster."""
    plain = {
        "host": "127.0.0.1",
        "port": 0,
        "storage": {"url": (root / "store").as_uri(), "options": {}},
        "tracker": {"kind": "none", "url": ""},
        "fleet": {
            "clusters": [
                {
                    "name": "alpha",
                    "kind": "fake",
                    "card": SIM.plain(),
                    "settings": {"nodes": 2, "behaviour": behaviour},
                }
            ]
        },
    }
    return json.dumps(plain | changed)


@pytest.fixture
def world_maker() -> Callable[..., World]:
    """For tests that make many worlds."""
    return make_world


@pytest.fixture(scope="session")
def config_maker() -> Callable[..., str]:
    """For tests that start a real control plane."""
    return server_json
