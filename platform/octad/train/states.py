"""The state of a model and its optimizer, as checkpoints hold it: sharded, by name."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


def _options(*, adapter: bool) -> StateDictOptions:
    return StateDictOptions(
        flatten_optimizer_state_dict=True, ignore_frozen_params=adapter, strict=not adapter
    )


def full(model: nn.Module, optimizer: torch.optim.Optimizer, *, adapter: bool) -> dict[str, Any]:
    """All that is needed to go on. Of a model with adapters, only what they add."""
    options = _options(adapter=adapter)
    return {
        "model": get_model_state_dict(model, options=options),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], *, adapter: bool
) -> None:
    """Put back what `full` gave."""
    options = _options(adapter=adapter)
    set_model_state_dict(model, state["model"], options=options)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


def weights(model: nn.Module, *, adapter: bool) -> dict[str, Any]:
    """The weights alone: of the adapters, or of everything but adapters. Shares their memory:
    what is loaded into it is in the model.
    """
    state = get_model_state_dict(model)
    return {"model": {k: v for k, v in state.items() if (".lora_" in k) == adapter}}


def whole(model: nn.Module) -> dict[str, Tensor]:
    """All weights in host memory, on rank 0; empty elsewhere. Every rank must call this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast("dict[str, Tensor]", get_model_state_dict(model, options=options))
