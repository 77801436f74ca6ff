"""Content that laptops upload, by its digest."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
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
            self._check_size(declared_bytes)
        if await to_thread.run_sync(self.size, digest) is not None:
            async for _ in chunks:
                pass
            return False
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._spool) as file:
            sha, size = hashlib.sha256(), 0
            async for chunk in chunks:
                size += len(chunk)
                self._check_size(size)
                sha.update(chunk)
                await to_thread.run_sync(file.write, chunk)
            await to_thread.run_sync(file.flush)
            if sha.hexdigest() != digest:
                raise ConfigError(
                    f"the content has the digest {sha.hexdigest()[:12]}…, not {digest[:12]}…",
                    where="blob",
                    hint="it was cut or changed on its way: send it again",
                )
            await to_thread.run_sync(self._store.put_file, blob_key(digest), Path(file.name))
        return True

    def _check_size(self, size: int) -> None:
        if size > self._most_bytes:
            raise PackageError(
                f"a blob may have at most {self._most_bytes} bytes, this one has {size} or more",
                where="blob",
            )
