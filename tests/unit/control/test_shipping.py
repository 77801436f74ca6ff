"""What jobs left in the store reaches the tracker in order, once, and late if it must."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from octad.control.shipping import Shipper, parsed_points
from octad.errors import UnreachableError
from octad.spec.checkpoints import Manifest
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.runs import RunResume
from octad.spec.stages import Epoch, MetricPoint, Position, TrackerSpec
from octad.spec.states import RunState

if TYPE_CHECKING:
    from types import ModuleType

    from tests.unit.control.conftest import World


class Memory:
    """A tracker that remembers all it was told, and may be away."""

    def __init__(self) -> None:
        self.is_away = False
        self.loses_reply = False
        self.runs: dict[str, dict[str, str]] = {}
        self.params: dict[str, str] = {}
        self.points: dict[str, list[int]] = defaultdict(list)
        self.known: list[tuple[str, MetricPoint]] = []
        self.finals: dict[str, dict[str, float]] = defaultdict(dict)
        self.models: dict[str, list[str]] = defaultdict(list)
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    def _reached(self) -> None:
        if self.is_away:
            raise UnreachableError("away")

    def ensure_run(
        self, run: str, title: str, tags: dict[str, str], config: dict[str, object]
    ) -> str:
        self._reached()
        assert config
        self.runs[run] = {"title": title, **tags}
        return f"t-{run}"

    def ensure_stage(
        self, parent: str, stage: str, tags: dict[str, str], params: dict[str, str]
    ) -> str:
        self._reached()
        assert params["kind"]
        self.params = params
        self.runs[f"{parent}/{stage}"] = tags
        return f"{parent}/{stage}"

    def log_points(self, tracked: str, points: Sequence[MetricPoint]) -> None:
        self._reached()
        for point in points:
            if (tracked, point) not in self.known:  # the same point twice is one point
                self.known.append((tracked, point))
                self.points[tracked].append(point.step)
        if self.loses_reply:
            self.loses_reply = False
            raise UnreachableError("no reply")

    def log_final(self, tracked: str, metrics: dict[str, float]) -> None:
        self._reached()
        self.finals[tracked].update(metrics)

    def log_checkpoint(self, tracked: str, name: str, tags: dict[str, str]) -> str:
        self._reached()
        assert tags["uri"].startswith("file://")
        assert tags["digest"].startswith("sha256:")
        self.models[tracked].append(name)
        return name

    def set_outcome(self, tracked: str, outcome: str) -> None:
        self._reached()
        self.outcomes[tracked].append(outcome)

    def page_url(self, tracked: str) -> str:
        return f"http://tracker/{tracked}"


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def shipper(world: World, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Shipper:
    class Kind:
        @staticmethod
        def build(_url: str) -> Memory:
            return memory

    monkeypatch.setattr("octad.control.shipping.load", lambda *_: Kind)
    return new_shipper(world)


def new_shipper(world: World) -> Shipper:
    return Shipper(
        world.database,
        world.store,
        TrackerSpec(kind="memory"),
        url=lambda: "http://tracker",
        clock=world.clock,
    )


def segment(world: World, run: str, attempt: int, number: int, steps: Sequence[int]) -> None:
    """A closed segment, as a job's recorder leaves it."""
    points = [MetricPoint(step=s, time_ms=1000 * attempt + s, metrics={"loss": 1.0}) for s in steps]
    data = "".join(f"{p.model_dump_json()}\n" for p in points)
    world.store.put(StageKeys(run, "one").attempt(attempt).segment(number), data.encode())


def commit(world: World, run: str, attempt: int, step: int) -> None:
    """A committed checkpoint without shards."""
    manifest = Manifest(
        content="full",
        run=run,
        stage="one",
        position=Position(attempt=attempt, step=step),
        tokens=step * 10,
        data=None,
        layout=Layout().resolved(1),
        dtype="float32",
        model={},
        model_digest="x",
        files=(),
    )
    key = StageKeys(run, "one").attempt(attempt).manifest(step)
    world.store.put(key, manifest.model_dump_json().encode())


def claim(world: World, run: str, attempt: int, base: Position | None) -> None:
    epoch = Epoch(attempt=attempt, base=base)
    world.store.put(StageKeys(run, "one").epoch(attempt), epoch.model_dump_json().encode())


def test_metrics_come_in_order_and_a_redone_step_is_not_doubled(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    run = world.submit(run="r1").id
    world.tick()
    claim(world, run, 1, None)
    segment(world, run, 1, 0, [1, 2, 3])
    segment(world, run, 1, 1, [4, 5])
    commit(world, run, 1, 4)
    shipper.tick()
    shipper.tick()
    tracked = "t-r1/one"
    assert memory.points[tracked] == [1, 2, 3, 4, 5]
    assert memory.models[tracked] == ["one-step-4"]
    view = world.runs.view(tracked)  # a run is found by the tracker's ids too
    assert view.id == "r1"
    assert view.mlflow_url == "http://tracker/t-r1"
    # The worker dies; the next attempt starts from step 4, and the zombie writes on.
    world.cluster_of("r1-one-1").end("r1-one-1", "FAILED")
    world.tick(20)
    claim(world, run, 2, Position(attempt=1, step=4))
    segment(world, run, 1, 2, [6, 7, 8, 9])
    segment(world, run, 2, 0, [5, 6])
    segment(world, run, 2, 1, [7])
    commit(world, run, 1, 8)
    commit(world, run, 2, 7)
    shipper.tick()
    assert memory.points[tracked] == [1, 2, 3, 4, 5, 6, 7]
    assert memory.models[tracked] == ["one-step-4", "one-step-7"]
    assert memory.runs[tracked]["octad.submissions"] == "r1-one-1 r1-one-2"


def test_the_tracker_is_told_the_range_and_what_each_attempt_got(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    alpha = world.fleet.clusters["alpha"]
    world.submit(world.spec("one", sizes=[2, 16], cluster="alpha"), run="r1")
    world.tick()
    shipper.tick()
    tags = memory.runs["t-r1/one"]
    assert (tags["octad.cards"], tags["octad.attempt_cards"]) == ("16", "16")
    alpha.lose_node()
    alpha.end("r1-one-1", "FAILED")
    world.tick(20)
    shipper.tick()
    tags = memory.runs["t-r1/one"]
    assert (tags["octad.cards"], tags["octad.attempt_cards"]) == ("2", "16 2")
    asked = {key: memory.params[key] for key in ("cards.min", "cards.max", "layout.dp_shard")}
    assert asked == {"cards.min": "2", "cards.max": "16", "layout.dp_shard": "fill"}


def test_params_of_one_number_of_cards_are_that_number(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    world.submit(world.spec("one", cards=4), run="r1")
    world.tick()
    shipper.tick()
    sizes = {k: v for k, v in memory.params.items() if "cards" in k or "size" in k or "asks" in k}
    assert sizes == {"cards": "4"}
    assert memory.params["layout.dp_shard"] == "4"


def test_what_was_sent_without_a_reply_is_not_doubled_by_the_next_attempt(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    run = world.submit(run="r1").id
    world.tick()
    claim(world, run, 1, None)
    segment(world, run, 1, 0, [1, 2, 3])
    commit(world, run, 1, 2)
    shipper.tick()
    segment(world, run, 1, 1, [4, 5])
    memory.loses_reply = True
    shipper.tick()
    world.cluster_of("r1-one-1").end("r1-one-1", "FAILED")
    world.tick(20)
    claim(world, run, 2, Position(attempt=1, step=2))
    segment(world, run, 2, 0, [3, 4, 5, 6])
    for _ in range(3):
        world.clock.pass_by(60)
        shipper.tick()
    assert memory.points["t-r1/one"] == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_is_away_slows_nothing_and_all_arrives_in_the_end(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    memory.is_away = True
    run = world.submit(run="r1").id
    world.tick()
    segment(world, run, 1, 0, [1, 2])
    for _ in range(3):
        shipper.tick()
        world.clock.pass_by(60)
    assert "away" in shipper.failure
    world.succeed("r1-one-1")
    world.tick(8)
    assert world.runs.view(run).state is RunState.SUCCEEDED
    memory.is_away = False
    later = new_shipper(world)  # after a restart: cursors lie in the database
    later.tick()
    later.tick()
    assert memory.points["t-r1/one"] == [1, 2]
    assert memory.finals["t-r1/one"] == {"loss": 1.5}
    assert memory.outcomes["t-r1/one"] == ["FINISHED"]
    assert memory.outcomes["t-r1"] == ["FINISHED"]
    world.tick(8)
    later.tick()
    memory.is_away = True  # a run that is wholly shipped is not looked at again
    later.tick()
    assert later.failure == ""


def test_a_run_that_cannot_be_shipped_keeps_no_other(
    world: World, memory: Memory, shipper: Shipper, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = world.submit(run="bad").id, world.submit(run="good").id
    world.tick()
    ensure_run = memory.ensure_run

    def fails_for_one(run: str, *rest: Any) -> str:
        if run == bad:
            raise ZeroDivisionError("of ours")
        return ensure_run(run, *rest)

    monkeypatch.setattr(memory, "ensure_run", fails_for_one)
    segment(world, good, 1, 0, [1, 2])
    shipper.tick()
    assert memory.points["t-good/one"] == [1, 2]
    assert shipper.failure == "a bug in octad: ZeroDivisionError: of ours"


def test_a_tracker_that_cannot_be_is_told(world: World) -> None:
    world.submit()
    spec = TrackerSpec(kind="mlflow")
    shipper = Shipper(
        world.database, world.store, spec, url=lambda: "no address", clock=world.clock
    )
    shipper.tick()
    assert "the address of MLflow is needed" in shipper.failure


def test_a_run_that_waits_is_told_once(world: World, memory: Memory, shipper: Shipper) -> None:
    run = world.submit(world.spec("one", cards=16)).id
    waits = world.submit(world.spec("one", cards=16)).id
    world.tick()
    shipper.tick()
    assert {run, waits} <= set(memory.runs)
    assert [row.id for row in shipper._open_runs()] == [run]
    world.runs.cancel(waits)
    shipper.tick()
    assert memory.outcomes[f"t-{waits}"][-1] == "KILLED"


def test_outcomes_follow_what_happened_and_a_resumed_run_is_open_again(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    run = world.submit(world.spec("one", retries=0), run="r1").id
    world.tick()
    world.cluster_of("r1-one-1").end("r1-one-1", "FAILED")
    shipper.tick()
    world.tick(12)
    shipper.tick()
    world.runs.resume(run, RunResume())
    world.tick()
    shipper.tick()
    world.runs.cancel(run)
    shipper.tick()
    assert memory.outcomes["t-r1/one"] == ["RUNNING", "FAILED", "RUNNING", "KILLED"]
    assert memory.outcomes["t-r1"][-2:] == ["RUNNING", "KILLED"]


def test_a_stage_done_anew_gets_a_run_of_its_own(
    world: World, memory: Memory, shipper: Shipper
) -> None:
    run = world.submit(run="r1").id
    world.tick()
    segment(world, run, 1, 0, [1, 2])
    world.succeed("r1-one-1")
    world.tick(8)
    shipper.tick()
    world.runs.resume(run, RunResume(from_stage="one"))
    world.tick()
    claim(world, run, 2, None)
    segment(world, run, 2, 0, [1, 2])
    shipper.tick()
    assert memory.points["t-r1/one"] == [1, 2]
    assert memory.points["t-r1/one@2"] == [1, 2]


def test_what_is_validated_is_also_the_runs_own(
    world: World, memory: Memory, shipper: Shipper, fake: ModuleType
) -> None:
    world.submit(world.spec("check", kind="validate"), run="r1")
    world.tick()
    alpha = world.fleet.clusters["alpha"]
    fake.finish(alpha.entrypoint("r1-check-1"), {"perplexity": 3.0})
    world.tick()
    shipper.tick()
    assert memory.finals == {"t-r1": {"perplexity": 3.0}, "t-r1/check": {"perplexity": 3.0}}


def test_a_line_that_cannot_be_read_blocks_no_other() -> None:
    good = MetricPoint(step=1, time_ms=1, metrics={"loss": "inf"}).model_dump_json().encode()
    assert [p.step for p in parsed_points(b"{half\n" + good + b"\n\xff\xfe\n")] == [1]
