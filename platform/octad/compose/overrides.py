"""Overrides as people type them: what each means, and sweeps over them.

Hydra's grammar decides what a value is (`3`, `1e-3`, `true`, `null`, `[a,b]`, `{k: 1}`, `'text'`, `${key}`).
What that grammar refuses (a `=`, a space at the wrong place, a letter outside ASCII, a lone quote) is
taken as text, unchanged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from octad.errors import ConfigError

_SHAPE = re.compile(r"(?P<mark>~|\+\+|\+)?(?P<key>[^=]*)(?P<equal>=)?(?P<text>.*)", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_$/.@-]+")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_/.-]*")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_ITEMS = re.compile(r"[A-Za-z0-9_/., -]+")
_WORDS = frozenset({"true", "false", "null", "inf", "nan"})
_MAX_COMBINATIONS = 1000


@dataclass(frozen=True, slots=True)
class Override:
    """One override.

    Attributes:
        key: A dotted path, or `group@package` for an option of a group.
        value: Plain data; text may hold `${...}`.
        text: The value as typed.
        typed: The whole override as typed.
        choices: The values of a sweep as typed, or empty.
        is_text: Hydra's grammar refuses it, so it is text.
    """

    key: str
    value: Any
    text: str
    typed: str
    choices: tuple[str, ...] = ()
    is_text: bool = False


@contextmanager
def bounded() -> Iterator[None]:
    """Refuse what is nested more deeply than Python's stack holds."""
    try:
        yield
    except RecursionError:
        raise ConfigError("a value is nested too deeply") from None


def quoted(text: str) -> str:
    """`text` as an override value that means exactly this text."""
    escaped = re.sub(r"(\\*)'", lambda m: m[1] * 2 + "\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def parse(typed: str) -> Override:
    """What one override means.

    Raises:
        ConfigError: It is not of the form key=value.
    """
    shape = _SHAPE.fullmatch(typed)
    assert shape is not None
    key, text = shape["key"].strip(), shape["text"]
    if shape["mark"] == "~":
        raise ConfigError(
            f"{typed!r} would remove a key, and every key that is there is needed",
            hint=f"set it instead: {key or 'key'}=null or another value",
        )
    if not shape["equal"] or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{typed!r} is not an override", hint="write key=value, for example pretrain.cards=8"
        )
    if key.startswith(("hydra.", "hydra/")):
        raise ConfigError("Hydra itself is not configured here", where=key)
    value, choices, is_text = _meaning(text)
    return Override(key, value, text, typed, choices, is_text)


def parse_single(overrides: Iterable[str]) -> list[Override]:
    """What overrides without a sweep mean.

    Raises:
        ConfigError: One of them is not of the form key=value, or names several values.
    """
    parsed = [parse(typed) for typed in overrides]
    for override in parsed:
        if override.choices:
            raise ConfigError(
                f"{override.text!r} names {len(override.choices)} values",
                where=override.key,
                hint=f"-m makes a run of each; as one text it is {override.key}="
                f'"{quoted(override.text)}"',
            )
    return parsed


@bounded()
def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that the overrides name, the last one changing fastest.

    Raises:
        ConfigError: An override is not of the form key=value, or there are too many combinations.
    """
    axes: list[list[str]] = []
    total = 1
    for typed in overrides:
        override = parse(typed)
        choices = override.choices
        if override.is_text and override.value == override.text:
            choices = tuple(choice.strip() for choice in override.text.split(","))
        axis = [f"{override.key}={choice}" for choice in choices] or [typed]
        total *= len(axis)
        if total > _MAX_COMBINATIONS:
            raise ConfigError(
                f"more than {_MAX_COMBINATIONS} combinations", hint="sweep over fewer values"
            )
        axes.append(axis)
    return [list(combination) for combination in itertools.product(*axes)]


def _meaning(text: str) -> tuple[Any, tuple[str, ...], bool]:
    """The value, the choices of a sweep, and whether Hydra's grammar refuses it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override as HydraOverride
    from hydra.errors import HydraException

    simple = _simple(text)
    if simple is not None:
        return simple, (), False
    try:
        found = OverridesParser.create().parse_rule(f"key={text}", "override")
    except HydraException:
        return _refused(text), (), True
    assert isinstance(found, HydraOverride)
    if found.is_interval_sweep():
        return text, (), True
    if found.is_sweep_override():
        return text, tuple(str(choice) for choice in found.sweep_string_iterator()), False
    value = found.value()
    if isinstance(value, str) and "\\\\" in text and text.strip()[:1] not in {"'", '"'}:
        return text, (), False  # double backslashes stay as typed
    return value, (), False


def _simple(text: str) -> Any:
    """What plain words, whole numbers and lists of them mean; None if it is something else.

    Hydra's grammar says the same, a thousand times slower: most values are this, and some are long.
    """
    if _WHOLE.fullmatch(text):
        return int(text)
    if _PLAIN.fullmatch(text):
        return None if text.lower() in _WORDS else text
    if text.startswith("[") and text.endswith("]") and _ITEMS.fullmatch(text[1:-1]):
        found = [_simple(item.strip()) for item in text[1:-1].split(",")]
        return None if None in found else found
    return None


def _refused(text: str) -> Any:
    """What a text means that Hydra's grammar refuses: a YAML list or mapping, or the text."""
    if text.strip()[:1] in {"[", "{"}:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            return text
        return value if isinstance(value, list | dict) else text
    return text
