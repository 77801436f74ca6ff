"""Every file in conf/ composes and validates."""

from pathlib import Path

import pytest

from octad.compose import compose_run, compose_server, conf_folders
from octad.spec.home import Home

CONF = conf_folders()[-1]
# What an option leaves to be said, so that it can be composed at all.
NEEDED = {
    "data=folder": ["data.path=/somewhere"],
    "pipeline=finetune": ["pretrained.weights.path=/somewhere"],
    "storage=s3": ["storage.url=s3://bucket/prefix"],
    "fleet=existing": ["fleet.clusters.main.address=http://127.0.0.1:8265"],
}
RUN_GROUPS = {
    "pipeline": "pipeline",
    "model": "model",
    "data": "data",
    "optimizer": "pretrain.optimizer",
    "precision": "pretrain.precision",
    "layout": "pretrain.layout",
}
SERVER_GROUPS = {
    "fleet": "fleet",
    "storage": "storage",
    "tracker": "tracker",
    "cluster": "cluster@fleet.clusters.main",
    "card": "fleet.clusters.main.card",
}


def options(groups: dict[str, str]) -> list[str]:
    return sorted(
        f"{key}={path.stem}"
        for group, key in groups.items()
        for path in (CONF / group).glob("*.yaml")
    )


@pytest.mark.parametrize("option", options(RUN_GROUPS))
def test_every_option_of_a_run_composes(option: str) -> None:
    more = ["pretrain.layout.tp=1", "pretrain.cards=8"] if option.startswith("pretrain.") else []
    if option.startswith("pretrain.layout"):
        more = ["pretrain.cards=8", "finetune.cards=2"]
    if option.startswith("model="):
        more = ["pretrain.layout.tp=1"]
    assert compose_run([option, *more, *NEEDED.get(option, [])]).stages


@pytest.mark.parametrize("option", options(SERVER_GROUPS))
def test_every_option_of_a_server_composes(option: str, tmp_path: Path) -> None:
    more = ["fleet=existing"] if ".main" in option else []
    address = "fleet.clusters.main.address=http://127.0.0.1:8265"
    more += [address] if ".main.card" in option or "main=existing" in option else []
    assert compose_server([option, *more, *NEEDED.get(option, [])], Home(tmp_path)).storage.url


def test_every_stage_option_is_part_of_a_pipeline() -> None:
    named = {
        stage.kind
        for path in (CONF / "pipeline").glob("*.yaml")
        for option in [f"pipeline={path.stem}"]
        for stage in compose_run([option, *NEEDED.get(option, [])]).stages
    }
    assert named == {path.stem for path in (CONF / "stage").glob("*.yaml")}


def test_every_group_is_looked_at_here() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert groups == {*RUN_GROUPS, *SERVER_GROUPS, "stage"}


def test_every_file_says_what_it_is() -> None:
    primary = {path.stem for path in CONF.glob("*.yaml")}
    assert primary == {"config", "server", "job"}
