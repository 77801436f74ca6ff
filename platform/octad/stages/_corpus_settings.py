"""What preprocessing can be told. Laptops load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from octad.errors import ConfigError
from octad.ports.data import SourceSettings
from octad.ports.registry import load
from octad.spec.frozen import Spec
from octad.spec.names import Name

_MIN_VOCAB = 257  # every byte, and the end of a text


class Settings(Spec):
    """What to read, and how to cut it up.

    Attributes:
        source: A block of `conf/data`: its kind and the kind's settings. Becomes `corpus`.
        sources: More of them by the names of the datasets that they become, to be mixed.
        tuning_source: Text for fine-tuning, if any; encoded with the same tokenizer, which it is
            not trained on. Becomes `tuning`.
        vocab: The most tokens that the tokenizer may have, unless it is given.
        heldout_share: About this share of the text is held out: whole parts by a hash of their
            names, records by a hash of their text; the same ones whatever the seed and the cards.
        tokenizer_bytes: Bytes of training text that the tokenizer is trained on.
    """

    source: dict[str, Any] | None = None
    sources: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    tuning_source: dict[str, Any] | None = None
    vocab: int = Field(default=2048, ge=_MIN_VOCAB, le=1_000_000)
    heldout_share: float = Field(default=0.1, gt=0, lt=1)
    tokenizer_bytes: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.datasets():
            raise ValueError("there is nothing to read: give a source, or sources")
        for name in ("corpus", "tuning", "tokenizer"):
            if name in self.sources:
                raise ValueError(f"sources.{name}: {name!r} is the name of something else")
        return self

    def datasets(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Name of the dataset to the key of the source that it is made from, and that source."""
        found = {name: (f"sources.{name}", block) for name, block in self.sources.items()}
        for name, key in (("corpus", "source"), ("tuning", "tuning_source")):
            block = getattr(self, key)
            if block is not None:
                found[name] = (key, block)
        return found


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
