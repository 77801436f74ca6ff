"""The optimizer, its schedule, and the clipping of gradients that lie over a mesh."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

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


def gradients(model: Model) -> list[DTensor]:
    """The gradients of this step, as they lie over the mesh."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [grad for grad in found if isinstance(grad, DTensor)]


def squared_norm(grads: list[DTensor]) -> Tensor:
    """This process's part of the squared global norm: its shards, a replica counted as a share.

    Summed over all processes it is the squared norm of the whole gradient.
    """
    parts = []
    for grad in grads:
        copies = math.prod(
            grad.device_mesh.size(axis)
            for axis, placement in enumerate(grad.placements)
            if placement.is_replicate()
        )
        parts.append(grad.to_local().float().square().sum() / copies)
    return torch.stack(parts).sum()


def summed(*parts: Tensor) -> list[float]:
    """Numbers summed over all processes, in one exchange."""
    packed = torch.stack([part.detach().double() for part in parts])
    dist.all_reduce(packed)
    return [float(number) for number in packed.tolist()]


def clip(grads: list[DTensor], norm: float, limit: float) -> None:
    """Scale the gradient down to the norm `limit`, in place."""
    if norm > limit:
        torch._foreach_mul_([grad.to_local() for grad in grads], limit / (norm + _CLIP_EPS))
