"""Packages of Ray's clients, and octad's own code as one: all are blobs of the store."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import zipfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

from anyio import to_thread

import octad
from octad.control.blobs import Blobs
from octad.control.database import Database
from octad.control.tables import RayPackage
from octad.errors import ConfigError, NotFoundError, PackageError
from octad.spec.archives import ArchiveLimits, check_members
from octad.spec.keys import blob_key
from octad.storage import ObjectStore

# What a Ray dashboard takes in one request: more would reach no cluster.
MAX_PACKAGE_BYTES = 100 * 1024**2
LIMITS = ArchiveLimits(members=20_000, member_bytes=1024**3, bytes=1024**3)
_NAME = re.compile(r"_ray_pkg_[0-9a-f]{16,64}\.zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_BROKEN = (zipfile.BadZipFile, OSError, EOFError, zlib.error, NotImplementedError, RuntimeError)


class RayPackages:
    """The service behind the routes of packages.

    Args:
        database: Remembers which blob a package is.
        store: Holds them.
        blobs: Takes them.
    """

    def __init__(self, database: Database, store: ObjectStore, blobs: Blobs) -> None:
        self._database = database
        self._store = store
        self._blobs = blobs
        self._own = ""
        self._lock = threading.Lock()

    def digest(self, name: str) -> str | None:
        """The blob of a package; None if it is not there."""
        with self._database.read() as session:
            row = session.get(RayPackage, name)
        if row is None or self._store.size(blob_key(row.digest)) is None:
            return None
        return row.digest

    def needed(self, name: str, where: str) -> str:
        """The blob of a package that has been uploaded.

        Raises:
            NotFoundError: It has not.
        """
        digest = self.digest(name)
        if digest is None:
            raise NotFoundError(f"package {name} was not uploaded", where=where)
        return digest

    async def put(
        self, protocol: str, name: str, chunks: AsyncIterator[bytes], declared_bytes: int | None
    ) -> None:
        """Take a package. A job keeps the content that it was submitted with.

        Raises:
            ConfigError: It has no name of Ray's.
            PackageError: It is too large, no zip, damaged, or holds what must not be unpacked.
        """
        check_package_name(protocol, name)
        digest = await self._blobs.take(
            chunks,
            declared_bytes,
            most_bytes=MAX_PACKAGE_BYTES,
            check=lambda file: check_package(file, name),
        )
        await to_thread.run_sync(self._remember, name, digest)

    def own_code(self) -> str:
        """The digest of octad's own code as a package, which is in the store."""
        with self._lock:
            if not self._own:
                data = own_package()
                digest = hashlib.sha256(data).hexdigest()
                if self._store.size(blob_key(digest)) is None:
                    self._store.put(blob_key(digest), data)
                self._own = digest
            return self._own

    def _remember(self, name: str, digest: str) -> None:
        with self._database.write() as session:
            session.merge(RayPackage(name=name, digest=digest))


def check_package_name(protocol: str, name: str) -> None:
    """Refuse what is no package of a client.

    Raises:
        ConfigError: It is none.
    """
    if protocol != "gcs" or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:80]!r} is not a package that octad takes",
            where="package",
            hint="it takes working_dir and py_modules as .zip; list wheels under pip",
        )


def check_package(file: Path, name: str) -> None:
    """Refuse a package that no node should unpack.

    Raises:
        PackageError: It is no zip, is damaged, or holds what it must not.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = check_members(archive.infolist(), LIMITS, name)
            tops = {info.filename.split("/")[0] for info in members}
            hidden = tops & {"octad", "octad.py"}
            if hidden:
                raise PackageError(
                    f"holds {hidden.pop()!r}, which would hide octad itself",
                    where=name,
                    hint="rename it, or submit from the folder above",
                )
            damaged = archive.testzip()
    except _BROKEN as error:
        raise PackageError(f"cannot be unpacked: {error}", where=name) from None
    if damaged is not None:
        raise PackageError(f"{damaged[:200]!a} in it is damaged", where=name)


def own_package() -> bytes:
    """Octad as a zip: the same files give the same bytes."""
    folder = Path(octad.__file__).resolve().parent
    files = {path.relative_to(folder.parent).as_posix(): path for path in folder.rglob("*.py")}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, path in sorted(files.items()):
            if not name.startswith("octad/_bundled/"):
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.create_system = 3
                info.external_attr = 0o100644 << 16
                archive.writestr(info, path.read_bytes())
    return data.getvalue()
