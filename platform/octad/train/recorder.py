"""Step metrics and progress of one attempt, on their way to the store.

A step only appends a line to a file on the node's own disk. A thread closes that file as a
numbered segment about once a second and uploads it, and tries again for as long as the store is
down: no step ever waits for it. A segment never changes once it is closed, so uploading it twice
is the same as once.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octad.errors import OctadError
from octad.spec.keys import AttemptKeys
from octad.spec.stages import MetricPoint, Phase, Progress, StoreSpec
from octad.storage.objects import ObjectStore

_LOG = logging.getLogger(__name__)
# Segments are closed less often as there come to be many: a long run must not be a million files.
_CADENCE_S = ((60, 1.0), (600, 3.0), (math.inf, 15.0))
_HEARTBEAT_S = 15.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_MAX_NOTES = 100


@dataclass(slots=True)
class _Segment:
    """Lines that become one object: `number` of the segment, `last` of the lines, in order."""

    number: int
    path: Path
    last: int
    size: int = 0
    held: bytes = b""  # the end of it, where the local disk took no more

    def content(self) -> bytes:
        written = self.path.read_bytes()[: self.size] if self.size else b""
        return written + self.held


class Recorder:
    """What rank 0 says. Every method but `flush` and `close` returns at once.

    Args:
        store: Where the attempt writes.
        keys: Of the attempt.
        scratch: A folder on the node's own disk; lines wait there until they are in the store.
        total: Steps to do.
    """

    def __init__(self, store: StoreSpec, keys: AttemptKeys, scratch: Path, total: int) -> None:
        self._store = ObjectStore(store)
        self._keys = keys
        self._folder = scratch / "metrics"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._changed = threading.Condition()
        # All below is guarded by `_changed`.
        self._progress = Progress(phase="starting", total=total)
        self._notes = {note: note for note in _earlier_notes(self._store, keys)}
        self._is_dirty = True
        self._num_lines = 0
        self._num_durable = 0
        self._open = self._segment(0)
        self._held: list[bytes] = []  # lines that the local disk did not take
        self._closed: deque[_Segment] = deque()
        self._is_urgent = False
        self._is_ending = False
        self._is_abandoned = False
        self._written_at_s = -math.inf  # of progress.json, by the monotonic clock
        self._thread = threading.Thread(target=self._ship, name="recorder", daemon=True)
        self._thread.start()

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record that a step has ended. Steps must come in order, each once."""
        now_ms = _now_ms()
        line = {"step": step, "time_ms": now_ms, "metrics": _writable(metrics)}
        raw = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        with self._changed:
            self._num_lines += 1
            self._held.append(raw)
            self._append()
            first = self._progress.first_step_at_ms or now_ms
            finite = {key: value for key, value in metrics.items() if math.isfinite(value)}
            self._update(step=step, metrics=finite, first_step_at_ms=first)

    def carry(self, lines: Sequence[bytes]) -> None:
        """Take over lines of an older attempt, whose steps this one does not take again; before its
        own first step.
        """
        with self._changed:
            self._num_lines += len(lines)
            self._held.extend(line + b"\n" for line in lines)
            self._append()

    def phase(self, phase: Phase) -> None:
        """Say what the attempt is doing now."""
        with self._changed:
            self._update(phase=phase)
            self._hurry()

    def note(self, text: str, *, topic: str = "") -> None:
        """Tell the person something. A later note on the same topic takes the place of this one."""
        with self._changed:
            self._notes[topic or text] = text
            self._is_dirty = True
            self._hurry()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until every step recorded so far is in the store; False if it took too long."""
        with self._changed:
            wanted = self._num_lines
            self._hurry()
            return self._changed.wait_for(lambda: self._num_durable >= wanted, timeout_s)

    def close(self, timeout_s: float = 60.0) -> bool:
        """Flush, write the last progress and end the thread; False if it took too long."""
        with self._changed:
            self._is_ending = True
            self._hurry()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        _LOG.warning("the store did not take the last metrics within %s s", timeout_s)
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
        return False

    # --- with `_changed` held

    def _segment(self, number: int) -> _Segment:
        return _Segment(number, self._folder / f"{number:08d}.jsonl", last=self._num_lines)

    def _append(self) -> None:
        """Move held lines to the open file; what the disk refuses stays held."""
        data = b"".join(self._held)
        try:
            with self._open.path.open("r+b" if self._open.path.exists() else "wb") as out:
                out.seek(self._open.size)
                out.write(data)
        except OSError:
            return
        self._open.size += len(data)
        self._open.last = self._num_lines
        self._held.clear()

    def _update(self, **fields: object) -> None:
        self._progress = self._progress.model_copy(update=fields)
        self._is_dirty = True

    def _hurry(self) -> None:
        self._is_urgent = True
        self._changed.notify_all()

    def _close_segment(self) -> None:
        if self._num_lines == self._open.last and not self._open.size and not self._held:
            return
        self._open.held = b"".join(self._held)
        self._open.last = self._num_lines
        self._held.clear()
        self._closed.append(self._open)
        self._open = self._segment(self._open.number + 1)

    def _cadence_s(self) -> float:
        return next(seconds for limit, seconds in _CADENCE_S if self._open.number < limit)

    # --- on the thread

    def _ship(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_urgent, self._cadence_s())
                self._is_urgent = False
                is_ending = self._is_ending
                self._close_segment()
            try:
                self._upload_segments()
                self._upload_progress(is_forced=is_ending)
            except Exception as error:  # noqa: BLE001  the loop must outlive whatever the store does
                _LOG.warning("metrics wait for the store: %s", error)
                if self._is_abandoned_after(retry_s):
                    return
                retry_s = min(retry_s * 2, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            with self._changed:
                if is_ending and self._num_durable == self._num_lines:
                    return

    def _is_abandoned_after(self, seconds: float) -> bool:
        """Wait before the next try; True if nobody waits for it any more."""
        with self._changed:
            self._is_urgent = True
            return self._changed.wait_for(lambda: self._is_abandoned, seconds)

    def _upload_segments(self) -> None:
        while self._closed:
            segment = self._closed[0]
            self._store.put(self._keys.segment(segment.number), segment.content())
            with self._changed:
                self._closed.popleft()
                self._num_durable = segment.last
                self._changed.notify_all()
            segment.path.unlink(missing_ok=True)

    def _upload_progress(self, *, is_forced: bool) -> None:
        now_s = time.monotonic()
        with self._changed:
            if not (self._is_dirty or is_forced or now_s - self._written_at_s > _HEARTBEAT_S):
                return
            self._is_dirty = False
            progress = self._progress.model_copy(
                update={
                    "notes": tuple(self._notes.values())[-_MAX_NOTES:],
                    "updated_at_ms": _now_ms(),
                }
            )
        try:
            self._store.put(self._keys.progress, progress.model_dump_json().encode())
        except OctadError:
            with self._changed:
                self._is_dirty = True
            raise
        self._written_at_s = now_s


def recorded(store: ObjectStore, keys: AttemptKeys, step: int) -> dict[str, float]:
    """The metrics that an attempt has recorded of a step; empty if there are none."""
    for segment in reversed(list(store.walk(keys.metrics))):
        for line in store.get(segment.key).splitlines():
            point = MetricPoint.parse(json.loads(line))
            if point.step == step:
                return {name: float(value) for name, value in point.metrics.items()}
    return {}


def recorded_lines(store: ObjectStore, keys: AttemptKeys, first: int, last: int) -> list[bytes]:
    """What an attempt has recorded of the steps `first` to `last`, in order, a line each."""
    found: dict[int, bytes] = {}
    for segment in store.walk(keys.metrics):
        for line in store.get(segment.key).splitlines():
            step = MetricPoint.parse(json.loads(line)).step
            if first <= step <= last:
                found[step] = line
    return [found[step] for step in sorted(found)]


def _earlier_notes(store: ObjectStore, keys: AttemptKeys) -> tuple[str, ...]:
    """What the attempt's driver noted before its workers began."""
    try:
        earlier = store.read_json(keys.progress)
        return Progress.parse(earlier).notes if earlier is not None else ()
    except OctadError as error:
        _LOG.warning("earlier notes are not known: %s", error)
        return ()


def _writable(metrics: dict[str, float]) -> dict[str, float | str]:
    """JSON has no inf and no nan: they become strings."""
    return {
        name: value if math.isfinite(value) else str(float(value))
        for name, value in metrics.items()
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
