"""What a file of `octad.stages` fills. Its module must import neither torch nor ray at the top:
laptops load it to validate settings.

    class Settings(Spec): ...                       the kind's own keys
    def takes(settings) -> Mapping[str, Port]       inputs
    def gives(settings) -> Mapping[str, Port]       outputs
    def check(spec: StageSpec, settings) -> None    refuse what cannot be (raises ConfigError);
                                                    for a range of cards, called for each number
    def asks(settings) -> dict[Ability, str]        what not every card can do, and the setting that
                                                    asks for it; may be left out
    def build(settings) -> Stage
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from octad.spec.artefacts import Artefact, ArtefactType, Port
from octad.spec.stages import AttemptOrder, Position, StageSpec


class Context(Protocol):
    """What a running attempt is given.

    Attributes:
        order: What is asked.
        base: The committed checkpoint to start from, verified; None for a fresh start.
        store: An `octad.storage.objects.ObjectStore` on the order's store.
        scratch: A private folder on this node, gone when the attempt ends.
    """

    order: AttemptOrder
    base: Position | None
    store: Any
    scratch: Path

    def input(self, name: str) -> Artefact:
        """The artefact of one input. Raises NotFoundError if there is none."""
        ...

    def fetch(self, artefact: Artefact) -> Path:
        """A folder artefact as a local folder, its files checked. Raises DataError."""
        ...

    def publish_folder(self, name: str, kind: ArtefactType, folder: Path, /) -> Artefact:
        """Upload a local folder as an artefact."""
        ...

    def note(self, text: str) -> None:
        """Tell the person something they should know; shown with the stage."""

    def phase(self, phase: str) -> None:
        """Say what the attempt is doing now."""

    def progress(self, step: int, total: int) -> None:
        """Say how far the attempt is; may be called often."""


class Stage(Protocol):
    """One kind of stage, with its settings."""

    def run(self, context: Context) -> tuple[tuple[Artefact, ...], dict[str, float]]:
        """Do the work and return the artefacts and final metrics.

        Runs in the job's driver on the cluster; may start Ray tasks and Ray Train workers.
        """
        ...


class StageModule(Protocol):
    """The module itself."""

    Settings: Any

    def takes(self, settings: Any) -> Mapping[str, Port]:
        """Inputs by name."""
        ...

    def gives(self, settings: Any) -> Mapping[str, Port]:
        """Outputs by name."""
        ...

    def check(self, spec: StageSpec, settings: Any) -> None:
        """Refuse what cannot be, on the laptop (raises ConfigError)."""

    def build(self, settings: Any) -> Stage:
        """The stage."""
        ...
