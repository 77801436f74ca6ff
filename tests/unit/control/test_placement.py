"""Which stage goes where, and what those who wait are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.control.placement import (
    Held,
    Placed,
    Room,
    Waiting,
    capacity,
    check_capacity,
    place,
    room,
)
from octad.errors import CapacityError
from octad.spec.clusters import CardSpec, ClusterSpec, ClusterView, Quality
from octad.spec.layouts import Layout
from octad.spec.sizes import CardRange
from octad.spec.stages import StageSpec

SIM = CardSpec(kind="sim", name="sim")


def a_room(name: str, free: int, total: int = 16, **changed: Any) -> Room:
    plain: dict[str, Any] = {
        "state": "up",
        "reason": "",
        "card": SIM,
        "capacity": total,
        "free": free,
        "soon": free,
    }
    return Room(name=name, **(plain | changed))


def test_a_pinned_stage_goes_where_it_is_pinned_and_others_where_most_is_free() -> None:
    rooms = [a_room("alpha", 16), a_room("beta", 8, 8)]
    placed = place([Waiting(1, (4,), "beta"), Waiting(2, (4,), None)], rooms)
    assert placed == [Placed(1, "beta", 4), Placed(2, "alpha", 4)]


def test_first_come_first_served_and_a_large_one_is_not_starved() -> None:
    rooms = [a_room("alpha", 8, holders=("r0-one-1",)), a_room("beta", 8, 8)]
    placed = place(
        [Waiting(1, (16,), None), Waiting(2, (1,), "alpha"), Waiting(3, (1,), None)], rooms
    )
    assert [p.cluster for p in placed] == [None, None, "beta"]
    assert placed[0].reason == "needs 16 cards; alpha has 8 free, the others held by r0-one-1"
    assert "first in line" in placed[1].reason


@pytest.mark.parametrize(
    ("rooms", "waiting", "words"),
    [
        ([a_room("alpha", 0, state="down")], Waiting(1, (1,), None), "octad up"),
        (
            [a_room("alpha", 0, state="unreachable", reason="no route")],
            Waiting(1, (1,), None),
            "no route",
        ),
        ([a_room("alpha", 8, 8)], Waiting(1, (16,), "alpha"), "has fewer"),
        ([a_room("alpha", 8, 8)], Waiting(1, (16,), None), "no cluster of the fleet"),
        ([a_room("alpha", 8, 8)], Waiting(1, (1,), "gone"), "not in the fleet any more"),
    ],
)
def test_everything_that_waits_is_told_why(rooms: list[Room], waiting: Waiting, words: str) -> None:
    (placed,) = place([waiting], rooms)
    assert placed.cluster is None
    assert words in placed.reason


def test_free_is_the_lower_of_our_books_and_rays_report() -> None:
    spec = ClusterSpec(name="alpha", kind="local", card=SIM, settings={"nodes": 2})
    view = ClusterView(name="alpha", kind="local", card=SIM, state="up", cards=16, cards_free=10)
    assert room(spec, view, {"a": Held(4)}).free == 10
    assert room(spec, view, {"a": Held(8)}).free == 8
    ending = room(spec, view, {"a": Held(4), "b": Held(8, is_ending=True)})
    assert (ending.free, ending.soon) == (4, 12)
    assert room(spec, None, {}).free == 0
    assert capacity(spec, None) == 16
    assert capacity(spec, view.model_copy(update={"cards": 8})) == 16
    assert capacity(spec.model_copy(update={"settings": {}}), None) is None


@pytest.mark.parametrize(
    ("free", "cards"), [(16, 8), (8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, 0), (0, 0)]
)
def test_a_range_takes_the_largest_size_that_is_free_now(free: int, cards: int) -> None:
    (placed,) = place([Waiting(1, (2, 4, 8))], [a_room("alpha", free)])
    assert placed.cards == cards
    assert (placed.cluster is None) is (cards == 0)
    if not cards:
        assert placed.reason == f"needs at least 2 cards; alpha has {free} free"


def test_a_range_goes_where_it_gets_most_and_the_next_in_line_gets_what_is_left() -> None:
    rooms = [a_room("alpha", 5), a_room("beta", 8, 8)]
    placed = place([Waiting(1, (2, 4, 8)), Waiting(2, (2, 4, 8)), Waiting(3, (1,))], rooms)
    assert placed == [Placed(1, "beta", 8), Placed(2, "alpha", 4), Placed(3, "alpha", 1)]


def test_a_range_that_was_just_queued_waits_for_cards_that_are_being_freed() -> None:
    rooms = [a_room("alpha", 4, soon=8), a_room("beta", 2, 8)]
    fresh = Waiting(1, (2, 4, 8), is_fresh=True)
    first, second = place([fresh, Waiting(2, (1,), "alpha")], rooms)
    assert first == Placed(1, None, reason="could have 4 cards now; waits a moment for 8")
    assert "first in line" in second.reason
    assert place([replace(fresh, is_fresh=False)], rooms) == [Placed(1, "alpha", 4)]
    # What is coming would not be more than it can use.
    assert place([replace(fresh, sizes=(2, 4))], rooms) == [Placed(1, "alpha", 4)]
    # One number is as many as it is.
    assert place([replace(fresh, sizes=(4,))], rooms) == [Placed(1, "alpha", 4)]


def test_a_range_waits_only_where_its_least_size_fits() -> None:
    (placed,) = place([Waiting(1, (10, 16))], [a_room("beta", 8, 8)])
    assert placed.reason == "needs at least 10 cards; no cluster of the fleet has that many"


A100 = CardSpec(kind="gpu", name="A100", abilities=("bf16",))
H100 = CardSpec(kind="gpu", name="H100", abilities=("bf16", "fp8"))


def test_a_cluster_whose_cards_cannot_do_what_is_asked_is_passed_over_and_said_to_be() -> None:
    rooms = [a_room("alpha", 16, card=A100), a_room("beta", 2, 8, card=H100)]
    fp8: dict[Quality, str] = {"bf16": "precision.kind", "fp8": "precision.kind"}
    assert place([Waiting(1, (2,), None, fp8)], rooms) == [Placed(1, "beta", 2)]
    (full,) = place([Waiting(1, (4,), None, fp8)], rooms)
    assert full.reason == (
        "needs 4 cards; beta has 2 free; alpha's A100 cards cannot compute in fp8 (precision.kind)"
    )
    (pinned,) = place([Waiting(1, (1,), "alpha", fp8)], rooms)
    assert pinned.reason == "alpha's A100 cards cannot compute in fp8 (precision.kind)"
    (large,) = place([Waiting(1, (16,), None, fp8)], rooms)
    assert large.reason.startswith("needs 16 cards; no cluster of the fleet that could be used has")


def a_stage(**changed: Any) -> StageSpec:
    layout = Layout(dp_shard=changed.get("cards", 1))
    return StageSpec(**{"name": "one", "kind": "pretrain", "cards": 1, "layout": layout, **changed})


@pytest.mark.parametrize(
    ("stage", "where", "says"),
    [
        (
            a_stage(cards=8, cards_asked=CardRange(min=6, max=8), sizes=(6, 8)),
            "one.cards.min",
            "at least 6 cards are asked for; the largest cluster that could be used, alpha, has 4",
        ),
        (
            a_stage(asks={"fp8": "precision.kind"}),
            "one.precision.kind",
            "alpha's A100 cards cannot compute in fp8 (precision.kind)",
        ),
        (
            a_stage(asks={"cp": "layout.cp"}, cluster="alpha"),
            "one.layout.cp",
            "cannot split a sequence over cards (cp) (layout.cp)",
        ),
        (
            a_stage(asks={"npu": "entrypoint_resources.NPU"}),
            "one.entrypoint_resources.NPU",
            "alpha's A100 cards cannot be used as NPUs (entrypoint_resources.NPU)",
        ),
    ],
)
def test_what_no_cluster_could_ever_do_is_refused(stage: StageSpec, where: str, says: str) -> None:
    with pytest.raises(CapacityError) as caught:
        check_capacity([stage], [a_room("alpha", 4, 4, card=A100)])
    assert caught.value.where == where
    assert says in caught.value.what
    assert caught.value.hint


def test_what_some_cluster_could_do_is_let_through() -> None:
    rooms = [a_room("alpha", 0, 16, card=A100), a_room("beta", 0, 8, card=H100)]
    stage = a_stage(cards=8, asks={"fp8": "precision.kind"})
    check_capacity([stage, a_stage(cards=16), a_stage(cluster="alpha")], rooms)
    with pytest.raises(CapacityError, match="largest cluster that could be used, beta, has 8"):
        check_capacity([a_stage(cards=16, asks={"fp8": "precision.kind"})], rooms)


SIZES = st.one_of(
    st.sampled_from([1, 2, 4, 8, 16]).map(lambda size: (size,)),
    st.sets(st.integers(1, 16), min_size=1).map(lambda sizes: tuple(sorted(sizes))),
)


@given(
    frees=st.lists(
        st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted), min_size=1, max_size=3
    ),
    asked=st.lists(st.tuples(SIZES, st.integers(0, 3), st.booleans()), max_size=12),
)
def test_no_card_is_given_twice_and_order_holds(
    frees: list[list[int]], asked: list[tuple[tuple[int, ...], int, bool]]
) -> None:
    rooms = [a_room(f"c{i}", free, soon=soon) for i, (free, soon) in enumerate(frees)]
    waiting = [
        Waiting(key, sizes, f"c{pin}" if pin < len(frees) else None, is_fresh=is_fresh)
        for key, (sizes, pin, is_fresh) in enumerate(asked)
    ]
    placed = place(waiting, rooms)
    assert [p.key for p in placed] == [w.key for w in waiting]
    free, soon = {r.name: r.free for r in rooms}, {r.name: r.soon for r in rooms}
    for index, (w, p) in enumerate(zip(waiting, placed, strict=True)):
        assert bool(p.reason) is (p.cluster is None) is (p.cards == 0)
        allowed = [name for name in free if w.cluster in {None, name}]
        if p.cluster is None:
            # Nobody behind took a card that this one could have had.
            for later, other in zip(waiting[index + 1 :], placed[index + 1 :], strict=True):
                assert other.cluster is None or other.cluster not in allowed, later
            continue
        assert p.cards in w.sizes
        assert p.cluster in allowed
        assert p.cards <= free[p.cluster]
        # No larger size was free, nor was one about to be for a stage that was just queued.
        kept = [waiting[i].cluster for i, q in enumerate(placed[:index]) if q.cluster is None]
        for name in allowed:
            room_for = soon[name] if w.is_fresh else free[name]
            is_kept = None in kept or name in kept
            assert is_kept or not [size for size in w.sizes if p.cards < size <= room_for]
        free[p.cluster] -= p.cards
        soon[p.cluster] -= p.cards
