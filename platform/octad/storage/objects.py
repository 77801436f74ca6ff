"""The object store: local folders, S3 and others behind one URL, with atomic create.

Every failure becomes a `StorageError` that names the object, so that no caller needs to know
which library or provider is below.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlparse

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.exceptions import (
    NotFoundError as MissingError,
)
from obstore.store import from_url

from octad.errors import ConfigError, NotFoundError, StorageError
from octad.spec.frozen import nearest
from octad.spec.stages import StoreSpec
from octad.storage.files import open_range, write_file

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

SCHEMES = ("file", "s3", "gs", "az")
# Each part, up or down, is a request with a time limit of its own: the cards of a node share one
# line, and eight of them with a few parts each under way must get each part through in time.
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_MOST_PARTS = 9_000  # S3 takes 10,000
# What may be said about a store besides its URL. None of it is a secret.
_CLIENT_OPTIONS = ("allow_http", "connect_timeout", "timeout", "proxy_url")
_RETRY_OPTIONS = ("max_retries", "retry_timeout_s")
_STORE_OPTIONS = {
    "s3": (
        "conditional_put",
        "endpoint",
        "region",
        "request_payer",
        "server_side_encryption",
        "skip_signature",
        "virtual_hosted_style_request",
    ),
    "az": ("endpoint", "use_fabric_endpoint"),
}


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's key, relative to the store's URL, and its size in bytes."""

    key: str
    size: int


class ObjectStore:
    """Objects under one URL. Keys are relative, with `/` between parts and none in front."""

    def __init__(self, spec: StoreSpec) -> None:
        scheme = _checked_scheme(spec.url)
        self.spec = spec
        self._root: Path | None = None
        arguments = _arguments(scheme, spec.options)
        if scheme == "file":
            self._root = Path(unquote(urlparse(spec.url).path))
            with _translated(spec.url):
                self._store = from_url(spec.url, mkdir=True, automatic_cleanup=True)
            return
        try:
            self._store = from_url(spec.url, **arguments)
        except (BaseError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"cannot be used: {_line(error)}",
                where=f"storage {spec.url}",
                hint="check storage.url, storage.options and the credentials in the environment",
            ) from None

    def url(self, key: str) -> str:
        """The full URL of a key."""
        return f"{self.spec.url.rstrip('/')}/{key}"

    def key(self, url: str) -> str:
        """The key of a full URL of this store.

        Raises:
            ConfigError: The URL lies elsewhere.
        """
        root = self.spec.url.rstrip("/") + "/"
        if not url.startswith(root) or ".." in url[len(root) :].split("/"):
            raise ConfigError(f"{url} does not lie in the store {self.spec.url}")
        return url[len(root) :]

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none. True if this call made it, False if there was one.

        Atomic: of any number of racing callers exactly one gets True.
        """
        try:
            with _translated(self.url(key)):
                obstore.put(self._store, key, data, mode="create")
        except _ExistsSignal:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object. Readers see the old or the new one, never a mix."""
        with _translated(self.url(key)):
            obstore.put(self._store, key, data)

    def put_file(self, key: str, path: Path) -> None:
        """Upload a local file in parts; it appears whole or not at all."""
        with _translated(self.url(key)):
            obstore.put(
                self._store,
                key,
                path,
                chunk_size=part_bytes(path.stat().st_size),
                max_concurrency=_PARTS_AT_ONCE,
            )

    def put_chunks(
        self,
        key: str,
        chunks: Iterable[bytes | memoryview],
        *,
        most_bytes: int = 0,
        is_synced: bool = True,
    ) -> None:
        """Write or replace an object piece by piece; it appears whole or not at all.

        The next chunk is asked for while those before are on their way. What `chunks` raises comes
        out as it is, and nothing is left behind.

        Args:
            key: Of the object.
            chunks: Its content; none may change before this returns.
            most_bytes: How large it can become, where that may be more than 70 GB.
            is_synced: In a local folder: return only when the disk has it all.
        """
        with _translated(self.url(key)):
            if self._root is not None:
                write_file(self._root / key, chunks, is_synced=is_synced)
                return
            obstore.put(
                self._store,
                key,
                chunks,
                chunk_size=part_bytes(most_bytes),
                max_concurrency=_PARTS_AT_ONCE,
            )

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            NotFoundError: There is none.
        """
        with _translated(self.url(key)):
            return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes of an object from `offset` on.

        Raises:
            NotFoundError: There is none.
            StorageError: It is shorter.
        """
        with _translated(self.url(key)):
            found = bytes(obstore.get_range(self._store, key, start=offset, length=length))
        if len(found) < length:  # S3 gives what there is
            raise StorageError(f"ends {length - len(found)} bytes too early", where=self.url(key))
        return found

    def open_range(self, key: str, offset: int, length: int) -> IO[bytes]:
        """`length` bytes of an object from `offset` on, as a file to read: of a local folder as
        they are asked for, else fetched in parts, some at once.

        Raises:
            NotFoundError: There is none.
            StorageError: It is shorter.
        """
        if self._root is not None:
            with _translated(self.url(key)):
                return open_range(self._root / key, offset, length)

        def part(start: int) -> bytes:
            return self.get_range(key, offset + start, min(_PART_BYTES, length - start))

        with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="read") as readers:
            return io.BytesIO(b"".join(readers.map(part, range(0, length, _PART_BYTES))))

    def find(self, key: str) -> bytes | None:
        """The whole object, or None."""
        try:
            return self.get(key)
        except NotFoundError:
            return None

    def read_json(self, key: str) -> dict[str, Any] | None:
        """The object as JSON, or None if there is none."""
        raw = self.find(key)
        return None if raw is None else cast("dict[str, Any]", json.loads(raw))

    def size(self, key: str) -> int | None:
        """The object's size in bytes, or None if there is none."""
        try:
            with _translated(self.url(key)):
                return int(obstore.head(self._store, key)["size"])
        except NotFoundError:
            return None

    def walk(self, prefix: str) -> Iterator[ObjectMeta]:
        """Objects whose key starts with `prefix` (a folder, ending in '/'), in key order."""
        with _translated(self.url(prefix)):
            found = [
                ObjectMeta(meta["path"], int(meta["size"]))
                for batch in obstore.list(self._store, prefix.rstrip("/"))
                for meta in batch
            ]
        yield from sorted(found, key=lambda meta: meta.key)

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly under `prefix`, sorted."""
        with _translated(self.url(prefix)):
            listed = obstore.list_with_delimiter(self._store, prefix.rstrip("/"))
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    def delete(self, keys: list[str]) -> None:
        """Delete objects; one that is not there is no error."""
        for key in keys:
            try:
                with _translated(self.url(key)):
                    obstore.delete(self._store, key)
            except NotFoundError:
                continue

    def delete_folder(self, prefix: str) -> int:
        """Delete everything whose key starts with `prefix` (a folder, ending in '/').

        Of a local folder, unfinished uploads of processes that were killed as well. Returns the
        number of objects.
        """
        keys = [meta.key for meta in self.walk(prefix)]
        self.delete(keys)
        if self._root is not None:
            shutil.rmtree(self._root / prefix, ignore_errors=True)
        return len(keys)

    def digest(self, key: str) -> str:
        """`sha256:<hex>` of an object, read in chunks.

        Raises:
            NotFoundError: There is none.
        """
        if self._root is not None:
            with _translated(self.url(key)), (self._root / key).open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        sha = hashlib.sha256()
        for chunk in self.chunks(key):
            sha.update(chunk)
        return f"sha256:{sha.hexdigest()}"

    def chunks(self, key: str) -> Iterator[bytes]:
        """The object in parts of 8 MiB, so that its size and a slow line do not matter.

        Raises:
            NotFoundError: There is none.
        """
        size = self.size(key)
        if size is None:
            raise NotFoundError("no such object", where=self.url(key))
        for offset in range(0, size, _PART_BYTES):
            yield self.get_range(key, offset, min(_PART_BYTES, size - offset))

    def download(self, key: str, path: Path) -> None:
        """Copy an object to a local file; the file appears whole or not at all.

        Raises:
            NotFoundError: There is no such object.
            StorageError: The store failed, or the local disk is full.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        with _translated(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("wb") as out:
                    for chunk in self.chunks(key):
                        out.write(chunk)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def local_path(self, key: str) -> Path | None:
        """Where the object lies as a local file, or None if the store is not a local folder."""
        return None if self._root is None else self._root / key

    def bytes_free(self) -> int | None:
        """Space left, or None where the store has no such limit."""
        return None if self._root is None else shutil.disk_usage(self._root).free


def part_bytes(size: int) -> int:
    """How large the parts of an object's upload are: as small as its number of parts allows."""
    mib = 1024 * 1024
    return max(_PART_BYTES, -(-size // (_MOST_PARTS * mib)) * mib)


def digest_of(data: bytes) -> str:
    """`sha256:<hex>` of bytes in memory."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _checked_scheme(url: str) -> str:
    """The scheme of a store's URL.

    Raises:
        ConfigError: There is no such store, or the URL has parts that no store has.
    """
    parts = urlparse(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"cannot store at {url!r}",
            where="storage.url",
            hint=f"use a URL with one of: {', '.join(SCHEMES)}",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} has a '?' or '#', which no store has", where="storage.url")
    if parts.scheme == "file" and not url.startswith("file:///"):
        raise ConfigError(
            f"{url!r} is not a whole path", where="storage.url", hint="use file:///folder"
        )
    return parts.scheme


def _arguments(scheme: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What the client of a store is made with.

    Raises:
        ConfigError: There is no such option.
    """
    own = _STORE_OPTIONS.get(scheme, ())
    remote = scheme != "file"
    known = (*own, *_CLIENT_OPTIONS, *_RETRY_OPTIONS) if remote else ()
    for name in options:
        if name not in known:
            raise ConfigError(
                f"a {scheme} store has no option {name!r}",
                where=f"storage.options.{name}",
                hint=f"{nearest(name, known)}; credentials come from the environment",
            )
    if not remote:
        return {}
    arguments: dict[str, Any] = {name: options[name] for name in own if name in options}
    client = {name: options[name] for name in _CLIENT_OPTIONS if name in options}
    return arguments | {
        "client_options": cast("ClientConfig", client),
        "retry_config": _retries(options),
    }


def _retries(options: Mapping[str, str]) -> RetryConfig:
    try:
        return {
            "max_retries": int(options.get("max_retries", "8")),
            "retry_timeout": timedelta(seconds=float(options.get("retry_timeout_s", "60"))),
        }
    except ValueError:
        raise ConfigError("not a number", where="storage.options") from None


class _ExistsSignal(Exception):  # noqa: N818
    """A create found something there."""


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except AlreadyExistsError:
        raise _ExistsSignal from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise StorageError(
            f"no access: {_line(error)}", where=url, hint="check its owner, mode and credentials"
        ) from None
    except (BaseError, OSError) as error:
        raise _failure(error, url) from None


def _failure(error: Exception, url: str) -> StorageError | NotFoundError:
    text = str(error)
    if "NoSuchBucket" in text:
        hint = "create it, or mend storage.url"
        return StorageError("there is no such bucket", where=url, hint=hint)
    named = _OS_ERROR.search(text)
    number = getattr(error, "errno", None) or (int(named[1]) if named else 0)
    if number in _REASONS:
        what, hint = _REASONS[number]
        return StorageError(what, where=url, hint=hint)
    # A folder may have been looked for under what is a file.
    if isinstance(error, MissingError | FileNotFoundError) or number == errno.ENOTDIR:
        return NotFoundError("no such object", where=url)
    return StorageError(f"the store failed: {_line(error)}", where=url)


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_REASONS = {
    errno.ENOSPC: ("no space left", "free space, then resume the run"),
    errno.EDQUOT: ("no space left", "raise the disk quota, then resume the run"),
    errno.EFBIG: ("a file may not grow further", "raise the size limit"),
    errno.EROFS: ("the store is read-only", "check how it is mounted"),
    errno.EACCES: ("no access", "check its owner and mode"),
}


def _line(error: Exception) -> str:
    return " ".join(str(error).partition("Debug source")[0].split())[:300]
