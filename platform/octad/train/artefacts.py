"""Artefacts as the workers read them: each node fetches and checks once, for all its processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from octad.errors import StorageError
from octad.spec.artefacts import Artefact
from octad.spec.stages import AttemptOrder
from octad.storage import artefacts
from octad.storage.cache import Cache
from octad.storage.objects import ObjectStore

_FETCH_LIMIT = timedelta(hours=12)  # the largest dataset, over a slow line


@contextmanager
def node_folder(order: AttemptOrder) -> Iterator[Path]:
    """A folder that the processes of this attempt on this node share; gone at the end.

    Those of older attempts that were killed here go as well.

    Raises:
        StorageError: Somebody else has made the folder.
    """
    folder = _folder(order, order.attempt)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise StorageError("belongs to another user", where=str(folder), hint="remove it")
    if _is_first_on_node():
        for older in range(1, order.attempt):
            shutil.rmtree(_folder(order, older), ignore_errors=True)
    try:
        yield folder
    finally:
        if _is_first_on_node():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def node_cache(order: AttemptOrder) -> Iterator[Cache | None]:
    """The node's cache, in the process that fetches for all, unless the store is a local folder.

    Raises:
        StorageError: It cannot be used.
    """
    if not _is_first_on_node() or ObjectStore(order.store).local_path("") is not None:
        yield None
        return
    cache = Cache.of_node()
    try:
        yield cache
    finally:
        cache.close()


def fetch(store: ObjectStore, artefact: Artefact, folder: Path, cache: Cache | None = None) -> Path:
    """A folder artefact as a local folder. Every rank calls this; it is there when it returns.

    Args:
        store: Where it lies.
        artefact: What is wanted.
        folder: Of the node; for what no cache takes.
        cache: Of the node.

    Raises:
        DataError: A file is missing or was changed; raised on one rank of the node.
    """
    # Its own group: a download may take longer than any step.
    waiting = dist.new_group(backend="gloo", timeout=_FETCH_LIMIT)
    own = str(artefacts.fetch(store, artefact, folder, cache)) if _is_first_on_node() else ""
    found: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(found, (_node(), own), group=waiting)
    dist.destroy_process_group(waiting)
    return Path(next(path for node, path in found if node == _node() and path))


def num_nodes() -> int:
    """On how many nodes the processes of this group are. Every rank must call this."""
    nodes = [""] * dist.get_world_size()
    dist.all_gather_object(nodes, _node())
    return len(set(nodes))


def _folder(order: AttemptOrder, attempt: int) -> Path:
    # No name holds a dot, and runs of different stores may have one name: none share a folder.
    store = hashlib.sha256(order.store.url.encode()).hexdigest()[:12]
    parts = ("octad", os.getuid(), store, order.run, order.stage.name, attempt, _node())
    return Path(tempfile.gettempdir()) / ".".join(map(str, parts))


def _node() -> str:
    return os.environ.get("NODE_RANK", "0")


def _is_first_on_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"
