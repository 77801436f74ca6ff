"""Which waiting stage goes where, and on how many cards. Pure.

First come, first served: a stage that waits for cards of a cluster keeps those behind it from
taking them, so that a large one is never starved by small ones.

A stage with a range of sizes takes the largest that is free now. Only just after it was queued does
it wait a moment for cards whose jobs have just ended: its own last attempt's, mostly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from octad.errors import CapacityError
from octad.spec.clusters import (
    QUALITIES,
    CardSpec,
    ClusterSpec,
    ClusterState,
    ClusterView,
    Quality,
)
from octad.spec.frozen import nearest
from octad.spec.layouts import CARDS_PER_NODE
from octad.spec.stages import StageSpec

# Ray's report of free cards is some seconds late, and a driver takes some to end.
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """Cards that a job holds; `is_ending` if its attempt has ended, and they will be free soon."""

    cards: int
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """A cluster as placement sees it.

    Attributes:
        card: What its nodes hold.
        capacity: Cards it has, or would have when up; None if nobody knows yet.
        free: Cards that nobody holds, by our books and by Ray's report.
        soon: Cards that no attempt holds which goes on: those may be free in a moment.
        holders: Who holds the others, for reasons.
    """

    name: str
    state: ClusterState
    reason: str
    card: CardSpec
    capacity: int | None
    free: int
    soon: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stage that waits for cards, in the order of asking.

    Attributes:
        sizes: Numbers of cards it can use, ascending; mostly one.
        cluster: The only one it may go to.
        asks: What the cards must be able to do, or be.
        is_fresh: It was queued a moment ago.
    """

    key: int
    sizes: tuple[int, ...]
    cluster: str | None = None
    asks: Mapping[Quality, str] = field(default_factory=dict)
    is_fresh: bool = False

    @property
    def wanted(self) -> str:
        """What it asks for, in words."""
        least = "at least " if len(self.sizes) > 1 else ""
        return f"needs {least}{self.sizes[0]} cards"

    def largest(self, cards: int) -> int:
        """The most of `cards` that it can use; 0 if they are too few."""
        return max((size for size in self.sizes if size <= cards), default=0)


@dataclass(frozen=True, slots=True)
class Placed:
    """A decision: where a stage goes and on how many cards, or why it waits."""

    key: int
    cluster: str | None
    cards: int = 0
    reason: str = ""


def capacity(spec: ClusterSpec, view: ClusterView | None) -> int | None:
    """How many cards a cluster has, or would have when up; None if nobody knows yet."""
    if view is not None and view.cards:
        return max(view.cards, _asked(spec) or 0)
    return _asked(spec)


def room(spec: ClusterSpec, view: ClusterView | None, held: Mapping[str, Held]) -> Room:
    """A cluster with what is free on it.

    Args:
        spec: As asked for.
        view: As last seen.
        held: Cards by submission id, of all attempts whose jobs are not over.
    """
    ours = sum(h.cards for h in held.values())
    going = sum(h.cards for h in held.values() if not h.is_ending)
    seen = view or ClusterView(name=spec.name, kind=spec.kind, card=spec.card, state="down")
    return Room(
        name=spec.name,
        state=seen.state,
        reason=seen.reason,
        card=spec.card,
        capacity=capacity(spec, view),
        # Ray's report is some seconds late, so neither number may be trusted to be the lower.
        free=max(0, min(seen.cards - ours, seen.cards_free)),
        soon=max(0, seen.cards - going),
        holders=tuple(sorted(held)),
    )


def place(waiting: Sequence[Waiting], rooms: Sequence[Room]) -> list[Placed]:
    """Decide for each waiting stage, in order."""
    free = {r.name: r.free for r in rooms}
    soon = {r.name: r.soon for r in rooms}
    kept: set[str] = set()
    placed = []
    for stage in waiting:
        up = [r.name for r in _candidates(stage, rooms) if r.state == "up"]
        open_to_it = [name for name in up if name not in kept]
        best = max(open_to_it, key=lambda n: (stage.largest(free[n]), free[n]), default="")
        size = stage.largest(free[best]) if best else 0
        better = max((stage.largest(soon[name]) for name in open_to_it), default=0)
        if size and not (stage.is_fresh and better > size):
            free[best] -= size
            soon[best] -= size
            placed.append(Placed(stage.key, best, size))
            continue
        if size:
            reason = f"could have {size} cards now; waits a moment for {better}"
        else:
            is_behind = any(stage.largest(free[name]) for name in up)
            reason = _why(stage, rooms, free, is_behind=is_behind)
        placed.append(Placed(stage.key, None, reason=reason))
        kept.update(up)
    return placed


def check_capacity(stages: Sequence[StageSpec], rooms: Sequence[Room]) -> None:
    """Refuse what this fleet could never hold.

    Raises:
        CapacityError: Names the stage, what it asks for and the most there is.
    """
    if not rooms:
        raise CapacityError(
            "this control plane knows no cluster", where="fleet", hint="octad up fleet=local"
        )
    names = [r.name for r in rooms]
    for stage in stages:
        if stage.cluster is not None and stage.cluster not in names:
            raise CapacityError(
                f"no cluster is called {stage.cluster!r}",
                where=f"{stage.name}.cluster",
                hint=nearest(stage.cluster, names),
            )
        allowed = [r for r in rooms if stage.cluster in {None, r.name}]
        able = [r for r in allowed if not r.card.lacks(stage.asks)]
        if not able:
            first = next(a for r in allowed for a in r.card.lacks(stage.asks))
            raise CapacityError(
                _unable(allowed, stage.asks),
                where=f"{stage.name}.{stage.asks[first]}",
                hint=f"change it, or use a cluster whose card is a {first}, or has it among its abilities",
            )
        _check_number(stage, able)


def _check_number(stage: StageSpec, able: Sequence[Room]) -> None:
    is_range = bool(stage.sizes)
    least = stage.sizes[0] if is_range else stage.cards
    if all(r.capacity is not None and r.capacity < least for r in able):
        most = max(able, key=lambda r: r.capacity or 0)
        raise CapacityError(
            f"{'at least ' if is_range else ''}{least} cards are asked for; the largest cluster "
            f"that could be used, {most.name}, has {most.capacity}",
            where=f"{stage.name}.cards{'.min' if is_range else ''}",
            hint=f"use at most {most.capacity}",
        )


def _candidates(stage: Waiting, rooms: Sequence[Room]) -> list[Room]:
    return [
        r
        for r in rooms
        if stage.cluster in {None, r.name}
        and (r.capacity is None or r.capacity >= stage.sizes[0])
        and not r.card.lacks(stage.asks)
    ]


def _unable(rooms: Iterable[Room], asks: Mapping[Quality, str]) -> str:
    """Which clusters have cards that cannot do what is asked, in words; empty if all can."""
    told = []
    for r in rooms:
        lacking = [f"{QUALITIES[a]} ({asks[a]})" for a in r.card.lacks(asks)]
        if lacking:
            told.append(f"{r.name}'s {r.card.name} cards cannot {' or '.join(lacking)}")
    return "; ".join(told)


def _why(stage: Waiting, rooms: Sequence[Room], free: Mapping[str, int], *, is_behind: bool) -> str:
    allowed = [r for r in rooms if stage.cluster in {None, r.name}]
    unable = _unable(allowed, stage.asks)
    left_out = f"; {unable}" if unable else ""
    able = _candidates(stage, rooms)
    if not able:
        if stage.cluster is None:
            which = " that could be used" if unable else ""
            return f"{stage.wanted}; no cluster of the fleet{which} has that many{left_out}"
        if not allowed:
            return f"cluster {stage.cluster} is not in the fleet any more"
        return unable or f"{stage.wanted}; cluster {stage.cluster} has fewer"
    up = [r for r in able if r.state == "up"]
    if not up:
        said = "; ".join(
            f"{r.name} is {r.state}" + (f" ({r.reason})" if r.reason else "") for r in able
        )
        hint = "; start it with `octad up`" if all(r.state == "down" for r in able) else ""
        return f"{stage.wanted}; {said}{hint}{left_out}"
    if is_behind:
        return f"{stage.wanted}; a stage that came before is first in line"
    said = "; ".join(
        f"{r.name} has {free[r.name]} free"
        + (f", the others held by {_listed(r.holders)}" if r.holders else "")
        for r in up
    )
    return f"{stage.wanted}; {said}{left_out}"


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _asked(spec: ClusterSpec) -> int | None:
    nodes = spec.settings.get("nodes")
    return nodes * CARDS_PER_NODE if isinstance(nodes, int) else None
