"""`torch.compile`, block by block."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def compile_blocks(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Compile each block as one whole graph, in place: at its first call, which takes a while.

    Blocks are alike, so that one graph serves all of them. One for each shape that they are called
    with, and one more where documents are kept apart: shapes do not change within a stage. On a
    CPU blocks are traced as on a card, but no code is generated: that needs a C++ compiler.

    Call it after the blocks are split over `tp` and checkpointed, before they are sharded.
    """
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    for block in blocks:
        block.compile(backend=backend, fullgraph=True, dynamic=False)
