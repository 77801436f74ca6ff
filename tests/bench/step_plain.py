"""The peer of `step.py`: a training loop as one writes it by hand for torchrun, and the turns in
which it and our worker train.

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

from octad.data.loader import Batch, Loader
from octad.models.decoder import Settings, init_std
from octad.models.decoder.network import Decoder
from octad.train.worker import train


def turns(config: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of each turn of a few steps, on rank 0: ours, and those by hand.

    Our worker trains as it does, but where it asks for the first batch of its turn, the loop by hand
    has its turn first. The last turn of ours is not seen to its end, and left out.
    """
    by_hand, num_steps = ByHand(config), config["turn"]
    ours: list[float] = []
    peer: list[float] = []
    load, since_s, taken = Loader.__next__, 0.0, 0

    def batch(loader: Loader) -> Batch:
        nonlocal since_s, taken
        if taken % num_steps == 0:
            if taken:
                ours.append(time.perf_counter() - since_s)
            dist.barrier()
            peer.append(by_hand.steps(num_steps))
            dist.barrier()
            since_s = time.perf_counter()
        taken += 1
        return load(loader)

    Loader.__next__ = batch  # type: ignore[assignment,method-assign]
    try:
        train(config["job"])
    finally:
        Loader.__next__ = load  # type: ignore[method-assign]
    return {"ours": ours, "by_hand": peer[: len(ours)]}


class ByHand:
    """The loop."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.rank, size = dist.get_rank(), dist.get_world_size()
        self.model = wrapped(started(Settings.parse(config["model"])), config["wrap"])
        decays = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=config["lr"],
            betas=(0.9, 0.95),
            fused=True,
        )
        self.samples = np.load(config["samples"], mmap_mode="r")
        self.share = config["global_batch"] // size
        self.rng = np.random.default_rng(0)

    def steps(self, number: int) -> float:
        """Seconds of so many steps."""
        began = time.perf_counter()
        for step in range(number):
            chosen = self.rng.permutation(len(self.samples))[self.rank * self.share :][: self.share]
            batch = torch.from_numpy(self.samples[chosen].astype(np.int64))
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                loss.item()
        return time.perf_counter() - began


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
