"""Catches a step that never ends.

A thread watches for steps to end. When none has for too long it writes the Python stacks of all of
this process's threads to the log and to the store, and ends the process: the attempt then fails,
and the next one goes on from the last checkpoint. As ranks wait for each other, all of them do so
at about the same time, and each stack says where its rank stood.

Should the thread not get to run, as something holds the interpreter's lock, a timer of the C
library's does the same a little later, without the store.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from octad.errors import OctadError, StageError
from octad.spec.keys import AttemptKeys
from octad.storage.objects import ObjectStore

_LOG = logging.getLogger(__name__)
_FIRST = 4  # the first step compiles, and opens connections
_STDERR = 2  # a number: the stream may be another by then
_TICK_S = 1.0
_WAITS, _WORKS = ": it waits for other ranks", ": it is in its own work"
_TELL_LIMIT_S = 10.0
_GRACE_S = 3.0  # as soon as one process has gone the others are ended, which may not have told yet


class Watchdog:
    """Watches one process's steps, from `__enter__` to `__exit__`.

    Args:
        limit_s: The longest that a step may take; the first may take four times as long.
        rank: Of this process.
        is_waiting: Whether it waits for other ranks at this moment; None if it cannot tell.
        tell: Is given what happened, in one line, and the stacks. May take a while, may fail.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        rank: int,
        is_waiting: Callable[[], bool | None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._limit_s, self._rank = limit_s, rank
        self._is_waiting, self._tell = is_waiting, tell
        self._tick_s = min(_TICK_S, limit_s / 4)
        self._ended = threading.Event()
        self._step: int | None = None
        self._allowed_s = limit_s * _FIRST
        self._idle_s = 0.0
        self._num_pauses = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._set_timer()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def step_ended(self, step: int) -> None:
        """Steps go on."""
        self._step, self._allowed_s, self._idle_s = step, self._limit_s, 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time within does not count: it waits for something that has limits of its own."""
        self._num_pauses += 1
        try:
            yield
        finally:
            self._idle_s = 0.0
            self._num_pauses -= 1

    def _watch(self) -> None:
        before_s = time.monotonic()
        try:
            while not self._ended.wait(self._tick_s):
                self._set_timer()
                now_s = time.monotonic()
                if self._is_hung(now_s - before_s):
                    self._end()
                before_s = now_s
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _set_timer(self) -> None:
        """For the case that this thread does not get to run; set again, it starts anew."""
        faulthandler.dump_traceback_later(
            self._allowed_s + _TELL_LIMIT_S + _GRACE_S, exit=True, file=_STDERR
        )

    def _is_hung(self, passed_s: float) -> bool:
        """Whether it is, after so much more time."""
        # A process that was stopped as a whole, or starved, has not been idle by itself.
        self._idle_s += min(passed_s, 2 * self._tick_s)
        if self._num_pauses:
            self._idle_s = 0.0
        return self._idle_s > self._allowed_s

    def _end(self) -> None:
        since = "since the start" if self._step is None else f"since step {self._step}"
        doing = {True: _WAITS, False: _WORKS, None: ""}[self._is_waiting()]
        text = f"no step {since} for {self._idle_s:.3g} s on rank {self._rank}{doing}"
        stacks = _stacks()
        sys.stderr.write(f"{text}\n{stacks}\n")
        sys.stderr.flush()
        teller = threading.Thread(target=self._tell, args=(text, stacks), daemon=True)
        teller.start()
        until_s = time.monotonic() + _GRACE_S
        teller.join(_TELL_LIMIT_S)
        self._ended.wait(max(0.0, until_s - time.monotonic()))
        os._exit(StageError.exit_code)


def teller(
    store: ObjectStore, keys: AttemptKeys, rank: int, note: Callable[[str], None] | None
) -> Callable[[str, str], None]:
    """Leaves what happened in the attempt's folder, where its driver reads it, and as a note."""

    def tell(text: str, stacks: str) -> None:
        try:
            store.put(keys.stacks(rank), f"{text}\n\n{stacks}".encode())
        except OctadError as error:
            _LOG.warning("the stacks are only in this log: %s", error)
        if note is not None:
            note(text)

    return tell


def hang_of(store: ObjectStore, keys: AttemptKeys) -> StageError | None:
    """Why the workers of an attempt ended, if it was a step that did not."""
    try:
        found = [store.get(meta.key).decode().partition("\n")[0] for meta in store.walk(keys.hangs)]
    except OctadError as error:
        _LOG.warning("stacks were not read: %s", error)
        return None
    if not found:
        return None
    # Those who wait for others only suffer.
    culprits = [line for line in found if line.endswith(_WORKS)] or found
    more = f", and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    return StageError(
        f"{culprits[0]}{more}",
        where=store.url(keys.hangs),
        hint="every rank's stacks are there; raise step_timeout_s if steps may take this long",
    )


def _stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
