"""Batches of one rank, read ahead by a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from octad.data.sampler import Order
from octad.errors import ConfigError


class Samples(Protocol):
    """What a loader needs of a dataset."""

    def tokens(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples by index, one a row."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank takes at one step.

    Attributes:
        tokens: int64, [samples of this rank, sequence + 1].
        indices: Which samples these are.
        wait_s: Seconds the caller waited for it.
    """

    tokens: NDArray[np.int64]
    indices: NDArray[np.int64]
    wait_s: float


class Loader(Iterator[Batch]):
    """Endless batches. Rank r gets the r-th contiguous slice of every global batch.

    Args:
        dataset: Where samples come from.
        order: Which sample comes when.
        start: Samples consumed before, over all ranks and epochs.
        global_batch: Samples of one step, over all ranks.
        rank, num_ranks: Of the data-parallel parts.
        prefetch: Batches read ahead.

    Raises:
        ConfigError: The ranks do not divide the global batch.
    """

    def __init__(  # noqa: PLR0913 - a sampler and its place in the world
        self,
        dataset: Samples,
        order: Order,
        *,
        start: int = 0,
        global_batch: int,
        rank: int = 0,
        num_ranks: int = 1,
        prefetch: int = 2,
    ) -> None:
        if global_batch < 1 or global_batch % num_ranks:
            raise ConfigError(
                f"a global batch of {global_batch} cannot be divided by {num_ranks} "
                "data-parallel parts",
                where="global_batch",
            )
        assert 0 <= rank < num_ranks
        self.samples = start
        self._dataset = dataset
        self._order = order
        self._global_batch = global_batch
        self._share = global_batch // num_ranks
        self._offset = rank * self._share
        self._next = start
        self._ahead: deque[Future[tuple[NDArray[np.int64], NDArray[np.int64]]]] = deque()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="octad-loader")
        for _ in range(max(1, prefetch)):
            self._read_ahead()

    def __next__(self) -> Batch:
        began = time.perf_counter()
        indices, tokens = self._ahead[0].result()
        wait_s = time.perf_counter() - began
        self._ahead.popleft()
        self._read_ahead()
        self.samples += self._global_batch
        return Batch(tokens, indices, wait_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; idempotent."""
        self._reader.shutdown(cancel_futures=True)

    def _read_ahead(self) -> None:
        position = self._next + self._offset
        self._next += self._global_batch
        self._ahead.append(self._reader.submit(self._read, position))

    def _read(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        indices = self._order.batch(position, self._share)
        return indices, self._dataset.tokens(indices)
