"""torch's distributed checkpoints on our object store.

Every rank streams its shard to the store and hashes it on the way. The format inside the shards
is that of torch's own file system writer, so its tools open a downloaded checkpoint too. Reading
runs no code that a checkpoint could bring along.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from octad.errors import CheckpointError, StorageError
from octad.spec.checkpoints import Manifest, StoredFile
from octad.storage.objects import ObjectStore, digest_of
from octad.train._items import pieces

METADATA = ".metadata"
_DCP_VERSION = "1.0.0"
# On top of the tensors: headers, plain values, the index.
_OVERHEAD_BYTES_PER_ITEM, _SPARE_BYTES = 2048, 1 << 20
_JOINED_BYTES = 1 << 20  # smaller pieces are joined up to this


@dataclass(frozen=True)
class _Written(WriteResult):
    """What torch wants to know about one item, and the file that it went to."""

    file: StoredFile


class ShardWriter(StorageWriter):
    """Writes one checkpoint.

    Args:
        store: Where to.
        folder_key: The checkpoint's folder, without a trailing slash.
        token: Makes this writer's file names its own; the same on every rank.
        commit: Called on the first rank with the metadata's bytes and the shards of all ranks,
            when they are all in the store.
        is_synced: In a local folder: wait until the disk has each shard.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder_key: str,
        token: str,
        commit: Callable[[bytes, tuple[StoredFile, ...]], None],
        *,
        is_synced: bool = True,
    ) -> None:
        super().__init__()
        self._store, self._folder, self._token, self._commit = store, folder_key, token, commit
        self._is_synced = is_synced
        self._rank = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Where to write is given to the constructor alone."""
        return False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Learn this process's rank."""
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Refuse what will not fit, before anything is written.

        Raises:
            StorageError: The store has less space left than all shards take.
        """
        free = self._store.bytes_free()
        needed = sum(_planned_bytes(item) for plan in plans for item in plan.items) + _SPARE_BYTES
        if free is not None and free < needed:
            raise StorageError(
                f"no space left: a checkpoint takes {needed} bytes, {free} are free",
                where=self._store.spec.url,
                hint="free space",
            )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stream this rank's items to one object."""
        name = f"shard-{self._rank:05d}-{self._token}.distcp"
        shard = _Shard(plan, planner)
        results: list[WriteResult] = []
        if plan.items:
            most = sum(map(_planned_bytes, plan.items)) + _SPARE_BYTES
            key = f"{self._folder}/{name}"
            self._store.put_chunks(key, shard.chunks(), most_bytes=most, is_synced=self._is_synced)
            file = StoredFile(path=name, size=shard.size, digest=shard.digest)
            results = [
                _Written(item.index, length, _StorageInfo(name, offset, length), file)
                for item, offset, length in shard.placed
            ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank: commit."""
        self.placed(metadata, results)
        self._commit(pickle.dumps(metadata), self.files_of(results))

    def placed(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Say in the metadata where everything was written to."""
        written = [cast("_Written", result) for ranks in results for result in ranks]
        metadata.version = _DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for result in written}
        metadata.storage_meta = StorageMeta(checkpoint_id=self._folder, save_id=self._token)

    @staticmethod
    def files_of(results: list[list[WriteResult]]) -> tuple[StoredFile, ...]:
        """The shards of all ranks."""
        written = [cast("_Written", result) for ranks in results for result in ranks]
        shards = {result.file.path: result.file for result in written}
        return tuple(shards[path] for path in sorted(shards))


class ShardReader(StorageReader):
    """Reads one checkpoint.

    Args:
        store: Where from.
        folder_key: The checkpoint's folder, without a trailing slash.
        manifest: What the checkpoint should be.

    Raises:
        CheckpointError: The metadata is missing, changed, or holds what it must not.
    """

    def __init__(self, store: ObjectStore, folder_key: str, manifest: Manifest) -> None:
        super().__init__()
        self._store, self._folder = store, folder_key
        self._listed = {file.path: file for file in manifest.files}
        self._metadata = self._checked_metadata()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Where to read is given to the constructor alone."""
        return False

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """The index of the shards."""
        return self._metadata

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """In the order in which things lie in the shards."""
        places = self._metadata.storage_data
        return replace(plan, items=sorted(plan.items, key=lambda item: _place(places, item)))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank needs, and nothing else."""
        for item in plan.items:
            with self._open(self._metadata.storage_data[item.storage_index]) as raw:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(raw.read()))
                else:
                    _fill(item, planner, raw)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _open(self, info: _StorageInfo) -> IO[bytes]:
        if info.relative_path not in self._listed:
            raise CheckpointError(
                f"{info.relative_path} is not in the manifest", where=self._store.url(self._folder)
            )
        key = f"{self._folder}/{info.relative_path}"
        return self._store.open_range(key, info.offset, info.length)

    def _checked_metadata(self) -> Metadata:
        key = f"{self._folder}/{METADATA}"
        raw, listed = self._store.find(key), self._listed.get(METADATA)
        if raw is None or listed is None:
            raise CheckpointError(f"{METADATA} is missing", where=self._store.url(key))
        if digest_of(raw) != listed.digest:
            raise CheckpointError(
                f"{METADATA} was changed: its digest is wrong", where=self._store.url(key)
            )
        try:
            loaded = _MetadataUnpickler(io.BytesIO(raw)).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{METADATA} cannot be read: {error}", where=self._store.url(key)
            ) from None
        assert isinstance(loaded, Metadata)
        return loaded


class NodeSavePlanner(DefaultSavePlanner):
    """torch's planner, for the ranks of one node alone: what they hold need not be all of a tensor."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Who of the node writes what, and what comes of it."""
        plans, metadata = create_default_global_save_plan(self._dedup_save_plans(all_plans))
        mappings = dict(ChainMap(*[plan.planner_data for plan in plans]))
        self.global_plan, self.metadata = plans, replace(metadata, planner_data=mappings)
        return plans, self.metadata


class PlainLoadPlanner(DefaultLoadPlanner):
    """torch's planner, which would unpickle anything, kept to plain data.

    It also refuses what torch's leaves as it is: a tensor of which the checkpoint has only parts.
    """

    def create_local_plan(self) -> LoadPlan:
        """What this rank reads.

        Raises:
            CheckpointError: There is not enough to fill its part of a tensor.
        """
        plan = super().create_local_plan()
        found: dict[str, int] = {}
        for item in plan.items:
            if item.type == LoadItemType.TENSOR:
                fqn = item.dest_index.fqn
                found[fqn] = found.get(fqn, 0) + item.lengths.numel()
        for fqn, value in self.state_dict.items():
            if isinstance(value, Tensor):
                own = value.to_local() if isinstance(value, DTensor) else value
                if found.get(fqn, 0) != own.numel():
                    raise CheckpointError(
                        f"{fqn} is not whole: {found.get(fqn, 0)} of {own.numel()} values"
                    )
        return plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load a plain value.

        Raises:
            CheckpointError: It is not plain.
        """
        try:
            plain = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{read_item.dest_index.fqn} is not plain data: {str(error).splitlines()[0]}"
            ) from None
        buffer = io.BytesIO()
        torch.save(plain, buffer)
        buffer.seek(0)
        super().load_bytes(read_item, buffer)


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes that an index is made of, and no others."""

    _KNOWN = frozenset(
        {
            ("collections", "OrderedDict"),
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        }
        | {
            (dcp_metadata.__name__, name)
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        }
    )

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The class of this name, if it may be in an index."""
        if (module_name, global_name) in self._KNOWN:
            return super().find_class(module_name, global_name)
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} does not belong there")


def _planned_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return _OVERHEAD_BYTES_PER_ITEM
    tensor = item.tensor_data
    return tensor.chunk.sizes.numel() * tensor.properties.dtype.itemsize + _OVERHEAD_BYTES_PER_ITEM


class _Shard:
    """What one rank writes: its items, one after the other.

    Attributes:
        placed: Each item with its offset and length in bytes; known when all chunks are taken.
    """

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        self._plan, self._planner = plan, planner
        self._sha = hashlib.sha256()
        self.placed: list[tuple[WriteItem, int, int]] = []
        self.size = 0

    @property
    def digest(self) -> str:
        """Of the chunks taken so far."""
        return f"sha256:{self._sha.hexdigest()}"

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The content, hashed on the way: large tensors as they lie in memory, all else joined."""
        small: list[bytes | memoryview] = []
        num_small = 0
        for item in self._plan.items:
            offset = self.size
            for piece in _pieces(item, self._planner):
                self._sha.update(piece)
                self.size += len(piece)
                if len(piece) < _JOINED_BYTES:
                    small.append(piece)
                    num_small += len(piece)
                if len(piece) >= _JOINED_BYTES or num_small >= _JOINED_BYTES:
                    yield b"".join(small)
                    small, num_small = [], 0
                if len(piece) >= _JOINED_BYTES:
                    yield piece
            self.placed.append((item, offset, self.size - offset))
        yield b"".join(small)


def _pieces(item: WriteItem, planner: SavePlanner) -> Iterator[bytes | memoryview]:
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        yield cast("io.BytesIO", data).getvalue()
    else:
        yield from pieces(cast("Tensor", data).cpu())


def _fill(item: ReadItem, planner: LoadPlanner, raw: IO[bytes]) -> None:
    saved = torch.load(raw, map_location="cpu", weights_only=True)
    part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
    target = planner.resolve_tensor(item).detach()
    if target.size() != part.size():
        raise CheckpointError(
            f"{item.dest_index.fqn} is {tuple(part.size())} in the checkpoint, "
            f"and {tuple(target.size())} here"
        )
    target.copy_(part)
    planner.commit_tensor(item, target)


def _place(places: dict[Any, Any], item: ReadItem) -> tuple[str, int]:
    info: _StorageInfo = places[item.storage_index]
    return info.relative_path, info.offset
