"""Data parallelism: one function for each way to hold a model and its gradients over the data axes
of the mesh.

| layout | way |
|---|---|
| one data-parallel part, fp32 | nothing to do |
| only replicas, fp32 | `replicated`: DDP, the fastest where weights are whole |
| everything else | `shard`: FSDP2, over a mesh of two axes HSDP; it also casts and offloads |
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from octad.spec.layouts import Layout
from octad.train.mesh import Ranks

_PLAIN = MixedPrecisionPolicy()


def needs_shards(layout: Layout, mixed: MixedPrecisionPolicy, *, offload: bool) -> bool:
    """Weights are to be FSDP's: it shards, casts and offloads, and its replicas go with tp and pp."""
    if mixed != _PLAIN or offload or layout.dp_shard != 1:
        return True
    return layout.dp_replicate > 1 and layout.tp * layout.pp > 1


def shard(
    part: nn.Module,
    blocks: Iterable[nn.Module],
    ranks: Ranks,
    *,
    mixed: MixedPrecisionPolicy,
    offload: bool,
) -> None:
    """FSDP per block and for what is left, in place. `micro_batch` does the rest of ZeRO.

    With `offload` shards, their gradients and so the optimizer's state are kept in host memory.
    """
    reshard = _stage(ranks.layout) == 3
    is_pinned = ranks.device.type != "cpu"
    place = CPUOffloadPolicy(pin_memory=is_pinned) if offload else OffloadPolicy()
    for module, frees in (*((block, reshard) for block in blocks), (part, False)):
        fully_shard(
            module,
            mesh=ranks.data,
            mp_policy=mixed,
            offload_policy=place,
            reshard_after_forward=frees,
        )


def replicated(part: nn.Module, ranks: Ranks) -> nn.Module:
    """What is to be called in place of a part, so that gradients are averaged over its replicas.

    The part keeps its weights and their names. They must be equal on all replicas.
    """
    if ranks.layout.data_parallel == 1 or isinstance(part, FSDPModule):
        return part
    return DistributedDataParallel(
        part,
        process_group=ranks.data.get_group("dp_replicate"),
        gradient_as_bucket_view=True,
        init_sync=False,
    )


def micro_batch(called: nn.Module, layout: Layout, *, is_last: bool) -> None:
    """Call before each forward pass of a step: what is done at the end of its backward pass.

    | ZeRO | weights are whole | gradients are summed over the shards |
    |---|---|---|
    | 1 | until the step's last micro-batch has passed | after the last micro-batch |
    | 2 | the same | after each, and kept sharded |
    | 3 | while their block computes | the same |

    Between steps only shards are kept. Replicas exchange only after the last micro-batch.
    """
    if isinstance(called, DistributedDataParallel):
        called.require_backward_grad_sync = is_last
    if not isinstance(called, FSDPModule):
        return
    stage = _stage(layout)
    if stage == 1:
        called.set_requires_gradient_sync(is_last)
    else:
        called.set_requires_all_reduce(is_last)
    if stage < 3:
        called.set_reshard_after_backward(is_last)


def _stage(layout: Layout) -> int:
    """What ZeRO's stage comes to: nothing is sharded over one card."""
    return 1 if layout.dp_shard == 1 else layout.zero
