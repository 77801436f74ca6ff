"""A tensor in the format of torch.save, made without a copy."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

from octad.train._items import pieces

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]


def read(tensor: Tensor) -> Tensor:
    loaded: Tensor = torch.load(io.BytesIO(b"".join(pieces(tensor))), weights_only=True)
    return loaded


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (300, 301)], ids=str)
def test_torch_reads_it(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9).to(dtype)
    loaded = read(tensor)
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert torch.equal(loaded.float(), tensor.float())


def test_a_view_is_written_without_the_rest_of_its_storage() -> None:
    whole = torch.rand(1000, 1000)
    for view in (whole[100:500], whole.T, whole[:, 3:500], whole[7], whole[::2]):
        raw = b"".join(pieces(view))
        assert len(raw) < view.nbytes + 4096
        assert torch.equal(torch.load(io.BytesIO(raw), weights_only=True), view)


def test_a_large_tensor_is_not_copied() -> None:
    tensor = torch.zeros(1 << 20)
    made = list(pieces(tensor))
    tensor.fill_(7.0)
    loaded = torch.load(io.BytesIO(b"".join(made)), weights_only=True)
    assert loaded.eq(7).all()
    assert max(map(len, made)) <= 8 << 20
