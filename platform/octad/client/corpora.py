"""Folders of text on this laptop, given to the store by content before a run is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from octad.client.blobs import digest_of, has_blob, put_blob
from octad.client.wire import Wire
from octad.errors import DataError
from octad.spec.checkpoints import StoredFile
from octad.spec.corpora import Snapshot, scan
from octad.spec.home import expanded
from octad.spec.runs import RunSpec

Say = Callable[[str], None]


def send_corpora(spec: RunSpec, wire: Wire, say: Say = lambda _: None) -> RunSpec:
    """The run with every `kind: folder` source that names a path pinned to a snapshot in the store.

    Files that the store has already are not sent again.

    Args:
        spec: The run, as composed.
        wire: Where to send to.
        say: Told what is being done.

    Raises:
        DataError: A folder is not there, is empty, or a file in it cannot be read or changes while
            it is read.
    """
    raw = spec.plain()
    sent: dict[str, str] = {}
    for where, source in folders(raw, ("folder",)):
        path = str(source["path"])
        if path not in sent:
            sent[path] = _send(expanded(Path(path)), where, wire, say)
        source["snapshot"] = sent[path]
    return RunSpec.parse(raw) if sent else spec


def check_corpora(spec: RunSpec) -> None:
    """Refuse folders that `send_corpora` would refuse by their names alone; sends nothing.

    Raises:
        DataError: A folder is not there, or holds no text.
    """
    for where, source in folders(spec.plain(), ("folder",)):
        scan(expanded(Path(str(source["path"]))), where)


def folders(raw: dict[str, Any], kinds: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The blocks of a run, as plain data, that name a folder to send; each with its path."""
    for stage in raw["stages"]:
        yield from _blocks(stage["settings"], stage["name"], kinds)
    yield from _blocks(raw["config"], "", kinds)


def _blocks(node: Any, where: str, kinds: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(node, dict):
        return
    if node.get("kind") in kinds and node.get("path") and not node.get("snapshot"):
        yield f"{where}.path", node
    for key, value in node.items():
        yield from _blocks(value, f"{where}.{key}".strip("."), kinds)


def _send(folder: Path, where: str, wire: Wire, say: Say) -> str:
    """The digest of the snapshot of a folder."""
    found = scan(folder, where)
    digest, num_sent = send_files(found.files, wire, found.skipped)
    say(f"corpus {folder}: {len(found.files):,} files, {num_sent:,} of them new to the store")
    for path, reason in found.skipped.items():
        say(f"corpus {folder}: {path} is left out: {reason}")
    return digest


def send_files(
    found: Mapping[str, Path], wire: Wire, skipped: dict[str, str] | None = None
) -> tuple[str, int]:
    """Give files to the store, by content; the digest of their snapshot, and how many were new.

    Args:
        found: Name in the snapshot to file.
        wire: Where to send to.
        skipped: For the snapshot.

    Raises:
        DataError: A file cannot be read.
    """
    with ThreadPoolExecutor(4) as pool:  # hashing releases the GIL
        digests = list(pool.map(_digest, found.values()))
    files = []
    num_sent = 0
    for (path, file), digest in zip(found.items(), digests, strict=True):
        size = file.stat().st_size
        files.append(StoredFile(path=path, size=size, digest=f"sha256:{digest}"))
        if not has_blob(wire, digest):
            with file.open("rb") as content:
                put_blob(wire, digest, content)
            num_sent += 1
    snapshot = Snapshot(files=tuple(files), skipped=skipped or {})
    body = json.dumps(snapshot.plain(), sort_keys=True).encode()
    digest = hashlib.sha256(body).hexdigest()
    if not has_blob(wire, digest):
        put_blob(wire, digest, body)
    return digest, num_sent


def _digest(file: Path) -> str:
    try:
        return digest_of(file)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(file)) from None
