"""Content that laptops upload, by its digest."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread

from octad.errors import ConfigError, PackageError
from octad.spec.keys import blob_key
from octad.storage import ObjectStore

MAX_BLOB_BYTES = 16 * 1024**3
_DIGEST = re.compile(r"[0-9a-f]{64}")


def checked_digest(text: str) -> str:
    """`text` if it is a sha256 in hex.

    Raises:
        ConfigError: It is not.
    """
    if not _DIGEST.fullmatch(text):
        raise ConfigError(f"{text[:80]!r} is not a sha256 in hex", where="blob")
    return text


class Blobs:
    """The service behind the routes of blobs.

    Args:
        store: Where they go.
        spool: A folder for what is on its way.
        most_bytes: The largest that is taken.
    """

    def __init__(self, store: ObjectStore, spool: Path, most_bytes: int = MAX_BLOB_BYTES) -> None:
        self._store = store
        self._spool = spool
        self._most_bytes = most_bytes

    def size(self, digest: str) -> int | None:
        """Of a blob, or None if it is not there."""
        return self._store.size(blob_key(checked_digest(digest)))

    async def put(
        self, digest: str, chunks: AsyncIterator[bytes], declared_bytes: int | None
    ) -> bool:
        """Take a blob, through a file on disk; it is stored only if its digest is right.

        Returns:
            Whether it is new.

        Raises:
            PackageError: It is too large.
            ConfigError: Its content has another digest.
        """
        checked_digest(digest)
        if declared_bytes is not None:
            _check_size(declared_bytes, self._most_bytes)
        if await to_thread.run_sync(self.size, digest) is not None:
            async for _ in chunks:
                pass
            return False
        async with self._spooled(chunks, self._most_bytes) as (file, found):
            if found != digest:
                raise ConfigError(
                    f"the content has the digest {found[:12]}…, not {digest[:12]}…",
                    where="blob",
                    hint="it was cut or changed on its way: send it again",
                )
            await to_thread.run_sync(self._store.put_file, blob_key(digest), file)
        return True

    async def take(
        self,
        chunks: AsyncIterator[bytes],
        declared_bytes: int | None,
        *,
        most_bytes: int,
        check: Callable[[Path], None],
    ) -> str:
        """Take a blob whose digest its sender does not say.

        Args:
            chunks: Its content.
            declared_bytes: How much that will be, if its sender says so.
            most_bytes: The largest that is taken.
            check: Raises if it is not to be taken.

        Returns:
            Its digest.

        Raises:
            PackageError: It is too large.
        """
        _check_size(declared_bytes or 0, most_bytes)
        async with self._spooled(chunks, most_bytes) as (file, digest):
            await to_thread.run_sync(check, file)
            if await to_thread.run_sync(self.size, digest) is None:
                await to_thread.run_sync(self._store.put_file, blob_key(digest), file)
        return digest

    @asynccontextmanager
    async def _spooled(
        self, chunks: AsyncIterator[bytes], most_bytes: int
    ) -> AsyncIterator[tuple[Path, str]]:
        """The content in a file on disk, for as long as it is looked at; and its digest."""
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._spool) as file:
            sha, size = hashlib.sha256(), 0
            async for chunk in chunks:
                size += len(chunk)
                _check_size(size, most_bytes)
                sha.update(chunk)
                await to_thread.run_sync(file.write, chunk)
            await to_thread.run_sync(file.flush)
            yield Path(file.name), sha.hexdigest()


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise PackageError(
            f"a blob may have at most {most_bytes} bytes, this one has {size} or more",
            where="blob",
        )
