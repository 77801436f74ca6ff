"""The optimizer, its schedule, and the clipping of gradients that lie over a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from octad.train.parallelise import Model
from octad.train.settings import Optimizer

_CLIP_EPS = 1e-6


def build(model: Model, settings: Optimizer) -> list[torch.optim.AdamW]:
    """AdamW over what is trained, one for each part of the model."""
    return [_adamw(part, settings) for part in model.parts]


def _adamw(part: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    """Vectors (norms, biases) do not decay."""
    trained = [p for p in part.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


def rate(settings: Optimizer, step: int, steps: int) -> float:
    """The learning rate of a step, counted from 1, of `steps`."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    return settings.lr * (
        settings.final_share + (1 - settings.final_share) * _remaining(settings, done)
    )


def _remaining(settings: Optimizer, done: float) -> float:
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if settings.schedule == "wsd" and settings.decay_share > 0:
        return min(1.0, (1 - done) / settings.decay_share)
    return 1.0


@torch.no_grad()
def gradients(model: Model) -> list[Gradient]:
    """The gradients of this step, as this process holds them."""
    found = []
    for part in model.parts:
        for name, parameter in part.named_parameters():
            _add_up(parameter)
            if parameter.grad is not None:
                copies = 2 if name in model.shared else 1
                found.append(Gradient.of(parameter.grad, copies))
    return found


def _add_up(parameter: nn.Parameter) -> None:
    """Sum what each card of a tp group found from its part of the sequence (norms, biases); FSDP,
    where it is, has done so already.
    """
    grad = parameter.grad
    if not (isinstance(grad, DTensor) and isinstance(parameter, DTensor)):
        return
    if grad.placements != parameter.placements:
        parameter.grad = grad.redistribute(placements=parameter.placements)


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter's.

    Attributes:
        local: What this process holds of it.
        shards: In how many pieces it lies over the mesh.
        copies: How many parts of the model hold it.
    """

    local: Tensor
    shards: int
    copies: int

    @classmethod
    def of(cls, grad: Tensor, copies: int = 1) -> Gradient:
        """Outside of autograd only: it would record every look at a shard."""
        if not isinstance(grad, DTensor):
            return cls(grad, 1, copies)
        mesh = grad.device_mesh
        sizes = [mesh.size(n) for n, p in enumerate(grad.placements) if not p.is_replicate()]
        return cls(grad.to_local(), math.prod(sizes), copies)


def squared_norm(grads: Sequence[Gradient], together: int) -> Tensor:
    """This process's part of the squared global norm.

    Summed over all processes it is the squared norm of the whole gradient.

    Args:
        grads: All of this process.
        together: How many processes hold the same layers, as shards or copies.
    """
    by_weight: dict[float, list[Tensor]] = {}
    for grad in grads:
        by_weight.setdefault(grad.shards / grad.copies, []).append(grad.local)
    parts = [get_total_norm(held).square() * weight for weight, held in by_weight.items()]
    return torch.stack(parts).sum() / together


def summed(*parts: Tensor) -> list[float]:
    """Numbers summed over all processes, in one exchange."""
    packed = torch.stack([part.detach().double() for part in parts])
    dist.all_reduce(packed)
    return [float(number) for number in packed.tolist()]


def clipping(norm: float, limit: float) -> float:
    """By what to multiply a gradient of this norm, so that the norm is at most `limit`."""
    return limit / (norm + _CLIP_EPS) if norm > limit else 1.0


def scale(grads: Sequence[Gradient], factor: float) -> None:
    """Multiply the gradient, in place."""
    if factor != 1.0:
        torch._foreach_mul_([grad.local for grad in grads], factor)
