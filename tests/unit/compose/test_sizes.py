"""Ranges of cards, and what stages ask of them: composed once, then changed as a person would."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octad.compose import compose_run
from octad.compose.runs import run_of
from octad.errors import ConfigError
from octad.spec.runs import RunSpec
from octad.spec.stages import StageSpec

Own = Callable[..., Path]


@functools.cache
def quickstart() -> dict[str, Any]:
    return compose_run([]).config


def stage_of(name: str = "pretrain", **changed: Any) -> StageSpec:
    """A stage of the quickstart with some keys changed."""
    return next(s for s in run(name, **changed).stages if s.name == name)


def run(name: str = "pretrain", **changed: Any) -> RunSpec:
    config = copy.deepcopy(quickstart())
    config[name] |= changed
    return run_of(config)


def between(least: int, most: int) -> dict[str, int]:
    return {"min": least, "max": most}


@pytest.mark.parametrize(
    ("changed", "sizes"),
    [
        ({"cards": between(2, 8)}, (2, 4, 8)),
        ({"cards": between(1, 32), "layout": {}}, (1, 2, 4, 8, 16, 32)),
        ({"cards": between(3, 24), "global_batch": 24}, (4, 6, 8, 16, 24)),
        ({"cards": between(1, 8), "layout": {}, "micro_batch": 8}, (1, 2, 4)),
        ({"cards": between(4, 4)}, (4,)),
        ({"cards": between(1, 8), "layout": {"tp": 2, "dp_shard": 2}}, (4,)),
        ({"name": "preprocess", "cards": between(1, 24)}, (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)),
    ],
)
def test_a_range_is_the_sizes_that_the_stage_can_use(
    changed: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    found = stage_of(**changed)
    assert found.sizes == sizes
    assert found.cards == max(sizes)
    for size in sizes:
        sized = found.sized(size)
        assert sized.cards == sized.layout.cards == size
        back = sized.model_copy(update={"cards": found.cards, "layout": found.layout})
        assert back == found


def test_a_range_may_stand_in_a_file_and_a_number_take_its_place(own: Own) -> None:
    folder = own(
        pipeline__mine=(
            "# @package _global_\ndefaults:\n  - quickstart\n  - _self_\n"
            "pretrain:\n  cards: {min: 2, max: 8}\n"
        ),
    )

    def pretrain(*overrides: str) -> StageSpec:
        spec = compose_run(["pipeline=mine", *overrides], folder)
        return next(s for s in spec.stages if s.name == "pretrain")

    assert pretrain().sizes == (2, 4, 8)
    assert pretrain("pretrain.cards.max=4").sizes == (2, 4)
    assert pretrain("pretrain.cards={min: 1, max: 2}").sizes == (2,)
    fixed = pretrain("pretrain.cards=4")
    assert (fixed.cards, fixed.cards_asked, fixed.sizes) == (4, None, ())


@pytest.mark.parametrize(
    ("cards", "where", "says"),
    [
        (between(4, 2), "cards", "min 4 is more than max 2; give the smaller number as min"),
        (between(0, 2), "cards.min", "0 cards cannot be; use 1 to 8"),
        (between(-1, 2), "cards.min", "-1 cards cannot be"),
        (between(2, 9), "cards.max", "9 cards cannot be; a node has 8 cards: use 8 or 16"),
        (between(2, 2048), "cards.max", "the most is 1024"),
        ({**between(2, 8), "mid": 4}, "cards.mid", "unknown key 'mid'"),
        ({"mni": 2, "max": 8}, "cards.mni", "did you mean 'min'"),
        ({"max": 8}, "cards.min", "a value is needed"),
        ({}, "cards.min", "a value is needed"),
        ({"min": "2", "max": 8}, "cards.min", "must be a valid integer, not '2'"),
        ({"min": 2, "max": "all"}, "cards.max", "must be a valid integer, not 'all'"),
        ({"min": 2.5, "max": 8}, "cards.min", "2.5"),
        ({"min": True, "max": 8}, "cards.min", "not True"),
        ("2-8", "cards", "not '2-8'; write 8, or {min: 2, max: 8}"),
        ([2, 8], "cards", "write 8, or {min: 2, max: 8}"),
        (None, "cards", "write 8, or {min: 2, max: 8}"),
        (True, "cards", "not True"),
    ],
)
def test_a_range_that_cannot_be_is_one_line_with_its_place(
    cards: Any, where: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        stage_of(cards=cards)
    assert caught.value.where == f"pretrain.{where}"
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "where", "says"),
    [
        (
            {"cards": between(5, 7), "layout": {}},
            "cards",
            "from 5 to 7 can be used; with 7 of them: a global batch of 32 cannot be divided by 7",
        ),
        # What most sizes have in common is the reason that is told; here 3, 5 and 7 have another.
        (
            {"cards": between(2, 7), "sequence": 200},
            "cards",
            "from 2 to 7 can be used; with 6 of them: a sequence of 200 is longer than the model's",
        ),
        # What is wrong at every size is said as it is.
        ({"cards": between(2, 2), "sequence": 200}, "sequence", "a sequence of 200 is longer"),
        ({"cards": between(3, 3)}, "layout", "does not divide 3 cards"),
    ],
)
def test_a_range_without_a_size_that_can_be_used_is_refused_with_the_reason(
    changed: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        stage_of(**changed)
    assert caught.value.where == f"pretrain.{where}"


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": [2, 4, 16], "cards": 16},
        {"sizes": [2, 4]},
        {"sizes": [4, 2, 8]},
        {"sizes": []},
        {"sizes": [2, 3, 8]},
        {"cards_asked": None},
        {"cards_asked": between(8, 2)},
    ],
)
def test_a_control_plane_takes_no_sizes_that_were_not_asked_for(changed: dict[str, Any]) -> None:
    plain = run(cards=between(2, 8)).plain()
    assert RunSpec.parse(plain).plain() == plain
    stages = [s | (changed if s["name"] == "pretrain" else {}) for s in plain["stages"]]
    with pytest.raises(ConfigError, match="pretrain"):
        RunSpec.parse(plain | {"stages": stages})


@pytest.mark.parametrize(
    ("precision", "asks"),
    [
        ({"kind": "fp32"}, []),
        ({"kind": "bf16"}, ["bf16"]),
        ({"kind": "fp16"}, ["fp16"]),
        ({"kind": "fp8"}, ["fp8", "bf16"]),
        ({"kind": "fp8", "emulate": True}, ["bf16"]),
    ],
)
def test_a_stage_says_what_its_cards_must_be_able_to_do(
    precision: dict[str, Any], asks: list[str]
) -> None:
    for name in ("pretrain", "finetune"):
        assert stage_of(name, precision=precision).asks == dict.fromkeys(asks, "precision.kind")
    assert stage_of("validate").asks == {}


def test_a_split_sequence_is_asked_of_cards_whatever_the_kind() -> None:
    found = stage_of("preprocess", cards=2, layout={"cp": 2})
    assert found.asks == {"cp": "layout.cp"}


@pytest.mark.parametrize(
    ("changed", "where", "numbers"),
    [
        ({"cards": 8, "layout": {"tp": 8}}, "model.heads", ("4", "8")),
        ({"cards": 4, "layout": {"pp": 4}}, "layout.pp", ("2", "4")),
        ({"cards": 8, "layout": {"cp": 2}}, "layout.cp", ("2",)),
        ({"sequence": 127}, "sequence", ("127", "2")),
        ({"global_batch": 33}, "global_batch", ("33", "2")),
        ({"micro_batch": 5}, "micro_batch", ("16", "5")),
        ({"cards": 2, "layout": {"pp": 2}, "global_batch": 1}, "global_batch", ("1", "2")),
        ({"model": {"vocab": 300}}, "model.vocab", ("300", "2048")),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anything_is_sent(
    changed: dict[str, Any], where: str, numbers: tuple[str, ...]
) -> None:
    if "model" in changed:
        changed = {"model": {**quickstart()["model"], **changed["model"]}}
    with pytest.raises(ConfigError) as caught:
        stage_of(**changed)
    assert caught.value.where == f"pretrain.{where}"
    assert all(number in caught.value.what for number in numbers)


def test_a_vocabulary_as_large_as_the_tokenizer_may_get_fits() -> None:
    model = {**quickstart()["model"], "vocab": 2048}
    assert stage_of(model=model).settings["model"]["vocab"] == 2048
