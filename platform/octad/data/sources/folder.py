"""A folder of text: sent by a laptop (a snapshot in the store), or lying on every node."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self, cast

from pydantic import Field, model_validator

from octad.data.text import cleaned, decoded
from octad.errors import DataError, NotFoundError
from octad.ports.data import Document, Objects, Skipped, SourceSettings
from octad.spec.checkpoints import StoredFile
from octad.spec.corpora import Scan, Snapshot, is_packed, scan, suffix_of
from octad.spec.home import expanded
from octad.spec.keys import blob_key

_MAX_KEYS_NAMED = 8


class Settings(SourceSettings):
    """Where the folder is, and where its records keep their text.

    Attributes:
        path: The folder, on the laptop that sends it or on every node.
        snapshot: sha256 in hex of the blob that lists what was sent; goes before `path`.
        text_key: The key of a .jsonl line or the column of a .parquet file that holds the text.
    """

    path: str | None = None
    snapshot: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    text_key: str = Field(default="text", min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.path and not self.snapshot:
            raise ValueError("a folder needs a path, as in data=folder data.path=DIR")
        return self


class LocalFiles:
    """Files of a folder on this node."""

    def __init__(self, found: Scan) -> None:
        self.found = found

    def names(self) -> list[str]:
        """Paths inside the folder."""
        return list(self.found.files)

    def size_bytes(self, name: str) -> int:
        """Size on disk."""
        try:
            return self.found.files[name].stat().st_size
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=name) from None

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """The file, open for reading."""
        if name not in self.found.files:
            raise DataError("the file is gone", where=name)
        with self.found.files[name].open("rb") as file:
            yield file


class SentFiles:
    """Files of a snapshot in the store."""

    def __init__(self, snapshot: Snapshot, store: Objects) -> None:
        self.files: dict[str, StoredFile] = {file.path: file for file in snapshot.files}
        self.store = store

    def names(self) -> list[str]:
        """Paths inside the folder that was sent."""
        return sorted(self.files)

    def size_bytes(self, name: str) -> int:
        """Size as sent."""
        return self.files[name].size

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """The file, fetched, checked against its digest, and open for reading."""
        digest = self.files[name].digest.removeprefix("sha256:")
        with tempfile.TemporaryDirectory(prefix="octad-blob-") as folder:
            local = Path(folder) / digest
            try:
                self.store.download(blob_key(digest), local)
            except NotFoundError:
                raise DataError(
                    "the file was not sent whole", where=name, hint="submit the run again"
                ) from None
            with local.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise DataError("the stored copy is damaged", where=name)
                file.seek(0)
                yield file


class Folder:
    """One part per file, by its path inside the folder."""

    def __init__(
        self, files: LocalFiles | SentFiles, left_out: dict[str, str], text_key: str
    ) -> None:
        self.files = files
        self.text_key = text_key
        self._left_out = left_out

    def parts(self) -> Sequence[str]:
        """Paths of files, with `/`."""
        return self.files.names()

    def size_bytes(self, part: str) -> int:
        """The size of the file, packed if it is packed."""
        return self.files.size_bytes(part)

    def left_out(self) -> dict[str, str]:
        """Links and files that the walk over the folder skipped."""
        return dict(self._left_out)

    def read(self, part: str, skipped: Skipped) -> Iterator[Document]:
        """The file as one document, or its lines or rows as one each."""
        try:
            with self.files.opened(part) as raw, _unpacked(raw, part) as file:
                yield from self._documents(file, part, skipped)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"damaged gzip file: {error}", where=part) from None
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", where=part) from None

    def _documents(self, file: IO[bytes], part: str, skipped: Skipped) -> Iterator[Document]:
        suffix = suffix_of(part)
        if suffix == ".jsonl":
            yield from _lines(file, part, self.text_key, skipped)
        elif suffix == ".parquet":
            # Only here, so that laptops need no pyarrow.
            from octad.data.parquet import texts  # noqa: PLC0415

            whole = BytesIO(file.read()) if is_packed(part) else file
            for row, raw in texts(whole, part, self.text_key):
                yield from _record(f"{part}:{row}", raw, skipped)
        else:
            text, num_bad = decoded(file.read())
            skipped.bad_bytes += num_bad
            yield Document(part, text)


@contextmanager
def _unpacked(raw: IO[bytes], part: str) -> Iterator[IO[bytes]]:
    if not is_packed(part):
        yield raw
        return
    if not raw.read(1):
        raise DataError("damaged gzip file: it is empty", where=part)
    raw.seek(0)
    with gzip.open(raw) as file:
        yield cast("IO[bytes]", file)


def _lines(file: IO[bytes], part: str, key: str, skipped: Skipped) -> Iterator[Document]:
    num_lines = num_texts = 0
    seen: set[str] = set()
    for number, line in enumerate(file, start=1):
        # Bad bytes become surrogates, which are counted if they lie in the text itself.
        text = line.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
        if not text.strip():
            continue
        num_lines += 1
        record = _json(text)
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            skipped.bad_lines += 1
            if isinstance(record, dict) and len(seen) < _MAX_KEYS_NAMED:
                seen.update(record)
            continue
        num_texts += 1
        yield from _record(f"{part}:{number}", record[key], skipped)
    if num_lines and not num_texts:
        keys = f"; its keys are: {', '.join(sorted(seen)[:_MAX_KEYS_NAMED])}" if seen else ""
        raise DataError(
            f"none of its {num_lines} lines is a JSON object with text under {key!r}{keys}",
            where=part,
            hint="set text_key of the data",
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _record(name: str, raw: str | bytes | None, skipped: Skipped) -> Iterator[Document]:
    if raw is None:
        skipped.bad_lines += 1
        return
    text, num_bad = decoded(raw) if isinstance(raw, bytes) else cleaned(raw)
    skipped.bad_bytes += num_bad
    yield Document(name, text, is_record=True)


def build(settings: Settings, store: Objects) -> Folder:
    """The source.

    Raises:
        DataError: There is no such folder or snapshot, or nothing in it can be read.
    """
    if settings.snapshot is None:
        assert settings.path is not None
        found = scan(expanded(Path(settings.path)))
        return Folder(LocalFiles(found), found.skipped, settings.text_key)
    try:
        snapshot = Snapshot.model_validate_json(store.get(blob_key(settings.snapshot)))
    except NotFoundError:
        raise DataError(
            "the list of what was sent is not in the store",
            where=settings.path or settings.snapshot,
            hint="submit the run again",
        ) from None
    return Folder(SentFiles(snapshot, store), snapshot.skipped, settings.text_key)
