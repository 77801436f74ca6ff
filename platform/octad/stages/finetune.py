"""Fine-tuning: a checkpoint's weights on other data, by low-rank adapters or as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octad.ports.stages import Context
from octad.spec.artefacts import Port
from octad.spec.clusters import Ability
from octad.spec.stages import StageSpec
from octad.train.settings import (
    Lora,
    Training,
    check_lora,
    check_training,
    dataset_ports,
    tokenizer_port,
)
from octad.train.stage import Outcome, train_stage


class Settings(Training):
    """What training stages share, and how the weights are changed.

    Attributes:
        method: `lora` trains adapters and leaves the weights alone; `full` trains all.
        lora: The adapters.
    """

    method: Literal["lora", "full"] = "lora"
    lora: Lora = Lora()


def takes(settings: Settings) -> Mapping[str, Port]:
    """Weights to start from, and the data."""
    return {
        "base": Port(type="checkpoint"),
        **dataset_ports(settings, "tuning"),
        "tokenizer": tokenizer_port(settings),
    }


def gives(settings: Settings) -> Mapping[str, Port]:
    """An adapter, or a whole checkpoint and its weights for other tools."""
    if settings.method == "lora":
        return {"adapter": Port(type="adapter")}
    return {"checkpoint": Port(type="checkpoint"), "weights": Port(type="weights")}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse what the layout cannot divide, or an adapter that cannot be (ConfigError)."""
    check_training(spec, settings)
    if settings.method == "lora":
        check_lora(spec, settings.model, settings.lora)


def asks(settings: Settings) -> dict[Ability, str]:
    """What not every card can compute in."""
    return settings.precision.asks


class Finetune:
    """One fine-tuning stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> Outcome:
        """Train to the last step."""
        is_lora = self.settings.method == "lora"
        return train_stage(
            context,
            self.settings,
            datasets={name: context.input(name) for name in dataset_ports(self.settings, "tuning")},
            tokenizer=None if is_lora else context.input("tokenizer"),
            start=context.input("base"),
            lora=self.settings.lora if is_lora else None,
        )


def build(settings: Settings) -> Finetune:
    """The stage."""
    return Finetune(settings)
