"""Who is next: weighted dominant-resource fairness over teams, and inside a team by priority class,
then fair between members, then by age.

A team's share is the largest part it holds of any card model there is, over its weight (Ghodsi et
al., NSDI 2011, section 4.3). A team below its quota goes before every team that borrows.

Age counts against the length of the work, where that is known: of two stages that came together the
short one goes first, and nothing is passed over for ever, because its age grows while that of what
comes later is small (after the response ratio of Brinch Hansen, 1971, with a head start for all, so
that of those that have just come the short ones go first too). Of work whose length nobody knows
the older goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from octad.scheduler.snapshot import RANKS, Priority, Snapshot, Team, Waiting

# What counts as the length of work that nobody knows, and the least that counts.
_TYPICAL_S = 3600.0
_LEAST_S = 60.0
_HEAD_START_S = 600.0


@dataclass(slots=True, eq=False)
class Account:
    """A team and what it holds.

    Attributes:
        held: Cards, by card model.
        num_held: All of them.
        members: Cards, by member.
        rank: Where it stands in the line; the lower, the sooner it is its turn.
        classes: Its stages, the highest class last; in each a heap of (cards held when last looked,
            member, stages with the next one last).
    """

    team: Team
    held: dict[str, int] = field(default_factory=dict)
    num_held: int = 0
    members: dict[str, int] = field(default_factory=dict)
    rank: tuple[bool, float, str] = (False, 0.0, "")
    classes: list[list[tuple[int, str, list[Waiting]]]] = field(default_factory=list)

    def charge(self, member: str, card: str, cards: int) -> None:
        """It holds more; `settle` then says where that puts it."""
        self.held[card] = self.held.get(card, 0) + cards
        self.num_held += cards
        self.members[member] = self.members.get(member, 0) + cards

    def settle(self, totals: Mapping[str, int]) -> None:
        """Work out its rank.

        Args:
            totals: All cards there are, by card model.
        """
        share = 0.0
        for card, cards in self.held.items():
            part = cards / totals[card]
            if part > share:
                share = part
        borrows = self.num_held >= (self.team.quota or 0)
        self.rank = borrows, share / self.team.weight, self.team.name

    def pick(self) -> Waiting:
        """Take its next stage out of the line."""
        heap = self.classes[-1]
        noted, member, stages = heap[0]
        now = self.members.get(member, 0)
        while noted != now:
            heapq.heapreplace(heap, (now, member, stages))
            noted, member, stages = heap[0]
            now = self.members.get(member, 0)
        stage = stages.pop()
        if not stages:
            heapq.heappop(heap)
            if not heap:
                self.classes.pop()
        return stage


class Line:
    """Everything that waits, in the order in which it is looked at.

    Args:
        snapshot: Teams, and what they hold.
        now_s: The time.
    """

    def __init__(self, snapshot: Snapshot, now_s: float) -> None:
        self.accounts: dict[str, Account] = {t.name: Account(t) for t in snapshot.teams}
        self.totals: dict[str, int] = {}
        for cluster in snapshot.clusters:
            card = cluster.card.name
            self.totals[card] = self.totals.get(card, 0) + sum([n.cards for n in cluster.nodes])
            held: dict[tuple[str, str], int] = {}
            for job in cluster.jobs:
                key = (job.team, job.member)
                held[key] = held.get(key, 0) + job.cards
            for (team, member), cards in held.items():
                self.account(team).charge(member, card, cards)
        self.totals = {card: max(1, cards) for card, cards in self.totals.items()}
        self._heap: list[tuple[tuple[bool, float, str], Account]] = []
        self._queue(snapshot.waiting, now_s)

    def account(self, team: str) -> Account:
        """A team's."""
        found = self.accounts.get(team)
        if found is None:
            found = self.accounts[team] = Account(Team(team))
        return found

    def charge(self, stage: Waiting, card: str, cards: int) -> None:
        """A stage starts: its team and its member hold more."""
        account = self.account(stage.team)
        account.charge(stage.member, card, cards)
        account.settle(self.totals)

    def pick(self) -> Waiting | None:
        """Take the next stage out of the line; None if there is none."""
        heap = self._heap
        while heap:
            noted, account = heap[0]
            if not account.classes:
                heapq.heappop(heap)
                continue
            if account.rank != noted:
                heapq.heapreplace(heap, (account.rank, account))
                continue
            return account.pick()
        return None

    def rest(self, team: str) -> list[Waiting]:
        """Take all that a team still has in the line out of it, in no exact order."""
        account = self.accounts[team]
        stages = [
            stage
            for heap in reversed(account.classes)
            for _, _, members in heap
            for stage in reversed(members)
        ]
        account.classes.clear()
        return stages

    def _queue(self, waiting: Iterable[Waiting], now_s: float) -> None:
        sorted_into: dict[tuple[str, Priority, str], list[Waiting]] = {}
        for stage in waiting:
            key = (stage.team, stage.priority, stage.member)
            stages = sorted_into.get(key)
            if stages is None:
                sorted_into[key] = [stage]
            else:
                stages.append(stage)
        by_class: dict[tuple[str, int], list[tuple[int, str, list[Waiting]]]] = {}
        for (team, priority, member), stages in sorted_into.items():
            held = self.account(team).members.get(member, 0)
            entry = (held, member, by_age(stages, now_s))
            by_class.setdefault((team, RANKS[priority]), []).append(entry)
        for (team, _), heap in sorted(by_class.items()):
            heapq.heapify(heap)
            self.account(team).classes.append(heap)
        for account in self.accounts.values():
            account.settle(self.totals)
        self._heap = [(a.rank, a) for a in self.accounts.values() if a.classes]
        heapq.heapify(self._heap)


def by_age(stages: Sequence[Waiting], now_s: float) -> list[Waiting]:
    """The next one last."""
    keyed = []
    for stage in stages:
        length_s = stage.estimate_s
        length_s = _TYPICAL_S if length_s is None else max(length_s, _LEAST_S)
        age_s = now_s - stage.queued_at_s
        keyed.append(((age_s + _HEAD_START_S) / length_s, -stage.queued_at_s, -stage.key, stage))
    keyed.sort()
    return [entry[3] for entry in keyed]
