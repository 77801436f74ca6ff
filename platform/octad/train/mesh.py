"""The device mesh of one stage, as each rank sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from octad.spec.layouts import Layout
from octad.train.processes import CARD_KIND


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others.

    Attributes:
        device: Where its tensors live.
        layout: The resolved layout.
        data: The mesh that shards weights: one axis, or two with replicas outside.
        tp: The tensor-parallel axis, None where it is 1.
        pp: The pipeline axis, None where it is 1.
        data_rank: Which part of a global batch is this process's.
    """

    device: torch.device
    layout: Layout
    data: DeviceMesh
    tp: DeviceMesh | None
    pp: DeviceMesh | None
    data_rank: int

    @property
    def rank(self) -> int:
        """Among all processes of the stage."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """Number of processes, one per card."""
        return dist.get_world_size()

    @property
    def is_first(self) -> bool:
        """The one that records and reports."""
        return self.rank == 0

    @property
    def is_data_first(self) -> bool:
        """One process of all that see the same samples: of a tensor-parallel and pipeline group."""
        return self.rank % self.layout.tp == 0 and self.pp_rank == 0

    @property
    def pp_rank(self) -> int:
        """Place in the pipeline."""
        return 0 if self.pp is None else self.pp.get_local_rank()

    @property
    def pp_parts(self) -> tuple[int, ...]:
        """Which parts of the model this process holds."""
        return self.layout.pp_parts(self.pp_rank)

    @property
    def num_pp_parts(self) -> int:
        """Into how many parts the model is split."""
        return self.layout.num_pp_parts


def join(layout: Layout) -> Ranks:
    """Build the mesh. The process group must be up, and every rank must call this.

    A tp group is a run of neighbours, which share a node.
    """
    device = own_device()
    axes = layout.axes
    mesh = init_device_mesh(device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))
    data = mesh["dp_replicate", "dp_shard"] if layout.dp_replicate > 1 else mesh["dp_shard"]
    return Ranks(
        device=device,
        layout=layout,
        data=data,
        tp=mesh["tp"] if layout.tp > 1 else None,
        pp=mesh["pp"] if layout.pp > 1 else None,
        data_rank=dist.get_rank() // layout.tp % layout.data_parallel,
    )


def own_device() -> torch.device:
    """The card of this process."""
    if os.environ.get(CARD_KIND, "sim") == "sim":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
