"""Whose work has to make room, so that a stage gets what is its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from octad.scheduler.line import Account, Line
from octad.scheduler.place import Cards, Place
from octad.scheduler.snapshot import RANKS, Job, Waiting


@dataclass(slots=True)
class Victims:
    """Jobs that end, and the nodes that their stage gets.

    Attributes:
        lost_card_s: Card-seconds since they began: an upper bound of the work that is done again.
    """

    place: Place
    nodes: Cards
    jobs: list[Job]
    lost_card_s: float


@dataclass(slots=True)
class Preemption:
    """Finds them; what it has chosen it does not choose again.

    Attributes:
        taken: Cards that each team has to give back already.
    """

    line: Line
    now_s: float
    chosen: set[int] = field(default_factory=set)
    taken: dict[str, int] = field(default_factory=dict)

    def find(self, stage: Waiting, places: Sequence[Place]) -> Victims | None:
        """The least work that has to make room for the least that a stage can use; None if none
        may be asked to, or not enough.

        A stage within its team's quota takes back what other teams borrowed. One of a higher class
        takes from lower classes of its own team. No team is brought below its quota by another.
        """
        found = [v for place in places for v in self._on(stage, place)]
        best = min(found, key=lambda v: (v.lost_card_s, v.place.index, v.nodes), default=None)
        if best is not None:
            for job in best.jobs:
                self.chosen.add(job.key)
                self.taken[job.team] = self.taken.get(job.team, 0) + job.cards
        return best

    def _on(self, stage: Waiting, place: Place) -> Iterator[Victims]:
        if not place.admits(stage.team):
            return
        by_node: dict[int, list[Job]] = {}
        for job in place.spec.jobs:
            for number, _ in job.nodes:
                by_node.setdefault(number, []).append(job)
        if stage.sizes[0] <= place.max_node:
            yield from self._one_node(stage, place, by_node)
        elif stage.spans_nodes:
            yield from self._many_nodes(stage, place, by_node)

    def _one_node(
        self, stage: Waiting, place: Place, by_node: dict[int, list[Job]]
    ) -> Iterator[Victims]:
        cards = stage.sizes[0]
        for number, jobs in by_node.items():
            node = place.spec.nodes[number]
            if number in place.holds or node.cards < cards:
                continue
            need = cards if place.is_open(number, stage.team) else node.cards
            free, chosen, given = place.free[number], list[Job](), dict[str, int]()
            free += sum(_cards_on(j, number) for j in jobs if self._is_leaving(j))
            for job in sorted(jobs, key=lambda j: (RANKS[j.priority], -j.started_at_s, j.key)):
                if free >= need:
                    break
                if self._may_take(stage, job, given):
                    chosen.append(job)
                    given[job.team] = given.get(job.team, 0) + job.cards
                    free += _cards_on(job, number)
            if free >= need and chosen:
                yield Victims(place, ((number, cards),), chosen, self._lost(chosen))

    def _many_nodes(
        self, stage: Waiting, place: Place, by_node: dict[int, list[Job]]
    ) -> Iterator[Victims]:
        """The nodes that cost least, one after another."""
        priced = []
        for number, node in enumerate(place.spec.nodes):
            if number in place.holds or not node.cards:
                continue
            jobs = [j for j in by_node.get(number, []) if not self._is_leaving(j)]
            held = sum(_cards_on(j, number) for j in by_node.get(number, []))
            if place.free[number] + held < node.cards:
                continue  # somebody else is on it
            if all(self._may_take(stage, job, {}) for job in jobs):
                priced.append((self._lost(jobs), number, jobs))
        priced.sort(key=lambda entry: entry[:2])
        left, nodes = stage.sizes[0], list[tuple[int, int]]()
        chosen, given = dict[int, Job](), dict[str, int]()
        for _, number, jobs in priced:
            fresh = [j for j in jobs if j.key not in chosen]
            tried = dict(given)
            if not all(self._note(stage, job, tried) for job in fresh):
                continue
            given = tried
            chosen |= {j.key: j for j in fresh}
            nodes.append((number, min(left, place.spec.nodes[number].cards)))
            left -= nodes[-1][1]
            if not left:
                break
        if not left and chosen:
            jobs = list(chosen.values())
            yield Victims(place, tuple(nodes), jobs, self._lost(jobs))

    def _note(self, stage: Waiting, job: Job, given: dict[str, int]) -> bool:
        if not self._may_take(stage, job, given):
            return False
        given[job.team] = given.get(job.team, 0) + job.cards
        return True

    def _may_take(self, stage: Waiting, job: Job, given: dict[str, int]) -> bool:
        if not job.is_preemptible or self._is_leaving(job):
            return False
        if job.team == stage.team:
            return RANKS[job.priority] < RANKS[stage.priority]
        ours, theirs = self.line.account(stage.team), self.line.account(job.team)
        is_ours = ours.num_held + stage.sizes[0] <= (ours.team.quota or 0)
        return is_ours and self._borrowed(theirs, given) >= job.cards

    def _borrowed(self, account: Account, given: dict[str, int]) -> int:
        name = account.team.name
        gone = self.taken.get(name, 0) + given.get(name, 0)
        return account.num_held - gone - (account.team.quota or 0)

    def _is_leaving(self, job: Job) -> bool:
        return job.is_ending or job.key in self.chosen

    def _lost(self, jobs: Sequence[Job]) -> float:
        return sum(j.cards * max(0.0, self.now_s - j.started_at_s) for j in jobs)


def _cards_on(job: Job, number: int) -> int:
    return sum(cards for n, cards in job.nodes if n == number)
