"""Pipelines whose stages do not fit are refused before anything starts."""

import pytest

from octad.errors import ConfigError
from octad.spec.artefacts import Port
from octad.spec.layouts import Layout
from octad.spec.pipelines import check_fit, in_order
from octad.spec.stages import StageSpec


def stage(name: str, **needs: str) -> StageSpec:
    layout = Layout().resolved(1)
    return StageSpec(name=name, kind="any", cards=1, layout=layout, needs=needs)


def by_name(*stages: StageSpec) -> dict[str, StageSpec]:
    return {s.name: s for s in stages}


TAKES = {"a": {}, "b": {"corpus": Port(type="dataset")}}
GIVES = {"a": {"corpus": Port(type="dataset"), "words": Port(type="tokenizer")}, "b": {}}


def test_stages_come_after_what_they_need() -> None:
    stages = by_name(stage("c", x="b.y"), stage("b", x="a.y"), stage("a"))
    assert [s.name for s in in_order(stages)] == ["a", "b", "c"]


def test_a_cycle_is_named() -> None:
    with pytest.raises(ConfigError, match=r"need each other: .*a.*b|b.*a"):
        in_order(by_name(stage("a", x="b.y"), stage("b", x="a.y")))


def test_an_unknown_stage_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pretrain'"):
        in_order(by_name(stage("pretrain"), stage("b", x="pretrian.y")))


@pytest.mark.parametrize("need", ["a", "a.", ".corpus", ""])
def test_a_need_has_two_parts(need: str) -> None:
    with pytest.raises(ConfigError, match=r"stage\.artefact"):
        in_order(by_name(stage("a"), stage("b", corpus=need)))


def test_artefacts_that_fit_pass() -> None:
    check_fit(by_name(stage("a"), stage("b", corpus="a.corpus")), TAKES, GIVES)


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({}, "needs a dataset"),
        ({"corpus": "a.words"}, "takes a dataset, but a.words is a tokenizer"),
        ({"corpus": "a.corpse"}, "did you mean 'corpus'"),
        ({"corpus": "a.corpus", "corps": "a.corpus"}, "takes no 'corps'"),
    ],
)
def test_artefacts_that_do_not_fit_are_named(needs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_fit(by_name(stage("a"), stage("b", **needs)), TAKES, GIVES)
