"""A tensor in the format of `torch.save`, without a copy of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.serialization import get_crc32_options, set_crc32_options

_PIECE_BYTES = 8 << 20
# A smaller tensor is copied with its headers. Headers alone are always smaller than this.
_LARGE_BYTES = 1 << 16


def pieces(tensor: Tensor) -> Iterator[bytes | memoryview]:
    """What `torch.save` would write, in pieces of at most 8 MiB that share the tensor's memory.

    Args:
        tensor: In host memory; it must not change before the pieces are used.
    """
    tensor = tensor.detach()
    if tensor.nbytes < _LARGE_BYTES:
        yield _saved(tensor)
        return
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().data
    # torch.save writes a tensor's whole storage: this one has its own.
    exact = torch.frombuffer(raw, dtype=torch.uint8).view(tensor.dtype)
    sink = _Sink(raw)
    with _without_checksums():
        torch.save(exact.view(tensor.shape), cast("Any", sink))
    assert sink.is_complete
    for piece in sink.pieces:
        for start in range(0, len(piece), _PIECE_BYTES):
            yield piece[start : start + _PIECE_BYTES]


def _saved(tensor: Tensor) -> bytes:
    if tensor.untyped_storage().size() != tensor.nbytes:
        tensor = tensor.clone()
    buffer = io.BytesIO()
    with _without_checksums():
        torch.save(tensor, buffer)
    return buffer.getvalue()


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Zip's own checksums take as long as writing does; a manifest has better ones."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


class _Sink:
    """A file for torch.save that copies its headers and only notes where the tensor goes."""

    def __init__(self, content: memoryview) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.is_complete = False
        self._content = content

    def write(self, piece: memoryview) -> int:
        if len(piece) < _LARGE_BYTES:
            self.pieces.append(bytes(piece))
        else:
            assert len(piece) == len(self._content)
            self.pieces.append(self._content)
            self.is_complete = True
        return len(piece)

    def flush(self) -> None:
        """Nothing is held back."""
