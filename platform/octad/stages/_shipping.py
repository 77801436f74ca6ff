"""Metrics of a stage that is run by hand, from the store to the tracker.

Reads the same segments that a control plane would, in order, and keeps in the store how far it
came, so that a step is told once: also after a restart, and if the tracker was down for a while.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from octad.errors import OctadError
from octad.ports.registry import load
from octad.ports.trackers import Outcome, Tracker
from octad.spec.checkpoints import Manifest
from octad.spec.frozen import Spec
from octad.spec.keys import StageKeys
from octad.spec.runs import RunSpec
from octad.spec.stages import AttemptOrder, AttemptResult, MetricPoint, Position
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of

_LOG = logging.getLogger(__name__)
_EVERY_S = 2.0
_LAST_WAIT_S = 60.0


class Cursor(Spec):
    """`shipped.json` of a stage: the next segment to read, and the newest step told."""

    attempt: int = Field(ge=1)
    segment: int = Field(default=0, ge=0)
    step: int = -1


class Shipping:
    """Tells a tracker about one stage.

    Args:
        tracker: Whom to tell.
        order: The attempt that runs.
        spec: The run that it belongs to.
        store: Where the segments lie.
    """

    def __init__(
        self, tracker: Tracker, order: AttemptOrder, spec: RunSpec, store: ObjectStore
    ) -> None:
        self._tracker, self._order, self._spec, self._store = tracker, order, spec, store
        self._keys = StageKeys(order.run, order.stage.name)
        self._is_ending = threading.Event()
        self._tracked = ("", "")
        self._told: set[Position] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ship on a thread while the stage runs; a tracker that fails is asked again later."""
        thread = threading.Thread(target=self._ship_on, name="shipping", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_ending.set()
            thread.join(_LAST_WAIT_S)

    def end(self, code: int) -> None:
        """Ship what is left, the final metrics, and how it ended; a failure is only logged."""
        try:
            self.ship()
            parent, stage = self._ids()
            raw = self._store.find(self._keys.attempt(self._order.attempt).result)
            if raw is not None:
                result = AttemptResult.parse(json.loads(raw))
                self._tracker.log_final(stage, result.metrics)
                if self._order.stage.kind == "validate":
                    self._tracker.log_final(parent, result.metrics)
            outcome: Outcome = "FINISHED" if code == 0 else "FAILED"
            self._tracker.set_outcome(stage, outcome)
            is_last = self._order.stage.name == self._spec.stages[-1].name
            self._tracker.set_outcome(parent, outcome if code or is_last else "RUNNING")
        except OctadError as error:
            _LOG.warning("the tracker was not told everything; run the stage again: %s", error)

    def ship(self) -> None:
        """Tell the tracker everything that is new.

        Raises:
            UnreachableError: The tracker or the store does not answer; the next call goes on.
        """
        _, stage = self._ids()
        cursor = self._cursor()
        while cursor.attempt <= self._order.attempt:
            key = self._keys.attempt(cursor.attempt).segment(cursor.segment)
            raw = self._store.find(key)
            if raw is None:
                if cursor.attempt == self._order.attempt:
                    break
                cursor = Cursor(attempt=cursor.attempt + 1, step=cursor.step)
                continue
            points = [MetricPoint.parse(json.loads(line)) for line in raw.splitlines() if line]
            fresh = [point for point in points if point.step > cursor.step]
            if fresh:
                self._tracker.log_points(stage, fresh)
            newest = max([cursor.step, *(point.step for point in fresh)])
            cursor = Cursor(attempt=cursor.attempt, segment=cursor.segment + 1, step=newest)
            self._store.put(self._cursor_key, cursor.model_dump_json().encode())
        self._ship_checkpoints(stage)

    @property
    def _cursor_key(self) -> str:
        return f"{self._keys.root}/shipped.json"

    def _cursor(self) -> Cursor:
        raw = self._store.read_json(self._cursor_key)
        return Cursor(attempt=self._order.since) if raw is None else Cursor.parse(raw)

    def _ship_on(self) -> None:
        while not self._is_ending.wait(_EVERY_S):
            try:
                self.ship()
            except OctadError as error:
                _LOG.warning("metrics wait for the tracker: %s", error)

    def _ids(self) -> tuple[str, str]:
        """The tracker's ids of the run and of the stage."""
        if not self._tracked[1]:
            order, spec = self._order, self._spec
            tags = {"octad.run": order.run, "octad.pipeline": spec.pipeline}
            parent = self._tracker.ensure_run(order.run, spec.title, tags, dict(spec.config))
            tags |= {"octad.stage": order.stage.name, "octad.kind": order.stage.kind}
            params = _flat(order.stage.as_asked())
            stage = self._tracker.ensure_stage(parent, order.stage.name, tags, params)
            self._tracked = (parent, stage)
        return self._tracked

    def _ship_checkpoints(self, tracked: str) -> None:
        stage = self._order.stage.name
        for position in lineage.positions(self._store, self._keys, self._order.since):
            keys = self._keys.attempt(position.attempt)
            is_new = position not in self._told
            raw = self._store.find(keys.manifest(position.step)) if is_new else None
            if raw is None:
                continue
            tags = {
                "octad.run": self._order.run,
                "octad.stage": stage,
                "uri": self._store.url(keys.checkpoint(position.step)),
                "step": str(position.step),
                "attempt": str(position.attempt),
                "digest": digest_of(raw),
                **Manifest.parse(json.loads(raw)).tags,
            }
            self._tracker.log_checkpoint(tracked, f"{stage}-step-{position.step}", tags)
            self._told.add(position)


def shipping_of(order: AttemptOrder, spec: RunSpec) -> Shipping | None:
    """Shipping to the tracker that an order names, or None if it names none."""
    if order.tracker is None or order.tracker.kind == "none":
        return None
    module = load("octad.trackers", order.tracker.kind, where="tracker.kind")
    return Shipping(module.build(order.tracker.url), order, spec, ObjectStore(order.store))


def _flat(node: Mapping[str, Any], path: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in node.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            flat |= _flat(value, here)
        elif value is not None:
            flat[here] = str(value)
    return flat
