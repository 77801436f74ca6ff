"""Which checkpoints of a stage count, and whether they are whole. No torch, no unpickling.

A checkpoint is committed by its manifest. Every attempt first creates its fence,
`epochs/<n>.json`, which names the checkpoint it starts from; from then on, commits of older
attempts count only up to that step. So an attempt that was taken for dead may write on, and still
changes nothing, whatever any clock says.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from octad.errors import CheckpointError, FencedError, NotFoundError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import Manifest, StoredFile
from octad.spec.keys import StageKeys
from octad.spec.stages import AttemptOrder, Epoch, Position
from octad.storage.objects import ObjectStore, digest_of

MANIFEST = "manifest.json"
_CLAIM_TRIES = 5
_FILES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed checkpoint, not yet verified.

    Attributes:
        position: Who wrote it, and at which step.
        manifest_key: Where its manifest lies.
        digest: `sha256:<hex>` of the manifest.
    """

    position: Position
    manifest_key: str
    digest: str

    @property
    def folder_key(self) -> str:
        """The folder of the checkpoint, without a trailing slash."""
        return self.manifest_key.rpartition("/")[0]


OnDamaged = Callable[[Commit, CheckpointError], None]


def _pass_over(_commit: Commit, _error: CheckpointError) -> None:
    """A damaged commit that nobody asked about."""


def epochs(store: ObjectStore, keys: StageKeys) -> list[Epoch]:
    """The fences of a stage, oldest first."""
    found = []
    for meta in store.walk(keys.epochs):
        raw = store.find(meta.key)
        if raw is not None:
            found.append(Epoch.parse(json.loads(raw), where=meta.key))
    return found


def newest_epoch(store: ObjectStore, keys: StageKeys) -> int:
    """The number of the newest fence, 0 if there is none; read from names alone."""
    names = [meta.key.rpartition("/")[2] for meta in store.walk(keys.epochs)]
    return max((int(name.removesuffix(".json")) for name in names), default=0)


def counts(position: Position, fences: list[Epoch]) -> bool:
    """The epoch rule: whether a commit at `position` belongs to the stage's history."""
    for fence in fences:
        base = fence.base.step if fence.base is not None else -1
        if fence.attempt > position.attempt and position.step > base:
            return False
        if fence.attempt == position.attempt and position.step <= base:
            return False
    return True


def commits(store: ObjectStore, keys: StageKeys, since: int = 1) -> list[Commit]:
    """The commits of a stage that count, oldest step first."""
    found = []
    for position in positions(store, keys, since):
        key = keys.attempt(position.attempt).manifest(position.step)
        raw = store.find(key)
        if raw is not None:
            found.append(Commit(position, key, digest_of(raw)))
    return found


def positions(store: ObjectStore, keys: StageKeys, since: int = 1) -> list[Position]:
    """Where the commits that count stand, oldest step first; opens no manifest."""
    fences = epochs(store, keys)
    found = [
        position
        for attempt in _attempts(store, keys)
        if attempt >= since
        for position in _committed(store, keys, attempt)
        if counts(position, fences)
    ]
    return sorted(found, key=lambda position: (position.step, position.attempt))


def newest_good(
    store: ObjectStore,
    keys: StageKeys,
    since: int = 1,
    on_damaged: OnDamaged = _pass_over,
) -> tuple[Manifest, Commit] | None:
    """The newest commit whose every file is as its manifest says, or None.

    Args:
        store: Where to look.
        keys: The stage.
        since: Commits of attempts before this one do not count.
        on_damaged: Called for each newer commit that had to be passed over; the error names the
            file.
    """
    for commit in reversed(commits(store, keys, since)):
        try:
            return verify(store, commit.folder_key, commit.digest), commit
        except CheckpointError as error:
            on_damaged(commit, error)
    return None


def verify(store: ObjectStore, folder_key: str, manifest_digest: str | None = None) -> Manifest:
    """The manifest of a checkpoint, after checking size and digest of every file.

    Args:
        store: Where the checkpoint lies.
        folder_key: Its folder, without a trailing slash.
        manifest_digest: `sha256:<hex>` that the manifest must have, if known.

    Raises:
        CheckpointError: The manifest or a file is missing, cut, or changed; names it.
    """
    manifest = read_manifest(store, folder_key, manifest_digest)
    verify_files(store, folder_key, manifest.files)
    return manifest


def read_manifest(
    store: ObjectStore, folder_key: str, manifest_digest: str | None = None
) -> Manifest:
    """The manifest alone.

    Raises:
        CheckpointError: It is missing, changed, or no manifest of ours.
    """
    key = f"{folder_key.rstrip('/')}/{MANIFEST}"
    raw = store.find(key)
    if raw is None:
        raise CheckpointError("there is no manifest: it was never committed", where=store.url(key))
    if manifest_digest is not None and digest_of(raw) != manifest_digest:
        raise CheckpointError("the manifest was changed", where=store.url(key))
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise CheckpointError(
            f"not a manifest: {error.errors()[0]['msg']}", where=store.url(key)
        ) from None


def verify_files(store: ObjectStore, folder_key: str, files: tuple[StoredFile, ...]) -> None:
    """Check every file of a folder against what its manifest says: first sizes, then digests.

    Raises:
        CheckpointError: Names the first file that is missing, cut, or changed.
    """
    keys = {file: f"{folder_key.rstrip('/')}/{_inside(file.path)}" for file in files}
    for file, key in keys.items():
        size = store.size(key)
        if size is None:
            raise CheckpointError(f"{file.path} is missing", where=store.url(key))
        if size != file.size:
            raise CheckpointError(
                f"{file.path} has {size} bytes, not {file.size}", where=store.url(key)
            )
    readers = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="verify")
    try:
        digests = readers.map(lambda file: _digest(store, keys[file], file), keys)
        for (file, key), digest in zip(keys.items(), digests, strict=True):
            if digest != file.digest:
                raise CheckpointError(
                    f"{file.path} was changed: its digest is wrong", where=store.url(key)
                )
    finally:
        readers.shutdown(cancel_futures=True)


def claim(
    store: ObjectStore,
    order: AttemptOrder,
    on_damaged: OnDamaged = _pass_over,
) -> Position | None:
    """Fence all older attempts of the stage; the verified checkpoint to go on from, or None.

    Raises:
        FencedError: This attempt, or a newer one, was claimed before.
    """
    keys = StageKeys(order.run, order.stage.name)
    base = _settled_base(store, keys, order.since, on_damaged)
    newest = newest_epoch(store, keys)
    fence = Epoch(attempt=order.attempt, base=base)
    created = newest < order.attempt and store.create(
        keys.epoch(order.attempt), fence.model_dump_json().encode()
    )
    if not created:
        raise FencedError(
            f"attempt {max(newest, order.attempt)} of {order.stage.name} has begun already",
            where=order.run,
            hint="this one changes nothing",
        )
    return base


def sweep(store: ObjectStore, order: AttemptOrder) -> int:
    """Remove what older, fenced attempts left for nobody: checkpoints without a commit, commits
    that count no more and never will, and artefacts of attempts without a result.

    Call it after `claim`. Returns the number of objects removed.
    """
    keys = StageKeys(order.run, order.stage.name)
    fences = epochs(store, keys)
    removed = 0
    for attempt in _attempts(store, keys):
        if attempt >= order.attempt:
            continue
        older = keys.attempt(attempt)
        has_result = store.size(older.result) is not None
        # A life that was ended on purpose (`since`) may have given its checkpoints to others.
        is_this_life = attempt >= order.since and not has_result
        for name in store.folders(older.checkpoints):
            folder = f"{older.checkpoints}{name}"
            position = _position(attempt, name)
            is_committed = store.size(f"{folder}/{MANIFEST}") is not None
            is_lost = is_this_life and position is not None and not counts(position, fences)
            if is_lost or not is_committed:
                removed += remove_checkpoint(store, folder)
        if not has_result:
            removed += store.delete_folder(older.artefacts)
    return removed


def remove_checkpoint(store: ObjectStore, folder_key: str) -> int:
    """Remove a checkpoint: first its manifest, so that no half of it is taken for a whole one."""
    manifest = f"{folder_key}/{MANIFEST}"
    is_committed = store.size(manifest) is not None
    store.delete([manifest])
    return store.delete_folder(f"{folder_key}/") + is_committed


def to_keep(committed: Sequence[Position], newest: int, every: int | None) -> set[Position]:
    """Which commits of a stage stay.

    Args:
        committed: Those that count, oldest step first.
        newest: How many of the newest stay.
        every: Of each so many steps after the first so many, the earliest commit stays as well:
            with saves at multiples of `every`, exactly those.
    """
    kept = set(committed[-newest:])
    if every is not None:
        seen = {0}
        for position in committed:
            if position.step // every not in seen:
                seen.add(position.step // every)
                kept.add(position)
    return kept


def artefact_of(store: ObjectStore, order: AttemptOrder, position: Position) -> Artefact:
    """A committed checkpoint as an artefact: a `checkpoint`, or an `adapter`.

    Raises:
        CheckpointError: It is not there, or its manifest cannot be read.
    """
    keys = StageKeys(order.run, order.stage.name).attempt(position.attempt)
    folder = keys.checkpoint(position.step)
    raw = store.find(keys.manifest(position.step))
    digest = digest_of(raw) if raw is not None else None
    manifest = read_manifest(store, folder, digest)
    kind = "adapter" if manifest.content == "adapter" else "checkpoint"
    return Artefact.parse({"name": kind, "type": kind, "uri": store.url(folder), "digest": digest})


def _settled_base(
    store: ObjectStore,
    keys: StageKeys,
    since: int,
    on_damaged: OnDamaged,
) -> Position | None:
    """The newest good commit; looked for again if another came while this one was verified."""
    base = None
    for _ in range(_CLAIM_TRIES):
        before = positions(store, keys, since)
        found = newest_good(store, keys, since, on_damaged)
        base = found[1].position if found is not None else None
        if positions(store, keys, since) == before:
            break
    return base


def _attempts(store: ObjectStore, keys: StageKeys) -> list[int]:
    return [int(name) for name in store.folders(f"{keys.root}/attempts/") if name.isdigit()]


def _committed(store: ObjectStore, keys: StageKeys, attempt: int) -> Iterator[Position]:
    folder = keys.attempt(attempt).checkpoints
    for meta in store.walk(folder):
        name, _, rest = meta.key.removeprefix(folder).partition("/")
        position = _position(attempt, name)
        if rest == MANIFEST and position is not None:
            yield position


def _position(attempt: int, folder: str) -> Position | None:
    """What a folder's name says, if it is that of a checkpoint."""
    if folder.startswith("step-") and folder[5:].isdigit():
        return Position(attempt=attempt, step=int(folder[5:]))
    return None


def _digest(store: ObjectStore, key: str, file: StoredFile) -> str:
    with contextlib.suppress(NotFoundError):
        return store.digest(key)
    raise CheckpointError(f"{file.path} is missing", where=store.url(key))


def _inside(path: str) -> str:
    """`path` if it stays inside its folder.

    Raises:
        CheckpointError: It does not.
    """
    if path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")):
        raise CheckpointError(f"a manifest names the file {path!r}, which lies outside its folder")
    return path
