"""The order of samples: a permutation, the same for any number of ranks and after any stop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octad.data.sampler import Order

SIZES = st.one_of(
    st.integers(1, 600),
    st.sampled_from([k + d for k in (16, 64, 256, 1024, 4096) for d in (-1, 0, 1)]),
)
SEEDS = st.integers(0, 2**63 - 1)


@given(SIZES, SEEDS, st.integers(0, 5))
def test_every_epoch_is_a_permutation(num_samples: int, seed: int, epoch: int) -> None:
    order = Order(num_samples, seed)
    seen = order.batch(epoch * num_samples, num_samples)
    assert sorted(seen) == list(range(num_samples))


@given(SIZES, SEEDS, st.lists(st.integers(1, 40), max_size=12), st.integers(0, 1000))
def test_pieces_make_the_whole_wherever_it_is_cut(
    num_samples: int, seed: int, pieces: list[int], start: int
) -> None:
    order = Order(num_samples, seed)
    whole = order.batch(start, sum(pieces))
    position, parts = start, []
    for size in pieces:
        parts.append(Order(num_samples, seed).batch(position, size))
        position += size
    assert np.array_equal(whole, np.concatenate([*parts, np.empty(0, np.int64)]))


@given(SIZES, SEEDS, st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 4), st.integers(0, 2000))
def test_ranks_share_each_global_batch_and_nothing_else(
    num_samples: int, seed: int, num_ranks: int, share: int, start: int
) -> None:
    order = Order(num_samples, seed)
    by_rank = [order.batch(start + rank * share, share) for rank in range(num_ranks)]
    assert np.array_equal(np.concatenate(by_rank), order.batch(start, num_ranks * share))


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(Order(1000, seed).batch(start, 1000)) for seed in (0, 1) for start in (0, 1000)]
    assert len(set(orders)) == 4


def test_the_order_is_pinned_for_checkpoints_written_before() -> None:
    pinned = [8, 1, 5, 2, 6, 7, 4, 3, 9, 0, 3, 8, 4, 6, 2, 0, 5, 1, 7, 9]
    assert Order(10, 0).batch(0, 20).tolist() == pinned


@settings(max_examples=20)
@given(SEEDS)
def test_neighbours_are_spread_evenly(seed: int) -> None:
    """Mean distance of successive draws from [0, n) without order is about n / 3."""
    seen = Order(3000, seed).batch(0, 3000)
    assert 900 < np.abs(np.diff(seen)).mean() < 1100


def test_every_sample_comes_first_about_equally_often() -> None:
    counts = np.bincount([Order(5, seed).batch(0, 1)[0] for seed in range(2000)], minlength=5)
    assert counts.min() > 320
    assert counts.max() < 480


def test_a_huge_dataset_needs_no_memory() -> None:
    order = Order(2**62, 7)
    seen = order.batch(2**62 - 4, 8)
    assert len(set(seen.tolist())) == 8
    assert seen.min() >= 0
    assert seen.max() < 2**62


@pytest.mark.parametrize("num_samples", [0, -1, 2**62 + 1])
def test_impossible_sizes_are_refused(num_samples: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        Order(num_samples, 0)
    with pytest.raises(ValueError, match="position"):
        Order(1, 0).batch(-1, 1)
