"""Token datasets: Arrow IPC shards with one column of token ids, and `dataset.json` beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def add(self, ids: list[int] | NDArray[Any]) -> None:
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
    """One split of a dataset, or of several, as samples of `sequence + 1` tokens, memory-mapped.

    The shards of a dataset make one stream of tokens. Its sample i is what stands from
    i x sequence on, with the first token of the next sample as its last target. Samples of the
    next dataset follow; none holds tokens of two.

    Args:
        folders: Each holds `dataset.json` and its shards.
        split: `train` or `heldout`.
        sequence: Tokens of one sample.

    Attributes:
        num_samples: Of each dataset.
        end_of_text: The id that follows every document.

    Raises:
        DataError: A file is missing or damaged, a split is shorter than one sample, or the
            datasets were made with different tokenizers.
    """

    def __init__(self, folders: Path | Sequence[Path], split: str, sequence: int) -> None:
        folders = [folders] if isinstance(folders, Path) else folders
        files = [read_dataset_file(folder) for folder in folders]
        for folder, file in zip(folders, files, strict=True):
            if file.tokenizer != files[0].tokenizer:
                raise DataError(
                    f"made with another tokenizer than {folders[0]}",
                    where=str(folder),
                    hint="mix datasets that one preprocess stage made",
                )
        self.sequence = sequence
        self.vocab = files[0].vocab
        self.end_of_text = files[0].end_of_text
        streams = [
            _opened(folder, file, split, sequence)
            for folder, file in zip(folders, files, strict=True)
        ]
        pieces = [piece for stream in streams for piece in stream if piece.size]
        self._dtype = pieces[0].dtype
        assert all(piece.dtype == self._dtype for piece in pieces), "one tokenizer, one width"
        self._pieces = [piece.data.cast("B") for piece in pieces]
        self._starts = _starts(piece.size for piece in pieces)
        tokens = [sum(piece.size for piece in stream) for stream in streams]
        self.num_samples = tuple((number - 1) // sequence for number in tokens)
        self._first_tokens = _starts(tokens)
        self._first_samples = _starts(self.num_samples)

    def __len__(self) -> int:
        return sum(self.num_samples)

    def tokens(self, indices: NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Samples by index: uint16 or uint32, as they are stored; [indices, sequence + 1].

        Args:
            indices: Which samples.
            out: What an earlier call for as many gave, to be overwritten: fresh memory costs more
                than the copy.
        """
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"no sample {indices.min()} or {indices.max()} of {len(self)}")
        if out is None:
            out = np.empty((len(indices), self.sequence + 1), self._dtype)
        numbers, begins = self._places(indices)
        self._copy(numbers, begins, out.data.cast("B"), out.nbytes // max(1, len(out)))
        return out

    def _places(self, indices: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """For each sample the number of the piece that it begins in, and at which byte of it."""
        dataset = np.searchsorted(self._first_samples, indices, side="right") - 1
        tokens = (indices - self._first_samples[dataset]) * self.sequence
        tokens += self._first_tokens[dataset]
        numbers = np.searchsorted(self._starts, tokens, side="right") - 1
        tokens -= self._starts[numbers]
        return numbers.tolist(), (tokens * self._dtype.itemsize).tolist()

    def _copy(self, numbers: list[int], begins: list[int], out: memoryview, size: int) -> None:
        """Copy so many bytes from each place; slices of bytes cost less than those of arrays."""
        done = 0
        for number, begin in zip(numbers, begins, strict=True):
            end = done + size
            while done < end:  # where a piece ends, the next one goes on
                taken = self._pieces[number][begin : begin + end - done]
                out[done : done + len(taken)] = taken
                done += len(taken)
                number, begin = number + 1, 0  # noqa: PLW2901


def _starts(sizes: Iterable[int]) -> NDArray[np.int64]:
    """Where each of several runs begins when they stand one after the other."""
    return np.cumsum([0, *sizes], dtype=np.int64)[:-1]


def read_dataset_file(folder: Path) -> DatasetFile:
    """`dataset.json` of a folder.

    Raises:
        DataError: It is not there, or not one of ours.
    """
    path = folder / DATASET_FILE
    try:
        return DatasetFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValidationError as error:
        raise DataError(
            f"not a dataset of this version: {error.errors()[0]['msg']}", where=str(path)
        ) from None


def _opened(folder: Path, file: DatasetFile, split: str, sequence: int) -> list[NDArray[Any]]:
    """The tokens of one split, in pieces that follow each other."""
    files = file.splits.get(split)
    if files is None:
        raise DataError(f"the dataset has no split {split!r}", where=str(folder))
    if files.tokens <= sequence:
        raise DataError(
            f"{split} has {files.tokens} tokens, but one sample takes {sequence + 1}",
            where=str(folder),
            hint="give more text, or make the sequence shorter",
        )
    return [piece for shard in files.files for piece in _mapped(folder, shard)]


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
