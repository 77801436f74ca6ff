"""Files of remote stores kept on a node, by content, so that later attempts need not fetch them.

    files/<sha256>        whole, checked, never changed
    partial/<sha256>/     being downloaded, and the lock of who does it
    held/<name>/          hard links to what a live process uses, and its lock

A file that somebody holds has more than one link: it is not evicted, as that would free nothing.
All locks are flock's: the system lets them go when a process dies, however it does. What a dead
process held or had begun goes when the next one opens the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from octad.errors import DataError, StorageError
from octad.spec.checkpoints import StoredFile

FOLDER, LIMIT = "OCTAD_CACHE", "OCTAD_CACHE_BYTES"


class Cache:
    """What one process holds of a node's cache. Several processes may open the same folder.

    Args:
        root: The cache's folder; every user has an own part of it.
        limit_bytes: The least recently used files are removed until no more than this is kept.
            Files in use stay, whatever their size. None is half of the disk.

    Attributes:
        held: A folder for what this process holds, gone when it closes the cache.

    Raises:
        StorageError: Somebody else has made the folder, or the disk fails.
    """

    def __init__(self, root: Path, limit_bytes: int | None) -> None:
        self._root = root / f"octad-cache.{os.getuid()}"
        self._files, self._partial, self._holders = (
            self._root / name for name in ("files", "partial", "held")
        )
        with self._translated():
            _make_private(self._root)
            half = shutil.disk_usage(self._root).total // 2
            self._limit_bytes = half if limit_bytes is None else limit_bytes
            for folder in (self._files, self._partial, self._holders):
                folder.mkdir(mode=0o700, exist_ok=True)
            with self._alone():
                self._sweep()
                holder = Path(tempfile.mkdtemp(dir=self._holders))
                self._alive = (holder / "lock").open("wb")
                fcntl.flock(self._alive, fcntl.LOCK_EX)
            self.held = holder / "files"
            self.held.mkdir()

    @classmethod
    def of_node(cls) -> Cache:
        """The cache that the environment names: `OCTAD_CACHE`, else in the folder for temporary
        files; up to `OCTAD_CACHE_BYTES`, else half of that disk.

        Raises:
            StorageError: See the class; or the limit is no number.
        """
        root = Path(os.environ.get(FOLDER) or tempfile.gettempdir())
        limit = os.environ.get(LIMIT)
        if limit is not None and not limit.isdecimal():
            raise StorageError(f"{limit!r} is not a number of bytes", where=LIMIT)
        return cls(root, None if limit is None else int(limit))

    def close(self) -> None:
        """Hold nothing any more, and keep to the limit; idempotent."""
        with self._translated(), self._alone():
            shutil.rmtree(self.held.parent, ignore_errors=True)
            self._alive.close()
            self._evict(0)

    def hold(
        self, file: StoredFile, place: Path, download: Callable[[Path], None], where: str
    ) -> None:
        """Put a file at a place in `held`; it is downloaded if it is not kept yet.

        Args:
            file: Its digest and size.
            place: Where, inside `held`.
            download: Writes the file to the path it is given.
            where: Whence, for messages.

        Raises:
            DataError: What was downloaded is not what the digest says.
            StorageError: The disk fails.
        """
        name = file.digest.removeprefix("sha256:")
        with self._translated():
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._link(name, file.size, place):
                return
            with self._downloading(name) as partial:
                # Another process may have brought it while this one waited.
                if self._link(name, file.size, place):
                    return
                with self._alone():
                    self._evict(file.size)
                download(partial)
                _check(partial, file, where)
                with self._alone():
                    partial.replace(self._files / name)
                    place.hardlink_to(self._files / name)

    def _link(self, name: str, size: int, place: Path) -> bool:
        """Take a kept file into use, if it is there and whole."""
        kept = self._files / name
        with self._alone():
            try:
                if kept.stat().st_size != size:
                    kept.unlink()
                    return False
                os.utime(kept)
            except FileNotFoundError:
                return False
            place.hardlink_to(kept)
        return True

    @contextmanager
    def _downloading(self, name: str) -> Iterator[Path]:
        """A path to download to, for one process at a time; what is left there goes."""
        folder = self._partial / name
        with _locked(folder):
            try:
                yield folder / "file"
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _evict(self, more_bytes: int) -> None:
        """Remove what is not used, the longest unused first, until so much more fits."""
        found = [(path, path.stat()) for path in self._files.iterdir()]
        kept_bytes = sum(stat.st_size for _, stat in found)
        for path, stat in sorted(found, key=lambda pair: pair[1].st_mtime_ns):
            free_bytes = shutil.disk_usage(self._root).free
            if kept_bytes + more_bytes <= self._limit_bytes and more_bytes <= free_bytes:
                return
            if stat.st_nlink == 1:
                path.unlink()
                kept_bytes -= stat.st_size

    def _sweep(self) -> None:
        """Remove what processes that have died held, or had begun to download."""
        for folder in (*self._holders.iterdir(), *self._partial.iterdir()):
            _remove_if_free(folder)

    def _alone(self) -> AbstractContextManager[None]:
        """Nobody else changes the folder meanwhile. For moments, never for a download."""
        return _locked(self._root)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the cache cannot be used: {error.strerror}",
                where=str(self._root),
                hint=f"set {FOLDER} to a folder on a local disk with room",
            ) from None


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise StorageError(
            "belongs to another user", where=str(folder), hint=f"remove it, or set {FOLDER}"
        )


def _check(path: Path, file: StoredFile, where: str) -> None:
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    if f"sha256:{digest}" != file.digest:
        raise DataError("was changed: its digest is wrong", where=where)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone with a folder, which is made if needed."""
    with _lock(folder):
        yield


def _lock(folder: Path) -> IO[bytes]:
    """The lock of a folder, once nobody else has it. To be closed."""
    while True:
        folder.mkdir(exist_ok=True)
        # Who had it may have removed the folder with it.
        with suppress(FileNotFoundError), ExitStack() as stack:
            opened = stack.enter_context((folder / "lock").open("ab"))
            fcntl.flock(opened, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(opened.fileno()), (folder / "lock").stat()):
                stack.pop_all()
                return opened


def _remove_if_free(folder: Path) -> None:
    """Remove a folder whose lock no live process has."""
    with suppress(BlockingIOError, FileNotFoundError), (folder / "lock").open("ab") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
