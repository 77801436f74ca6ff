"""Where slow calls run: one lane for each cluster, so that a silent one delays no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

log = logging.getLogger(__name__)


class Lanes(Protocol):
    """Runs work beside the reconciler's loop."""

    def run(self, lane: str, key: object, work: Callable[[], None]) -> bool:
        """Run `work` unless work of the same key is in flight; whether it was taken."""
        ...

    def is_busy(self, key: object) -> bool:
        """Whether work of this key is in flight."""
        ...


class ThreadLanes:
    """A few threads for each lane.

    Args:
        wake: Called whenever work ends.
        width: Threads of one lane.
    """

    def __init__(self, wake: Callable[[], None], width: int = 4) -> None:
        self._wake = wake
        self._width = width
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._busy: set[object] = set()

    def run(self, lane: str, key: object, work: Callable[[], None]) -> bool:
        """Run `work` unless work of the same key is in flight; whether it was taken."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy.add(key)
            pool = self._pools.get(lane)
            if pool is None:
                pool = ThreadPoolExecutor(self._width, thread_name_prefix=f"cluster-{lane}")
                self._pools[lane] = pool
        pool.submit(self._finish, key, work)
        return True

    def is_busy(self, key: object) -> bool:
        """Whether work of this key is in flight."""
        with self._lock:
            return key in self._busy

    def close(self) -> None:
        """Take no more; what is in flight ends by itself."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _finish(self, key: object, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("work on a lane failed")
        finally:
            with self._lock:
                self._busy.discard(key)
            self._wake()


class InlineLanes:
    """Runs everything at once, in the caller's thread: for tests, which want one order."""

    def run(self, lane: str, key: object, work: Callable[[], None]) -> bool:
        """Run `work` now."""
        work()
        return True

    def is_busy(self, key: object) -> bool:
        """Never."""
        return False
