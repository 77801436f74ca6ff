"""The settings of a stage of kind `job`: what is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from octad.errors import ConfigError
from octad.spec.artefacts import Port
from octad.spec.layouts import Layout
from octad.spec.stages import StageSpec
from octad.stages import job
from octad.stages.job import Settings


def checked(raw: dict[str, Any], cards: int = 1) -> Settings:
    settings = Settings.parse(raw, where="own")
    layout = Layout().resolved(cards)
    job.check(StageSpec(name="own", kind="job", cards=cards, layout=layout), settings)
    return settings


def test_ports_come_from_the_settings() -> None:
    settings = checked(
        {"entrypoint": ["x"], "inputs": {"corpus": "dataset"}, "outputs": {"my-net": "weights"}}
    )
    assert job.takes(settings) == {"corpus": Port(type="dataset")}
    assert job.gives(settings) == {"my-net": Port(type="weights")}


def test_an_entrypoint_is_a_list_that_no_shell_sees() -> None:
    words = ["prog", "", "a b", "'", '"', ">", "|", "$HOME", "*", "line\nbreak", 10]
    assert checked({"entrypoint": words}).command == [str(word) for word in words]


def test_a_shell_text_goes_to_bash() -> None:
    assert checked({"shell": "a | b"}).command == ["bash", "-o", "pipefail", "-c", "a | b"]


@pytest.mark.parametrize(
    ("raw", "where", "says"),
    [
        ({}, "own", "give one of entrypoint"),
        ({"entrypoint": ["x"], "shell": "y"}, "own", "give one of entrypoint"),
        ({"entrypoint": []}, "own", "give one of entrypoint"),
        ({"shell": "  "}, "own", "give one of entrypoint"),
        ({"entrypoint": [""]}, "own", "names the program"),
        ({"entrypoint": "python x.py"}, "own.entrypoint", "valid array"),
        ({"entrypoint": ["x", 0.001]}, "own.entrypoint", ""),
        ({"entrypoint": ["x", "a\0b"]}, "own.entrypoint", "NUL"),
        ({"shell": "a\nb\r\nc"}, "own", "line 2 of shell ends in CR LF"),
        ({"entrypoint": ["x"], "env": {"1A": "x"}}, "own.env", "not the name of a variable"),
        ({"entrypoint": ["x"], "env": {"A=B": "x"}}, "own.env", "not the name of a variable"),
        ({"entrypoint": ["x"], "env": {"OCTAD_RUN": "x"}}, "own.env.OCTAD_RUN", "set by octad"),
        ({"entrypoint": ["x"], "env": {"HF_TOKEN": "x"}}, "own.env.HF_TOKEN", "a secret"),
        ({"entrypoint": ["x"], "env": {"A": "x" * 200_000}}, "own.env", "the limit is 65,536"),
        (
            {"entrypoint": ["x"], "env": {f"V{i}": "x" * 10 for i in range(5000)}},
            "own.env",
            "the limit is 65,536",
        ),
        ({"entrypoint": ["x", "y" * 200_000]}, "own.entrypoint", "the limit is 65,536"),
        ({"shell": "y" * 200_000}, "own.shell", "the limit is 65,536"),
        ({"entrypoint": ["x"], "inputs": {"A": "dataset"}}, "own.inputs", "not a name"),
        ({"entrypoint": ["x"], "inputs": {"a/b": "dataset"}}, "own.inputs", "not a name"),
        (
            {"entrypoint": ["x"], "outputs": {"a-b": "files", "a_b": "files"}},
            "own.outputs",
            "become one variable",
        ),
        ({"entrypoint": ["x"], "outputs": {"a": "model"}}, "own.outputs.a", "dataset"),
        ({"entrypoint": ["x"], "entry_point": ["x"]}, "own.entry_point", "unknown key"),
        ({"entrypoint": ["x"], "grace_s": -1.0}, "own.grace_s", "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_is_refused(raw: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(raw)
    assert caught.value.where.startswith(where)
    assert says in caught.value.what


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "LR"])
def test_words_that_only_look_like_secrets_pass(name: str) -> None:
    assert checked({"entrypoint": ["x"], "env": {name: "1", "N": 3}}).env == {name: "1", "N": 3}


def test_a_job_has_at_most_one_node() -> None:
    checked({"entrypoint": ["x"]}, cards=8)
    with pytest.raises(ConfigError, match="runs on one node") as caught:
        checked({"entrypoint": ["x"]}, cards=16)
    assert caught.value.where == "own.cards"
