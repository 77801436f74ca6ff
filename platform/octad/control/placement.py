"""Which waiting stage goes where. Pure.

First come, first served: a stage that waits for cards of a cluster keeps those behind it from
taking them, so that a large one is never starved by small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octad.errors import CapacityError
from octad.spec.clusters import ClusterSpec, ClusterState, ClusterView
from octad.spec.frozen import nearest
from octad.spec.layouts import CARDS_PER_NODE
from octad.spec.stages import StageSpec


@dataclass(frozen=True, slots=True)
class Room:
    """A cluster as placement sees it.

    Attributes:
        capacity: Cards it has, or would have when up; None if nobody knows yet.
        free: Cards that nobody holds, by our books and by Ray's report.
        holders: Who holds the others, for reasons.
    """

    name: str
    state: ClusterState
    reason: str
    capacity: int | None
    free: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stage that waits for cards, in the order of asking."""

    key: int
    cards: int
    cluster: str | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A decision: where a stage goes, or why it waits."""

    key: int
    cluster: str | None
    reason: str = ""


def capacity(spec: ClusterSpec, view: ClusterView | None) -> int | None:
    """How many cards a cluster has, or would have when up; None if nobody knows yet."""
    if view is not None and view.cards:
        return max(view.cards, _asked(spec) or 0)
    return _asked(spec)


def room(spec: ClusterSpec, view: ClusterView | None, held: Mapping[str, int]) -> Room:
    """A cluster with what is free on it.

    Args:
        spec: As asked for.
        view: As last seen.
        held: Cards by submission id, of all attempts whose jobs are not over.
    """
    ours = sum(held.values())
    seen = view or ClusterView(name=spec.name, kind=spec.kind, card=spec.card, state="down")
    return Room(
        name=spec.name,
        state=seen.state,
        reason=seen.reason,
        capacity=capacity(spec, view),
        # Ray's report is some seconds late, so neither number may be trusted to be the lower.
        free=max(0, min(seen.cards - ours, seen.cards_free)),
        holders=tuple(sorted(held)),
    )


def place(waiting: Sequence[Waiting], rooms: Sequence[Room]) -> list[Placed]:
    """Decide for each waiting stage, in order."""
    free = {r.name: r.free for r in rooms}
    kept_for: dict[str, int] = {}
    placed = []
    for stage in waiting:
        fits = [
            r for r in _candidates(stage, rooms) if r.state == "up" and free[r.name] >= stage.cards
        ]
        open_to_it = [r for r in fits if r.name not in kept_for]
        if open_to_it:
            best = max(open_to_it, key=lambda r: free[r.name])
            free[best.name] -= stage.cards
            placed.append(Placed(stage.key, best.name))
            continue
        placed.append(Placed(stage.key, None, _why(stage, rooms, free, is_behind=bool(fits))))
        for r in _candidates(stage, rooms):
            if r.state == "up":
                kept_for.setdefault(r.name, stage.key)
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
        able = [r for r in rooms if stage.cluster in {None, r.name}]
        if all(r.capacity is not None and r.capacity < stage.cards for r in able):
            most = max(able, key=lambda r: r.capacity or 0)
            raise CapacityError(
                f"{stage.cards} cards are asked for; the largest cluster that could be used, "
                f"{most.name}, has {most.capacity}",
                where=f"{stage.name}.cards",
                hint=f"use at most {most.capacity}",
            )


def _candidates(stage: Waiting, rooms: Sequence[Room]) -> list[Room]:
    return [
        r
        for r in rooms
        if stage.cluster in {None, r.name} and (r.capacity is None or r.capacity >= stage.cards)
    ]


def _why(stage: Waiting, rooms: Sequence[Room], free: Mapping[str, int], *, is_behind: bool) -> str:
    able = _candidates(stage, rooms)
    if not able:
        if stage.cluster is None:
            return f"needs {stage.cards} cards; no cluster of the fleet has that many"
        if stage.cluster not in {r.name for r in rooms}:
            return f"cluster {stage.cluster} is not in the fleet any more"
        return f"needs {stage.cards} cards; cluster {stage.cluster} has fewer"
    up = [r for r in able if r.state == "up"]
    if not up:
        said = "; ".join(
            f"{r.name} is {r.state}" + (f" ({r.reason})" if r.reason else "") for r in able
        )
        hint = "; start it with `octad up`" if all(r.state == "down" for r in able) else ""
        return f"needs {stage.cards} cards; {said}{hint}"
    if is_behind:
        return f"needs {stage.cards} cards; a stage that came before is first in line"
    said = "; ".join(
        f"{r.name} has {free[r.name]} free"
        + (f", the others held by {_listed(r.holders)}" if r.holders else "")
        for r in up
    )
    return f"needs {stage.cards} cards; {said}"


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _asked(spec: ClusterSpec) -> int | None:
    nodes = spec.settings.get("nodes")
    return nodes * CARDS_PER_NODE if isinstance(nodes, int) else None
