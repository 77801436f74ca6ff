"""The fleet as the scheduler is shown it, and what this fleet could never hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from octad.errors import CapacityError
from octad.scheduler.snapshot import Cluster, Job, Node, Priority
from octad.spec.clusters import QUALITIES, ClusterSpec, ClusterView, Quality
from octad.spec.frozen import nearest
from octad.spec.layouts import CARDS_PER_NODE
from octad.spec.stages import StageSpec

# Ray's report of free cards is some seconds late, and a driver takes some to end.
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """Cards that a job holds.

    Attributes:
        key: Of its attempt.
        is_ending: Its attempt has ended, and they will be free soon.
        started_at_s, ends_at_s: Unix times; the end is an estimate, and None where nobody can tell.
    """

    cards: int
    is_ending: bool = False
    key: int = 0
    team: str = "default"
    member: str = ""
    priority: Priority = "normal"
    started_at_s: float = 0.0
    ends_at_s: float | None = None


def capacity(spec: ClusterSpec, view: ClusterView | None) -> int | None:
    """How many cards a cluster has, or would have when up; None if nobody knows yet."""
    if view is not None and view.cards:
        return max(view.cards, _asked(spec) or 0)
    return _asked(spec)


def cluster_of(spec: ClusterSpec, view: ClusterView | None, held: Mapping[str, Held]) -> Cluster:
    """A cluster with its nodes and what is free on them.

    Ray does not say on which node a job's cards are. It packs them, so the jobs are laid on the nodes
    as tightly as they go, the largest first; and cards that Ray says are in use, but not by us, where
    least is free.

    Args:
        spec: As asked for.
        view: As last seen.
        held: Cards by submission id, of all attempts whose jobs are not over.
    """
    seen = view or ClusterView(name=spec.name, kind=spec.kind, card=spec.card, state="down")
    ours = sum(h.cards for h in held.values())
    # Ray's report is some seconds late, so neither number may be trusted to be the lower.
    others = max(0, seen.cards - ours - seen.cards_free)
    nodes = _Nodes([(n.id, n.cards) for n in seen.nodes if n.is_alive and n.cards], seen.cards)
    jobs = [
        Job(
            key=h.key,
            name=name,
            team=h.team,
            cards=h.cards,
            nodes=nodes.lay(h.cards, h.team),
            member=h.member,
            priority=h.priority,
            started_at_s=h.started_at_s,
            ends_at_s=h.ends_at_s,
            is_ending=h.is_ending,
        )
        for name, h in sorted(held.items(), key=lambda item: (-item[1].cards, item[0]))
    ]
    nodes.fill(others)
    return Cluster(
        name=spec.name,
        state=seen.state,
        card=spec.card,
        nodes=nodes.seen(),
        jobs=tuple(jobs),
        reason=seen.reason,
        capacity=capacity(spec, view),
        price_per_card_hour=spec.price_per_card_hour,
        isolation=spec.isolation,
    )


class _Nodes:
    """Nodes while jobs are laid on them.

    Args:
        known: Names and cards; where they do not add up to `cards`, nodes of eight stand for them.
        cards: All there are.
    """

    def __init__(self, known: Sequence[tuple[str, int]], cards: int) -> None:
        if sum(size for _, size in known) != cards:
            whole, rest = divmod(cards, CARDS_PER_NODE)
            sizes = [CARDS_PER_NODE] * whole + ([rest] if rest else [])
            known = [(f"node {number}", size) for number, size in enumerate(sizes)]
        self.known = known
        self.free = [size for _, size in known]
        self.teams: list[str | None] = [None] * len(known)

    def lay(self, cards: int, team: str) -> tuple[tuple[int, int], ...]:
        """The nodes for a job; fewer cards than it has where the cluster has lost some."""
        left, taken = cards, []
        while left:
            number = self._next(left, team)
            if number is None:
                break
            more = min(left, self.free[number])
            taken.append((number, more))
            self.free[number] -= more
            self.teams[number] = team
            left -= more
        return tuple(taken)

    def _next(self, left: int, team: str) -> int | None:
        """The node with least left over; if none is enough, the one with most free."""
        some = [n for n, free in enumerate(self.free) if free]
        enough = [n for n in some if self.free[n] >= left]
        own = [n for n in enough if self.teams[n] in {None, team}]
        if own or enough:
            return min(own or enough, key=lambda n: (self.free[n], n))
        return max(some, key=lambda n: (self.free[n], -n), default=None)

    def fill(self, cards: int) -> None:
        """Others hold cards, nobody knows where."""
        for number in sorted(range(len(self.free)), key=lambda n: (self.free[n], n)):
            more = min(cards, self.free[number])
            self.free[number] -= more
            cards -= more

    def seen(self) -> tuple[Node, ...]:
        """All of them."""
        return tuple(
            Node(name, size, free, team)
            for (name, size), free, team in zip(self.known, self.free, self.teams, strict=True)
        )


def check_capacity(stages: Sequence[StageSpec], clusters: Sequence[Cluster]) -> None:
    """Refuse what this fleet could never hold.

    Raises:
        CapacityError: Names the stage, what it asks for and the most there is.
    """
    if not clusters:
        raise CapacityError(
            "this control plane knows no cluster", where="fleet", hint="octad up fleet=local"
        )
    names = [c.name for c in clusters]
    for stage in stages:
        if stage.cluster is not None and stage.cluster not in names:
            raise CapacityError(
                f"no cluster is called {stage.cluster!r}",
                where=f"{stage.name}.cluster",
                hint=nearest(stage.cluster, names),
            )
        allowed = [c for c in clusters if stage.cluster in {None, c.name}]
        able = [c for c in allowed if not c.card.lacks(stage.asks)]
        if not able:
            first = next(a for c in allowed for a in c.card.lacks(stage.asks))
            raise CapacityError(
                _unable(allowed, stage.asks),
                where=f"{stage.name}.{stage.asks[first]}",
                hint=f"change it, or use a cluster whose card is a {first}, or has it among its abilities",
            )
        _check_number(stage, able)


def _check_number(stage: StageSpec, able: Sequence[Cluster]) -> None:
    is_range = bool(stage.sizes)
    least = stage.sizes[0] if is_range else stage.cards
    if all(c.capacity is not None and c.capacity < least for c in able):
        most = max(able, key=lambda c: c.capacity or 0)
        raise CapacityError(
            f"{'at least ' if is_range else ''}{least} cards are asked for; the largest cluster "
            f"that could be used, {most.name}, has {most.capacity}",
            where=f"{stage.name}.cards{'.min' if is_range else ''}",
            hint=f"use at most {most.capacity}",
        )


def _unable(clusters: Iterable[Cluster], asks: Mapping[Quality, str]) -> str:
    """Which clusters have cards that cannot do what is asked, in words; empty if all can."""
    told = []
    for c in clusters:
        lacking = [f"{QUALITIES[a]} ({asks[a]})" for a in c.card.lacks(asks)]
        if lacking:
            told.append(f"{c.name}'s {c.card.name} cards cannot {' or '.join(lacking)}")
    return "; ".join(told)


def _asked(spec: ClusterSpec) -> int | None:
    nodes = spec.settings.get("nodes")
    return nodes * CARDS_PER_NODE if isinstance(nodes, int) else None
