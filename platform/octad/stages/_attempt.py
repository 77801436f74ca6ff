"""What a running attempt is given: its order, its inputs, and how it says what it made."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import cast, get_args

from octad.errors import NotFoundError, OctadError
from octad.spec.artefacts import Artefact, ArtefactType
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.stages import AttemptOrder, Phase, Position, Progress
from octad.storage import artefacts
from octad.storage.objects import ObjectStore

_LOG = logging.getLogger(__name__)
_PROGRESS_EVERY_S = 1.0


class Terminated(BaseException):
    """The driver was asked to end. Not an error: nothing but the driver's top catches it."""


class Attempt:
    """One attempt at a stage, in the driver of its job.

    Attributes:
        order: What is asked.
        base: The committed checkpoint to start from, verified; None for a fresh start.
        store: Where everything lies.
        keys, stage_keys: Keys of this attempt and of its stage.
        scratch: A private folder on this node, gone when the attempt ends.
        grace_s: How long after a SIGTERM the driver may live; a stage that needs more sets it.
        is_stop_told: Set when the store has been told of a SIGTERM.
    """

    grace_s = 4.5

    def __init__(
        self, order: AttemptOrder, base: Position | None, store: ObjectStore, scratch: Path
    ) -> None:
        self.order = order
        self.base = base
        self.store = store
        self.scratch = scratch
        self.stage_keys = StageKeys(order.run, order.stage.name)
        self.keys: AttemptKeys = self.stage_keys.attempt(order.attempt)
        self.is_stop_told = threading.Event()
        self._progressed_at_s = 0.0

    def input(self, name: str) -> Artefact:
        """The artefact of one input.

        Raises:
            NotFoundError: The stage was given none of this name.
        """
        try:
            return self.order.inputs[name]
        except KeyError:
            raise NotFoundError(
                f"there is no input {name!r}", where=f"{self.order.stage.name}.needs.{name}"
            ) from None

    def note(self, text: str) -> None:
        """Tell the person something they should know; shown with the stage."""
        _LOG.warning("%s", text)
        self._write_progress(note=text)

    def phase(self, phase: str) -> None:
        """Say what the attempt is doing now: one of the words of `Phase`."""
        assert phase in get_args(Phase), phase
        self._write_progress(phase=cast("Phase", phase))

    def progress(self, step: int, total: int) -> None:
        """Say how far the attempt is; may be called often."""
        now_s = time.monotonic()
        if step < total and now_s - self._progressed_at_s < _PROGRESS_EVERY_S:
            return
        self._progressed_at_s = now_s
        self._write_progress(step=step, total=total)

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything noted so far, by the driver and by its workers."""
        return self._read_progress().notes

    def publish_folder(self, name: str, kind: ArtefactType, folder: Path, /) -> Artefact:
        """Upload a local folder as an artefact; its manifest comes last.

        Raises:
            DataError: The folder holds no file, or one called `manifest.json`.
        """
        key = f"{self.keys.artefacts}{name}"
        return artefacts.publish_folder(self.store, key, name, kind, folder)

    def publish_object(
        self, name: str, kind: ArtefactType, data: bytes, filename: str, /
    ) -> Artefact:
        """Store bytes as an artefact."""
        key = f"{self.keys.artefacts}{name}/{filename}"
        return artefacts.publish_object(self.store, key, name, kind, data)

    def fetch(self, artefact: Artefact) -> Path:
        """An artefact as a local folder or file, every byte of it checked.

        A store that is a local folder gives the artefact where it lies; do not write there.

        Raises:
            DataError: A file is missing or was changed; names it.
        """
        return artefacts.fetch(self.store, artefact, self.scratch / "inputs")

    def _read_progress(self) -> Progress:
        raw = self.store.read_json(self.keys.progress)
        return Progress(phase="starting") if raw is None else Progress.parse(raw)

    def _write_progress(self, *, note: str = "", **fields: object) -> None:
        """Change the newest progress, whoever wrote it. Only informs: a store that fails is logged."""
        try:
            progress = self._read_progress()
            notes = progress.notes if note in {"", *progress.notes} else (*progress.notes, note)
            fields |= {"notes": notes, "updated_at_ms": time.time_ns() // 1_000_000}
            raw = progress.model_copy(update=fields).model_dump_json().encode()
            self.store.put(self.keys.progress, raw)
        except OctadError as error:
            _LOG.warning("progress was not written: %s", error)
