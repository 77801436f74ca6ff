"""Local files that appear whole or not at all."""

from __future__ import annotations

import io
import os
import secrets
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

# A process may make the next chunk while these are being written.
_CHUNKS_AHEAD = 4
# The disk is kept busy while the rest is still being made, instead of at the end.
_SYNC_EVERY_BYTES = 32 * 1024 * 1024


def write_file(path: Path, chunks: Iterable[bytes | memoryview], *, is_synced: bool = True) -> None:
    """Write or replace a file; what `chunks` raises comes out, and nothing is left behind.

    A thread writes while the next chunk is made.

    Args:
        path: Where to; missing folders are made.
        chunks: Its content; none may change before the file is there.
        is_synced: Return only when the disk has it all, so that a power cut loses nothing.

    Raises:
        OSError: The file system does not take it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name like that of obstore's own unfinished files: no listing shows it.
    partial = path.with_name(f"{path.name}#{secrets.randbelow(10**12)}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        try:
            _write(handle, chunks, is_synced=is_synced)
        finally:
            os.close(handle)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if is_synced:
        _sync_folder(path.parent)


def open_range(path: Path, offset: int, length: int) -> IO[bytes]:
    """`length` bytes of a file from `offset` on, as a file of their own.

    Raises:
        OSError: There is no such file, or it is shorter.
    """
    opened = path.open("rb", buffering=0)
    if os.fstat(opened.fileno()).st_size < offset + length:
        opened.close()
        raise OSError(f"is shorter than {offset + length} bytes")
    return cast("IO[bytes]", _Range(opened, offset, length))


class _Range(io.RawIOBase):
    """Part of an open file, which it closes."""

    def __init__(self, opened: io.FileIO, offset: int, length: int) -> None:
        self._opened, self._offset, self._length, self._at = opened, offset, length, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Read on from there."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Where the next byte is read, from the start of the part."""
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill `target`, except at the end: torch asks once for gigabytes, a system gives two."""
        began = self._at
        left = memoryview(target)[: max(0, self._length - self._at)]
        while left:
            num_read = os.preadv(self._opened.fileno(), [left], self._offset + self._at)
            if not num_read:
                break
            self._at += num_read
            left = left[num_read:]
        return self._at - began

    def close(self) -> None:
        """Close the whole file."""
        self._opened.close()
        super().close()


def _write(handle: int, chunks: Iterable[bytes | memoryview], *, is_synced: bool) -> None:
    num_unsynced = 0

    def append(chunk: bytes | memoryview) -> None:
        nonlocal num_unsynced
        left = memoryview(chunk)
        while left:
            left = left[os.write(handle, left) :]
        num_unsynced += len(chunk)
        if is_synced and num_unsynced >= _SYNC_EVERY_BYTES:
            os.fdatasync(handle)
            num_unsynced = 0

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="write") as writer:
        pending: deque[Future[None]] = deque()
        for chunk in chunks:
            pending.append(writer.submit(append, chunk))
            if len(pending) > _CHUNKS_AHEAD:
                pending.popleft().result()
        for written in pending:
            written.result()
    if is_synced:
        os.fsync(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
