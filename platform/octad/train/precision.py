"""In which number format a model computes and sums."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from octad.train.settings import Precision


def policy(precision: Precision) -> MixedPrecisionPolicy:
    """Weights stay in fp32; `bf16` casts them for compute and sums gradients in fp32."""
    if precision.kind == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
