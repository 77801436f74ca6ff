"""Artefacts as the workers read and write them: each node fetches once, each file is checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlparse

import torch.distributed as dist

from octad.errors import DataError
from octad.spec.artefacts import Artefact, ArtefactType
from octad.spec.checkpoints import StoredFile
from octad.spec.stages import AttemptOrder
from octad.storage.objects import ObjectStore

MANIFEST = "manifest.json"


@contextmanager
def node_folder(order: AttemptOrder) -> Iterator[Path]:
    """A folder that the processes of this attempt on this node share; gone at the end."""
    name = f"octad-{os.getuid()}-{order.run}-{order.stage.name}-{order.attempt}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        if is_first_on_node():
            shutil.rmtree(folder, ignore_errors=True)


def is_first_on_node() -> bool:
    """One process of each node."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def fetch(store: ObjectStore, artefact: Artefact, folder: Path) -> Path:
    """A folder artefact as a local folder; every rank calls this and comes back when it is there.

    Raises:
        DataError: A file does not have the digest that the artefact promises.
    """
    target = folder / artefact.name
    local = urlparse(artefact.uri).scheme == "file"
    if local:
        target = Path(unquote(urlparse(artefact.uri).path))
    elif is_first_on_node() and not target.exists():
        _download(store, artefact, target)
    dist.barrier()
    return target


def _download(store: ObjectStore, artefact: Artefact, target: Path) -> None:
    key = store.key(artefact.uri)
    raw = store.get(f"{key}/{MANIFEST}")
    _check(raw, artefact.digest, artefact.uri)
    part = target.with_name(f"{target.name}.part")
    for entry in json.loads(raw)["files"]:
        file = StoredFile.parse(entry)
        data = store.get(f"{key}/{file.path}")
        _check(data, file.digest, f"{artefact.uri}/{file.path}")
        path = part / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    part.rename(target)


def _check(data: bytes, digest: str, where: str) -> None:
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise DataError("its digest is not what it was when it was made", where=where)


def publish(store: ObjectStore, key: str, name: str, kind: ArtefactType, folder: Path) -> Artefact:
    """Upload a local folder under `key`, its manifest last."""
    files = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        inner = path.relative_to(folder).as_posix()
        store.put_file(f"{key}/{inner}", path)
        files.append(
            StoredFile(path=inner, size=path.stat().st_size, digest=f"sha256:{digest}").plain()
        )
    raw = json.dumps({"files": files}, sort_keys=True).encode()
    store.put(f"{key}/{MANIFEST}", raw)
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    return Artefact(name=name, type=kind, uri=store.url(key), digest=digest)
