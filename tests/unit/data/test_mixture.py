"""Mixed datasets: exact shares, each dataset in its own order, and nothing to remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from octad.data.loader import Loader
from octad.data.mixture import MixedOrder
from octad.data.weights import shares
from octad.errors import ConfigError

SIZES = {"code": 37, "prose": 500, "talk": 3}
WEIGHTS = {"code": 3, "prose": 6, "talk": 1}


def order(seed: int = 5, sizes: Mapping[str, int] = SIZES) -> MixedOrder:
    return MixedOrder(sizes, WEIGHTS, seed)


def by_dataset(indices: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The samples of each dataset, in the order in which they came, by its own count."""
    ends = np.cumsum(list(SIZES.values()))
    owners = np.searchsorted(ends, indices, side="right")
    return [
        indices[owners == number] - (ends[number] - size)
        for number, size in enumerate(SIZES.values())
    ]


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.integers(1, 3000), st.integers(0, 2**62))
def test_shares_are_exact_in_the_long_run_and_near_everywhere(
    start: int, size: int, seed: int
) -> None:
    counts = [len(own) for own in by_dataset(order(seed).at(np.arange(start, start + size)))]
    for count, weight in zip(counts, WEIGHTS.values(), strict=True):
        # Two unfinished rounds, of at most 1,024 samples each.
        assert abs(count - size * weight / 10) <= 2 * 1024 * weight / 10 * (1 - weight / 10)


def test_each_dataset_comes_in_epochs_of_its_own() -> None:
    for own, size in zip(by_dataset(order().at(np.arange(20_000))), SIZES.values(), strict=True):
        for epoch in range(len(own) // size):
            assert sorted(own[epoch * size : (epoch + 1) * size]) == list(range(size))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 5000))
def test_pieces_make_the_whole_wherever_it_is_cut(pieces: list[int], start: int) -> None:
    whole = order().at(np.arange(start, start + sum(pieces)))
    position, parts = start, list[NDArray[np.int64]]()
    for size in pieces:
        parts.append(order().at(np.arange(position, position + size)))
        position += size
    assert np.array_equal(whole, np.concatenate(parts))


def test_an_order_of_a_dataset_does_not_hang_on_the_others() -> None:
    alone = MixedOrder({"prose": 500}, {"prose": 1}, 5).at(np.arange(600))
    assert np.array_equal(by_dataset(order().at(np.arange(2000)))[1][:600], alone)
    other = by_dataset(order(6).at(np.arange(2000)))[1][:600]
    assert not np.array_equal(other, alone)


def test_the_order_is_pinned_for_checkpoints_written_before() -> None:
    pinned = MixedOrder({"a": 4, "b": 7}, {"a": 1, "b": 2}, 0).at(np.arange(16)).tolist()
    assert pinned == [3, 6, 2, 7, 9, 8, 10, 1, 4, 5, 8, 0, 2, 5, 1, 0]


class Numbers:
    """Sample i holds i."""

    def tokens(self, indices: NDArray[np.int64], out: Any = None) -> NDArray[np.int64]:
        return indices[:, None]


def global_batches(num_ranks: int, start: int, steps: int) -> list[list[int]]:
    loaders = [
        Loader(Numbers(), order(), start=start, global_batch=24, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    batches = [
        [int(token) for loader in loaders for token in next(loader).tokens[:, 0]]
        for _ in range(steps)
    ]
    for loader in loaders:
        loader.close()
    return batches


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_global_batches_do_not_know_the_ranks_nor_where_they_stopped(num_ranks: int) -> None:
    whole = global_batches(1, 0, 60)
    assert global_batches(num_ranks, 0, 60) == whole
    for stop in (1, 29, 43):
        again = global_batches(num_ranks, 0, stop)
        assert again + global_batches(1, 24 * stop, 60 - stop) == whole


@pytest.mark.parametrize(
    ("mix", "whole"),
    [
        ({"b": 0.7, "a": 0.3}, {"a": 3, "b": 7}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"a": 2.5, "b": 7.5}, {"a": 1, "b": 3}),
        ({"a": 1e-3, "b": 1.0}, {"a": 1, "b": 1000}),
        ({"a": 5.0}, {"a": 1}),
    ],
)
def test_weights_are_the_fewest_whole_samples(mix: dict[str, float], whole: dict[str, int]) -> None:
    assert shares(mix) == whole
    assert list(shares(mix)) == sorted(mix)


def test_weights_that_no_round_can_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="10001 samples") as caught:
        shares({"a": 1e-4, "b": 1.0})
    assert "0.7 and 0.3" in caught.value.hint
