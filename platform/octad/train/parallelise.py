"""From a model family to a model spread over the mesh, with the same weights on every layout."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from octad.train.lora import INIT_STD, insert
from octad.train.mesh import Ranks
from octad.train.settings import Lora


def spread(  # noqa: PLR0913
    family: Any,
    settings: Any,
    ranks: Ranks,
    *,
    seed: int,
    lora: Lora | None = None,
    mixed: MixedPrecisionPolicy | None = None,
    reshard: bool = True,
) -> nn.Module:
    """A model over the mesh: tensor parallel first, then FSDP per block, then its weights.

    No process ever holds more than its shards and one whole parameter.

    Args:
        family: The module of the model's family.
        settings: Its sizes.
        ranks: The mesh.
        seed: Of the weights. The same seed gives the same weights on every layout.
        lora: Put adapters in, and freeze everything else.
        mixed: Number formats.
        reshard: Free gathered weights between forward and backward.
    """
    with torch.device("meta"):
        model: nn.Module = family.build(settings)
        if lora is not None:
            insert(model, lora)
    if ranks.tp is not None:
        family.parallelise(model, ranks.tp)
    kept: dict[str, Any] = {"mesh": ranks.data, "mp_policy": mixed or MixedPrecisionPolicy()}
    for child in model.children():
        for block in child if isinstance(child, nn.ModuleList) else ():
            fully_shard(block, reshard_after_forward=reshard, **kept)
    fully_shard(model, reshard_after_forward=False, **kept)
    model.to_empty(device=ranks.device)
    _initialise(model, family, settings, seed)
    return model


def _initialise(model: nn.Module, family: Any, settings: Any, seed: int) -> None:
    """Draw every parameter whole, in fp32, from its own generator; keep this process's shard."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = _drawn(name, tuple(parameter.shape), family, settings, seed)
            assert isinstance(parameter, DTensor)
            shard = distribute_tensor(
                whole.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
            parameter.to_local().copy_(shard.to_local())


def _drawn(name: str, shape: tuple[int, ...], family: Any, settings: Any, seed: int) -> Tensor:
    std = INIT_STD.get(name.rpartition(".")[2]) or family.init_std(settings, name)
    if name.endswith("lora_b"):
        return torch.zeros(shape)
    if std is None:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def last_of_step(model: nn.Module, *, is_last: bool) -> None:
    """Gradients are summed over the mesh only after the last micro-batch of a step."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(is_last)
