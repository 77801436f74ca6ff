"""Weights from elsewhere: a folder of Hugging Face's, perhaps with an adapter of PEFT's, becomes a
checkpoint, a tokenizer and an adapter like those of any other stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from octad.errors import ConfigError
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact, Port
from octad.spec.stages import AttemptOrder, StageSpec
from octad.stages._pretrained_settings import Settings
from octad.stages._spread import OverRay, Spread

__all__ = ["Settings", "build", "check", "gives", "takes"]

Outcome = tuple[tuple[Artefact, ...], dict[str, float]]


def takes(settings: Settings) -> Mapping[str, Port]:
    """Nothing."""
    return {}


def gives(settings: Settings) -> Mapping[str, Port]:
    """A checkpoint, its tokenizer, and the adapter if there is one."""
    given = {
        "checkpoint": Port(type="checkpoint", values=settings.model_seen()),
        "tokenizer": Port(type="tokenizer"),
    }
    if settings.adapter.label:
        given["adapter"] = Port(type="adapter", values=settings.adapter_seen())
    return given


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse weights that cannot be taken in, as far as that can be seen from here.

    Raises:
        ConfigError, DataError: Names the key, or the file.
    """
    if not settings.weights.label:
        raise ConfigError(
            "there are no weights",
            where=f"{spec.name}.weights.path",
            hint=f"name a folder of a Hugging Face model: {spec.name}.weights.path=DIR",
        )
    if spec.cards > 1:
        raise ConfigError(
            f"{spec.cards} cards, but weights are taken in by one process",
            where=f"{spec.name}.cards",
            hint="use 1",
        )


class Pretrained:
    """One taking in of weights."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> Outcome:
        """Check all files, and write the artefacts."""
        return prepare(context, self.settings, OverRay(1))


def prepare(context: Context, settings: Settings, spread: Spread) -> Outcome:
    """Do the whole stage, as one task on a node that has a card, and so torch and memory.

    Raises:
        ConfigError: The model, or the adapter, is one that cannot be computed here.
        DataError: A file is missing, changed, damaged, or holds other tensors.
    """
    context.phase("working")
    work = (context.order, settings)
    ((artefacts, metrics, notes),) = spread(_taken_in, [work], context.progress)
    for note in notes:
        context.note(note)
    return artefacts, metrics


def _taken_in(
    work: tuple[AttemptOrder, Settings],
) -> tuple[tuple[Artefact, ...], dict[str, float], tuple[str, ...]]:
    # Only here: laptops load this module, and have no torch.
    from octad.train.pretrained import take_in  # noqa: PLC0415

    order, settings = work
    return take_in(order, settings.weights, settings.adapter)


def build(settings: Settings) -> Pretrained:
    """The stage."""
    return Pretrained(settings)
