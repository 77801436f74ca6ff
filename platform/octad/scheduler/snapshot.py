"""What the scheduler knows when it decides: frozen values, no rows, no views.

All times are seconds of one clock, whichever; sizes and quotas count cards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octad.spec.clusters import CardSpec, ClusterState, Quality

Isolation = Literal["shared", "dedicated"]
Priority = Literal["low", "normal", "high"]
# A class above goes first within its team.
RANKS: dict[Priority, int] = {"low": 0, "normal": 1, "high": 2}


@dataclass(frozen=True, slots=True)
class Team:
    """Who shares the fleet.

    Attributes:
        weight: Of its share where teams compete.
        quota: Cards that are its own: below it the team goes first, and what others borrowed of
            them is taken back. Beyond it the team borrows what is idle. None: it owns none.
        limit: The most it may ever hold; None: no limit.
    """

    name: str
    weight: float = 1.0
    quota: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A machine.

    Attributes:
        cards: All it has.
        free: What neither we nor anybody else holds.
        team: Whose work is on it: while there is any, the rest is for that team only. None where
            no team's is.
    """

    id: str
    cards: int
    free: int
    team: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Work that holds cards.

    Attributes:
        name: For people.
        nodes: Places in the cluster's `nodes`, and how many cards it has there.
        ends_at_s: The estimate; None where nobody can tell. One that has passed means "any moment".
        is_preemptible: It goes on later from a checkpoint, if it is asked to end.
        is_ending: It has ended or was asked to, and its cards will be free in a moment.
    """

    key: int
    name: str
    team: str
    cards: int
    nodes: tuple[tuple[int, int], ...]
    member: str = ""
    priority: Priority = "normal"
    started_at_s: float = 0.0
    ends_at_s: float | None = None
    is_preemptible: bool = False
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as last seen.

    Attributes:
        reason: Why it is not up.
        card: What its nodes hold; its name is the resource that shares are counted in.
        capacity: Cards that it has, or would have when up; None if nobody knows yet.
        price_per_card_hour: 0 where nothing is paid.
        isolation: `dedicated` takes work of one team at a time.
    """

    name: str
    state: ClusterState
    card: CardSpec
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    reason: str = ""
    capacity: int | None = None
    price_per_card_hour: float = 0.0
    isolation: Isolation = "shared"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stage that waits for cards.

    Attributes:
        sizes: Numbers of cards it can use, ascending; mostly one.
        queued_at_s: Since when it waits.
        estimate_s: How long it would hold its cards; None where nobody can tell.
        cluster: The only one it may go to.
        asks: What its cards must be able to do, each with the setting that asks for it.
        inputs_on: Clusters that hold what it reads.
        is_preemptible: As of a `Job`.
        is_fresh: It was queued a moment ago: of a range it waits for cards that are about to be
            free.
        spans_nodes: Whether it may lie on several nodes where none is as large.
    """

    key: int
    team: str
    sizes: tuple[int, ...]
    queued_at_s: float
    member: str = ""
    priority: Priority = "normal"
    estimate_s: float | None = None
    cluster: str | None = None
    asks: tuple[tuple[Quality, str], ...] = ()
    inputs_on: tuple[str, ...] = ()
    is_preemptible: bool = False
    is_fresh: bool = False
    spans_nodes: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one decision rests on.

    Attributes:
        teams: Those with settings; a team that is not named has weight 1 and no quota.
        can_preempt: Whether work may be asked to end for other work.
    """

    clusters: tuple[Cluster, ...]
    waiting: tuple[Waiting, ...]
    teams: tuple[Team, ...] = ()
    can_preempt: bool = False
