"""Low-rank adapters on linear layers (LoRA, Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from octad.errors import ConfigError
from octad.spec.frozen import Spec, nearest

if TYPE_CHECKING:
    from torch import Tensor, nn

_INIT_STD = 0.02


class Settings(Spec):
    """To the output of each target layer comes `lora_b @ lora_a` of its input.

    Attributes:
        rank: Rows of `lora_a`.
        alpha: What is added is scaled by `alpha / rank`.
        targets: The linear layers that get one, by the names the model family gives them.
    """

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    targets: tuple[str, ...] = Field(default=("query", "value"), min_length=1)


def check(settings: Settings, family: Any, model: Any, where: str) -> None:
    """Refuse a layer that is not there, and a rank that is no lower than the layer's own.

    Raises:
        ConfigError: Names the layer.
    """
    known = family.layers(model)
    for target in settings.targets:
        if target not in known:
            raise ConfigError(
                f"the model has no layer {target!r}",
                where=f"{where}.targets",
                hint=nearest(target, known),
            )
        full = min(known[target])
        if settings.rank > full:
            raise ConfigError(
                f"a rank of {settings.rank} is more than the {full} that {target!r} has itself",
                where=f"{where}.rank",
                hint=f"use at most {full}, or method: full",
            )


def room(_settings: Settings) -> int:
    """None of the context."""
    return 0


def init_std(_settings: Settings, name: str) -> float:
    """`lora_b` starts at zero: an adapter first changes nothing."""
    return 0.0 if name.endswith("lora_b") else _INIT_STD


def insert(settings: Settings, _family: Any, part: nn.Module) -> None:
    """Put an adapter on each target layer. A layer's own weights keep their names."""
    from torch import nn  # noqa: PLC0415  laptops load this module

    for module in list(part.modules()):
        for name, layer in module.named_children():
            if name in settings.targets and isinstance(layer, nn.Linear):
                _adapt(layer, settings)


def _adapt(layer: nn.Linear, settings: Settings) -> None:
    """Split as the layer is: of one that is split by outputs `lora_b`, by inputs `lora_a`."""
    import torch  # noqa: PLC0415
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: PLC0415

    weight, device = layer.weight, layer.weight.device
    a = torch.empty(settings.rank, layer.in_features, device=device)
    b = torch.empty(layer.out_features, settings.rank, device=device)
    if isinstance(weight, DTensor):
        by_outputs = weight.placements == (Shard(0),)
        places = (Replicate(), Shard(0)) if by_outputs else (Shard(1), Replicate())
        a, b = (
            distribute_tensor(whole, weight.device_mesh, [place], src_data_rank=None)
            for whole, place in zip((a, b), places, strict=True)
        )
    layer.lora_a, layer.lora_b = torch.nn.Parameter(a), torch.nn.Parameter(b)
    # Before the hooks that lay out what a split layer gives.
    layer.register_forward_hook(partial(_add, settings.alpha / settings.rank), prepend=True)


def _add(scale: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """... in -> ... out. In a layer split over `tp` each card adds its part, or its summand."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415
    from torch.nn.functional import linear  # noqa: PLC0415

    parts = (inputs[0], layer.lora_a, layer.lora_b)
    features, a, b = (_own(part) for part in parts)
    added = scale * linear(linear(features, a), b)
    if isinstance(output, DTensor):
        added = DTensor.from_local(added, output.device_mesh, output.placements, run_check=False)
    return output + added


def _own(whole: Any) -> Tensor:
    """What this card holds. Of what all hold alike, each finds a summand of the gradient."""
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415

    if not isinstance(whole, DTensor):
        return whole
    alike = whole.placements == (Replicate(),)
    return whole.to_local(grad_placements=[Partial()] if alike else None)
