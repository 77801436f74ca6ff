"""What a layout cannot divide is refused before anything is queued."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from octad.errors import ConfigError
from octad.spec.layouts import Layout
from octad.spec.stages import StageSpec
from octad.stages import finetune, pretrain, validate

MODEL = {"kind": "decoder", "width": 64, "depth": 2, "heads": 4, "context": 96}


def settings(stage: Any, **changes: Any) -> Any:
    raw = {
        "model": MODEL,
        "optimizer": {"lr": 1e-3},
        "steps": 20,
        "sequence": 96,
        "global_batch": 24,
    }
    return stage.Settings.parse({**raw, **changes}, where="stage")


def spec(kind: str, **axes: Any) -> StageSpec:
    layout = Layout.parse({"dp_shard": 1, **axes})
    cards = layout.pp * layout.data_parallel * layout.tp
    return StageSpec(name="stage", kind=kind, cards=cards, layout=layout)


@pytest.mark.parametrize(
    ("changes", "axes", "where", "numbers"),
    [
        ({}, {"tp": 3}, "stage.model.heads", ("4", "3")),
        ({"sequence": 90}, {"tp": 4}, "stage.sequence", ("90", "4")),
        ({"sequence": 128}, {}, "stage.sequence", ("128", "96")),
        ({}, {"dp_shard": 5}, "stage.global_batch", ("24", "5")),
        ({}, {"dp_replicate": 4, "dp_shard": 4}, "stage.global_batch", ("24", "16")),
        ({"micro_batch": 5}, {"dp_shard": 2}, "stage.micro_batch", ("12", "5")),
        ({}, {"pp": 3}, "stage.layout.pp", ("depth 2", "3 parts")),
        ({}, {"pp": 2, "dp_shard": 24}, "stage.global_batch", ("1 samples", "pp 2")),
        ({"micro_batch": 24}, {"pp": 2}, "stage.micro_batch", ("24", "1 micro-batches", "pp 2")),
        ({"optimizer": {"lr": 1e-3, "warmup_steps": 21}}, {}, "stage.optimizer", ("21", "20")),
    ],
)
def test_shapes_that_cannot_be_name_both_numbers(
    changes: dict[str, Any], axes: dict[str, int], where: str, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        pretrain.check(spec("pretrain", **axes), settings(pretrain, **changes))
    assert caught.value.where.startswith(where)
    assert all(number in caught.value.what for number in numbers)


def test_what_fits_is_let_through() -> None:
    pretrain.check(spec("pretrain", dp_replicate=2, dp_shard=3, tp=4), settings(pretrain))


def test_a_misspelt_adapter_target_names_the_nearest() -> None:
    wrong = settings(finetune, lora={"targets": ["querry"]})
    with pytest.raises(ConfigError, match="querry") as caught:
        finetune.check(spec("finetune"), wrong)
    assert "'query'" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("lora", {"rank": 1000}, "stage.lora.rank"),
        ("prefix", {"num_virtual_tokens": 1000}, "stage.prefix.num_virtual_tokens"),
        ("prefix", {"num_virtual_tokens": 10}, "stage.sequence"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    key: str, value: dict[str, int], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        finetune.check(spec("finetune"), settings(finetune, method=key, **{key: value}))
    assert caught.value.where == where


def test_finetune_gives_what_its_method_makes() -> None:
    for method in ("lora", "prefix"):
        given = finetune.gives(settings(finetune, method=method))
        assert {name: p.type for name, p in given.items()} == {
            "adapter": "adapter",
            "peft": "weights",
        }
    full = finetune.gives(settings(finetune, method="full"))
    assert {p.type for p in full.values()} == {"checkpoint", "weights"}


def test_validation_splits_only_its_data() -> None:
    with pytest.raises(ConfigError, match="tp is 2"):
        validate.check(spec("validate", tp=2), validate.Settings())
    validate.check(spec("validate", dp_shard=4), validate.Settings())


@pytest.mark.parametrize("kind", ["pretrain", "finetune", "validate"])
def test_a_laptop_can_load_the_stage(kind: str) -> None:
    code = f"import sys, octad.stages.{kind}; sys.exit(bool({{'torch', 'ray'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_zero_bubble_refuses_what_it_would_compute_twice_or_not_at_all() -> None:
    def pipeline(schedule: str, **changes: Any) -> None:
        deep = settings(pretrain, model={**MODEL, "depth": 4}, **changes)
        pretrain.check(spec("pretrain", pp=2, pp_schedule=schedule), deep)

    with pytest.raises(ConfigError, match="two parts") as caught:
        pipeline("zero_bubble", compile=True)
    assert caught.value.where == "stage.compile"
    with pytest.raises(ConfigError, match="one backward pass") as caught:
        pipeline("zero_bubble", activation_checkpointing="selective")
    assert caught.value.where == "stage.activation_checkpointing"
    with pytest.raises(ConfigError, match="zero 3 frees weights"):
        spec("pretrain", pp=2, pp_schedule="zero_bubble", zero=3)
    pipeline("zero_bubble", activation_checkpointing="full")
    pipeline("interleaved_1f1b", compile=True, activation_checkpointing="selective")
