"""A run: composed, validated, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octad.compose.hydra_session import composed
from octad.compose.overrides import bounded, parse_single
from octad.compose.values import plain
from octad.errors import ConfigError
from octad.ports.registry import load
from octad.spec.clusters import Ability
from octad.spec.frozen import Spec, nearest
from octad.spec.layouts import Layout, check_cards
from octad.spec.names import checked_name, checked_title
from octad.spec.pipelines import Ports, check_fit, in_order
from octad.spec.runs import RunSpec
from octad.spec.sizes import CardRange
from octad.spec.stages import StageSpec

ROOT_KEYS = frozenset({"pipeline", "title", "seed", "model", "data", "tuning_data", "code", "vars"})
_COMMON = ("kind", "cards", "layout", "cluster", "needs", "retries")
# Blocks that stages refer to; checked where they stand, so that an error names what was typed.
_BLOCKS = {
    "model": "octad.models",
    "data": "octad.data.sources",
    "tuning_data": "octad.data.sources",
}


class _Pipeline(Spec):
    name: str
    stages: tuple[str, ...]


class _Code(Spec):
    path: str | None = None


@bounded()
def compose_run(overrides: Sequence[str], conf: Path | None = None) -> RunSpec:
    """The run that these overrides describe.

    Args:
        overrides: `key=value`, `group=option`; text needs no quoting.
        conf: A folder of the user's own configs, looked into before octad's.

    Raises:
        ConfigError: Something is unknown, of the wrong type, impossible or does not fit.
    """
    return run_of(plain(composed("config", parse_single(overrides), conf)))


def run_of(config: dict[str, Any], *, also: frozenset[str] = frozenset()) -> RunSpec:
    """The run that a plain config describes.

    Args:
        config: What `plain` gives.
        also: Root keys that are allowed besides those of a run.

    Raises:
        ConfigError: See `compose_run`.
    """
    pipeline = _pipeline(config)
    _check_roots(config, pipeline, also)
    _Code.parse(_mapping(config["code"], "code"), where="code")
    _mapping(config["vars"], "vars")
    for key, package in _BLOCKS.items():
        _check_block(config[key], package, key)
    stages, takes, gives = {}, {}, {}
    for name in pipeline.stages:
        stage, takes[name], gives[name] = _stage(name, config[name])
        stages[name] = stage
    ordered = in_order(stages)
    check_fit(stages, takes, gives)
    return RunSpec.parse(
        {
            "pipeline": pipeline.name,
            "title": _title(config["title"], pipeline.name),
            "stages": [stage.plain() for stage in ordered],
            "seed": config["seed"],
            "config": {key: value for key, value in config.items() if key not in also},
        }
    )


def _pipeline(config: Mapping[str, Any]) -> _Pipeline:
    pipeline = _Pipeline.parse(_mapping(config.get("pipeline"), "pipeline"), where="pipeline")
    for name in [pipeline.name, *pipeline.stages]:
        where = "pipeline.name" if name == pipeline.name else "pipeline.stages"
        try:
            checked_name(name)
        except ValueError as error:
            raise ConfigError(str(error), where=where) from None
    if not pipeline.stages:
        raise ConfigError("a pipeline has at least one stage", where="pipeline.stages")
    for name in pipeline.stages:
        if pipeline.stages.count(name) > 1:
            raise ConfigError(f"{name!r} is there twice", where="pipeline.stages")
        if name in ROOT_KEYS:
            raise ConfigError(f"a stage cannot be called {name!r}", where="pipeline.stages")
        if name not in config:
            raise ConfigError(
                f"the pipeline has a stage {name!r}, but no such key",
                where="pipeline.stages",
                hint=nearest(name, set(config) - ROOT_KEYS),
            )
    return pipeline


def _check_roots(config: Mapping[str, Any], pipeline: _Pipeline, also: frozenset[str]) -> None:
    known = ROOT_KEYS | also | set(pipeline.stages)
    for key in config:
        if key not in known:
            raise ConfigError(
                f"unknown key {key!r}: neither a stage of {pipeline.name} nor a setting",
                where=key,
                hint=nearest(key, known),
            )
    for key in ROOT_KEYS - set(config):
        raise ConfigError("a value is needed", where=key)


def _check_block(raw: Any, package: str, where: str) -> None:
    if raw is None:
        return
    block = _mapping(raw, where)
    if "kind" not in block:
        raise ConfigError("a value is needed", where=f"{where}.kind")
    kind = load(package, str(block["kind"]), where=f"{where}.kind")
    kind.Settings.parse(_settings(kind.Settings, block), where=where)


def _settings(settings: type[Spec], block: Mapping[str, Any]) -> dict[str, Any]:
    """The block as its kind's settings take it: with `kind` only if they have such a key."""
    return {k: v for k, v in block.items() if k != "kind" or "kind" in settings.model_fields}


def _stage(name: str, raw: Any) -> tuple[StageSpec, Ports, Ports]:
    block = _mapping(raw, name)
    if "kind" not in block:
        raise ConfigError("a value is needed", where=f"{name}.kind")
    module = load("octad.stages", str(block["kind"]), where=f"{name}.kind")
    known = {*_COMMON, *module.Settings.model_fields}
    for key in block:
        if key not in known:
            raise ConfigError(
                f"unknown key {key!r}", where=f"{name}.{key}", hint=nearest(key, known)
            )
    common = {key: block[key] for key in _COMMON if key in block}
    if "cards" not in common:
        raise ConfigError("a value is needed", where=f"{name}.cards")
    layout = Layout.parse(_mapping(common.get("layout") or {}, f"{name}.layout"), f"{name}.layout")
    own = {key: value for key, value in block.items() if key not in _COMMON}
    settings = module.Settings.parse(own, where=name)
    asked = _range(common["cards"], f"{name}.cards")
    draft = StageSpec.parse(
        {
            "name": name,
            **common,
            "cards": asked.max if asked else common["cards"],
            "layout": layout.plain(),
            "cards_asked": asked and asked.plain(),
            "asks": _asks(module, settings, layout),
            "settings": settings.plain(),
        },
        where=name,
    )
    stage = _any_size(module, draft, settings) if asked else _one_size(module, draft, settings)
    return stage, module.takes(settings), module.gives(settings)


def _range(cards: Any, where: str) -> CardRange | None:
    if not isinstance(cards, dict):
        if not isinstance(cards, int):
            raise ConfigError(
                f"must be a number of cards or a range of them, not {cards!r}",
                where=where,
                hint="write 8, or {min: 2, max: 8}",
            )
        return None
    asked = CardRange.parse(cards, where=where)
    asked.sizes(where)
    return asked


def _asks(module: Any, settings: Spec, layout: Layout) -> dict[Ability, str]:
    """What the cards of a stage must be able to do, and the setting that asks for it."""
    own: dict[Ability, str] = module.asks(settings) if hasattr(module, "asks") else {}
    return {**own, "cp": "layout.cp"} if layout.cp > 1 else own


def _one_size(module: Any, draft: StageSpec, settings: Spec) -> StageSpec:
    """The stage on the cards that are asked for."""
    name, cards = draft.name, draft.cards
    check_cards(cards, where=f"{name}.cards")
    stage = draft.model_copy(
        update={"layout": draft.layout.resolved(cards, where=f"{name}.layout")}
    )
    try:
        module.check(stage, settings)
    except ConfigError as error:
        raise (error if error.where.split(".")[0] == name else error.at(name)) from None
    return stage


def _any_size(module: Any, draft: StageSpec, settings: Spec) -> StageSpec:
    """The stage on the most cards of its range, with all numbers of them that it can use.

    Raises:
        ConfigError: It can use none; says what keeps it from it.
    """
    asked, where = draft.cards_asked, f"{draft.name}.cards"
    assert asked is not None
    usable: list[StageSpec] = []
    refused: dict[int, ConfigError] = {}
    for cards in asked.sizes(where):
        try:
            usable.append(_one_size(module, draft.model_copy(update={"cards": cards}), settings))
        except ConfigError as error:
            refused[cards] = error
    if usable:
        return usable[-1].model_copy(update={"sizes": tuple(stage.cards for stage in usable)})
    said = [str(error) for error in refused.values()]
    # What most sizes have in common has least to do with the size.
    example = max(refused, key=lambda cards: (said.count(str(refused[cards])), cards))
    shared = refused[example]
    if len(set(said)) == 1:
        raise shared
    raise ConfigError(
        f"no number of cards from {asked.min} to {asked.max} can be used; with {example} of them: "
        f"{shared.what}",
        where=where,
        hint=f"see {shared.where}; {shared.hint}" if shared.hint else f"see {shared.where}",
    )


def _mapping(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConfigError(f"must be a block of keys, not {raw!r}", where=where)
    return raw


def _title(title: Any, pipeline: str) -> str:
    if title is None:
        return pipeline
    try:
        return checked_title(str(title))
    except ValueError as error:
        raise ConfigError(str(error), where="title") from None
