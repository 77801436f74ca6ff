"""Sizes and layouts: how many cards a stage gets and how it uses them."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from octad.errors import ConfigError
from octad.spec.frozen import Spec

CARDS_PER_NODE = 8
MAX_CARDS = 1024
Schedule = Literal["1f1b", "interleaved_1f1b", "zero_bubble"]
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


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
    dp_shard, cp, tp. `dp_shard: fill` takes what the other axes leave.

    Attributes:
        pp: Runs of the model's blocks, each on its own cards.
        dp_replicate: Copies of the model that see different samples.
        dp_shard: Cards over which one copy's training state is sharded; they too see different
            samples.
        cp: Parts of a sequence, each on its own cards.
        tp: Parts of every weight matrix, each on its own cards.
        zero: What `dp_shard` shards: 1 the optimizer's state, 2 gradients too, 3 weights too.
            Each takes less memory than the one before, and sends more over the network (Rajbhandari
            et al. 2020).
        pp_schedule: In which order a pipeline's cards work. `1f1b`: one part of the model a card,
            each backward pass as soon as it can be (Narayanan et al. 2019). `interleaved_1f1b`:
            `pp_parts_per_card` shorter parts, so that cards wait less and send more (Narayanan et
            al. 2021). `zero_bubble`: two parts a card, from the front and from the back, and
            gradients of weights where a card would wait (Qi et al. 2023, ZB-V).
        pp_parts_per_card: Of `interleaved_1f1b`; the other schedules say it themselves.
    """

    pp: int = Field(default=1, ge=1)
    dp_replicate: int = Field(default=1, ge=1)
    dp_shard: int | Literal["fill"] = "fill"
    cp: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    zero: Literal[1, 2, 3] = 2
    pp_schedule: Schedule = "1f1b"
    pp_parts_per_card: int = Field(default=2, ge=2)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dp_shard != "fill" and self.dp_shard < 1:
            raise ValueError(f"dp_shard must be 'fill' or at least 1, not {self.dp_shard}")
        if self.pp > 1 and self.pp_schedule == "zero_bubble" and self.zero == 3:
            raise ValueError(
                "zero 3 frees weights that zero_bubble needs later: use zero 1 or 2, or another "
                "pp_schedule"
            )
        return self

    def resolved(self, cards: int, where: str = "layout") -> Layout:
        """This layout on `cards` cards, with every axis a number.

        Raises:
            ConfigError: The axes do not multiply to `cards`.
        """
        axes = {name: getattr(self, name) for name in AXES if name != "dp_shard"}
        fixed = math.prod(axes.values())
        if self.dp_shard == "fill":
            if cards % fixed:
                raise ConfigError(
                    f"{_product(axes)} = {fixed} does not divide {cards} cards",
                    where=where,
                    hint=f"{cards} can be divided by {_divisors(cards)}",
                )
            return self.model_copy(update={"dp_shard": cards // fixed})
        if fixed * self.dp_shard != cards:
            raise ConfigError(
                f"{_product(self.axes)} = {fixed * self.dp_shard}, but the stage has {cards} cards",
                where=where,
                hint="set dp_shard to 'fill', or make the product equal",
            )
        return self

    @property
    def axes(self) -> dict[str, int]:
        """The size of every axis, from the outside in. Only on a resolved layout."""
        return {name: getattr(self, name) for name in AXES}

    @property
    def cards(self) -> int:
        """How many cards it takes. Only on a resolved layout."""
        return math.prod(self.axes.values())

    @property
    def data_parallel(self) -> int:
        """How many different parts of a global batch there are. Only on a resolved layout."""
        assert self.dp_shard != "fill"
        return self.dp_replicate * self.dp_shard

    @property
    def num_pp_parts(self) -> int:
        """Into how many parts a pipeline splits the model."""
        if self.pp == 1 or self.pp_schedule == "1f1b":
            return self.pp
        return self.pp * (2 if self.pp_schedule == "zero_bubble" else self.pp_parts_per_card)

    def pp_parts(self, pp_rank: int) -> tuple[int, ...]:
        """Which parts of the model the cards at one place of a pipeline hold.

        Features pass round and round the cards; with `zero_bubble` there and back, so that the
        first cards hold the first part and the last one.
        """
        if self.pp > 1 and self.pp_schedule == "zero_bubble":
            return (pp_rank, 2 * self.pp - 1 - pp_rank)
        return tuple(range(pp_rank, self.num_pp_parts, self.pp))


def _product(axes: dict[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in axes.items())


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
