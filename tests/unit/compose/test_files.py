"""Config files that cannot be read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from octad.compose import compose_run
from octad.compose.folders import MAX_FILE_BYTES
from octad.errors import ConfigError

BROKEN: dict[str, tuple[str | bytes, str, str]] = {
    "a key twice": ("a: 1\nb:\n  c: 1\n  c: 2\n", ":4:3", "duplicate key"),
    "a tab": ("a:\n\tb: 1\n", ":2:1", "'\\t'"),
    "not UTF-8": (b"a: 1\nb: caf\xe9\n", ":2:7", "0xe9 is not UTF-8"),
    "a byte-order mark": (b"\xef\xbb\xbfa: 1\r\n", ":1:1", "byte-order mark"),
    "UTF-16": ("a: 1\n".encode("utf-16"), ":1:1", "byte-order mark"),
    "huge": ("a: " + "x" * MAX_FILE_BYTES, "", "too much"),
    "an open list": ("a: [1, 2\n", ":2:1", "expected"),
    "a control character": (b"a: \x00\n", ":1:4", "control character"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_named_with_its_place(what: str, own: Callable[..., Path]) -> None:
    content, place, message = BROKEN[what]
    folder = own(model__broken=content)
    with pytest.raises(ConfigError) as caught:
        compose_run(["model=broken"], folder)
    assert caught.value.where.endswith(f"model/broken.yaml{place}")
    assert message in caught.value.what
    assert "\n" not in str(caught.value)


def test_windows_line_ends_alone_do_no_harm(own: Callable[..., Path]) -> None:
    folder = own(
        model__mine=b"kind: decoder\r\nvocab: null\r\ncontext: 64\r\nwidth: 32\r\ndepth: 1\r\nheads: 2\r\n"
    )
    spec = compose_run(["model=mine", "pretrain.sequence=64", "finetune.sequence=64"], folder)
    assert spec.config["model"]["width"] == 32


def test_a_yml_file_would_be_passed_over_silently(own: Callable[..., Path]) -> None:
    folder = own()
    (folder / "model").mkdir()
    (folder / "model" / "mine.yml").write_text("kind: decoder\n")
    with pytest.raises(ConfigError, match=r"only \.yaml"):
        compose_run([], folder)


def test_a_config_that_is_no_mapping(own: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError):
        compose_run(["model=mine"], own(model__mine="- 1\n- 2\n"))


def test_a_missing_default_of_an_own_pipeline_is_named(own: Callable[..., Path]) -> None:
    folder = own(
        pipeline__mine="# @package _global_\ndefaults:\n  - /stage@a: pretrian\npipeline: {name: mine, stages: [a]}\n"
    )
    with pytest.raises(ConfigError, match="'pretrian'") as caught:
        compose_run(["pipeline=mine"], folder)
    assert "did you mean 'pretrain'" in caught.value.hint
