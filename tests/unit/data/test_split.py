"""Which texts are held out, and how the work is cut up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.data.split import (
    SPLITS,
    Survey,
    border,
    has_side,
    place_of,
    shard_plans,
    side_of,
    within_limit,
    without_copies,
)
from octad.errors import DataError

NAMES = st.lists(st.text("abcdef/.", min_size=1, max_size=8), min_size=2, max_size=40, unique=True)
SHARES = st.floats(0.001, 0.999)


def part(name: str, num_bytes: int = 100, **changes: object) -> Survey:
    place = place_of(name, "heldout")
    found = Survey(name, digest=name, num_documents=1, num_bytes=num_bytes)
    found.lowest = found.highest = place
    for key, value in changes.items():
        setattr(found, key, value)
    return found


@given(NAMES, SHARES, st.lists(st.integers(1, 10**6), min_size=40, max_size=40))
def test_both_splits_get_something_and_nothing_is_in_both(
    names: list[str], share: float, sizes: list[int]
) -> None:
    surveys = [part(name, size) for name, size in zip(names, sizes, strict=False)]
    cut = border(surveys, share)
    plans = shard_plans(surveys, cut)
    held, train = (
        [p for plan in plans if plan.split == s for p in plan.parts] for s in SPLITS[::-1]
    )
    assert held
    assert train
    assert sorted(held + train) == sorted(names)
    assert {side_of(place_of(name, "heldout"), cut) for name in held} == {"heldout"}


def test_the_held_out_share_is_one_of_bytes() -> None:
    surveys = [part(f"part-{i}", 1 + i * i % 977) for i in range(400)]
    cut = border(surveys, 0.1)
    held = sum(s.num_bytes for s in surveys if has_side(s, "heldout", cut))
    assert held / sum(s.num_bytes for s in surveys) == pytest.approx(0.1, abs=0.01)


def test_very_many_small_parts_are_grouped_in_no_time() -> None:
    surveys = [part(f"part-{i}", 2) for i in range(30_000)]
    plans = shard_plans(surveys, border(surveys, 0.1))
    assert sum(len(plan.parts) for plan in plans) == 30_000


def test_a_file_of_records_is_split_inside() -> None:
    records = part("r.jsonl", lowest=0.001, highest=0.99)
    cut = border([records], 0.2)
    assert cut == pytest.approx(0.2)
    assert [plan.parts for plan in shard_plans([records], cut)] == [("r.jsonl",), ("r.jsonl",)]


@pytest.mark.parametrize(("lowest", "highest"), [(0.8, 0.9), (0.01, 0.02)])
def test_two_records_are_one_each(lowest: float, highest: float) -> None:
    cut = border([part("r.jsonl", lowest=lowest, highest=highest)], 0.1)
    assert side_of(lowest, cut) == "heldout"
    assert side_of(highest, cut) == "train"


@pytest.mark.parametrize("surveys", [[], [part("only.txt")]])
def test_one_text_is_too_few(surveys: list[Survey]) -> None:
    with pytest.raises(DataError, match="too few"):
        border(surveys, 0.1)


def test_exact_copies_count_once_and_the_first_name_stays() -> None:
    surveys = [part("b", digest="x"), part("a", digest="x"), part("c"), part("d", num_documents=0)]
    kept, copies = without_copies(surveys)
    assert [s.part for s in kept] == ["a", "c"]
    assert copies == {"b": "a"}


@given(NAMES, st.integers(1, 2000))
def test_a_limit_takes_whole_parts_until_it_is_reached(names: list[str], limit: int) -> None:
    sizes = dict.fromkeys(names, 100)
    chosen = within_limit(sizes, limit)
    assert chosen == sorted(chosen)
    assert len(chosen) == min(len(names), -(-limit // 100))
    assert within_limit(sizes, None) == sorted(names)


def test_a_limit_does_not_decide_what_is_held_out() -> None:
    chosen = within_limit({f"part-{i}": 1 for i in range(5000)}, 500)
    held = [name for name in chosen if place_of(name, "heldout") < 0.1]
    assert 25 < len(held) < 80


def test_shards_grow_with_the_corpus_and_are_numbered_by_split() -> None:
    small = shard_plans([part(f"{i}", 10_000) for i in range(20)], 0.5)
    assert {plan.file for plan in small} == {"train-00000.arrow", "heldout-00000.arrow"}
    large = shard_plans([part(f"{i}", 10_000_000) for i in range(2000)], 0.1)
    train = [plan for plan in large if plan.split == "train"]
    assert [plan.file for plan in train] == [f"train-{i:05d}.arrow" for i in range(len(train))]
    assert all(plan.num_bytes <= 80_000_000 for plan in large)
