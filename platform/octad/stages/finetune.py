"""Fine-tuning: a checkpoint's weights on other data, by an adapter or as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from octad.ports.stages import Context
from octad.spec.artefacts import Port
from octad.spec.clusters import Ability
from octad.spec.stages import StageSpec
from octad.train.adapters.lora import Settings as Lora
from octad.train.adapters.prefix import Settings as Prefix
from octad.train.settings import (
    Training,
    check_adapter,
    check_training,
    checkpoint_port,
    dataset_ports,
    tokenizer_port,
)
from octad.train.stage import Outcome, train_stage


class Settings(Training):
    """What training stages share, and how the weights are changed.

    Attributes:
        method: `full` trains all weights; the others train an adapter and leave the weights alone.
            An adapter that is given is of this kind, and has its own settings.
        lora: Low-rank adapters.
        prefix: Prefix tuning.
    """

    method: Literal["lora", "prefix", "full"] = "lora"
    lora: Lora = Lora()
    prefix: Prefix = Prefix()

    @property
    def adapter(self) -> dict[str, Any] | None:
        """Kind and settings of the adapter to train, if any."""
        return None if self.method == "full" else getattr(self, self.method).plain()


def takes(settings: Settings) -> Mapping[str, Port]:
    """Weights to start from, perhaps an adapter to go on with, and the data."""
    adapter = Port(type="adapter", is_required=False, values={"method": settings.method})
    return {
        "base": checkpoint_port(settings),
        **({} if settings.adapter is None else {"adapter": adapter}),
        **dataset_ports(settings, "tuning"),
        "tokenizer": tokenizer_port(settings),
    }


def gives(settings: Settings) -> Mapping[str, Port]:
    """An adapter, or a whole checkpoint; and both for other tools: in PEFT's format, or weights."""
    if settings.adapter is not None:
        adapter = Port(type="adapter", values={"method": settings.method})
        return {"adapter": adapter, "peft": Port(type="weights")}
    return {"checkpoint": Port(type="checkpoint"), "weights": Port(type="weights")}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse what the layout cannot divide, or an adapter that cannot be (ConfigError)."""
    check_training(spec, settings)
    # One that is given has its own settings.
    if settings.adapter is not None and "adapter" not in spec.needs:
        check_adapter(spec, settings, settings.adapter)


def asks(settings: Settings) -> dict[Ability, str]:
    """What not every card can compute in."""
    return settings.precision.asks


class Finetune:
    """One fine-tuning stage."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def run(self, context: Context) -> Outcome:
        """Train to the last step."""
        return train_stage(
            context,
            self.settings,
            datasets={name: context.input(name) for name in dataset_ports(self.settings, "tuning")},
            tokenizer=context.input("tokenizer"),
            start=context.input("base"),
            adapter=self.settings.adapter,
            tuned=context.order.inputs.get("adapter"),
        )


def build(settings: Settings) -> Finetune:
    """The stage."""
    return Finetune(settings)
