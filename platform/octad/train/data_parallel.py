"""Data parallelism: weights over the data axes of the mesh."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from octad.train.mesh import Ranks


def shard(
    part: nn.Module,
    blocks: Iterable[nn.Module],
    ranks: Ranks,
    *,
    mixed: MixedPrecisionPolicy,
    reshard: bool,
) -> None:
    """FSDP per block and for what is left, in place: ZeRO-3, or ZeRO-2 without `reshard`; over a
    mesh of two axes, HSDP.
    """
    for block in blocks:
        fully_shard(block, mesh=ranks.data, mp_policy=mixed, reshard_after_forward=reshard)
    fully_shard(part, mesh=ranks.data, mp_policy=mixed, reshard_after_forward=False)


def last_of_step(part: nn.Module, *, is_last: bool) -> None:
    """Gradients are summed over the mesh only after the last micro-batch of a step."""
    assert isinstance(part, FSDPModule)
    part.set_requires_gradient_sync(is_last)
