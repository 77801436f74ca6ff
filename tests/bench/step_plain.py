"""The peer of `step.py`: a training loop as one writes it by hand for torchrun.

The same network, data, optimizer, clipping and layout, and nothing else: no metrics but the loss,
which is looked at every tenth step.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from octad.models.decoder import Settings, init_std
from octad.models.decoder.network import Decoder


def run(config: dict[str, Any]) -> list[float]:
    """Seconds of each step, on rank 0."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = wrapped(started(Settings.parse(config["model"])), config["wrap"])
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=config["lr"],
        betas=(0.9, 0.95),
        fused=True,
    )
    samples = np.load(config["samples"], mmap_mode="r")
    rng = np.random.default_rng(0)
    share = config["global_batch"] // size
    took = []
    dist.barrier()
    began = time.perf_counter()
    for step in range(config["steps"]):
        chosen = rng.permutation(len(samples))[rank * share : (rank + 1) * share]
        batch = torch.from_numpy(samples[chosen].astype(np.int64))
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
        now = time.perf_counter()
        took.append(now - began)
        began = now
    return took


def started(settings: Settings) -> Decoder:
    """A network with the weights that training starts from."""
    model = Decoder(settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = init_std(settings, name)
            if std is None:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)
    return model


def wrapped(model: Decoder, how: str) -> nn.Module:
    """Nothing, DDP, or FSDP2 of each block and the rest."""
    if how == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if how == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model
