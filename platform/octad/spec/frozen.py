"""The class every spec is made of, and how a bad value becomes one clear line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from octad.errors import ConfigError

_MOST_SHOWN = 200


class Spec(BaseModel):
    """Immutable, strictly typed, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any], where: str = "") -> Self:
        """Validate plain data, as YAML or JSON gives it.

        Args:
            raw: Plain dicts, lists, strings, numbers, booleans and None.
            where: The config path of `raw`, for messages.

        Raises:
            ConfigError: Names the path, the value, what is allowed, and for a misspelt key the
                nearest valid one.
        """
        try:
            return cls.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            raise _first(cls, error, where) from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"not plain data: {error}", where=where) from None

    def plain(self) -> dict[str, Any]:
        """Plain data that `parse` takes back."""
        return self.model_dump(mode="json")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the valid key nearest to `word`, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}? valid here: {', '.join(names)}"
    return f"valid here: {', '.join(names)}" if names else "no key is valid here"


def _first(spec: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    details = error.errors(include_url=False)
    # A misspelt key usually brings a "missing" with it: the spelling is the better thing to say.
    detail = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    path = ".".join([where, *map(str, detail["loc"])]).strip(".")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if detail["type"] == "extra_forbidden":
        key = str(detail["loc"][-1])
        known = _keys_at(spec, detail["loc"][:-1])
        return ConfigError(f"unknown key {key!r}{more}", where=path, hint=nearest(key, known))
    if detail["type"] == "missing":
        return ConfigError(f"a value is needed{more}", where=path)
    return ConfigError(f"{_message(detail)}{more}", where=path)


def _message(detail: ErrorDetails) -> str:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, Exception):
        return str(cause)
    text = detail["msg"].removeprefix("Input should be ")
    wanted = text if text == detail["msg"] else f"must be {text}"
    given = repr(detail["input"])
    shown = given if len(given) <= _MOST_SHOWN else f"{given[:_MOST_SHOWN]}…"
    return f"{wanted}, not {shown}"


def _keys_at(spec: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are valid at `loc` inside `spec`; empty where the type is not a spec."""
    current: Any = spec
    for part in loc:
        if not _is_model(current):
            return []
        field = current.model_fields.get(str(part)) if isinstance(part, str) else None
        if field is None:
            continue
        models = [t for t in _flatten(field.annotation) if _is_model(t)]
        if not models:
            return []
        current = models[0]
    return list(current.model_fields) if _is_model(current) else []


def _flatten(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation] if not inner else [t for arg in inner for t in _flatten(arg)]


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)
