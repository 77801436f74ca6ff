"""Which layouts need FSDP's weights."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from octad.spec.layouts import Layout
from octad.train.data_parallel import needs_shards

PLAIN = MixedPrecisionPolicy()
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, False),
        ({"tp": 2}, False),
        ({"pp": 2}, False),
        ({"dp_replicate": 2}, False),
        ({"dp_replicate": 2, "tp": 2}, True),
        ({"dp_replicate": 2, "pp": 2}, True),
        ({"dp_shard": 2}, True),
    ],
)
def test_only_what_is_sharded_or_cast_is_wrapped(axes: dict[str, int], expected: bool) -> None:
    layout = Layout.parse({"dp_shard": 1, **axes})
    assert needs_shards(layout, PLAIN, offload=False) is expected
    assert needs_shards(layout, BF16, offload=False)
    assert needs_shards(layout, PLAIN, offload=True)
