"""Folders of weights on this laptop, given to the store by content before a run is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from octad.client.corpora import Say, folders, send_files
from octad.client.wire import Wire
from octad.spec.home import expanded
from octad.spec.runs import RunSpec
from octad.spec.tensor_files import FolderKind, listed, tensors, used

_KINDS = get_args(FolderKind)


def send_weights(spec: RunSpec, wire: Wire, say: Say = lambda _: None) -> RunSpec:
    """The run with every folder of weights that names a path pinned to a snapshot in the store.

    Files that the store has already are not sent again.

    Args:
        spec: The run, as composed.
        wire: Where to send to.
        say: Told what is being done.

    Raises:
        DataError: A folder is not there, lacks a file, or a file of it is damaged or may run code.
    """
    raw = spec.plain()
    sent: dict[tuple[str, str], str] = {}
    for where, block in folders(raw, _KINDS):
        named = block["kind"], str(block["path"])
        if named not in sent:
            files = _checked(where, block)
            sent[named], num_sent = send_files(files, wire)
            say(f"weights {named[1]}: {len(files)} files, {num_sent} of them new to the store")
        block["snapshot"] = sent[named]
    return RunSpec.parse(raw) if sent else spec


def check_weights(spec: RunSpec) -> None:
    """Refuse folders that `send_weights` would refuse by names and headers; sends nothing.

    Raises:
        DataError: See `send_weights`.
    """
    for where, block in folders(spec.plain(), _KINDS):
        _checked(where, block)


def _checked(where: str, block: dict[str, Any]) -> dict[str, Path]:
    label = str(block["path"])
    files = used(block["kind"], listed(expanded(Path(label)), where), label)
    tensors(files, label)
    return files
