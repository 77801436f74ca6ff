"""What the scheduler says: what starts, what has to make room, what waits and until when."""

from __future__ import annotations

from typing import NamedTuple


class Start(NamedTuple):
    """A stage starts now.

    Attributes:
        nodes: Places in the cluster's `nodes`, and how many cards it gets there.
    """

    key: int
    cluster: str
    cards: int
    nodes: tuple[tuple[int, int], ...]


class Wait(NamedTuple):
    """A stage waits.

    Attributes:
        reason: Why, for a person.
        starts_at_s: When it is likely to start; None where that cannot be known.
        unknown: Why it cannot be known; empty where it is.
        helps: What would let it start sooner, for a person; may be empty.
    """

    key: int
    reason: str
    starts_at_s: float | None = None
    unknown: str = ""
    helps: str = ""


class Preempt(NamedTuple):
    """A job is asked to save a checkpoint and to end.

    Attributes:
        by: The stage that gets its cards.
    """

    key: int
    by: int
    reason: str


class Reservation(NamedTuple):
    """Cards that are kept for a stage.

    Attributes:
        at_s: The earliest time at which it fits; None where that cannot be known.
        nodes: Places in the cluster's `nodes`, and how many cards it will have there.
    """

    key: int
    cluster: str
    at_s: float | None
    nodes: tuple[tuple[int, int], ...]


class Decisions(NamedTuple):
    """One call's: every stage that waited is in `starts` or in `waits`."""

    starts: tuple[Start, ...]
    waits: tuple[Wait, ...]
    preempts: tuple[Preempt, ...] = ()
    reservations: tuple[Reservation, ...] = ()
