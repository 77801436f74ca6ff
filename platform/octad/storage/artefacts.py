"""Artefacts in the store: folders with a manifest, or single objects; every byte has a digest.

A folder artefact is `<key>/...files...` and `<key>/manifest.json`, written last, which lists each
file with its size and digest. The artefact's own digest is that of the manifest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from octad.errors import CheckpointError, DataError, NotFoundError
from octad.spec.artefacts import Artefact, ArtefactType
from octad.spec.checkpoints import StoredFile
from octad.storage.cache import Cache
from octad.storage.lineage import MANIFEST, verify_files
from octad.storage.objects import ObjectStore, digest_of

_FILES_AT_ONCE = 4
# Names that a store cannot hold: control characters, bytes that are no UTF-8, and an ending that
# a local folder keeps for unfinished uploads.
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|#\d+$")


def publish_folder(
    store: ObjectStore, key: str, name: str, kind: ArtefactType, folder: Path
) -> Artefact:
    """Upload a local folder under `key`, its manifest last.

    Raises:
        DataError: It holds no file, or one whose name the store cannot hold or needs itself.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise DataError(f"the artefact {name!r} has no files", where=str(folder))
    if folder / MANIFEST in paths:
        raise DataError(
            f"{MANIFEST} is a name that the store needs for itself",
            where=str(folder / MANIFEST),
            hint="give the file another name, or put it in a folder",
        )
    names = [path.relative_to(folder).as_posix() for path in paths]
    for inside in names:
        if _UNFIT.search(inside):
            raise DataError(
                f"the store cannot hold a file called {inside!r}",
                where=ascii(str(folder))[1:-1],
                hint="give the file another name",
            )
    files = []
    for inside, path in zip(names, paths, strict=True):
        files.append(stored_file(inside, path))
        store.put_file(f"{key}/{inside}", path)
    return seal_folder(store, key, name, kind, files)


def seal_folder(
    store: ObjectStore, key: str, name: str, kind: ArtefactType, files: Sequence[StoredFile]
) -> Artefact:
    """Make an artefact of files that lie under `key` already: write its manifest."""
    raw = json.dumps({"files": [file.plain() for file in files]}, sort_keys=True).encode()
    store.put(f"{key}/{MANIFEST}", raw)
    return Artefact(name=name, type=kind, uri=store.url(key), digest=digest_of(raw))


def publish_object(
    store: ObjectStore, key: str, name: str, kind: ArtefactType, data: bytes
) -> Artefact:
    """Store bytes as an artefact."""
    store.put(key, data)
    return Artefact(name=name, type=kind, uri=store.url(key), digest=digest_of(data))


def files_of(store: ObjectStore, artefact: Artefact) -> tuple[StoredFile, ...]:
    """What a folder artefact holds; looks at sizes, not into the files.

    Raises:
        DataError: Its manifest is missing or was changed, or a file is missing or has another
            size; names it.
    """
    key = store.key(artefact.uri)
    raw = store.find(f"{key}/{MANIFEST}")
    if raw is None:
        raise DataError("is missing", where=artefact.uri)
    files = _files(raw, artefact)
    sizes = {meta.key: meta.size for meta in store.walk(f"{key}/")}
    for file in files:
        size = sizes.get(f"{key}/{file.path}")
        if size != file.size:
            what = "is missing" if size is None else f"has {size} bytes, not {file.size}"
            raise DataError(what, where=store.url(f"{key}/{file.path}"))
    return files


def fetch(store: ObjectStore, artefact: Artefact, folder: Path, cache: Cache | None = None) -> Path:
    """An artefact as a local folder or file, every byte of it checked.

    A store that is a local folder gives the artefact in place, which must then not be written to.

    Args:
        store: Where it lies.
        artefact: What is wanted.
        folder: Where to download to.
        cache: Holds the files of a folder artefact instead; the path is good until it is closed.

    Raises:
        DataError: A file is missing or was changed; names it.
    """
    key = store.key(artefact.uri)
    raw = store.find(f"{key}/{MANIFEST}")
    if raw is None:
        return _fetch_object(store, artefact, folder)
    files = _files(raw, artefact)
    local = store.local_path(key)
    if local is not None:
        try:
            verify_files(store, key, files)
        except CheckpointError as error:
            raise DataError(error.what, where=error.where) from None
        return local
    target = (folder if cache is None else cache.held) / _short(artefact)

    def bring(file: StoredFile) -> None:
        path = target / file.path
        if target.resolve() not in path.resolve().parents:
            raise DataError(f"names a file outside its folder: {file.path!r}", where=artefact.uri)
        inside = f"{key}/{file.path}"
        if cache is None:
            _download(store, inside, path, file.digest)
        elif not path.exists():
            cache.hold(file, path, lambda partial: _copy(store, inside, partial), store.url(inside))

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(bring, files))
    return target


def _fetch_object(store: ObjectStore, artefact: Artefact, folder: Path) -> Path:
    key = store.key(artefact.uri)
    local = store.local_path(key)
    if local is None:
        path = folder / _short(artefact) / key.rpartition("/")[2]
        _download(store, key, path, artefact.digest)
        return path
    try:
        digest = store.digest(key)
    except NotFoundError:
        raise DataError("is missing", where=artefact.uri) from None
    if digest != artefact.digest:
        raise DataError("was changed: its digest is wrong", where=artefact.uri)
    return local


def _download(store: ObjectStore, key: str, path: Path, digest: str) -> None:
    """An object as a local file with this digest, where there is none yet."""
    if not path.exists():
        _copy(store, key, path)
    if stored_file(path.name, path).digest != digest:
        path.unlink()
        raise DataError("was changed: its digest is wrong", where=store.url(key))


def _copy(store: ObjectStore, key: str, path: Path) -> None:
    try:
        store.download(key, path)
    except NotFoundError:
        raise DataError("is missing", where=store.url(key)) from None


def _short(artefact: Artefact) -> str:
    return artefact.digest.removeprefix("sha256:")[:32]


def _files(raw: bytes, artefact: Artefact) -> tuple[StoredFile, ...]:
    """What the manifest of an artefact lists."""
    if digest_of(raw) != artefact.digest:
        raise DataError("its manifest was changed", where=artefact.uri)
    try:
        listed: list[dict[str, Any]] = json.loads(raw)["files"]
    except (ValueError, KeyError, TypeError):
        raise DataError("its manifest lists no files", where=artefact.uri) from None
    return tuple(StoredFile.parse(entry, where=artefact.uri) for entry in listed)


def stored_file(inside: str, path: Path) -> StoredFile:
    """Size and digest of a local file that has the path `inside` in its folder."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return StoredFile(path=inside, size=path.stat().st_size, digest=f"sha256:{digest}")
