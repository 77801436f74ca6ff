"""Text to tokens: a tokenizer, given or trained on the corpus, and Arrow shards of token ids."""

from __future__ import annotations

from collections.abc import Mapping

from octad.ports.stages import Context
from octad.spec.artefacts import Artefact, Port, Vocabulary
from octad.spec.stages import StageSpec
from octad.stages._corpus_settings import Settings, source_settings
from octad.stages._spread import OverRay

__all__ = ["Settings", "build", "check", "gives", "takes"]


def takes(settings: Settings) -> Mapping[str, Port]:
    """Perhaps a tokenizer, of a model that is there already; else one is trained."""
    return {"tokenizer": Port(type="tokenizer", is_required=False)}


def gives(settings: Settings) -> Mapping[str, Port]:
    """A tokenizer, and a dataset for each source."""
    datasets = {name: Port(type="dataset") for name in settings.datasets()}
    most = Vocabulary(most=settings.vocab, setting="vocab")
    return {"tokenizer": Port(type="tokenizer", vocabulary=most), **datasets}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse sources that cannot be (ConfigError)."""
    for key, block in settings.datasets().values():
        source_settings(block, f"{spec.name}.{key}")


class Preprocess:
    """One preprocessing stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> tuple[tuple[Artefact, ...], dict[str, float]]:
        """Read, train a tokenizer if none is given, encode; as many tasks at once as there are cards."""
        # Only here: laptops load this module, and have no pyarrow.
        from octad.stages._corpora import prepare  # noqa: PLC0415

        return prepare(context, self.settings, OverRay(context.order.stage.cards))


def build(settings: Settings) -> Preprocess:
    """The stage."""
    return Preprocess(settings)
