"""Prefix tuning (Li and Liang 2021, arXiv 2101.00190): learned keys and values before the first
token, in every attention. As in PEFT without a projection, the keys and values themselves are
trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from octad.errors import ConfigError
from octad.spec.frozen import Spec

if TYPE_CHECKING:
    from torch import nn

_INIT_STD = 0.02


class Settings(Spec):
    """Every token sees the prefix, and its positions come first.

    Attributes:
        num_virtual_tokens: Keys and values that each attention gets.
    """

    kind: Literal["prefix"] = "prefix"
    num_virtual_tokens: int = Field(default=16, ge=1)


def check(settings: Settings, family: Any, model: Any, where: str) -> None:
    """Refuse a model without attention, and a prefix that fills its context.

    Raises:
        ConfigError: Names the number, or the family.
    """
    if not hasattr(family, "add_prefix"):
        raise ConfigError(f"a {model.kind} takes no prefix", where=where, hint="use method: lora")
    if settings.num_virtual_tokens >= model.context:
        raise ConfigError(
            f"a prefix of {settings.num_virtual_tokens} leaves nothing of the model's context of "
            f"{model.context}",
            where=f"{where}.num_virtual_tokens",
        )


def room(settings: Settings) -> int:
    """The positions before the first token."""
    return settings.num_virtual_tokens


def init_std(_settings: Settings, _name: str) -> float:
    """Keys and values alike."""
    return _INIT_STD


def insert(settings: Settings, family: Any, part: nn.Module) -> None:
    """The model's family knows where keys and values are, and how they are split."""
    family.add_prefix(part, settings.num_virtual_tokens)
