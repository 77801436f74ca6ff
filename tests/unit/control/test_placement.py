"""Which stage goes where, and what those who wait are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.control.placement import Placed, Room, Waiting, capacity, place, room
from octad.spec.clusters import CardSpec, ClusterSpec, ClusterView

SIM = CardSpec(kind="sim", name="sim")


def a_room(name: str, free: int, total: int = 16, **changed: Any) -> Room:
    plain: dict[str, Any] = {"state": "up", "reason": "", "capacity": total, "free": free}
    return Room(name=name, **(plain | changed))


def test_a_pinned_stage_goes_where_it_is_pinned_and_others_where_most_is_free() -> None:
    rooms = [a_room("alpha", 16), a_room("beta", 8, 8)]
    placed = place([Waiting(1, 4, "beta"), Waiting(2, 4, None)], rooms)
    assert placed == [Placed(1, "beta"), Placed(2, "alpha")]


def test_first_come_first_served_and_a_large_one_is_not_starved() -> None:
    rooms = [a_room("alpha", 8, holders=("r0-one-1",)), a_room("beta", 8, 8)]
    placed = place([Waiting(1, 16, None), Waiting(2, 1, "alpha"), Waiting(3, 1, None)], rooms)
    assert [p.cluster for p in placed] == [None, None, "beta"]
    assert placed[0].reason == "needs 16 cards; alpha has 8 free, the others held by r0-one-1"
    assert "first in line" in placed[1].reason


@pytest.mark.parametrize(
    ("rooms", "waiting", "words"),
    [
        ([a_room("alpha", 0, state="down")], Waiting(1, 1, None), "octad up"),
        (
            [a_room("alpha", 0, state="unreachable", reason="no route")],
            Waiting(1, 1, None),
            "no route",
        ),
        ([a_room("alpha", 8, 8)], Waiting(1, 16, "alpha"), "has fewer"),
        ([a_room("alpha", 8, 8)], Waiting(1, 16, None), "no cluster of the fleet"),
        ([a_room("alpha", 8, 8)], Waiting(1, 1, "gone"), "not in the fleet any more"),
    ],
)
def test_everything_that_waits_is_told_why(rooms: list[Room], waiting: Waiting, words: str) -> None:
    (placed,) = place([waiting], rooms)
    assert placed.cluster is None
    assert words in placed.reason


def test_free_is_the_lower_of_our_books_and_rays_report() -> None:
    spec = ClusterSpec(name="alpha", kind="local", card=SIM, settings={"nodes": 2})
    view = ClusterView(name="alpha", kind="local", card=SIM, state="up", cards=16, cards_free=10)
    assert room(spec, view, {"a": 4}).free == 10
    assert room(spec, view, {"a": 8}).free == 8
    assert room(spec, None, {}).free == 0
    assert capacity(spec, None) == 16
    assert capacity(spec, view.model_copy(update={"cards": 8})) == 16
    assert capacity(spec.model_copy(update={"settings": {}}), None) is None


@given(
    frees=st.lists(st.integers(0, 16), min_size=1, max_size=3),
    asked=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 3)), max_size=12),
)
def test_no_card_is_given_twice_and_order_holds(
    frees: list[int], asked: list[tuple[int, int]]
) -> None:
    rooms = [a_room(f"c{i}", free) for i, free in enumerate(frees)]
    waiting = [
        Waiting(key, cards, f"c{pin}" if pin < len(frees) else None)
        for key, (cards, pin) in enumerate(asked)
    ]
    placed = place(waiting, rooms)
    assert [p.key for p in placed] == [w.key for w in waiting]
    for r in rooms:
        given_out = sum(
            w.cards for w, p in zip(waiting, placed, strict=True) if p.cluster == r.name
        )
        assert given_out <= r.free
    for index, (w, p) in enumerate(zip(waiting, placed, strict=True)):
        assert bool(p.reason) is (p.cluster is None)
        if p.cluster is None:
            # Nobody behind took a card that this one could have had.
            for later, other in zip(waiting[index + 1 :], placed[index + 1 :], strict=True):
                assert other.cluster is None or w.cluster not in {None, other.cluster}, later
