"""From a model family to a model spread over the mesh, with the same weights on every layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from octad.train import activation, compiling, data_parallel, precision
from octad.train.mesh import Ranks
from octad.train.settings import Precision, Training, adapter_of


@dataclass(frozen=True, slots=True)
class Model:
    """A model as one process holds it.

    Attributes:
        parts: One; with pipeline parallelism the process's runs of blocks, in order. All go by
            the names of the whole model.
        width: Features of one token between blocks.
        dtype: Of what goes from block to block.
        shared: Names of parameters that both the first and the last part of a pipeline hold.
        is_adapted: Only an adapter is trained; the model's own weights do not change.
    """

    parts: tuple[nn.Module, ...]
    width: int
    dtype: torch.dtype
    shared: tuple[str, ...] = ()
    is_adapted: bool = False

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of all parts."""
        for part in self.parts:
            yield from part.parameters()

    @property
    def whole(self) -> nn.Module:
        """The only part of a model that is not split over a pipeline."""
        (part,) = self.parts
        return part


def spread(
    family: Any,
    settings: Any,
    ranks: Ranks,
    *,
    seed: int,
    adapter: Mapping[str, Any] | None = None,
    training: Training | None = None,
) -> Model:
    """A model over the mesh: pipeline, then tensor parallel, then activation checkpointing, then
    compilation, then FSDP per block, then weights.

    No process ever holds more than its part and one whole parameter.

    Args:
        family: The module of the model's family.
        settings: Its sizes.
        ranks: The mesh.
        seed: Of the weights. The same seed gives the same weights on every layout.
        adapter: Kind and settings of one to put in; everything else is frozen.
        training: Says how it is trained; None is for a model that is not.
    """
    formats = Precision() if training is None else training.precision
    mixed, offload = precision.policy(formats), training is not None and training.cpu_offload
    parts = []
    for number in ranks.pp_parts:
        with torch.device("meta"):
            part: nn.Module = family.build(settings)
        family.split(part, number, ranks.num_pp_parts)
        blocks = family.blocks(part)
        precision.convert(blocks, formats, ranks.device)
        if ranks.tp is not None:
            family.parallelise(part, ranks.tp)
        if adapter is not None:
            part.requires_grad_(requires_grad=False)
            kind, own = adapter_of(adapter)
            kind.insert(own, family, part)
        if training is not None:
            activation.recompute(blocks, training.activation_checkpointing)
            if training.compile:
                compiling.compile_blocks(blocks, ranks.device)
        if data_parallel.needs_shards(ranks.layout, mixed, offload=offload):
            data_parallel.shard(part, blocks, ranks, mixed=mixed, offload=offload)
        part.to_empty(device="cpu" if offload else ranks.device)
        _initialise(part, seed, _stds(part, family, settings, adapter))
        parts.append(part)
    return Model(
        tuple(parts),
        width=family.width(settings),
        dtype=mixed.param_dtype or torch.float32,
        shared=family.shared(settings) if ranks.pp is not None else (),
        is_adapted=adapter is not None,
    )


def _stds(
    part: nn.Module, family: Any, settings: Any, adapter: Mapping[str, Any] | None
) -> dict[str, float | None]:
    """Standard deviations of the first draw, by name; None for what is not drawn."""
    names = part.named_parameters()
    if adapter is None:
        return {name: family.init_std(settings, name) for name, _ in names}
    kind, own = adapter_of(adapter)
    return {
        name: kind.init_std(own, name) if p.requires_grad else family.init_std(settings, name)
        for name, p in names
    }


def _initialise(part: nn.Module, seed: int, stds: Mapping[str, float | None]) -> None:
    """Draw every parameter whole, in fp32, from its own generator; keep this process's shard."""
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            whole = _drawn(name, tuple(parameter.shape), stds[name], seed)
            if not isinstance(parameter, DTensor):
                parameter.copy_(whole)
                continue
            shard = distribute_tensor(
                whole.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
            parameter.to_local().copy_(shard.to_local())


def _drawn(name: str, shape: tuple[int, ...], std: float | None, seed: int) -> Tensor:
    if std is None:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    if std == 0:
        return torch.zeros(shape)
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
