"""What preprocessing can be told. Laptops load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from octad.errors import ConfigError
from octad.ports.data import SourceSettings
from octad.ports.registry import load
from octad.spec.frozen import Spec

_MIN_VOCAB = 257  # every byte, and the end of a text


class Settings(Spec):
    """What to read, and how to cut it up.

    Attributes:
        source: A block of `conf/data`: its kind and the kind's settings.
        tuning_source: Text for fine-tuning, if any; encoded with the same tokenizer.
        vocab: The most tokens that the tokenizer may have.
        heldout_share: About this share of the text is held out: whole parts by a hash of their
            names, records by a hash of their text; the same ones whatever the seed and the cards.
        tokenizer_bytes: Bytes of training text that the tokenizer is trained on.
    """

    source: dict[str, Any]
    tuning_source: dict[str, Any] | None = None
    vocab: int = Field(default=2048, ge=_MIN_VOCAB, le=1_000_000)
    heldout_share: float = Field(default=0.1, gt=0, lt=1)
    tokenizer_bytes: int = Field(default=1_000_000, ge=1)

    def sources(self) -> dict[str, dict[str, Any]]:
        """Name of the dataset to the source that it is made from."""
        tuning = {} if self.tuning_source is None else {"tuning": self.tuning_source}
        return {"corpus": self.source, **tuning}


def source_settings(source: Mapping[str, Any], where: str) -> tuple[Any, SourceSettings]:
    """The module of a source's kind, and its settings.

    Raises:
        ConfigError: There is no such kind, or a setting cannot be.
    """
    kind = source.get("kind")
    if not isinstance(kind, str):
        raise ConfigError("a source needs a kind", where=f"{where}.kind")
    module = load("octad.data.sources", kind, where=f"{where}.kind")
    own = {key: value for key, value in source.items() if key != "kind"}
    settings: SourceSettings = module.Settings.parse(own, where=where)
    return module, settings
