"""One suite for every kind of tracker; MLflow runs behind a real server on loopback."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octad.control.clock import Clock
from octad.control.tracking import TrackingServer
from octad.errors import ConfigError, UnreachableError
from octad.ports.registry import kinds, load
from octad.ports.trackers import Tracker
from octad.spec.home import Home
from octad.spec.stages import MetricPoint

MLFLOW = "mlflow"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = TrackingServer(Home(tmp_path_factory.mktemp("home")), Clock())
    made.tick()
    assert made.is_up
    yield made.url
    made.end()
    assert made._child is not None
    made._child.wait()


@pytest.fixture(
    params=[
        pytest.param(k, marks=[pytest.mark.slow, pytest.mark.long] if k == MLFLOW else [])
        for k in kinds("octad.trackers")
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tracker(kind: str, request: pytest.FixtureRequest) -> Tracker:
    url = request.getfixturevalue("server") if kind == MLFLOW else ""
    made: Tracker = load("octad.trackers", kind).build(url)
    return made


@pytest.fixture
def mlflow(server: str) -> tuple[Tracker, Any]:
    tracker: Tracker = load("octad.trackers", MLFLOW).build(server)
    return tracker, tracker._client  # type: ignore[attr-defined]


def point(step: int, **metrics: Any) -> MetricPoint:
    return MetricPoint(step=step, time_ms=1_700_000_000_000 + step, metrics=metrics)


def begin(tracker: Tracker, run: str, **config: object) -> tuple[str, str]:
    parent = tracker.ensure_run(run, "a title", {"octad.pipeline": "p"}, config or {"a": 1})
    stage = tracker.ensure_stage(parent, "pretrain", {"octad.run": run}, {"lr": "1e-3"})
    return parent, stage


def test_everything_may_be_said_twice(tracker: Tracker) -> None:
    parent, stage = begin(tracker, "twice")
    assert begin(tracker, "twice") == (parent, stage)
    for _ in range(2):
        tracker.log_points(stage, [point(1, loss=2.0), point(2, loss=float(1))])
        tracker.log_final(stage, {"loss": 1.0, "perplexity": 2.7})
        tracker.set_outcome(stage, "FINISHED")
    first = tracker.log_checkpoint(stage, "pretrain-step-2", {"uri": "file:///x"})
    assert tracker.log_checkpoint(stage, "pretrain-step-2", {"uri": "file:///x"}) == first
    tracker.set_outcome(parent, "RUNNING")
    assert isinstance(tracker.page_url(parent), str)


@pytest.mark.slow
@pytest.mark.long
def test_runs_form_a_tree_whatever_the_environment_says(
    mlflow: tuple[Tracker, Any], monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    _, client = mlflow
    old = client.create_run("0")
    monkeypatch.setenv("MLFLOW_RUN_ID", old.info.run_id)
    fresh: Tracker = load("octad.trackers", MLFLOW).build(server)
    parent, stage = begin(fresh, "tree")
    assert len({parent, stage, old.info.run_id}) == 3
    run = client.get_run(stage)
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.data.tags["octad.stage"] == "pretrain"
    assert client.get_run(parent).data.tags["octad.run"] == "tree"
    assert dict(client.get_run(old.info.run_id).data.tags).keys() == dict(old.data.tags).keys()
    assert client.get_experiment(run.info.experiment_id).name == "octad/p"


@pytest.mark.slow
@pytest.mark.long
def test_points_are_kept_once_and_infinity_is_no_number(mlflow: tuple[Tracker, Any]) -> None:
    tracker, client = mlflow
    _, stage = begin(tracker, "points")
    points = [point(s, loss=1.0 / (s + 1)) for s in range(2500)]
    tracker.log_points(stage, points)
    tracker.log_points(stage, points[-10:])
    history = client.get_metric_history(stage, "loss")
    assert len(history) == 2500
    tracker.log_points(stage, [point(2500, loss="inf"), point(2501, loss="nan")])
    values = {m.step: m.value for m in client.get_metric_history(stage, "loss")}
    assert math.isnan(values[2500])
    assert math.isnan(values[2501])
    assert "step 2500" in client.get_run(stage).data.tags["octad.diverged"]
    _, sound = begin(tracker, "sound")
    tracker.log_points(sound, [point(1, loss=9.0)])
    experiment = client.get_run(stage).info.experiment_id
    for order in ("ASC", "DESC"):
        found = client.search_runs([experiment], order_by=[f"metrics.loss {order}"])
        ranked = [run.info.run_id for run in found if run.info.run_id in {sound, stage}]
        assert ranked == [sound, stage], "what diverged is nobody's best"


@pytest.mark.slow
@pytest.mark.long
def test_long_configs_are_shortened_where_seen_and_whole_where_kept(
    mlflow: tuple[Tracker, Any], tmp_path: Path
) -> None:
    tracker, client = mlflow
    config = {
        "text": "x" * 7000,
        "nested": {"deep": {"list": list(range(9000))}},
        "many": {f"key-{i}[{i}]": i for i in range(2500)},
        "name": "李明",
    }
    parent, _ = begin(tracker, "long", **config)
    params = client.get_run(parent).data.params
    assert len(params) == 2503
    assert "7000 characters, whole in config.json" in params["text"]
    assert params["name"] == "李明"
    path = client.download_artifacts(parent, "config.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == config


@pytest.mark.slow
@pytest.mark.long
def test_checkpoints_are_external_models_that_can_be_found(mlflow: tuple[Tracker, Any]) -> None:
    tracker, client = mlflow
    _, stage = begin(tracker, "models")
    for step in (10, 20):
        tags = {"uri": f"s3://b/step-{step}", "step": str(step), "digest": "sha256:0"}
        tracker.log_checkpoint(stage, f"pretrain-step-{step}", tags)
        tracker.log_checkpoint(stage, f"pretrain-step-{step}", tags)
    experiment = client.get_run(stage).info.experiment_id
    models = client.search_logged_models([experiment], f"source_run_id = '{stage}'")
    assert {m.name for m in models} == {"pretrain-step-10", "pretrain-step-20"}
    assert len(models) == 2
    assert all(str(m.status) == "READY" for m in models)
    assert {m.tags["uri"] for m in models} == {"s3://b/step-10", "s3://b/step-20"}


@pytest.mark.slow
@pytest.mark.long
def test_outcomes_are_the_stages_own_and_may_open_again(mlflow: tuple[Tracker, Any]) -> None:
    tracker, client = mlflow
    parent, stage = begin(tracker, "outcomes")
    for outcome in ("FAILED", "RUNNING", "KILLED", "FINISHED"):
        tracker.set_outcome(stage, outcome)
        assert client.get_run(stage).info.status == outcome
    assert client.get_run(parent).info.status == "RUNNING"
    assert parent in tracker.page_url(parent)


@pytest.mark.slow
@pytest.mark.long
def test_a_server_that_is_away_is_said_to_be_so(mlflow: tuple[Tracker, Any]) -> None:
    del mlflow  # MLflow is imported by now
    away: Tracker = load("octad.trackers", MLFLOW).build("http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match="MLflow does not answer"):
        away.ensure_run("r", "t", {}, {})
    with pytest.raises(ConfigError, match="address"):
        load("octad.trackers", MLFLOW).build("")
