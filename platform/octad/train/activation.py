"""Activation checkpointing: what the backward pass needs of a block is computed again, not kept.

| kept of each block | memory | computed again |
|---|---|---|
| `none` | everything | nothing |
| `selective` | what comes in; results of matrix products, attention and reduce-scatters | norms, activations, rotations, sums, all-gathers |
| `full` | what comes in | the block |

Results do not change by a bit: the same operations run on the same numbers. Random numbers are not
drawn again as they were: a model family draws none inside of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from octad.train.settings import Recompute

# What takes long for the memory that its result takes.
_KEPT = (
    ("aten", "mm"),
    ("aten", "addmm"),
    ("aten", "bmm"),
    ("aten", "_scaled_mm"),  # fp8
    ("aten", "_scaled_dot_product_flash_attention"),
    ("aten", "_scaled_dot_product_flash_attention_for_cpu"),
    ("aten", "_scaled_dot_product_efficient_attention"),
    ("aten", "_scaled_dot_product_cudnn_attention"),
    ("_c10d_functional", "reduce_scatter_tensor"),
)


def recompute(blocks: Iterable[nn.Module], how: Recompute) -> None:
    """Checkpoint each block, in place. Its weights keep their names.

    Call it after the blocks are split over `tp`, before they are compiled and sharded.
    """
    if how == "none":
        return
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if how == "selective":
        kept = [getattr(getattr(torch.ops, space), name).default for space, name in _KEPT]
        again = partial(again, context_fn=partial(create_selective_checkpoint_contexts, kept))
    for block in blocks:
        # Not a wrapper module, which would change the names of weights.
        block.forward = _checkpointed(block.forward, again)


def _checkpointed(forward: Callable[..., Any], again: Callable[..., Any]) -> Callable[..., Any]:
    # A function of ours, since the compiler passes over torch's own.
    def checkpointed(*inputs: Any, **options: Any) -> Any:
        return again(forward, *inputs, **options)

    return checkpointed
