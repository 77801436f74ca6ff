"""What a provider remembers of the nodes it started, so that a later one can adopt them."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from octad.errors import StorageError
from octad.spec.frozen import Spec


class NodeRecord(Spec):
    """A node that was started, or was about to be.

    Attributes:
        name: Of the node, as Ray shows it.
        pid, created_at: Of its first process; 0 until that runs.
        address: Of the node.
        gcs, dashboard, agent: Ports; the first two matter on the head.
        temp: Its temporary folder.
        log: The output of its first process.
    """

    name: str
    pid: int = 0
    created_at: float = 0.0
    address: str
    gcs: int
    dashboard: int
    agent: int
    temp: str
    log: str


class ClusterRecord(Spec):
    """The nodes of one cluster, its head first."""

    nodes: tuple[NodeRecord, ...] = Field(default=())

    @property
    def head(self) -> NodeRecord | None:
        """The head node, if one was started."""
        return self.nodes[0] if self.nodes else None

    def with_node(self, node: NodeRecord) -> ClusterRecord:
        """A copy in which `node` stands in the place of the one with its name, or last."""
        names = [n.name for n in self.nodes]
        if node.name not in names:
            return ClusterRecord(nodes=(*self.nodes, node))
        return ClusterRecord(nodes=tuple(node if n.name == node.name else n for n in self.nodes))


def read(path: Path) -> ClusterRecord:
    """The record at `path`; an empty one if there is none, or if it cannot be understood.

    A record that cannot be understood is worth nothing: what it told of is found by its mark.
    """
    try:
        return ClusterRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ClusterRecord()


def write(path: Path, record: ClusterRecord) -> None:
    """Replace the record at `path` (mode 0600), whole or not at all.

    Raises:
        StorageError: The disk does not take it.
    """
    text = json.dumps(record.plain(), indent=1)
    replace(path, text)


def replace(path: Path, text: str) -> None:
    """Write a private file (mode 0600) in one step.

    Raises:
        StorageError: The disk does not take it.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise StorageError(f"cannot be written: {error.strerror}", where=str(path)) from None


def token(path: Path) -> str:
    """The cluster's token, made (32 random bytes, mode 0600) by whoever comes first.

    Raises:
        StorageError: It can be neither read nor made.
    """
    with suppress(FileNotFoundError):
        found = path.read_text().strip()
        if found:
            return found
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        # A link fails where somebody else was faster: theirs counts then.
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", where=str(path)) from None
