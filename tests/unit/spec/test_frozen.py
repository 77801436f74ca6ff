"""How a bad value becomes one clear line."""

import pytest
from pydantic import Field, ValidationError

from octad.errors import ConfigError
from octad.spec.frozen import Spec, nearest


class Optimizer(Spec):
    lr: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.95)


class Stage(Spec):
    steps: int = 1
    optimizer: Optimizer | None = None


def test_a_misspelt_key_names_path_and_nearest_key() -> None:
    with pytest.raises(ConfigError) as caught:
        Stage.parse({"optimizer": {"rl": 0.1}}, where="pretrain")
    assert caught.value.where == "pretrain.optimizer.rl"
    assert "unknown key 'rl'" in caught.value.what
    assert "did you mean 'lr'" in caught.value.hint


@pytest.mark.parametrize(
    ("raw", "where", "what"),
    [
        ({"steps": "many"}, "steps", "valid integer"),
        ({"steps": 1.5}, "steps", "integer"),
        ({"steps": True}, "steps", "integer"),
        ({"steps": None}, "steps", "integer"),
        ({"optimizer": 1}, "optimizer", ""),
        ({"optimizer": {}}, "optimizer.lr", "a value is needed"),
        ({"optimizer": {"lr": -1.0}}, "optimizer.lr", "greater than 0"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr", ""),
        ({"optimizer": {"lr": 1, "betas": [0.9]}}, "optimizer.betas.1", ""),
        ({"steps": {1, 2}}, "", "not plain data"),
    ],
)
def test_a_wrong_value_names_its_path(raw: dict[str, object], where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Stage.parse(raw)
    assert caught.value.where == where
    assert what in caught.value.what
    assert "\n" not in str(caught.value)


def test_a_long_value_is_not_told_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        Stage.parse({"steps": "x" * 10_000})
    assert len(caught.value.what) < 300


def test_several_troubles_are_counted() -> None:
    with pytest.raises(ConfigError, match="and 1 more"):
        Stage.parse({"steps": "x", "optimizer": {"lr": 0}})


def test_a_spec_survives_its_own_plain_form_and_cannot_change() -> None:
    stage = Stage.parse({"steps": 3, "optimizer": {"lr": 1e-3, "betas": [0.8, 0.9]}})
    assert Stage.parse(stage.plain()) == stage
    with pytest.raises(ValidationError):
        stage.steps = 4  # type: ignore[misc]


def test_without_a_near_key_all_are_named() -> None:
    assert nearest("zzz", ["lr", "betas"]) == "valid here: betas, lr"
