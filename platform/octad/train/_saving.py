"""What every tier of checkpoints does alike: copy the state at once, write it on a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from octad.errors import CheckpointError, FencedError, OctadError, StorageError

# The slowest rank's upload, with the store's own retries.
GROUP_LIMIT = timedelta(hours=2)
FLUSH_LIMIT_S = 120.0
_PLAIN: frozenset[type] = frozenset({bool, int, float, str, bytes})
T = TypeVar("T")


class Background(Generic[T]):
    """One save at a time, on a thread. The copies it writes from are used again by the next."""

    def __init__(self, name: str) -> None:
        self._copies = _Copies()
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
        return self._copies.of(state)

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


class _Copies:
    """A state in host memory that is used again for the next one.

    torch's own stager does the same, but takes up to 0.3 ms for each sharded tensor.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], Tensor] = {}

    @torch.no_grad()
    def of(self, state: dict[str, Any]) -> Any:
        """Copy a state; what was copied before is gone.

        Raises:
            CheckpointError: Names what a checkpoint could not be read back with.
        """
        copied = self._of(state, ())
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return copied

    def _of(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, DTensor):
            spec = value._spec  # noqa: SLF001  from_local would move the copy to the mesh's device
            return DTensor(self._copy(value.to_local(), path), spec, requires_grad=False)
        if isinstance(value, Tensor):
            return self._copy(value, path)
        if isinstance(value, Mapping):
            return {key: self._of(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            inner = (self._of(inner, (*path, number)) for number, inner in enumerate(value))
            return tuple(inner) if isinstance(value, tuple) else list(inner)
        if value is None or type(value) in _PLAIN:
            return value
        raise CheckpointError(
            f"a {type(value).__name__} cannot be saved",
            where=".".join(map(str, path)),
            hint="save tensors, numbers, strings, lists and dicts",
        )

    def _copy(self, tensor: Tensor, path: tuple[Any, ...]) -> Tensor:
        held = self._held.get(path)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            is_pinned = torch.cuda.is_available()
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
            self._held[path] = held
        return held.copy_(tensor, non_blocking=True)
