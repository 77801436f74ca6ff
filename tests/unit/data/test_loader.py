"""Batches of ranks: the same global batches on any number of them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octad.data.loader import Loader
from octad.data.sampler import Order
from octad.errors import ConfigError


class Numbers:
    """Sample i holds i and i + 1."""

    def tokens(self, indices: NDArray[np.int64], out: Any = None) -> NDArray[np.int64]:
        return np.stack([indices, indices + 1], axis=1)


def global_batches(num_ranks: int, start: int, steps: int) -> list[list[int]]:
    order = Order(37, seed=3)
    loaders = [
        Loader(Numbers(), order, start=start, global_batch=24, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    seen = []
    for _ in range(steps):
        batches = [next(loader) for loader in loaders]
        seen.append([int(index) for batch in batches for index in batch.indices])
    for loader in loaders:
        assert loader.samples == start + 24 * steps
        loader.close()
    return seen


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_global_batches_do_not_know_the_ranks(num_ranks: int) -> None:
    assert global_batches(num_ranks, 0, 9) == global_batches(1, 0, 9)


def test_a_stop_at_any_step_goes_on_with_other_ranks() -> None:
    whole = global_batches(1, 0, 8)
    for stop in range(8):
        again = global_batches(4, 0, stop) + global_batches(3, 24 * stop, 8 - stop)
        assert again == whole


def test_a_batch_holds_its_samples() -> None:
    with Loader(Numbers(), Order(37, 0), global_batch=6, rank=1, num_ranks=2) as loader:
        batch = next(loader)
    assert batch.tokens.shape == (3, 2)
    assert batch.tokens.dtype == np.int64
    assert np.array_equal(batch.tokens[:, 0], batch.indices)
    assert batch.wait_s >= 0


def test_ranks_that_do_not_divide_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"10 .* 4"):
        Loader(Numbers(), Order(37, 0), global_batch=10, num_ranks=4)


def test_an_error_of_the_reader_reaches_the_caller() -> None:
    class Broken:
        def tokens(self, indices: NDArray[np.int64], out: Any = None) -> NDArray[np.int64]:
            raise OSError(f"gone: {len(indices)}")

    with (
        Loader(Broken(), Order(37, 0), global_batch=2) as loader,
        pytest.raises(OSError, match="gone"),
    ):
        next(loader)
