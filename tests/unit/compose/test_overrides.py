"""What overrides mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.compose.overrides import parse, parse_single, quoted, sweep
from octad.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "epoch=3-step=9.ckpt",
        "a=b",
        "?x=1&y=2",
        "李明",
        "é",
        "e\N{COMBINING ACUTE ACCENT}",
        "🚀 launch",
        "مرحبا",
        "x_%r",
        "a@b.c",
        "*",
        "a|b",
        "50%",
        "s3://b/k",
        "C:\\x\\y",
        "C:\\\\x\\\\y",
        "\\\\server\\share",
        "it's",
        'say "hi"',
        "/tmp/My Drive/日本 (1)/proj's/data",
        "a (b",
        "trailing\\",
        "$HOME",
        "a > b | c",
        "two\nlines",
    ],
)
def test_text_arrives_unchanged(text: str) -> None:
    assert parse(f"key={text}").value == text


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("3", 3),
        ("-2", -2),
        ("1e-3", 1e-3),
        ("true", True),
        ("null", None),
        ("", ""),
        ("'3'", "3"),
        ("[a,b]", ["a", "b"]),
        ("[a,李]", ["a", "李"]),
        ("{a: 1}", {"a": 1}),
        ("a\\=b", "a=b"),
        ("007", "007"),
        ("gpt2_124m", "gpt2_124m"),
        ("yes", "yes"),
        (
            r"[python, 'a b', '>', '|', '$HOME', '*', '']",
            ["python", "a b", ">", "|", "$HOME", "*", ""],
        ),
    ],
)
def test_typed_values(typed: str, value: object) -> None:
    found = parse(f"key={typed}").value
    assert found == value
    assert type(found) is type(value) or isinstance(found, str)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quoted_text_means_itself(text: str) -> None:
    assert parse(f"key={quoted(text)}").value == text


@pytest.mark.parametrize(
    "typed", ["foo", "=1", "a b=1", "~pretrain.optimizer", "hydra.run.dir=x", ""]
)
def test_what_is_no_override_is_refused(typed: str) -> None:
    with pytest.raises(ConfigError):
        parse(typed)


def test_several_values_need_a_sweep_and_the_message_shows_the_quoting() -> None:
    with pytest.raises(ConfigError, match="-m makes a run of each") as caught:
        parse_single(["pretrain.optimizer.lr=1e-3,3e-4"])
    assert "pretrain.optimizer.lr=\"'1e-3,3e-4'\"" in caught.value.hint


def test_sweep_makes_every_combination() -> None:
    assert sweep(["a=1,2", "b=x", "c=range(0,2)", "d='p,q',r"]) == [
        [f"a={a}", "b=x", f"c={c}", f"d={d}"]
        for a in (1, 2)
        for c in (0, 1)
        for d in ("'p,q'", "r")
    ]


def test_sweep_over_text_that_the_grammar_refuses() -> None:
    combined = sweep(["title=李明,é"])
    assert [parse_single(c)[0].value for c in combined] == ["李明", "é"]


def test_a_sweep_without_several_values_is_one_run() -> None:
    assert sweep(["a=1"]) == [["a=1"]]
    assert sweep([]) == [[]]


def test_an_endless_sweep_is_refused() -> None:
    with pytest.raises(ConfigError, match="combinations"):
        sweep([f"k{i}=range(0,100)" for i in range(3)])


def test_thousands_of_overrides_are_read_quickly() -> None:
    assert len(parse_single([f"vars.k{i}={i}" for i in range(5000)])) == 5000
