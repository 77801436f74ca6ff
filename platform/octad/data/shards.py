"""Token datasets: Arrow IPC shards with one column of token ids, and `dataset.json` beside them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from octad.errors import DataError
from octad.spec.frozen import Spec

DATASET_FILE = "dataset.json"
_COLUMN = "tokens"
_BATCH_TOKENS = 1 << 20
_UINT16_TOKENS = 1 << 16


class Shard(Spec):
    """One file of a split.

    Attributes:
        path: Inside the dataset's folder.
        tokens, documents: How many it holds.
        text_bytes: Bytes of the text that became these tokens, in UTF-8.
        size: Of the file, in bytes.
        digest: `sha256:<hex>` of the file.
    """

    path: str
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    size: int = Field(ge=0)
    digest: str


class SplitFiles(Spec):
    """One split: its tokens, and its shards in order."""

    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    files: tuple[Shard, ...]


class SkippedText(Spec):
    """What the source held and the dataset does not.

    Attributes:
        bad_bytes, bad_lines: See `octad.ports.data.Skipped`.
        empty: Parts without any text.
        copies: Parts that are exact copies of others.
        files: Name to reason, of parts that could not be read or were not looked into.
    """

    bad_bytes: int = 0
    bad_lines: int = 0
    empty: int = 0
    copies: int = 0
    files: dict[str, str] = Field(default_factory=dict)


class DatasetFile(Spec):
    """`dataset.json`.

    Attributes:
        format: Version of this file.
        vocab: Every token id is below this.
        end_of_text: The id that follows every document.
        tokenizer: Digest of the `tokenizer.json` it was made with.
        splits: `train` and `heldout`.
    """

    format: Literal[1] = 1
    vocab: int = Field(ge=1)
    end_of_text: int = Field(ge=0)
    tokenizer: str
    splits: dict[str, SplitFiles]
    skipped: SkippedText = SkippedText()


def split_files(shards: tuple[Shard, ...]) -> SplitFiles:
    """A split of these shards."""
    return SplitFiles(
        tokens=sum(shard.tokens for shard in shards),
        documents=sum(shard.documents for shard in shards),
        text_bytes=sum(shard.text_bytes for shard in shards),
        files=shards,
    )


class ShardWriter:
    """Writes one shard: uint16 where the vocabulary allows it, uint32 else, in batches of 2**20
    tokens. The same tokens give the same bytes. Use as a context.
    """

    def __init__(self, path: Path, vocab: int) -> None:
        self.num_tokens = 0
        self._dtype = np.dtype(np.uint16 if vocab <= _UINT16_TOKENS else np.uint32)
        self._schema = pa.schema(
            [pa.field(_COLUMN, pa.from_numpy_dtype(self._dtype), nullable=False)]
        )
        self._writer: Any = pa.ipc.new_file(path, self._schema)
        self._held = np.empty(_BATCH_TOKENS, self._dtype)
        self._num_held = 0

    def add(self, ids: list[int]) -> None:
        """Append tokens."""
        tokens = np.asarray(ids, self._dtype)
        self.num_tokens += tokens.size
        while tokens.size:
            room = _BATCH_TOKENS - self._num_held
            taken, tokens = tokens[:room], tokens[room:]
            self._held[self._num_held : self._num_held + taken.size] = taken
            self._num_held += taken.size
            if self._num_held == _BATCH_TOKENS:
                self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._num_held:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        column = pa.array(self._held[: self._num_held])
        self._writer.write_batch(pa.record_batch([column], schema=self._schema))
        self._num_held = 0


class TokenDataset:
    """One split of a dataset as samples of `sequence + 1` tokens, memory-mapped.

    The shards make one stream of tokens. Sample i is what stands from i x sequence on, with the
    first token of the next sample as its last target.

    Args:
        folder: Holds `dataset.json` and the shards.
        split: `train` or `heldout`.
        sequence: Tokens of one sample.

    Raises:
        DataError: A file is missing or damaged, or the split is shorter than one sample.
    """

    def __init__(self, folder: Path, split: str, sequence: int) -> None:
        raw, self.file = read_dataset_file(folder)
        files = self.file.splits.get(split)
        if files is None:
            raise DataError(f"the dataset has no split {split!r}", where=str(folder))
        self.sequence = sequence
        self.vocab = self.file.vocab
        identity = hashlib.sha256(raw)
        identity.update(f"|{split}|{sequence}".encode())
        self.fingerprint = f"sha256:{identity.hexdigest()}"
        self._pieces = [piece for shard in files.files for piece in _mapped(folder, shard)]
        ends = np.cumsum([piece.size for piece in self._pieces], dtype=np.int64)
        self._starts = [0, *map(int, ends)]
        self._num_samples = max(0, (files.tokens - 1) // sequence)
        if not self._num_samples:
            raise DataError(
                f"the {split} text has {files.tokens} tokens, but one sample takes {sequence + 1}",
                where=str(folder),
                hint="give more text, or make the sequence shorter",
            )

    def __len__(self) -> int:
        return self._num_samples

    def tokens(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Samples by index: int64, [number of indices, sequence + 1]."""
        out = np.empty((len(indices), self.sequence + 1), np.int64)
        for row, index in zip(out, indices, strict=True):
            if not 0 <= index < self._num_samples:
                raise IndexError(f"no sample {index} of {self._num_samples}")
            self._fill(row, int(index) * self.sequence)
        return out

    def _fill(self, row: NDArray[np.int64], start: int) -> None:
        filled = 0
        number = bisect_right(self._starts, start) - 1
        while filled < row.size:
            begin = start + filled - self._starts[number]
            taken = self._pieces[number][begin : begin + row.size - filled]
            row[filled : filled + taken.size] = taken
            filled += taken.size
            number += 1


def read_dataset_file(folder: Path) -> tuple[bytes, DatasetFile]:
    """`dataset.json` of a folder, raw and parsed.

    Raises:
        DataError: It is not there, or not one of ours.
    """
    path = folder / DATASET_FILE
    try:
        raw = path.read_bytes()
        return raw, DatasetFile.model_validate_json(raw)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValidationError as error:
        raise DataError(
            f"not a dataset of this version: {error.errors()[0]['msg']}", where=str(path)
        ) from None


def _mapped(folder: Path, shard: Shard) -> list[NDArray[Any]]:
    path = folder / shard.path
    try:
        size = path.stat().st_size
        if size != shard.size:
            raise DataError(f"it has {size} bytes instead of {shard.size}", where=str(path))
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        pieces = [batch.column(_COLUMN).to_numpy(zero_copy_only=True) for batch in batches]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"a damaged shard: {error}", where=str(path)) from None
    num_tokens = sum(piece.size for piece in pieces)
    if num_tokens != shard.tokens:
        raise DataError(f"it has {num_tokens} tokens instead of {shard.tokens}", where=str(path))
    return pieces
