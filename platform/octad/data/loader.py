"""Batches of one rank, read ahead by a thread."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from octad.errors import ConfigError

# Indices are computed for about so many samples at once, as the order costs more by call than by
# sample.
_INDICES_AT_ONCE = 4096


class Samples(Protocol):
    """What a loader needs of a dataset."""

    def tokens(self, indices: NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Samples by index, one a row; into what an earlier call gave, if it is handed back."""
        ...


class Positions(Protocol):
    """What a loader needs of an order."""

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of the samples at these positions."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank takes at one step.

    Attributes:
        tokens: Unsigned integers as the dataset has them, [samples of this rank, sequence + 1].
            Good until the next batch is taken.
        indices: Which samples these are.
        wait_s: Seconds the caller waited for it.
    """

    tokens: NDArray[Any]
    indices: NDArray[np.int64]
    wait_s: float


_Read = tuple[NDArray[np.int64], NDArray[Any]]


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
        order: Positions,
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
        self._batches = self._read(start)
        self._ahead: deque[Future[_Read]] = deque()
        self._given: NDArray[Any] | None = None
        self._spare: deque[NDArray[Any]] = deque()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="octad-loader")
        for _ in range(max(1, prefetch)):
            self._read_ahead()

    def __next__(self) -> Batch:
        began = time.perf_counter()
        indices, tokens = self._ahead[0].result()
        wait_s = time.perf_counter() - began
        self._ahead.popleft()
        if self._given is not None:
            self._spare.append(self._given)
        self._given = tokens
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
        self._ahead.append(self._reader.submit(next, self._batches))

    def _read(self, start: int) -> Iterator[_Read]:
        """This rank's batches; runs in the thread."""
        num_batches = max(1, _INDICES_AT_ONCE // self._share)
        steps = np.arange(num_batches, dtype=np.int64)[:, None] * self._global_batch
        places = steps + self._offset + np.arange(self._share, dtype=np.int64)
        for first in itertools.count(start, num_batches * self._global_batch):
            indices = self._order.at((first + places).ravel())
            for batch in indices.reshape(num_batches, self._share):
                yield (
                    batch,
                    self._dataset.tokens(batch, self._spare.popleft() if self._spare else None),
                )
