"""The fast tier: checkpoints on the nodes' own disks or in their memory.

They cost no network and are saved often. A restart on the same nodes goes on from the newest of
them, if it is newer than the store's and whole on every node; else from the store. ADR 7 says why
this never gives a state that was not.

    <root>/octad-checkpoints.<user>.<store>.<run>.<stage>/
      node                          which folder this is: ranks that read the same share it
      step-<k>-<token>/             shards of this node's ranks, .metadata, ranks.json
      step-<k>-<token>/manifest.json   made last, when the shards of all nodes are there
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from octad.errors import CheckpointError, OctadError, StorageError
from octad.spec.checkpoints import Manifest, StoredFile
from octad.spec.keys import StageKeys
from octad.spec.stages import AttemptOrder, Epoch, Position, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of
from octad.train._dcp import METADATA, NodeSavePlanner, PlainLoadPlanner, ShardReader, ShardWriter
from octad.train._saving import FLUSH_LIMIT_S, GROUP_LIMIT, Background
from octad.train.recorder import Recorder, recorded_lines

_LOG = logging.getLogger(__name__)
_PREFIX = "octad-checkpoints"
_TOPIC = "checkpoint on the nodes"
_RANKS = "ranks.json"
_STALE_S = 24 * 3600.0  # nobody has come back for it
Names = dict[tuple[int, int], str]  # (step, attempt) to folder


class NodeTier:
    """One rank's view of the tier. Every method but `is_busy` must be called by every rank.

    Args:
        root: A folder of the node for all stages: on its disk, or `/dev/shm`.
        order: The attempt.
        recorder: On the first rank; it is flushed before each commit.

    Raises:
        StorageError: A node's folder cannot be used. The same on every rank.
    """

    def __init__(self, root: Path, order: AttemptOrder, recorder: Recorder | None = None) -> None:
        self._order, self._recorder = order, recorder
        # Their own groups: the training's collectives run at the same time.
        self._all = dist.new_group(backend="gloo", timeout=GROUP_LIMIT)
        self._folder = root / _folder_name(order)
        self._lock: int | None = None
        opened = _tried(partial(_opened, self._folder))
        self._agree(opened.problem)
        self._here = ObjectStore(StoreSpec(url=self._folder.as_uri()))
        self._own = self._node_of(opened.value)
        self._is_node_first = dist.get_rank(self._own) == 0
        self._agree(self._of_node(self._take))
        self._background: Background[None] = Background("node-checkpoint")

    @property
    def is_busy(self) -> bool:
        """A save is under way."""
        return self._background.is_busy

    def save(self, state: dict[str, Any], *, token: str, about: Mapping[str, Any]) -> None:
        """Start saving, and return when `state` may change again.

        Args:
            state: Tensors, sharded or not, and plain data, in dicts.
            token: The same on every rank, and in no other save.
            about: The manifest's fields but `files`.
        """
        self.settle()
        staged = self._background.staged(state)
        self._background.start(partial(self._write, staged, token, dict(about)))

    def settle(self) -> None:
        """Wait for the save under way. One that failed was noted: the next will do."""
        with suppress(StorageError):
            self._background.settled()

    def resume(
        self, base: Position | None, state: Callable[[], dict[str, Any]]
    ) -> tuple[Manifest, dict[str, Any]] | None:
        """Load the newest checkpoint here that goes on from `base`, and make it this attempt's own.

        Args:
            base: The newest in the store; what is not newer is of no use.
            state: Gives what is wanted, as for `octad.train.checkpoint.load`; asked for once there
                is a checkpoint that is whole.

        Returns:
            The manifest, whose parent is the checkpoint as it was written, and the state; or None.

        Raises:
            StorageError: One that was whole could not be read to its end. It is removed: what
                `state` gave is spoilt, but another attempt can do without it.
        """
        names = self._candidates(base)
        for step, attempt in sorted(names, reverse=True):
            written, name = Position(attempt=attempt, step=step), names[step, attempt]
            try:
                lines = self._checked(written, name, base)
            except StorageError as error:
                self._note(f"the checkpoint of step {step} on the nodes was passed over: {error}")
                continue
            filled = state()
            manifest = self._loaded(name, filled)
            if self._recorder is not None:
                self._recorder.carry(lines)
            newest = "has none" if base is None else f"only has step {base.step}"
            self._note(f"went on from step {step}, saved on the nodes; the store {newest}")
            return manifest, filled
        return None

    def remove(self) -> None:
        """The stage has ended: nothing of it stays on the nodes."""
        self.settle()
        if self._is_node_first:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Let go of the folder; what is in it stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- saving, on the thread

    def _write(self, staged: Any, token: str, about: dict[str, Any]) -> None:
        step = about["position"].step
        name = f"step-{step:010d}-{token}"
        try:
            files = _tried(partial(self._shards, staged, name, token))
            self._agree(files.problem or self._unflushed())
            self._agree(self._of_node(partial(self._seal, name, about, files.value)))
        except StorageError as error:
            self._of_node(partial(lineage.remove_checkpoint, self._here, name))
            self._note(f"step {step} was not saved on the nodes: {error.what}")
            raise
        self._of_node(partial(self._keep_only, name))

    def _shards(self, staged: Any, name: str, token: str) -> tuple[StoredFile, ...]:
        """Write this node's shards; on its first rank, what there is of them."""
        found: list[StoredFile] = []

        def written(metadata: bytes, shards: tuple[StoredFile, ...]) -> None:
            found.extend(shards)
            for path, data in ((METADATA, metadata), (_RANKS, self._placed())):
                self._here.put(f"{name}/{path}", data)
                found.append(StoredFile(path=path, size=len(data), digest=digest_of(data)))

        # A power cut takes more than one node's disk can promise: the store is for that.
        writer = ShardWriter(self._here, name, token, written, is_synced=False)
        save_shards(
            staged, storage_writer=writer, planner=NodeSavePlanner(), process_group=self._own
        )
        return tuple(found)

    def _placed(self) -> bytes:
        """Whose shards lie here, and how the state is cut."""
        placed = {
            "ranks": dist.get_process_group_ranks(self._own),
            "size": dist.get_world_size(),
            "layout": self._order.stage.layout.plain(),
        }
        return json.dumps(placed, sort_keys=True).encode()

    def _unflushed(self) -> str:
        """Why the metrics of the steps are not in the store yet: without them, a restart from here
        would leave a hole in the curve.
        """
        if self._recorder is None or self._recorder.flush(FLUSH_LIMIT_S):
            return ""
        return "the metrics of its steps could not be written to the store"

    def _seal(self, name: str, about: dict[str, Any], files: tuple[StoredFile, ...]) -> None:
        manifest = Manifest(files=files, **about)
        self._here.create(f"{name}/{lineage.MANIFEST}", manifest.model_dump_json().encode())

    def _keep_only(self, name: str) -> None:
        """It is on all nodes: none needs an older one."""
        for other in self._here.folders(""):
            if other != name:
                lineage.remove_checkpoint(self._here, other)

    # --- going on

    def _candidates(self, base: Position | None) -> Names:
        """What is whole by its manifests on every node, and belongs to the stage's history."""
        keys = StageKeys(self._order.run, self._order.stage.name)
        read = _Tried([], "")
        if self._is_node_first:
            read = _tried(partial(lineage.epochs, ObjectStore(self._order.store), keys))
        self._agree(read.problem)
        fences = [fence for fence in read.value if fence.attempt < self._order.attempt]
        own = self._names(fences, base) if self._is_node_first else None
        gathered: list[Names | None] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, own, group=self._all)
        nodes = [names for names in gathered if names is not None]
        common = set.intersection(*(set(names.items()) for names in nodes))
        return dict(common)

    def _names(self, fences: Sequence[Epoch], base: Position | None) -> Names:
        found: Names = {}
        for name in self._here.folders(""):
            manifest = _tried(partial(lineage.read_manifest, self._here, name)).value
            if manifest is not None and not self._has_all(name):
                continue
            if manifest is not None and self._is_usable(manifest, fences, base):
                found[manifest.position.step, manifest.position.attempt] = name
            elif manifest is None or manifest.position.attempt < self._order.attempt:
                _tried(partial(lineage.remove_checkpoint, self._here, name))
        return found

    def _has_all(self, name: str) -> bool:
        """All that this node's ranks want lies here: everything, or what the same ranks wrote."""
        raw = _tried(partial(self._here.get, f"{name}/{_RANKS}")).value
        if raw is None or raw == self._placed():
            return raw is not None
        with suppress(ValueError, KeyError, TypeError):  # it is not verified yet
            placed = json.loads(raw)
            return len(placed["ranks"]) == placed["size"]
        return False

    def _is_usable(
        self, manifest: Manifest, fences: Sequence[Epoch], base: Position | None
    ) -> bool:
        """It goes on from the base, and no attempt since has gone on from anything else.

        An attempt that took it made it its own (`_adopt`); so what still belongs to an attempt
        before the newest one was passed by.
        """
        position = manifest.position
        return (
            (manifest.run, manifest.stage) == (self._order.run, self._order.stage.name)
            and self._order.since <= position.attempt < self._order.attempt
            and position.step > (base.step if base is not None else 0)
            and lineage.counts(position, list(fences))
        )

    def _checked(self, written: Position, name: str, base: Position | None) -> list[bytes]:
        """Verify one, on all nodes; on the first rank, the metrics of its steps.

        Raises:
            StorageError: It cannot be used. The same on every rank.
        """
        self._agree(self._of_node(partial(lineage.verify, self._here, name)))
        carried = _Tried([], "")
        if self._recorder is not None:
            carried = _tried(partial(self._metrics, written, base))
        self._agree(carried.problem)
        lines: list[bytes] = carried.value
        return lines

    def _loaded(self, name: str, state: dict[str, Any]) -> Manifest:
        try:
            reader = _tried(partial(self._reader, name))
            self._agree(reader.problem)
            self._agree(_tried(partial(self._load, reader.value, state)).problem)
            self._agree(self._of_node(partial(self._adopt, name)))
        except StorageError:
            self._of_node(partial(lineage.remove_checkpoint, self._here, name))
            raise
        return lineage.read_manifest(self._here, name)

    def _metrics(self, written: Position, base: Position | None) -> list[bytes]:
        """What was recorded of the steps after the base, up to the checkpoint's."""
        first = base.step + 1 if base is not None else 1
        keys = StageKeys(self._order.run, self._order.stage.name).attempt(written.attempt)
        store = ObjectStore(self._order.store)
        lines = recorded_lines(store, keys, first, written.step)
        if len(lines) != written.step - first + 1:
            raise CheckpointError("the metrics of its steps are not all in the store")
        return lines

    def _reader(self, name: str) -> ShardReader:
        return ShardReader(self._here, name, lineage.read_manifest(self._here, name))

    def _load(self, reader: ShardReader, state: dict[str, Any]) -> None:
        load_shards(
            state, storage_reader=reader, planner=PlainLoadPlanner(), process_group=self._own
        )

    def _adopt(self, name: str) -> None:
        """Make it this attempt's: the next one then finds the steps before it in our metrics, and
        may go on from it, though we end before we save.
        """
        manifest = lineage.read_manifest(self._here, name)
        own = Position(attempt=self._order.attempt, step=manifest.position.step)
        adopted = manifest.model_copy(update={"position": own, "parent": manifest.position})
        self._here.put(f"{name}/{lineage.MANIFEST}", adopted.model_dump_json().encode())

    # --- agreeing

    def _node_of(self, token: str) -> dist.ProcessGroup:
        """The group of the ranks that share this folder."""
        tokens = [""] * dist.get_world_size()
        dist.all_gather_object(tokens, token, group=self._all)
        own = None
        for node in dict.fromkeys(tokens):
            ranks = [rank for rank, read in enumerate(tokens) if read == node]
            group = dist.new_group(ranks, backend="gloo", timeout=GROUP_LIMIT)
            own = group if node == token else own
        return cast("dist.ProcessGroup", own)

    def _take(self) -> None:
        """Keep others out of the folder, and clear up beside it.

        Raises:
            StorageError: Another attempt of the stage is still at work here.
        """
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise StorageError("another attempt is still at work in it") from None
        self._lock = handle
        _remove_stale(self._folder.parent, time.time() - _STALE_S)

    def _of_node(self, act: Callable[[], Any]) -> str:
        """Do something once on each node; why that failed, on the rank that did it."""
        return _tried(act).problem if self._is_node_first else ""

    def _agree(self, problem: str) -> None:
        """Wait for all ranks.

        Raises:
            StorageError: One of them has a problem. The same on every rank.
        """
        problems = [""] * dist.get_world_size()
        dist.all_gather_object(problems, problem, group=self._all)
        found = next((problem for problem in problems if problem), None)
        if found is not None:
            raise StorageError(found, where=str(self._folder))

    def _note(self, text: str) -> None:
        if dist.get_rank() == 0:
            _LOG.warning("%s", text)
        if self._recorder is not None:
            self._recorder.note(text, topic=_TOPIC)


class _Tried:
    """What an act gave, or the problem it had."""

    def __init__(self, value: Any, problem: str) -> None:
        self.value, self.problem = value, problem


def _tried(act: Callable[[], Any]) -> _Tried:
    try:
        return _Tried(act(), "")
    except CheckpointException as error:
        causes = [failure[0] for _, failure in sorted(error.failures.items())]
        return _Tried(None, str(causes[0]) or repr(causes[0]))
    except (OctadError, OSError) as error:
        return _Tried(None, str(error))


def _folder_name(order: AttemptOrder) -> str:
    # No name holds a dot, and runs of different stores may have one name: none share a folder.
    store = hashlib.sha256(order.store.url.encode()).hexdigest()[:12]
    return ".".join((_PREFIX, str(os.getuid()), store, order.run, order.stage.name))


def _opened(folder: Path) -> str:
    """Make the folder; the token that tells it from that of another node.

    Raises:
        StorageError: It belongs to somebody else.
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
        raise StorageError("belongs to another user", where=str(folder), hint="remove it")
    store = ObjectStore(StoreSpec(url=folder.as_uri()))
    store.create("node", secrets.token_hex(16).encode())
    return store.get("node").decode()


def _remove_stale(root: Path, before_s: float) -> None:
    """Remove what stages left that ended badly and never came back."""
    for folder in root.glob(f"{_PREFIX}.{os.getuid()}.*"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.stat().st_mtime < before_s:
                    shutil.rmtree(folder)
            finally:
                os.close(handle)
