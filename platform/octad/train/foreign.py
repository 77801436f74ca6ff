"""Folders that other tools have written, as local files: each checked against its digest before
anything looks into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from octad.errors import DataError, NotFoundError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import StoredFile
from octad.spec.corpora import Snapshot
from octad.spec.home import expanded
from octad.spec.keys import blob_key
from octad.spec.tensor_files import listed
from octad.storage import artefacts
from octad.storage.lineage import MANIFEST
from octad.storage.objects import ObjectStore, digest_of


def brought(store: ObjectStore, folder: Any, scratch: Path, notes: list[str]) -> dict[str, Path]:
    """The files of a folder, by name.

    Of a store that is a local folder they are read where they lie.

    Args:
        store: The run's own.
        folder: With `path`, `url`, `snapshot` and `label`.
        scratch: Where to download to; need not be there yet.
        notes: Gets what people should know.

    Raises:
        DataError: A file is missing or was changed; names it.
        ConfigError: The URL lies in another store.
    """
    if folder.snapshot is not None:
        return _sent(store, folder.snapshot, folder.label, scratch)
    if folder.url is not None:
        return _stored(store, folder.url.rstrip("/"), scratch, notes)
    return listed(expanded(Path(folder.path)), folder.label)


def _sent(store: ObjectStore, digest: str, label: str, scratch: Path) -> dict[str, Path]:
    raw = store.find(blob_key(digest))
    if raw is None:
        raise DataError(
            "the list of what was sent is not in the store",
            where=label,
            hint="submit the run again",
        )
    if digest_of(raw) != f"sha256:{digest}":
        raise DataError("the list of what was sent was changed: its digest is wrong", where=label)
    try:
        snapshot = Snapshot.model_validate_json(raw)
    except ValidationError:
        raise DataError("lists no files", where=label) from None
    return {file.path: _blob(store, file, label, scratch) for file in snapshot.files}


def _blob(store: ObjectStore, file: StoredFile, label: str, scratch: Path) -> Path:
    digest = file.digest.removeprefix("sha256:")
    key, where = blob_key(digest), f"{label}/{file.path}"
    path = store.local_path(key)
    if path is None:
        path = scratch / digest
        try:
            store.download(key, path)
        except NotFoundError:
            path = None
    if path is None or not path.is_file():
        raise DataError("was not sent whole", where=where, hint="submit the run again")
    if artefacts.stored_file(file.path, path).digest != file.digest:
        raise DataError("was changed: its digest is wrong", where=where)
    return path


def _stored(store: ObjectStore, url: str, scratch: Path, notes: list[str]) -> dict[str, Path]:
    key = store.key(url)
    raw = store.find(f"{key}/{MANIFEST}")
    if raw is not None and _is_list(raw):
        artefact = Artefact(name="weights", type="weights", uri=url, digest=digest_of(raw))
        local = artefacts.fetch(store, artefact, scratch)
        # Not what lies beside them: nothing vouches for that.
        names = [file.path for file in artefacts.files_of(store, artefact)]
        return {name: local / name for name in names}
    found: dict[str, Path] = {}
    for meta in store.walk(f"{key}/"):
        name = meta.key.removeprefix(f"{key}/")
        if "/" not in name:
            path = store.local_path(meta.key)
            if path is None:
                path = scratch / name
                store.download(meta.key, path)
            found[name] = path
    if not found:
        raise DataError("there is no such folder in the store", where=url)
    notes.append(f"{url} has no {MANIFEST}: there was no digest to check its files against")
    return found


def _is_list(raw: bytes) -> bool:
    try:
        value = json.loads(raw)
    except ValueError:
        return False
    return isinstance(value, Mapping) and "files" in value
