"""The clusters that a stage may go to, and the best place for it among them.

A snapshot may have a hundred clusters and thousands of stages that start, so the best node is
looked up, not searched: clusters note which of them have partly used nodes of each kind.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from octad.scheduler.place import Cards, Place

Found = tuple[Place, Cards]


@dataclass(slots=True, eq=False)
class Tier:
    """Clusters of one price.

    Attributes:
        dedicated: Those that take one team at a time; few, and looked at one by one.
        partial: (team, cards free) to clusters that may have such a node, the next to be used last.
        emptiest: Cards of a node to clusters that may have an unused one, those with most free
            cards first; what a cluster has may be less than is noted here, never more.
    """

    shared: list[Place] = field(default_factory=list)
    dedicated: list[Place] = field(default_factory=list)
    partial: dict[tuple[str | None, int], list[Place]] = field(default_factory=dict)
    emptiest: dict[int, list[tuple[int, int, Place]]] = field(default_factory=dict)
    max_node: int = 0
    min_node: int = sys.maxsize

    def add(self, place: Place) -> None:
        """Take a cluster in."""
        self.max_node = max(self.max_node, place.max_node)
        self.min_node = min(self.min_node, place.max_node)
        if place.spec.isolation == "dedicated":
            self.dedicated.append(place)
            return
        self.shared.append(place)
        for key in place.partial:
            self.partial.setdefault(key, []).append(place)
        for size in place.whole:
            heapq.heappush(
                self.emptiest.setdefault(size, []), (-place.num_free, place.index, place)
            )

    def fit(self, team: str, cards: int, *, spans: bool) -> Found | None:
        """The best place for so many cards."""
        for place in self.dedicated:
            if place.owner == team and (nodes := place.fit(team, cards, spans=spans)):
                return place, nodes
        found = self._fit_node(team, cards) if cards <= self.max_node else None
        if found is None and spans and cards > self.min_node:
            found = self._fit_many(cards)
        if found is not None:
            return found
        for place in self.dedicated:
            if place.owner is None and (nodes := place.fit(team, cards, spans=spans)):
                return place, nodes
        return None

    def _fit_node(self, team: str, cards: int) -> Found | None:
        for left in range(cards, self.max_node + 1):
            for whose in (team, None):
                places = self.partial.get((whose, left))
                while places:
                    number = places[-1].a_partial(whose, left)
                    if number is not None:
                        return places[-1], ((number, cards),)
                    places.pop()
        for size in sorted(self.emptiest):
            if size >= cards:
                place = self._emptiest(size)
                if place is not None:
                    number = place.a_whole(size)
                    assert number is not None
                    return place, ((number, cards),)
        return None

    def _emptiest(self, size: int) -> Place | None:
        heap = self.emptiest[size]
        while heap:
            noted, index, place = heap[0]
            if place.a_whole(size) is None:
                heapq.heappop(heap)
            elif noted != -place.num_free:
                heapq.heapreplace(heap, (-place.num_free, index, place))
            else:
                return place
        return None

    def _fit_many(self, cards: int) -> Found | None:
        """Whole nodes, where the fewest of them are left."""
        best, least = None, sys.maxsize
        for place in self.shared:
            left = place.whole_cards - cards
            if 0 <= left < least and place.max_node < cards:
                best, least = place, left
        if best is None:
            return None
        nodes = best.fit("", cards)
        assert nodes is not None
        return best, nodes


@dataclass(slots=True, eq=False)
class Board:
    """Clusters that are up and can run some stages, in tiers from cheap to dear.

    Attributes:
        held: Those with nodes that are kept for a stage.
    """

    places: list[Place]
    held: list[Place] = field(default_factory=list)
    tiers: dict[float, Tier] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Sequence[Place]) -> Board:
        """A board of these clusters."""
        tiers: dict[float, Tier] = {}
        for place in reversed(places):
            tiers.setdefault(place.spec.price_per_card_hour, Tier()).add(place)
        return cls(list(places), tiers={price: tiers[price] for price in sorted(tiers)})

    def fit(self, team: str, cards: int, *, spans: bool) -> Found | None:
        """The best place for so many cards, none of them kept for another stage."""
        for tier in self.tiers.values():
            found = tier.fit(team, cards, spans=spans)
            if found is not None:
                return found
        return None

    def fit_before(
        self, team: str, cards: int, until_s: float | None, *, spans: bool
    ) -> Found | None:
        """A place among cards that are kept, where that delays nobody; see `Place.fit_before`."""
        for place in self.held:
            nodes = place.fit_before(team, cards, until_s, spans=spans)
            if nodes is not None:
                return place, nodes
        return None

    def note(self, place: Place, team: str, nodes: Cards) -> None:
        """Some cards of a cluster were taken: its nodes are partly used in another way."""
        if place.spec.isolation == "dedicated":
            return
        tier = self.tiers[place.spec.price_per_card_hour]
        for number, _ in nodes:
            left = place.free[number]
            if left and number not in place.holds:
                tier.partial.setdefault((team, left), []).append(place)
