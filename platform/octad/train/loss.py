"""Cross-entropy of the next token, summed; also over logits that are split by vocabulary."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel

IGNORE = -100  # a target that does not count


def split_vocabulary(logits: Tensor) -> AbstractContextManager[None]:
    """What `summed_loss` of these logits, and its backward, must run in."""
    if isinstance(logits, DTensor) and logits.placements[0].is_shard():
        return loss_parallel()
    return nullcontext()


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over all targets that count: B S V and int64 B S -> a plain scalar.

    Divide by the number of valid tokens of the whole global batch, not of this part.
    """
    if isinstance(logits, DTensor):
        targets = DTensor.from_local(targets, logits.device_mesh, [Replicate()], run_check=False)
    loss = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return loss.to_local() if isinstance(loss, DTensor) else loss
