"""Numbers of cards that a stage may get where it asks for a range."""

from __future__ import annotations

from octad.errors import ConfigError
from octad.spec.frozen import Spec
from octad.spec.layouts import CARDS_PER_NODE, check_cards


class CardRange(Spec):
    """`cards: {min: 2, max: 8}`: each attempt takes what it can get between the two, inclusive."""

    min: int
    max: int

    def sizes(self, where: str = "cards") -> tuple[int, ...]:
        """The numbers of cards that a stage can have in this range, ascending.

        Raises:
            ConfigError: One end is no size, or the ends are the wrong way round.
        """
        check_cards(self.min, f"{where}.min")
        check_cards(self.max, f"{where}.max")
        if self.min > self.max:
            raise ConfigError(
                f"min {self.min} is more than max {self.max}",
                where=where,
                hint="give the smaller number as min",
            )
        small = range(self.min, min(self.max, CARDS_PER_NODE) + 1)
        first_node = -(-max(self.min, CARDS_PER_NODE + 1) // CARDS_PER_NODE) * CARDS_PER_NODE
        return (*small, *range(first_node, self.max + 1, CARDS_PER_NODE))
