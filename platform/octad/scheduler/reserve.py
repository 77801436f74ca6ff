"""The earliest time and place at which a stage fits, if nothing more is started there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octad.scheduler.place import FOREVER, Cards, Hold, Place, end_of
from octad.scheduler.snapshot import Waiting


class Plan(NamedTuple):
    """Where and when; `at_s` is `FOREVER` where that cannot be known."""

    at_s: float
    place: Place
    nodes: Cards


def earliest(stage: Waiting, places: Sequence[Place], now_s: float, cards: int) -> Plan | None:
    """Where so many cards for a stage are free first; None where only kept nodes would do.

    Where nobody can tell, it is the place of which most is free already: what frees there is kept,
    so the stage is not starved.
    """
    best: Plan | None = None
    for place in places:
        drained_s = now_s
        if not place.admits(stage.team):
            drained_s = max((end_of(job, now_s) for job in place.spec.jobs), default=now_s)
        before_s = FOREVER if best is None else best.at_s
        if drained_s >= before_s:
            continue
        found = place.when(stage.team, cards, now_s, before_s, spans=stage.spans_nodes)
        if found is not None:
            at_s, nodes = found
            if max(at_s, drained_s) < before_s:
                best = Plan(max(at_s, drained_s), place, nodes)
    return best or _likely(stage, places, cards)


def _likely(stage: Waiting, places: Sequence[Place], cards: int) -> Plan | None:
    best: tuple[int, Plan] | None = None
    for place in places:
        found = place.likely(stage.team, cards, spans=stage.spans_nodes)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], Plan(FOREVER, place, found[1])
    return None if best is None else best[1]


def holds(stage: Waiting, plan: Plan, now_s: float) -> dict[int, Hold]:
    """What of each node the stage will need, and from when.

    Of a cluster that takes one team at a time, and is not this team's yet, every node: a single job
    of another team would keep the stage away from all of them.
    """
    place = plan.place
    at_s = None if plan.at_s == FOREVER else plan.at_s
    found = {}
    is_closed = place.spec.isolation == "dedicated" and place.owner != stage.team
    if is_closed:
        others = [n for n, node in enumerate(place.spec.nodes) if node.cards]
        found = {n: Hold(at_s, 0) for n in others if n not in place.holds}
    for number, cards in plan.nodes:
        spare = 0
        is_whole = cards == place.spec.nodes[number].cards or len(plan.nodes) > 1
        if (
            not is_closed
            and at_s is not None
            and not is_whole
            and place.is_open(number, stage.team)
        ):
            spare = max(0, place.free_at(number, at_s, now_s) - cards)
        found[number] = Hold(at_s, spare)
    return found
