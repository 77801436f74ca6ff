"""Sizes and layouts: how many cards a stage gets and how it uses them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from octad.errors import ConfigError
from octad.spec.frozen import Spec

CARDS_PER_NODE = 8
MAX_CARDS = 1024


def check_cards(cards: int, where: str = "cards") -> int:
    """`cards` if a stage can have that many: up to 8 on one node, or whole nodes of 8.

    Raises:
        ConfigError: It cannot; names the nearest sizes that can be.
    """
    if 1 <= cards <= CARDS_PER_NODE or (cards % CARDS_PER_NODE == 0 and 0 < cards <= MAX_CARDS):
        return cards
    if cards < 1:
        hint = f"use 1 to {CARDS_PER_NODE}, or a multiple of {CARDS_PER_NODE} up to {MAX_CARDS}"
    elif cards > MAX_CARDS:
        hint = f"the most is {MAX_CARDS}"
    else:
        below = cards // CARDS_PER_NODE * CARDS_PER_NODE
        hint = f"a node has {CARDS_PER_NODE} cards: use {below} or {below + CARDS_PER_NODE}"
    raise ConfigError(f"{cards} cards cannot be", where=where, hint=hint)


class Layout(Spec):
    """The device mesh of a stage, in torch's words. Axes from the outside in: pp, dp_replicate,
    dp_shard, tp. `dp_shard: fill` takes what the other axes leave.
    """

    pp: int = Field(default=1, ge=1)
    dp_replicate: int = Field(default=1, ge=1)
    dp_shard: int | Literal["fill"] = "fill"
    tp: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dp_shard != "fill" and self.dp_shard < 1:
            raise ValueError(f"dp_shard must be 'fill' or at least 1, not {self.dp_shard}")
        return self

    def resolved(self, cards: int, where: str = "layout") -> Layout:
        """This layout on `cards` cards, with every axis a number.

        Raises:
            ConfigError: The axes do not multiply to `cards`.
        """
        fixed = self.pp * self.dp_replicate * self.tp
        if self.dp_shard == "fill":
            if cards % fixed:
                raise ConfigError(
                    f"pp {self.pp} x dp_replicate {self.dp_replicate} x tp {self.tp} = {fixed} "
                    f"does not divide {cards} cards",
                    where=where,
                    hint=f"{cards} can be divided by {_divisors(cards)}",
                )
            return self.model_copy(update={"dp_shard": cards // fixed})
        if fixed * self.dp_shard != cards:
            raise ConfigError(
                f"pp {self.pp} x dp_replicate {self.dp_replicate} x dp_shard {self.dp_shard} x tp "
                f"{self.tp} = {fixed * self.dp_shard}, but the stage has {cards} cards",
                where=where,
                hint="set dp_shard to 'fill', or make the product equal",
            )
        return self

    @property
    def data_parallel(self) -> int:
        """How many different parts of a global batch there are. Only on a resolved layout."""
        assert self.dp_shard != "fill"
        return self.dp_replicate * self.dp_shard


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
