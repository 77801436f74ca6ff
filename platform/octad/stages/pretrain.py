"""Pretraining: a language model from a corpus, from fresh weights or from a checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping

from octad.ports.stages import Context
from octad.spec.artefacts import Port
from octad.spec.clusters import Ability
from octad.spec.stages import StageSpec
from octad.train.settings import (
    Training,
    check_training,
    checkpoint_port,
    dataset_ports,
    tokenizer_port,
)
from octad.train.stage import Outcome, train_stage


class Settings(Training):
    """Nothing besides what all training stages share."""


def takes(settings: Settings) -> Mapping[str, Port]:
    """A corpus and its tokenizer; perhaps weights to start from."""
    return {
        **dataset_ports(settings, "corpus"),
        "tokenizer": tokenizer_port(settings),
        "base": checkpoint_port(settings, is_required=False),
    }


def gives(settings: Settings) -> Mapping[str, Port]:
    """The last checkpoint, and its weights for other tools."""
    return {"checkpoint": Port(type="checkpoint"), "weights": Port(type="weights")}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse what the layout cannot divide (ConfigError)."""
    check_training(spec, settings)


def asks(settings: Settings) -> dict[Ability, str]:
    """What not every card can compute in."""
    return settings.precision.asks


class Pretrain:
    """One pretraining stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> Outcome:
        """Train to the last step."""
        inputs = context.order.inputs
        return train_stage(
            context,
            self.settings,
            datasets={name: context.input(name) for name in dataset_ports(self.settings, "corpus")},
            tokenizer=context.input("tokenizer"),
            start=inputs.get("base"),
        )


def build(settings: Settings) -> Pretrain:
    """The stage."""
    return Pretrain(settings)
