"""The state of a model and its optimizer, as checkpoints hold it: sharded, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from octad.train.parallelise import Model


def _options(*, adapter: bool) -> StateDictOptions:
    return StateDictOptions(
        flatten_optimizer_state_dict=True, ignore_frozen_params=adapter, strict=not adapter
    )


def full(model: Model, optimizers: Sequence[Optimizer], *, adapter: bool) -> dict[str, Any]:
    """All that is needed to go on. Of a model with adapters, only what they add."""
    options = _options(adapter=adapter)
    state: dict[str, Any] = {"model": {}, "optimizer": {}}
    for part, optimizer in zip(model.parts, optimizers, strict=True):
        state["model"] |= get_model_state_dict(part, options=options)
        state["optimizer"] |= get_optimizer_state_dict(part, optimizer, options=options)
    return state


def restore(
    model: Model, optimizers: Sequence[Optimizer], state: dict[str, Any], *, adapter: bool
) -> None:
    """Put back what `full` gave."""
    options = _options(adapter=adapter)
    for part, optimizer in zip(model.parts, optimizers, strict=True):
        names = get_model_state_dict(part, options=options).keys()
        own = {name: state["model"][name] for name in names}
        set_model_state_dict(part, own, options=options)
        # The optimizer takes tensors as they are: two parts must not have one in common.
        shared = tuple(f"state.{name}." for name in model.shared)
        moments = {
            key: value.clone() if key.startswith(shared) else value
            for key, value in state["optimizer"].items()
        }
        set_optimizer_state_dict(part, optimizer, moments, options=options)


def weights(model: Model, *, adapter: bool) -> dict[str, Any]:
    """The weights alone: of the adapters, or of everything but adapters. Shares their memory:
    what is loaded into it is in the model, after `copy_shared`.
    """
    state: dict[str, Any] = {}
    for part in model.parts:
        trained = {name for name, p in part.named_parameters() if p.requires_grad}
        added = trained if model.is_adapted else set()
        held = get_model_state_dict(part)
        state |= {name: w for name, w in held.items() if (name in added) == adapter}
    return {"model": state}


@torch.no_grad()
def copy_shared(model: Model) -> None:
    """Where a process holds two parts with the same parameter: the later one's values for both."""
    for name in model.shared:
        held = [part.get_parameter(name) for part in model.parts if name in _names(part)]
        for parameter in held[:-1]:
            parameter.copy_(held[-1])


def _names(part: nn.Module) -> set[str]:
    return {name for name, _ in part.named_parameters()}
