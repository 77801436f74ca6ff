"""The manifest: its creation commits a checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octad.spec.artefacts import Artefact
from octad.spec.frozen import Spec
from octad.spec.layouts import Layout
from octad.spec.stages import Position


class StoredFile(Spec):
    """One file of a checkpoint or dataset: path inside its folder, size in bytes, digest."""

    path: str
    size: int = Field(ge=0)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class DataPosition(Spec):
    """Where in the data a stage stands. It does not know the world size.

    Attributes:
        fingerprint: Digest of the datasets, their weights and the length of a sample.
        seed: Keys the permutations.
        samples: Samples consumed since the start, over all epochs.
    """

    fingerprint: str
    seed: int
    samples: int = Field(ge=0)


class Manifest(Spec):
    """`checkpoints/step-<k>/manifest.json`.

    Attributes:
        format: Version of this file.
        content: `full` holds model and optimizer; `weights` the model alone, as it came from
            elsewhere; `adapter` only what fine-tuning added.
        run, stage, position: Who wrote it.
        tokens: Tokens trained on so far.
        data: Where the data stands.
        layout: The mesh that wrote it; any other can read it.
        dtype: Of the weights.
        model: The resolved model settings, its `kind` among them.
        model_digest: sha256 of `model` as canonical JSON.
        parent: The checkpoint it continues from, if any.
        base: For an adapter: the checkpoint whose weights it adapts.
        adapter: For an adapter: its settings.
        files: Every file, so that nothing is opened before it is checked.
        versions: torch and octad.
    """

    format: Literal[1] = 1
    content: Literal["full", "weights", "adapter"]
    run: str
    stage: str
    position: Position
    tokens: int = Field(ge=0)
    data: DataPosition | None
    layout: Layout
    dtype: str
    model: dict[str, object]
    model_digest: str
    parent: Position | None = None
    base: Artefact | None = None
    adapter: dict[str, object] | None = None
    files: tuple[StoredFile, ...]
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        """What a tracker is told of it, besides where it lies."""
        return {
            "content": self.content,
            "tokens": str(self.tokens),
            "layout": " ".join(f"{axis}={size}" for axis, size in self.layout.axes.items()),
            "model_digest": self.model_digest,
        }
