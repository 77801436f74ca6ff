"""One cluster while a decision is made: what is still free on which node, and for whom."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from octad.scheduler.snapshot import Cluster, Job

Cards = tuple[tuple[int, int], ...]
"""Places in a cluster's `nodes`, and how many cards of each."""

FOREVER = float("inf")
# Work that should have ended already may end at any moment: nothing is squeezed in before it.
_OVERDUE_S = 1.0
_MOST_SHOWN = 3


@dataclass(slots=True)
class Hold:
    """A node that is kept for a stage.

    Attributes:
        at_s: From when the stage needs it; None where that is not known.
        spare: Cards that it will not need there, which others may keep beyond that time.
    """

    at_s: float | None
    spare: int


@dataclass(slots=True, eq=False)
class Place:
    """A cluster with what is left of it.

    Attributes:
        owner: Of a dedicated cluster, whose work it holds.
        free, teams: By node.
        num_free: Cards, kept ones too.
        partial: (team, cards free) to partly used nodes, the next to be used last. What does not
            hold any more is dropped when it is come upon.
        whole: Cards of a node to unused nodes, likewise.
        whole_cards: All cards of those that are good.
        holds: Nodes kept for a stage; they are in neither of the two.
        latest_s: When the last of them is needed; `has_spare` if one has cards to spare.
    """

    index: int
    spec: Cluster
    owner: str | None = None
    free: list[int] = field(default_factory=list)
    teams: list[str | None] = field(default_factory=list)
    num_free: int = 0
    max_node: int = 0
    partial: dict[tuple[str | None, int], list[int]] = field(default_factory=dict)
    whole: dict[int, list[int]] = field(default_factory=dict)
    whole_cards: int = 0
    holds: dict[int, Hold] = field(default_factory=dict)
    latest_s: float = -FOREVER
    has_spare: bool = False
    _ending: list[tuple[float, int, int]] | None = None
    _started: list[tuple[Cards, float]] = field(default_factory=list)
    _holders: str = ""

    @classmethod
    def of(cls, index: int, cluster: Cluster) -> Place:
        """A cluster as a snapshot shows it."""
        place = cls(index, cluster)
        free, teams = place.free, place.teams
        partial, whole = place.partial, place.whole
        num_free = max_node = 0
        # Backwards, so that the first node is the first to be taken from the end of a list.
        for number in range(len(cluster.nodes) - 1, -1, -1):
            node = cluster.nodes[number]
            left, cards = node.free, node.cards
            free.append(left)
            teams.append(node.team)
            if cards > max_node:
                max_node = cards
            if left <= 0:
                continue
            num_free += left
            if left == cards:
                whole.setdefault(cards, []).append(number)
            else:
                partial.setdefault((node.team, left), []).append(number)
        free.reverse()
        teams.reverse()
        place.num_free, place.max_node = num_free, max_node
        place.whole_cards = sum(cards * len(nodes) for cards, nodes in whole.items())
        if cluster.isolation == "dedicated":
            place.owner = next((job.team for job in cluster.jobs), None)
        return place

    def admits(self, team: str) -> bool:
        """Whether work of a team may come here at all."""
        return self.owner is None or self.owner == team

    def holders(self) -> str:
        """Some of those who hold its cards, in words."""
        if not self._holders:
            names = sorted([job.name for job in self.spec.jobs])
            more = len(names) - _MOST_SHOWN
            self._holders = ", ".join(names[:_MOST_SHOWN])
            self._holders += f" and {more} more" if more > 0 else ""
        return self._holders

    # --- what fits now ------------------------------------------------------------------------

    def a_partial(self, team: str | None, cards: int) -> int | None:
        """A partly used node of a team with exactly so many free cards."""
        nodes = self.partial.get((team, cards))
        while nodes:
            number = nodes[-1]
            if (
                self.free[number] == cards
                and self.teams[number] == team
                and number not in self.holds
            ):
                return number
            nodes.pop()
        return None

    def a_whole(self, cards: int) -> int | None:
        """An unused node of exactly so many cards."""
        nodes = self.whole.get(cards)
        while nodes:
            number = nodes[-1]
            if self.free[number] == cards and number not in self.holds:
                return number
            nodes.pop()
        return None

    def fit(self, team: str, cards: int, *, spans: bool = True) -> Cards | None:
        """The best nodes for so many cards, none of them kept for others; None if there are none.

        On one node the fewest cards are left over, on a partly used one if there is any. What is
        larger than any node takes whole nodes.
        """
        return self._fit(team, cards, spans=spans) if self.admits(team) else None

    def _fit(self, team: str, cards: int, *, spans: bool) -> Cards | None:
        if cards > self.num_free:
            return None
        if cards > self.max_node:
            return self._fit_whole(cards) if spans else None
        for left in range(cards, self.max_node + 1):
            for whose in (team, None):
                number = self.a_partial(whose, left)
                if number is not None:
                    return ((number, cards),)
        for size in sorted(self.whole):
            if size >= cards:
                number = self.a_whole(size)
                if number is not None:
                    return ((number, cards),)
        return None

    def _fit_whole(self, cards: int) -> Cards | None:
        if self.whole_cards < cards:
            return None
        return _cut(cards, self._whole_nodes(cards))

    def _whole_nodes(self, cards: int) -> list[tuple[int, int]]:
        """Unused nodes that are not kept, the largest first, and how many cards each has; so many
        as are enough, or all.
        """
        found, left = list[tuple[int, int]](), cards
        for size in sorted(self.whole, reverse=True):
            for number in reversed(self.whole[size]):
                if self.free[number] == size and number not in self.holds:
                    found.append((number, size))
                    left -= size
                    if left <= 0:
                        return found
        return found

    def fit_before(
        self, team: str, cards: int, until_s: float | None, *, spans: bool = True
    ) -> Cards | None:
        """As `fit`, on nodes that are kept for a stage, without delaying it.

        They must be free again at `until_s`; None asks whether they would do if they were not kept.
        """
        if cards > self.num_free or not self.admits(team):
            return None
        if until_s is not None and until_s > self.latest_s and not self.has_spare:
            return None
        if cards <= self.max_node:
            return self._fit_one_held(team, cards, until_s)
        if not spans:
            return None
        held = [
            n
            for n in self.holds
            if self.free[n] == self.spec.nodes[n].cards and self._is_harmless(n, cards, until_s)
        ]
        nodes = self._whole_nodes(cards) + [(n, self.free[n]) for n in sorted(held)]
        return None if sum(has for _, has in nodes) < cards else _cut(cards, nodes)

    def _fit_one_held(self, team: str, cards: int, until_s: float | None) -> Cards | None:
        best = None
        for number in self.holds:
            left = self.free[number]
            if left < cards or not self.is_open(number, team):
                continue
            if self._is_harmless(number, cards, until_s) and (
                best is None or (left, number) < (self.free[best], best)
            ):
                best = number
        return None if best is None else ((best, cards),)

    def _is_harmless(self, number: int, cards: int, until_s: float | None) -> bool:
        if until_s is None:
            return True
        hold = self.holds[number]
        return cards <= hold.spare or (hold.at_s is not None and until_s <= hold.at_s)

    def is_open(self, number: int, team: str) -> bool:
        """Whether a team's work may be on a node."""
        return self.teams[number] in {None, team}

    # --- changes ------------------------------------------------------------------------------

    def take(self, team: str, nodes: Cards, ends_s: float) -> None:
        """Give cards to a team, until a time."""
        if self.spec.isolation == "dedicated":
            self.owner = team
        for number, cards in nodes:
            left, size = self.free[number], self.spec.nodes[number].cards
            hold = self.holds.get(number)
            if hold is None:
                if left == size:
                    self.whole_cards -= size
            elif hold.at_s is None or ends_s > hold.at_s:
                hold.spare -= cards
            left -= cards
            self.free[number] = left
            self.teams[number] = team
            self.num_free -= cards
            if left and hold is None:
                self.partial.setdefault((team, left), []).append(number)
        self._started.append((nodes, ends_s))
        if self._ending is not None:
            for number, cards in nodes:
                bisect.insort(self._ending, (ends_s, number, cards))

    def keep(self, nodes: dict[int, Hold]) -> None:
        """Keep nodes for a stage."""
        for number, hold in nodes.items():
            size = self.spec.nodes[number].cards
            if self.free[number] == size:
                self.whole_cards -= size
            self.holds[number] = hold
            if hold.at_s is not None:
                self.latest_s = max(self.latest_s, hold.at_s)
            self.has_spare |= hold.spare > 0

    # --- what will fit ------------------------------------------------------------------------

    def ending(self, now_s: float) -> list[tuple[float, int, int]]:
        """(time, node, cards) of everything that ends, the earliest first, and last, with
        `FOREVER`, that of which nobody knows when.
        """
        if self._ending is None:
            held = [(job.nodes, end_of(job, now_s)) for job in self.spec.jobs] + self._started
            self._ending = sorted(
                [(end_s, n, cards) for nodes, end_s in held for n, cards in nodes]
            )
        return self._ending

    def when(
        self, team: str, cards: int, now_s: float, before_s: float, *, spans: bool = True
    ) -> tuple[float, Cards] | None:
        """The earliest time at which so many cards are free, on nodes that are not kept, if nothing
        more is started; and these nodes. None if that is not before `before_s`, or not known.
        """
        if cards > self.max_node and not spans:
            return None
        nodes = self._fit(team, cards, spans=spans)
        if nodes is not None:
            return now_s, nodes
        if cards <= self.max_node:
            return self._when_one(team, cards, now_s, before_s)
        return self._when_whole(cards, now_s, before_s)

    def _when_one(
        self, team: str, cards: int, now_s: float, before_s: float
    ) -> tuple[float, Cards] | None:
        freed: dict[int, int] = {}
        for end_s, number, more in self.ending(now_s):
            if end_s >= before_s:
                return None
            size = self.spec.nodes[number].cards
            if size < cards or number in self.holds:
                continue
            free = freed[number] = freed.get(number, self.free[number]) + more
            if free >= (cards if self.is_open(number, team) else size):
                return end_s, ((number, cards),)
        return None

    def _when_whole(self, cards: int, now_s: float, before_s: float) -> tuple[float, Cards] | None:
        freed: dict[int, int] = {}
        total, nodes = self.whole_cards, list[tuple[int, int]]()
        for end_s, number, more in self.ending(now_s):
            if end_s >= before_s:
                return None
            if number in self.holds:
                continue
            free = freed[number] = freed.get(number, self.free[number]) + more
            if free == self.spec.nodes[number].cards:
                total += free
                nodes.append((number, free))
                if total >= cards:
                    return end_s, _cut(cards, self._whole_nodes(cards) + nodes)
        return None

    def likely(self, team: str, cards: int, *, spans: bool = True) -> tuple[int, Cards] | None:
        """Nodes, not kept, of which the fewest cards are missing to so many, where nobody knows
        when; and how many are missing.
        """
        sizes = [
            (node.cards, number)
            for number, node in enumerate(self.spec.nodes)
            if node.cards and number not in self.holds
        ]
        if cards <= self.max_node:
            lacking = [
                ((cards if self.is_open(n, team) else size) - self.free[n], n)
                for size, n in sizes
                if size >= cards
            ]
            missing, number = min(lacking, default=(0, -1))
            return None if number < 0 else (missing, ((number, cards),))
        if not spans or sum(size for size, _ in sizes) < cards:
            return None
        nearest = sorted((size - self.free[n], n, size) for size, n in sizes)
        nodes = _cut(cards, [(n, size) for _, n, size in nearest])
        return sum(lacks for lacks, _, _ in nearest[: len(nodes)]), nodes

    def usable(self, team: str, numbers: list[int]) -> int:
        """The most cards of some nodes that a stage of a team could have now."""
        if not self.admits(team):
            return 0
        whole = [self.free[n] for n in numbers if self.free[n] == self.spec.nodes[n].cards]
        parts = [self.free[n] for n in numbers if self.is_open(n, team)]
        return max(sum(whole), max(parts, default=0))

    def free_at(self, number: int, at_s: float, now_s: float) -> int:
        """Cards of a node that are free at a time, if nothing more is started."""
        return self.free[number] + sum(
            cards for end_s, n, cards in self.ending(now_s) if n == number and end_s <= at_s
        )


def end_of(job: Job, now_s: float) -> float:
    """When a job's cards will be free."""
    if job.is_ending:
        return now_s
    end_s = job.ends_at_s
    if end_s is None:
        return FOREVER
    return end_s if end_s > now_s + _OVERDUE_S else now_s + _OVERDUE_S


def _cut(cards: int, nodes: list[tuple[int, int]]) -> Cards:
    """The first of some nodes that are enough; the last of them may be more than is needed."""
    taken = []
    for number, has in nodes:
        taken.append((number, min(has, cards)))
        cards -= taken[-1][1]
        if not cards:
            break
    return tuple(taken)
