"""What every tier of checkpoints does alike: copy the state at once, write it on a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from octad.errors import CheckpointError, FencedError, OctadError, StorageError

# The slowest rank's upload, with the store's own retries.
GROUP_LIMIT = timedelta(hours=2)
FLUSH_LIMIT_S = 120.0
_PLAIN: frozenset[type] = frozenset({bool, int, float, str, bytes})
T = TypeVar("T")


class Background(Generic[T]):
    """One save at a time, on a thread. The copies it writes from are used again by the next."""

    def __init__(self, name: str) -> None:
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=torch.cuda.is_available(),
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._pending: Future[T] | None = None

    @property
    def is_busy(self) -> bool:
        """A save is being written."""
        return self._pending is not None and not self._pending.done()

    def staged(self, state: dict[str, Any]) -> Any:
        """A copy in host memory. Call `settled` before: it takes the memory of the last copy.

        Raises:
            CheckpointError: `state` holds something that is neither a tensor nor plain data.
        """
        assert self._pending is None
        _check_plain(state)
        return self._stager.stage(state)

    def start(self, write: Callable[[], T]) -> None:
        """Write on the thread."""
        self._pending = self._thread.submit(write)

    def settled(self) -> T | None:
        """Wait for the save under way, if there is one; what it returned, or raises."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()


def reason_of(error: CheckpointException) -> OctadError:
    """Why a save failed, the same on every rank.

    Raises:
        RuntimeError: Neither the store nor a fence is why: that is a bug.
    """
    causes = [failure[0] for _, failure in sorted(error.failures.items())]
    for kind in (FencedError, StorageError):
        for cause in causes:
            if isinstance(cause, kind):
                return cause
    for cause in causes:
        if isinstance(cause, OctadError | OSError):
            return StorageError(str(cause))
    raise RuntimeError(f"a checkpoint could not be made: {causes[0]!r}") from causes[0]


def _check_plain(value: Any, path: str = "") -> None:
    """Refuse what a checkpoint could not be read back with.

    Raises:
        CheckpointError: Names the entry.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_plain(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _check_plain(inner, f"{path}.{number}")
    elif value is not None and type(value) not in _PLAIN and not isinstance(value, Tensor):
        raise CheckpointError(
            f"a {type(value).__name__} cannot be saved",
            where=path,
            hint="save tensors, numbers, strings, lists and dicts",
        )
