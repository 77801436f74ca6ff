"""What stages hand to each other."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from octad.spec.frozen import Spec

ArtefactType = Literal[
    "dataset", "tokenizer", "checkpoint", "adapter", "weights", "report", "files"
]


class Artefact(Spec):
    """Something a stage made, in the object store.

    Attributes:
        name: What the stage calls it.
        type: What it is; only equal types fit together.
        uri: The folder or object, as a full URL.
        digest: `sha256:<hex>` of the object, or of the folder's manifest.
    """

    name: str
    type: ArtefactType
    uri: str
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class Vocabulary(Spec):
    """How many tokens there are at most, and the setting that says so."""

    most: int
    setting: str


class Port(Spec):
    """One end of a stage: what it takes or gives.

    Attributes:
        type: The type of artefact.
        is_required: For inputs: whether the stage can run without it.
        vocabulary: Of a tokenizer: what it has at most, or what can be taken; None if not known.
        values: Of weights: what is known of them, by the setting of the stage that takes them and
            has to say the same.
    """

    type: ArtefactType
    is_required: bool = True
    vocabulary: Vocabulary | None = None
    values: dict[str, Any] = Field(default_factory=dict)
