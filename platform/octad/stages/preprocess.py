"""Text to tokens: a tokenizer trained on the corpus, and Arrow shards of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from octad.errors import ConfigError
from octad.ports.data import SourceSettings
from octad.ports.registry import load
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact, Port
from octad.spec.frozen import Spec
from octad.spec.stages import StageSpec
from octad.stages._spread import OverRay

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


def takes(settings: Settings) -> Mapping[str, Port]:
    """Nothing."""
    return {}


def gives(settings: Settings) -> Mapping[str, Port]:
    """A tokenizer, and a dataset for each source."""
    datasets = {name: Port(type="dataset") for name in settings.sources()}
    return {"tokenizer": Port(type="tokenizer"), **datasets}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse sources that cannot be (ConfigError)."""
    source_settings(settings.source, f"{spec.name}.source")
    if settings.tuning_source is not None:
        source_settings(settings.tuning_source, f"{spec.name}.tuning_source")


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


class Preprocess:
    """One preprocessing stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> tuple[tuple[Artefact, ...], dict[str, float]]:
        """Read, train the tokenizer, encode; as many tasks at once as there are cards."""
        # Only here: laptops load this module, and have no pyarrow.
        from octad.stages._corpora import prepare  # noqa: PLC0415

        return prepare(context, self.settings, OverRay(context.order.stage.cards))


def build(settings: Settings) -> Preprocess:
    """The stage."""
    return Preprocess(settings)
