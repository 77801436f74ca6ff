"""Checkpoints: written by every rank at once while training goes on, committed by one object.

`save` copies the state to host memory and returns. A thread then streams each rank's shard to the
store; when all are there, and the metrics of all steps up to this one too, the first rank creates
the manifest. Its creation is the commit. Nothing that goes wrong before it harms an older
checkpoint or stops the training: it is noted, and the next save tries again.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from octad import __version__
from octad.errors import CheckpointError, FencedError, NotFoundError, OctadError, StorageError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import DataPosition, Manifest, StoredFile
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of
from octad.train._dcp import METADATA, PlainLoadPlanner, ShardReader, ShardWriter
from octad.train._saving import FLUSH_LIMIT_S, GROUP_LIMIT, Background, reason_of
from octad.train.interval import Schedule, Tier
from octad.train.node_tier import NodeTier
from octad.train.recorder import Recorder

_LOG = logging.getLogger(__name__)
_LAST_PAUSES_S = (1.0, 5.0, 25.0)  # before the last save is tried again
_TOPIC = "checkpoint"  # of the note: a newer failure takes the place of an older one


class Checkpointer:
    """Saves one stage's checkpoints. Made on every rank, after the process group is up.

    Args:
        store: Where everything lies.
        order: The attempt.
        content: `full`, or `adapter` for what fine-tuning added.
        model: The resolved model settings.
        dtype: Of the weights.
        layout: The mesh that writes.
        base: For an adapter: the checkpoint it adapts.
        adapter: For an adapter: its settings.
        parent: The checkpoint that this attempt goes on from.
        keep: How many of the newest commits are kept.
        keep_every: Of each so many steps, one commit is kept as well.
        recorder: On the first rank; it is flushed before each commit.
        node: The tier on the nodes themselves, if there is one.
        schedule: When `due` says yes.

    Attributes:
        blocked_s: Seconds that the training had to wait for checkpoints so far.
        failures: One line for each save that could not be committed.
    """

    def __init__(  # noqa: PLR0913  what a manifest says, each by name
        self,
        store: StoreSpec,
        order: AttemptOrder,
        *,
        content: Literal["full", "adapter"],
        model: Mapping[str, Any],
        dtype: Any,
        layout: Layout,
        base: Artefact | None = None,
        adapter: Mapping[str, Any] | None = None,
        parent: Position | None = None,
        keep: int = 3,
        keep_every: int | None = None,
        recorder: Recorder | None = None,
        node: NodeTier | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.blocked_s = 0.0
        self.failures: list[str] = []
        self._store = ObjectStore(store)
        self._order, self._recorder = order, recorder
        self._keep, self._keep_every = max(keep, 1), keep_every
        self._stage_keys = StageKeys(order.run, order.stage.name)
        self._keys = self._stage_keys.attempt(order.attempt)
        plain = json.loads(json.dumps(dict(model)))
        self._about = {
            "content": content,
            "run": order.run,
            "stage": order.stage.name,
            "layout": layout,
            "dtype": str(dtype).removeprefix("torch."),
            "model": plain,
            "model_digest": digest_of(canonical(plain)),
            "parent": parent,
            "base": base,
            "adapter": None if adapter is None else dict(adapter),
            "versions": {"torch": torch.__version__, "octad": __version__},
        }
        # Its own group: the training's collectives run at the same time.
        self._group = dist.new_group(backend="gloo", timeout=GROUP_LIMIT)
        self._is_first = dist.get_rank() == 0
        self._newest = parent
        self._background: Background[Position] = Background("checkpoint")
        self._again: Callable[[str], Position] | None = None  # the last save, by its token
        self._token = ""
        self._node, self._schedule = node, schedule
        # For what the ranks agree on between steps, while both tiers may be writing.
        self._agreeing = dist.new_group(backend="gloo", timeout=GROUP_LIMIT)

    def due(self, step: int) -> Tier | None:
        """Where the state after this step is to be saved, the same on every rank; None: nowhere.

        Every rank must call this after every step.
        """
        assert self._schedule is not None
        if self._schedule.is_certain(step):
            return "store"
        if not self._schedule.is_asked(step):
            return None
        with self._timed():
            is_node_busy = self._node is None or self._node.is_busy
            decision = [
                self._schedule.decided(
                    step, is_store_busy=self._background.is_busy, is_node_busy=is_node_busy
                )
            ]
            dist.broadcast_object_list(decision, src=0, group=self._agreeing)
        return self._schedule.followed(decision[0])

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        tokens: int,
        data: DataPosition | None,
        tier: Tier = "store",
    ) -> None:
        """Start saving, and return when `state` may change again. Every rank must call this.

        Record the step's metrics before: they are in the store when the commit is.

        Args:
            step: Steps taken so far.
            state: Tensors, sharded or not, and plain data, in dicts.
            tokens: Trained on so far.
            data: Where the data stands.
            tier: Where to.

        Raises:
            FencedError: A newer attempt has begun; nothing that this one saves counts any more.
            CheckpointError: `state` holds something that is neither a tensor nor plain data.
        """
        say = {"tokens": tokens, "data": data}
        began_s = time.perf_counter()
        with self._timed():
            # The same on every rank, and on no other writer's.
            named = [secrets.token_hex(4)]
            dist.broadcast_object_list(named, src=0, group=self._agreeing)
            if tier == "node":
                assert self._node is not None
                position = Position(attempt=self._order.attempt, step=step)
                about = {**self._about, **say, "position": position}
                self._node.save(state, token=named[0], about=about)
                return
            self._settle()
            staged = self._background.staged(state)
            self._token = named[0]
            blocked_s = time.perf_counter() - began_s
            self._again = partial(self._write, step, staged, say=say)
            write = partial(self._measured, partial(self._again, self._token), began_s, blocked_s)
            self._background.start(write)

    def finish(self) -> Position | None:
        """Wait for the last save; the newest commit, or None. Every rank must call this.

        One that fails is tried again a few times: what it would save is all that was trained.

        Raises:
            StorageError: The last save could not be committed.
            FencedError: A newer attempt has begun.
        """
        with self._timed():
            if self._node is not None:
                self._node.settle()
            failure = self._settle()
            if failure is not None:
                self._try_again()
        return self._newest

    def _try_again(self) -> None:
        """Save the last state until it is committed.

        Raises:
            StorageError: It cannot be.
            FencedError: A newer attempt has begun.
        """
        assert self._again is not None
        for number, pause_s in enumerate(_LAST_PAUSES_S, start=2):
            time.sleep(pause_s)
            is_last = number == len(_LAST_PAUSES_S) + 1
            try:
                self._background.start(partial(self._again, f"{self._token}x{number}"))
                self._newest = self._background.settled()
            except StorageError:
                if is_last:
                    raise
            else:
                assert self._newest is not None
                self.failures.pop()
                self._note(f"the checkpoint at step {self._newest.step} was saved at try {number}")
                return

    def _settle(self) -> StorageError | None:
        """Wait for the save that is under way; why it was not committed, if so."""
        try:
            self._newest = self._background.settled() or self._newest
        except StorageError as error:
            self.failures.append(str(error))
            return error
        return None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_s += time.perf_counter() - started

    # --- on the thread

    def _measured(
        self, write: Callable[[], Position], began_s: float, blocked_s: float
    ) -> Position:
        position = write()
        if self._schedule is not None:
            durable_s = time.perf_counter() - began_s
            self._schedule.measured(blocked_s=blocked_s, durable_s=durable_s)
        return position

    def _write(self, step: int, staged: Any, token: str, *, say: dict[str, Any]) -> Position:
        position = Position(attempt=self._order.attempt, step=step)
        folder = self._keys.checkpoint(step)

        def commit(metadata: bytes, shards: tuple[StoredFile, ...]) -> None:
            self._commit(position, metadata, shards, say)

        writer = ShardWriter(self._store, folder, token, commit)
        try:
            save_shards(staged, storage_writer=writer, process_group=self._group)
        except CheckpointException as error:
            reason = reason_of(error)
            if self._is_first:
                self._clear(folder, token)
                self._report(step, reason)
            raise reason from None
        if self._is_first:
            self._retain()
        return position

    def _commit(
        self,
        position: Position,
        metadata: bytes,
        shards: tuple[StoredFile, ...],
        say: dict[str, Any],
    ) -> None:
        """Make the checkpoint count. Only on the first rank, when all shards are in the store."""
        folder = self._keys.checkpoint(position.step)
        self._create(f"{folder}/{METADATA}", metadata)
        index = StoredFile(path=METADATA, size=len(metadata), digest=digest_of(metadata))
        manifest = Manifest(position=position, files=(*shards, index), **self._about, **say)
        if self._recorder is not None and not self._recorder.flush(FLUSH_LIMIT_S):
            raise StorageError(
                "the metrics of its steps could not be written", where=self._store.spec.url
            )
        self._check_fence()
        self._create(self._keys.manifest(position.step), manifest.model_dump_json().encode())

    def _create(self, key: str, data: bytes) -> None:
        """Create an object, exactly once among all writers.

        Raises:
            FencedError: There is one already, made by another writer.
            StorageError: It is not there.
        """
        try:
            if self._store.create(key, data):
                return
        except StorageError:
            # The answer was lost, perhaps not the object.
            if self._store.find(key) != data:
                raise
            return
        if self._store.find(key) != data:
            raise FencedError(
                "another writer has saved this step",
                where=self._store.url(key),
                hint="one is enough",
            )

    def _check_fence(self) -> None:
        newest = lineage.newest_epoch(self._store, self._stage_keys)
        if newest > self._order.attempt:
            raise FencedError(
                f"attempt {newest} of {self._order.stage.name} has begun",
                where=self._order.run,
                hint="this one changes nothing any more",
            )

    def _clear(self, folder: str, token: str) -> None:
        """Remove what this save has written, unless it is committed after all."""
        try:
            raw = self._store.find(f"{folder}/{lineage.MANIFEST}")
            if raw is not None and token.encode() in raw:
                return
            keys = [meta.key for meta in self._store.walk(f"{folder}/") if token in meta.key]
            index = f"{folder}/{METADATA}"
            if token.encode() in (self._store.find(index) or b""):
                keys.append(index)
            self._store.delete(keys)
        except OctadError as error:
            _LOG.warning("what is left of a failed save stays in %s: %s", folder, error)

    def _report(self, step: int, reason: OctadError) -> None:
        newest = "none is" if self._newest is None else f"step {self._newest.step} is"
        self._note(f"the checkpoint at step {step} was not saved: {reason}; {newest} the newest")

    def _note(self, text: str) -> None:
        _LOG.warning("%s", text)
        if self._recorder is not None:
            self._recorder.note(text, topic=_TOPIC)

    def _retain(self) -> None:
        """Remove the oldest commits, manifest first; only while a newer one is surely there."""
        try:
            committed = lineage.positions(self._store, self._stage_keys, self._order.since)
            kept = lineage.to_keep(committed, self._keep, self._keep_every)
            older = [position for position in committed if position not in kept]
            if not older or not self._is_whole(committed[-1]):
                return
            self._check_fence()
            for position in older:
                keys = self._stage_keys.attempt(position.attempt)
                lineage.remove_checkpoint(self._store, keys.checkpoint(position.step))
        except (FencedError, StorageError, CheckpointError) as error:
            _LOG.warning("older checkpoints stay for now: %s", error)

    def _is_whole(self, position: Position) -> bool:
        """All files of a commit are there, by name and size."""
        folder = self._stage_keys.attempt(position.attempt).checkpoint(position.step)
        sizes = {meta.key: meta.size for meta in self._store.walk(f"{folder}/")}
        manifest = lineage.read_manifest(self._store, folder)
        return all(sizes.get(f"{folder}/{file.path}") == file.size for file in manifest.files)


def load(
    store: StoreSpec, folder_key: str, state: dict[str, Any], *, is_alone: bool = False
) -> Manifest:
    """Fill `state` in place from a checkpoint, whatever size and layout wrote it.

    Every rank must call this, or one that `is_alone`. Verify the checkpoint first (`octad.storage.lineage.verify`): this
    checks the index, not each shard.

    Args:
        store: Where it lies.
        folder_key: The checkpoint's folder, without a trailing slash.
        state: What is wanted: tensors of the right shape, sharded or not, in dicts.
        is_alone: Only this rank loads.

    Returns:
        The manifest.

    Raises:
        CheckpointError: It is damaged, lacks something that is wanted, or has another shape.
    """
    objects = ObjectStore(store)
    folder = folder_key.rstrip("/")
    manifest = lineage.read_manifest(objects, folder)
    reader = ShardReader(objects, folder, manifest)
    try:
        with warnings.catch_warnings():
            if is_alone or not dist.is_initialized():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load_shards(state, storage_reader=reader, planner=PlainLoadPlanner(), no_dist=is_alone)
    except CheckpointException as error:
        reason = _first_failure(error)
        if isinstance(reason, NotFoundError):
            raise CheckpointError("a file is missing", where=reason.where) from None
        if isinstance(reason, OctadError):
            raise reason from None
        raise CheckpointError(f"does not fit: {reason}", where=objects.url(folder)) from None
    return manifest


def artefact_of(store: StoreSpec, order: AttemptOrder, position: Position) -> Artefact:
    """A committed checkpoint of the stage as an artefact: a `checkpoint`, or an `adapter`."""
    return lineage.artefact_of(ObjectStore(store), order, position)


def _first_failure(error: CheckpointException) -> BaseException:
    causes = [failure[0] for _, failure in sorted(error.failures.items())]
    return next((cause for cause in causes if isinstance(cause, OctadError)), causes[0])


def canonical(plain: Any) -> bytes:
    """Plain data as the one JSON whose digest names it."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
