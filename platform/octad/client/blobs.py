"""Content given to the store, named by its sha256."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO

from octad.client.wire import FIRST_SERVER_ERROR, Wire
from octad.errors import NotFoundError

_BLOCK = 1 << 20


def has_blob(wire: Wire, digest: str) -> bool:
    """Whether the store holds this content (sha256 in hex)."""
    try:
        answer = wire.send("HEAD", f"/api/blobs/{digest}")
    except NotFoundError:
        return False
    # An answer to HEAD has no words: why the store fails is told when it is given the content.
    return answer.status < FIRST_SERVER_ERROR


def put_blob(wire: Wire, digest: str, body: bytes | IO[bytes]) -> None:
    """Give the store some content; idempotent."""
    size = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    wire.send("PUT", f"/api/blobs/{digest}", body, headers)


def digest_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
