"""Artefacts as the workers read them: each node fetches and checks once, for all its processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from octad.spec.artefacts import Artefact
from octad.spec.stages import AttemptOrder
from octad.storage import artefacts
from octad.storage.objects import ObjectStore


@contextmanager
def node_folder(order: AttemptOrder) -> Iterator[Path]:
    """A folder that the processes of this attempt on this node share; gone at the end."""
    parts = ("octad", os.getuid(), order.run, order.stage.name, order.attempt, _node())
    folder = Path(tempfile.gettempdir()) / "-".join(map(str, parts))
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder
    finally:
        if _is_first_on_node():
            shutil.rmtree(folder, ignore_errors=True)


def fetch(store: ObjectStore, artefact: Artefact, folder: Path) -> Path:
    """A folder artefact as a local folder. Every rank calls this; it is there when it returns.

    Raises:
        DataError: A file is missing or was changed; raised on one rank of the node.
    """
    own = str(artefacts.fetch(store, artefact, folder)) if _is_first_on_node() else ""
    found: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(found, (_node(), own))
    return Path(next(path for node, path in found if node == _node() and path))


def _node() -> str:
    return os.environ.get("NODE_RANK", "0")


def _is_first_on_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"
