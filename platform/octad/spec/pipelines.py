"""Whether the stages of a pipeline fit together. Pure."""

from __future__ import annotations

import graphlib
import json
from collections.abc import Mapping
from typing import Any

from octad.errors import ConfigError
from octad.spec.artefacts import Port, Vocabulary
from octad.spec.frozen import nearest
from octad.spec.stages import StageSpec

Ports = Mapping[str, Port]


def in_order(stages: Mapping[str, StageSpec]) -> tuple[StageSpec, ...]:
    """The stages in an order in which each comes after what it needs; ties keep their order.

    Raises:
        ConfigError: A need names an unknown stage, or there is a cycle.
    """
    graph: dict[str, list[str]] = {}
    for name, stage in stages.items():
        before = [split_need(need, f"{name}.needs.{key}")[0] for key, need in stage.needs.items()]
        for (key, _), source in zip(stage.needs.items(), before, strict=True):
            if source not in stages:
                raise ConfigError(
                    f"no stage is called {source!r}",
                    where=f"{name}.needs.{key}",
                    hint=nearest(source, stages),
                )
        graph[name] = before
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise ConfigError(
            f"these stages need each other: {' -> '.join(error.args[1])}",
            where="pipeline.stages",
            hint="remove one of the needs",
        ) from None
    return tuple(stages[name] for name in order)


def check_fit(
    stages: Mapping[str, StageSpec], takes: Mapping[str, Ports], gives: Mapping[str, Ports]
) -> None:
    """Refuse stages whose artefacts do not fit.

    Args:
        stages: By name.
        takes: For each stage, its inputs.
        gives: For each stage, its outputs.

    Raises:
        ConfigError: An input is unknown, missing, fed by an output that is not there, by one of
            another type, by a tokenizer that may have more tokens than there is room for, or by
            weights of another model.
    """
    for name, stage in stages.items():
        for key, need in stage.needs.items():
            where = f"{name}.needs.{key}"
            if key not in takes[name]:
                raise ConfigError(
                    f"a {stage.kind} stage takes no {key!r}",
                    where=where,
                    hint=nearest(key, takes[name]),
                )
            source, output = split_need(need, where)
            if output not in gives[source]:
                raise ConfigError(
                    f"{source!r} gives no {output!r}",
                    where=where,
                    hint=nearest(output, gives[source]),
                )
            wanted, given = takes[name][key], gives[source][output]
            if wanted.type != given.type:
                raise ConfigError(
                    f"takes a {wanted.type}, but {need} is a {given.type}", where=where
                )
            _check_vocabulary(name, wanted.vocabulary, source, given.vocabulary)
            _check_values(name, wanted.values, need, given.values)
        for key, port in takes[name].items():
            if port.is_required and key not in stage.needs:
                raise ConfigError(
                    f"a {stage.kind} stage needs a {port.type}",
                    where=f"{name}.needs.{key}",
                    hint=f"name the stage that makes it: {key}: <stage>.<{port.type}>",
                )


def _check_vocabulary(
    taker: str, wanted: Vocabulary | None, giver: str, given: Vocabulary | None
) -> None:
    if wanted is not None and given is not None and wanted.most < given.most:
        raise ConfigError(
            f"there is room for {wanted.most} tokens, but the tokenizer of {giver} may have "
            f"{given.most}",
            where=f"{taker}.{wanted.setting}",
            hint=f"use null for as many as it has, or lower {giver}.{given.setting}",
        )


def _check_values(
    taker: str, wanted: Mapping[str, Any], need: str, given: Mapping[str, Any]
) -> None:
    other = [key for key in given if key in wanted and wanted[key] != given[key]]
    if other:
        key = other[0]
        asked = [f"{taker}.{key}={_typed(given[key])}" for key in other]
        raise ConfigError(
            f"{need} has {key.rpartition('.')[2]} {given[key]}, not {wanted[key]}",
            where=f"{taker}.{key}",
            hint=f"set {' '.join(asked)}",
        )


def _typed(value: Any) -> str:
    """As a person types it behind a setting."""
    return value if isinstance(value, str) else json.dumps(value)


def split_need(need: str, where: str) -> tuple[str, str]:
    """`stage.artefact` as its two parts.

    Raises:
        ConfigError: It has another form.
    """
    stage, dot, artefact = need.partition(".")
    if not (stage and dot and artefact):
        raise ConfigError(f"{need!r} is not of the form stage.artefact", where=where)
    return stage, artefact
