"""Single stages by hand."""

import pytest

from octad.compose import compose_job
from octad.errors import ConfigError

STORE = "storage.url=file:///shared/octad"


def test_a_first_stage_needs_only_a_store() -> None:
    job = compose_job("preprocess", [STORE])
    assert job.stage == "preprocess"
    assert job.run.startswith("quickstart-")
    assert job.store.url == "file:///shared/octad"
    assert job.tracker is None
    assert "storage" not in job.spec.config


def test_a_later_stage_needs_its_run() -> None:
    with pytest.raises(ConfigError, match=r"preprocess\.corpus") as caught:
        compose_job("pretrain", [STORE])
    assert caught.value.where == "run"
    job = compose_job("pretrain", [STORE, "run=mine", "tracker.url=http://127.0.0.1:5000"])
    assert job.run == "mine"
    assert job.tracker is not None
    assert job.tracker.url == "http://127.0.0.1:5000"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        ([], "storage.url"),
        ([STORE, "run=A/b"], "run"),
        ([STORE, "run=mine", "stage_name=finetune"], "stage_name"),
        ([STORE, "nonsense=1"], "nonsense"),
        ([STORE, "run=mine", "pretrain.cards={min: 2, max: 8}"], "pretrain.cards"),
    ],
)
def test_mistakes_are_refused(overrides: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_job("pretrain", overrides)
    assert caught.value.where == where


def test_a_kind_that_the_pipeline_lacks() -> None:
    with pytest.raises(ConfigError, match="has none"):
        compose_job("job", [STORE])
