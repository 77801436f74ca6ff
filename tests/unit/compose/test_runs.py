"""Runs as composed from configs and overrides."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octad.compose import compose_run
from octad.errors import ConfigError, OctadError
from octad.spec.runs import RunSpec
from octad.spec.stages import StageSpec

Own = Callable[..., Path]


def stage(spec: RunSpec, name: str) -> StageSpec:
    return next(s for s in spec.stages if s.name == name)


def test_quickstart_is_four_stages_that_fit() -> None:
    spec = compose_run([])
    assert spec.pipeline == spec.title == "quickstart"
    assert [s.name for s in spec.stages] == ["preprocess", "pretrain", "finetune", "validate"]
    assert [s.cards for s in spec.stages] == [2, 4, 2, 1]
    assert [s.cluster for s in spec.stages] == [None, "alpha", "beta", None]
    pretrain = stage(spec, "pretrain").layout
    assert (pretrain.tp, pretrain.dp_shard) == (2, 2)


def test_values_groups_and_blocks_can_be_overridden() -> None:
    spec = compose_run(
        [
            "pretrain.cards=8",
            "pretrain.layout.tp=1",
            "pretrain.optimizer.lr=1e-3",
            "pretrain.precision=bf16",
            "seed=7",
            "title=a=b",
        ]
    )
    pretrain = stage(spec, "pretrain")
    assert (pretrain.cards, pretrain.layout.tp, pretrain.layout.dp_shard) == (8, 1, 8)
    assert pretrain.settings["optimizer"]["lr"] == 1e-3
    assert (spec.seed, spec.title) == (7, "a=b")
    other = stage(spec, "finetune").settings["optimizer"]["lr"]
    assert other != 1e-3
    assert (
        stage(spec, "pretrain").settings["precision"]
        != stage(spec, "finetune").settings["precision"]
    )


@pytest.mark.parametrize(
    "text", ["[" * 300 + "1" + "]" * 300, "{a: " * 300 + "1" + "}" * 300, "[" * 3000]
)
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="too deeply"):
        compose_run([f"vars.x={text}"])


def test_a_shared_block_can_be_changed_for_one_stage() -> None:
    plain = stage(compose_run(["model.depth=3"]), "pretrain").settings["model"]
    spec = compose_run(["pretrain.model.depth=4", "model.width=64"])
    changed = stage(spec, "pretrain").settings["model"]
    assert plain["depth"] == 3
    assert (changed["depth"], changed["width"]) == (4, 64)
    assert stage(spec, "finetune").settings["model"]["depth"] == 2


def test_the_whole_config_is_kept_and_resolved() -> None:
    config = compose_run(["vars.note=${seed}", "seed=5"]).config
    assert config["vars"] == {"note": 5}
    assert config["pretrain"]["model"] == config["model"]


def test_a_resolver_is_evaluated_once() -> None:
    overrides = [
        "seed=${random:}",
        "vars.a=${random:}",
        "vars.b=${now:%H%M%S%f}",
        "vars.c=${vars.b}",
    ]
    spec = compose_run(overrides)
    assert spec.config["vars"]["a"] == spec.seed
    assert spec.config["vars"]["b"] == spec.config["vars"]["c"]
    assert compose_run(overrides).seed != spec.seed


MISTAKES = [
    (["pretrain.optimizer.rl=1"], "pretrain.optimizer.rl", "'lr'"),
    (["+pretrain.optimizer.rl=1"], "pretrain.optimizer.rl", "'lr'"),
    (["++pretrain.optimizer.rl=1"], "pretrain.optimizer.rl", "'lr'"),
    (["optim.rl=1"], "optim", "valid here"),
    (["pretrian.cards=1"], "pretrian", "'pretrain'"),
    (["pretrain.crads=1"], "pretrain.crads", "'cards'"),
    (["model.widht=64"], "model.widht", "'width'"),
    (["model=1"], "model", "gpt_tiny"),
    (["model=gpt_tny"], "model", "'gpt_tiny'"),
    (["model={}"], "model.kind", ""),
    (["pipeline=quikstart"], "pipeline", "'quickstart'"),
    (["pretrain=1"], "pretrain", "pretrain"),
    (["pretrain.optimizer=1"], "pretrain.optimizer", "adamw"),
    (["pretrain.optimizer=null"], "pretrain.optimizer", ""),
    (["pretrain.optimizer.lr=fast"], "pretrain.optimizer.lr", ""),
    (["pretrain.optimizer.lr.x=1"], "pretrain.optimizer.lr", ""),
    (["model=null"], "pretrain.model", ""),
    (["pretrain.cards=0"], "pretrain.cards", "1 to 8"),
    (["pretrain.cards=9"], "pretrain.cards", "8 or 16"),
    (["pretrain.cards=two"], "pretrain.cards", "{min: 2, max: 8}"),
    (["pretrain.cards={min: 4, max: 2}"], "pretrain.cards", "smaller number as min"),
    (["pretrain.layout.tp=3"], "pretrain.layout", "divided by"),
    (["pretrain.cards=8", "pretrain.layout.dp_shard=3"], "pretrain.layout", "fill"),
    (["pretrain.kind=pretrian"], "pretrain.kind", "'pretrain'"),
    (["pretrain.retries=-1"], "pretrain.retries", ""),
    (["pretrain.cluster=A:b"], "pretrain.cluster", ""),
    (["pretrain.needs.corpus=preprocess.korpus"], "pretrain.needs.corpus", "'corpus'"),
    (["pretrain.needs.corpus=preprocess.tokenizer"], "pretrain.needs.corpus", ""),
    (["pretrain.needs.corpus=preproces.corpus"], "pretrain.needs.corpus", "'preprocess'"),
    (["pretrain.needs.corpus=nonsense"], "pretrain.needs.corpus", ""),
    (["pretrain.needs.base=validate.report"], "pipeline.stages", ""),
    (["pipeline.stages=[preprocess]"], "pretrain", "valid here"),
    (["pipeline.stages=[pre/process]"], "pipeline.stages", ""),
    (["pipeline.stages=[]"], "pipeline.stages", ""),
    (["pipeline.stages=[pretrain,pretrain]"], "pipeline.stages", ""),
    (["pipeline.name=A b"], "pipeline.name", ""),
    (["data=folder"], "data", ""),
    (["seed=-1"], "seed", ""),
    (["seed=soon"], "seed", ""),
    (["title="], "title", ""),
    (["title=${nope}"], "title", "\\${"),
    (["code.path=3"], "code.path", ""),
    (["vars=3"], "vars", ""),
    (["~pretrain.optimizer"], "", "null"),
    (["data@nowhere=folder"], "", ""),
]


@pytest.mark.parametrize(("overrides", "where", "hint"), MISTAKES, ids=lambda x: str(x)[:40])
def test_mistakes_are_refused_with_place_and_hint(
    overrides: list[str], where: str, hint: str
) -> None:
    with pytest.raises(OctadError) as caught:
        compose_run(overrides)
    error = caught.value
    assert error.exit_code == 2
    assert where in error.where
    assert hint in error.hint
    assert "\n" not in str(error)


def test_numbers_are_titles_too() -> None:
    assert compose_run(["title=2026"]).title == "2026"


def test_own_configs_come_before_octads(own: Own) -> None:
    folder = own(
        model__gpt_tiny="kind: decoder\nvocab: null\ncontext: 64\nwidth: 32\ndepth: 1\nheads: 2\n",
        pipeline__mine=(
            "# @package _global_\ndefaults:\n  - quickstart\n  - _self_\n"
            "pipeline:\n  name: mine\nvalidate:\n  cards: 2\n"
        ),
    )
    spec = compose_run(["pipeline=mine", "pretrain.sequence=64", "finetune.sequence=64"], folder)
    assert spec.pipeline == "mine"
    assert stage(spec, "validate").cards == 2
    assert stage(spec, "pretrain").settings["model"]["width"] == 32
    assert stage(compose_run([]), "pretrain").settings["model"]["width"] == 128


def test_many_threads_compose_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        specs = list(pool.map(lambda seed: compose_run([f"seed={seed}"]), range(5)))
    assert [s.seed for s in specs] == list(range(5))


def test_the_callers_own_hydra_is_left_as_it_was(own: Own) -> None:
    from hydra import compose, initialize_config_dir  # noqa: PLC0415

    folder = own(mine="a: 1\n")
    with initialize_config_dir(str(folder), version_base="1.3"):
        compose_run([])
        assert compose("mine") == {"a": 1}


def test_no_conf_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        compose_run([], tmp_path / "nowhere")


def test_a_long_value_reaches_the_stage() -> None:
    names = [f"file_{i:06d}" for i in range(16_000)]
    spec = compose_run([f"vars.names=[{','.join(names)}]"])
    assert spec.config["vars"]["names"] == names
