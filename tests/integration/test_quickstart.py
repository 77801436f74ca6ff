"""The main job on real Ray clusters, and what it survives: kill -9 of the control plane and of a
training worker, in the middle of pretraining, at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from octad.spec.home import Home

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(540)]

MAIN = "from octad.cli.main import main; raise SystemExit(main())"
STEPS = 24
SMALL = [
    "pretrain.cards=2",
    f"pretrain.steps={STEPS}",
    "pretrain.checkpoint_every=6",
    "finetune.steps=20",
    "data.limit_bytes=600000",
]
METRICS = {
    "loss",
    "lr",
    "grad_norm",
    "tokens",
    "tokens_per_s",
    "tokens_per_s_per_card",
    "step_time_s",
    "data_wait_share",
    "checkpoint_blocked_s",
}


class Octad:
    """The command line, with a private folder of its own."""

    def __init__(self, home: Home) -> None:
        self.home = home
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OCTAD_", "RAY_"))}
        # What must not matter: a tracker's run id, and a proxy that answers nobody.
        self.env = env | {
            "OCTAD_HOME": str(home.root),
            "RAY_AUTH_MODE": "token",
            "MLFLOW_RUN_ID": "0" * 32,
            "http_proxy": "http://127.0.0.1:9",
        }

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def stage(self, run: str, name: str) -> Any:
        (found,) = (s for s in self.json("run", run)["stages"] if s["name"] == name)
        return found

    def processes(self) -> list[psutil.Process]:
        """Everything that this private folder has started and that lives."""
        found = []
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except psutil.Error:
                continue
            if env.get("OCTAD_HOME") == str(self.home.root) and process.pid != os.getpid():
                found.append(process)
        return found


@pytest.fixture(scope="module")
def octad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Octad]:
    cli = Octad(Home(tmp_path_factory.mktemp("octad") / "home"))
    try:
        cli("up")
        yield cli
    finally:
        cli("down")
    assert not cli.processes()


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(1)  # each look costs half a second of a core


def a_training_worker(run: str) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            if process.environ().get("OCTAD_RUN") == run and "TrainWorker" in process.name():
                return process
            if process.environ().get("OCTAD_RUN") == run and any(
                "RayTrainWorker" in word for word in process.cmdline()
            ):
                return process
        except psutil.Error:
            continue
    raise AssertionError("no training worker lives")


@pytest.fixture(scope="module")
def killed(octad: Octad) -> str:
    """A run of the quickstart whose control plane and one worker were killed while it trained."""
    run = octad("submit", "pipeline=quickstart", *SMALL).split()[-1]

    def has_committed() -> bool:
        stage = octad.stage(run, "pretrain")
        return bool(stage["progress"]) and stage["progress"]["step"] >= 8

    wait_for(has_committed, 200)
    os.kill(json.loads(octad.home.endpoint.read_text())["pid"], signal.SIGKILL)
    a_training_worker(run).kill()
    wait_for(lambda: octad.json("run", run)["state"] not in {"queued", "running"}, 300)
    wait_for(lambda: all(s["mlflow_run_id"] for s in octad.json("run", run)["stages"]), 60)
    return run


def test_the_run_goes_on_and_nothing_runs_twice(octad: Octad, killed: str) -> None:
    view = octad.json("run", killed)
    assert view["state"] == "succeeded"
    attempts = {s["name"]: s["attempts"] for s in view["stages"]}
    assert {name: len(lives) for name, lives in attempts.items()} == {
        "preprocess": 1,
        "pretrain": 2,
        "finetune": 1,
        "validate": 1,
    }
    first, second = attempts["pretrain"]
    assert (first["state"], second["state"]) == ("failed", "succeeded")
    assert "died" in first["reason"] or "worker" in first["reason"]
    assert second["intended_at_ms"] - first["ended_at_ms"] < 2000
    epochs = octad.home.store / "runs" / killed / "stages" / "pretrain" / "epochs"
    base = json.loads((epochs / "000002.json").read_text())["base"]
    assert base["attempt"] == 1
    assert base["step"] in {6, 12, 18}


def test_a_run_says_everything_about_its_stages(octad: Octad, killed: str) -> None:
    stages = octad.json("run", killed)["stages"]
    placed = {s["name"]: (s["kind"], s["cluster"], s["cards"]) for s in stages}
    assert placed["pretrain"] == ("pretrain", "alpha", 2)
    assert placed["finetune"] == ("finetune", "beta", 2)
    assert placed["validate"][2] == 1
    for stage in stages:
        assert stage["state"] == "succeeded"
        assert stage["mlflow_run_id"]
        assert {"number", "state", "started_at_ms", "ended_at_ms", "reason"} <= set(
            stage["attempts"][-1]
        )
        for artefact in stage["artefacts"]:
            assert artefact["uri"].startswith("file://")
            assert artefact["digest"].startswith("sha256:")
    layout = next(s["layout"] for s in stages if s["name"] == "pretrain")
    assert layout == {
        "pp": 1,
        "dp_replicate": 1,
        "dp_shard": 1,
        "cp": 1,
        "tp": 2,
        "zero": 2,
        "pp_schedule": "1f1b",
        "pp_parts_per_card": 2,
    }
    metrics = next(s["metrics"] for s in stages if s["name"] == "validate")
    assert metrics["tuned_tuning_perplexity"] < metrics["base_tuning_perplexity"]


def test_mlflow_holds_every_step_once_and_every_checkpoint(octad: Octad, killed: str) -> None:
    view = octad.json("run", killed)
    client = MlflowClient(octad.json("fleet")["tracker_url"])

    def is_shipped() -> bool:
        return client.get_run(view["mlflow_run_id"]).info.status == "FINISHED"

    wait_for(is_shipped, 60)
    parent = client.get_run(view["mlflow_run_id"])
    assert "tuned_tuning_perplexity" in parent.data.metrics
    (experiment,) = {parent.info.experiment_id}
    children = client.search_runs(
        [experiment], f"tags.`mlflow.parentRunId` = '{view['mlflow_run_id']}'"
    )
    assert {c.info.run_id for c in children} == {s["mlflow_run_id"] for s in view["stages"]}
    pretrain = next(s for s in view["stages"] if s["name"] == "pretrain")["mlflow_run_id"]
    tracked = client.get_run(pretrain)
    assert set(tracked.data.metrics) >= METRICS
    assert tracked.data.params["optimizer.lr"]
    history = client.get_metric_history(pretrain, "loss")
    assert sorted(point.step for point in history) == list(range(1, STEPS + 1))
    models = client.search_logged_models([experiment], f"source_run_id = '{pretrain}'")
    assert {m.tags["step"] for m in models} >= {"24"}


def test_the_log_holds_both_attempts_in_order(octad: Octad, killed: str) -> None:
    text = octad("logs", killed, "pretrain")
    assert 0 <= text.find("pretrain, attempt 1") < text.find("pretrain, attempt 2")


def test_other_sizes_need_no_change_of_code(octad: Octad) -> None:
    sizes = ["pretrain.cards=8", "pretrain.layout.tp=1", "pretrain.optimizer.lr=1e-3"]
    (stage,) = (
        s
        for s in octad.json("submit", "pipeline=quickstart", *sizes, "--dry-run")["stages"]
        if s["name"] == "pretrain"
    )
    assert (stage["cards"], stage["layout"]["dp_shard"]) == (8, 8)


def test_where_the_private_folder_is_only_its_owner_may_look(octad: Octad) -> None:
    assert (octad.home.root.stat().st_mode & 0o777) == 0o700
    for secret in [octad.home.token, *Path(octad.home.root).glob("clusters/*/ray-token")]:
        assert (secret.stat().st_mode & 0o777) == 0o600
