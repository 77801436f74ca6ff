"""Checkpoints of one process; what several ranks do is in test_checkpoint_ranks.py."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from octad.errors import CheckpointError, FencedError, StorageError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import DataPosition, Manifest
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position, Progress, StageSpec, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of
from octad.train import checkpoint
from octad.train.checkpoint import Checkpointer, artefact_of, load
from octad.train.interval import Schedule
from octad.train.recorder import Recorder

LAYOUT = Layout(dp_shard=1)
STAGE = StageSpec(name="pretrain", kind="pretrain", cards=1, layout=LAYOUT)
KEYS = StageKeys("run", "pretrain")
DATA = DataPosition(fingerprint="f", seed=1, samples=320)


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries."""
    monkeypatch.setattr(checkpoint, "_LAST_PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    return StoreSpec(url=(tmp_path / "store").as_uri())


def order(spec: StoreSpec, attempt: int = 1) -> AttemptOrder:
    return AttemptOrder(run="run", attempt=attempt, stage=STAGE, inputs={}, store=spec)


def checkpointer(spec: StoreSpec, attempt: int = 1, **more: Any) -> Checkpointer:
    given: dict[str, Any] = {
        "content": "full",
        "model": {"kind": "decoder", "width": 8},
        "dtype": torch.float32,
        "layout": LAYOUT,
    }
    return Checkpointer(spec, order(spec, attempt), **(given | more))


def state(seed: int = 0, size: int = 64) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "w": torch.randn(size, size, generator=made),
            "b": torch.randn(size, generator=made).to(torch.bfloat16),
        },
        "optimizer": {"state.w.step": torch.tensor(float(seed)), "param_groups.w.lr": 0.1 + seed},
    }


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return (
        all(torch.equal(left["model"][k], right["model"][k]) for k in ("w", "b"))
        and torch.equal(left["optimizer"]["state.w.step"], right["optimizer"]["state.w.step"])
        and left["optimizer"]["param_groups.w.lr"] == right["optimizer"]["param_groups.w.lr"]
    )


def loaded(spec: StoreSpec, position: Position) -> dict[str, Any]:
    blank = state(99)
    load(spec, KEYS.attempt(position.attempt).checkpoint(position.step), blank)
    return blank


def files(spec: StoreSpec, under: str = "runs/") -> list[str]:
    return [meta.key for meta in ObjectStore(spec).walk(under)]


def steps(spec: StoreSpec) -> list[int]:
    return [position.step for position in lineage.positions(ObjectStore(spec), KEYS)]


def test_what_is_saved_is_loaded_and_its_manifest_says_what_it_is(spec: StoreSpec) -> None:
    base = Artefact(
        name="checkpoint", type="checkpoint", uri="file:///b", digest="sha256:" + "0" * 64
    )
    parent = Position(attempt=1, step=3)
    saver = checkpointer(spec, 2, content="adapter", base=base, adapter={"rank": 8}, parent=parent)
    saver.save(10, state(1), tokens=640, data=DATA)
    assert saver.finish() == Position(attempt=2, step=10)
    manifest = lineage.verify(ObjectStore(spec), KEYS.attempt(2).checkpoint(10))
    assert same(loaded(spec, Position(attempt=2, step=10)), state(1))
    assert manifest.position == Position(attempt=2, step=10)
    assert (manifest.content, manifest.base, manifest.parent) == ("adapter", base, parent)
    assert manifest.adapter == {"rank": 8}
    assert (manifest.tokens, manifest.data) == (640, DATA)
    assert (manifest.dtype, manifest.layout) == ("float32", LAYOUT)
    canonical = b'{"kind":"decoder","width":8}'
    assert manifest.model_digest == digest_of(canonical)
    listed = {file.path for file in manifest.files}
    folder = KEYS.attempt(2).checkpoint(10) + "/"
    assert {f"{folder}{path}" for path in listed} | {f"{folder}manifest.json"} == set(files(spec))
    assert ".metadata" in listed
    made = artefact_of(spec, order(spec, 2), Position(attempt=2, step=10))
    assert made.type == "adapter"


def test_torchs_own_reader_opens_it(spec: StoreSpec, tmp_path: Path) -> None:
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    folder = ObjectStore(spec).local_path(KEYS.attempt(1).checkpoint(10))
    assert folder is not None
    dcp_to_torch_save(folder, tmp_path / "one.pt")
    assert same(torch.load(tmp_path / "one.pt", weights_only=True), state(1))


def test_what_changes_right_after_save_is_not_saved(
    spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    upload = ObjectStore.put_chunks

    def gated(self: ObjectStore, key: str, chunks: Iterable[bytes], **how: Any) -> None:
        assert gate.wait(30)
        upload(self, key, chunks, **how)

    monkeypatch.setattr(ObjectStore, "put_chunks", gated)
    live = state(1)
    saver = checkpointer(spec)
    saver.save(10, live, tokens=0, data=None)
    live["model"]["w"].zero_()
    live["model"]["b"] += 1
    live["optimizer"]["state.w.step"] += 1
    gate.set()
    saver.save(20, live, tokens=0, data=None)
    live["model"]["w"].fill_(7)
    saver.finish()
    assert same(loaded(spec, Position(attempt=1, step=10)), state(1))
    assert loaded(spec, Position(attempt=1, step=20))["model"]["w"].eq(0).all()


def test_only_the_newest_are_kept_over_all_attempts(spec: StoreSpec) -> None:
    store = ObjectStore(spec)
    lineage.claim(store, order(spec, 1))
    saver = checkpointer(spec, keep=2)
    for step in (10, 20, 30):
        saver.save(step, state(step), tokens=0, data=None)
    saver.finish()
    assert steps(spec) == [20, 30]
    lineage.claim(store, order(spec, 2))
    saver = checkpointer(spec, 2, keep=2)
    saver.save(40, state(40), tokens=0, data=None)
    saver.finish()
    assert steps(spec) == [30, 40]
    assert not [key for key in files(spec) if "step-0000000010" in key or "0020" in key]


def test_the_last_good_one_is_kept_if_a_newer_one_was_lost(
    spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = checkpointer(spec, keep=1)
    saver.save(10, state(1), tokens=0, data=None)
    assert saver.finish() is not None
    create = ObjectStore.create

    def loses_the_shard(self: ObjectStore, key: str, data: bytes) -> bool:
        is_made = create(self, key, data)
        if key.endswith("step-0000000020/manifest.json"):
            self.delete([k for k in files(spec) if "0020/shard" in k])
        return is_made

    monkeypatch.setattr(ObjectStore, "create", loses_the_shard)
    saver.save(20, state(2), tokens=0, data=None)
    saver.finish()
    found = lineage.newest_good(ObjectStore(spec), KEYS)
    assert found is not None
    assert found[1].position.step == 10


def test_a_fenced_attempt_commits_and_removes_nothing(spec: StoreSpec) -> None:
    store = ObjectStore(spec)
    lineage.claim(store, order(spec, 1))
    saver = checkpointer(spec, keep=1)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    lineage.claim(store, order(spec, 2))
    before = files(spec)
    saver.save(20, state(2), tokens=0, data=None)
    with pytest.raises(FencedError, match="attempt 2 of pretrain has begun"):
        saver.finish()
    assert files(spec) == before


def test_of_two_writers_at_one_step_one_wins_and_its_files_are_whole(spec: StoreSpec) -> None:
    both = [checkpointer(spec), checkpointer(spec)]
    for seed, saver in enumerate(both):
        saver.save(10, state(seed), tokens=0, data=None)
    won, lost = [], []
    for seed, saver in enumerate(both):
        try:
            saver.finish()
            won.append(seed)
        except FencedError as error:
            lost.append(error.what)
    assert len(won) == 1
    assert lost == ["another writer has saved this step"]
    lineage.verify(ObjectStore(spec), KEYS.attempt(1).checkpoint(10))
    assert same(loaded(spec, Position(attempt=1, step=10)), state(won[0]))
    assert len(files(spec)) == 3


def test_a_writer_that_loses_takes_nothing_from_one_that_has_yet_to_commit(
    spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_lost = threading.Event()
    create = ObjectStore.create

    def waits(self: ObjectStore, key: str, data: bytes) -> bool:
        if key.endswith("manifest.json"):
            assert has_lost.wait(30)
        is_made = create(self, key, data)
        if key.endswith(".metadata") and is_made:
            has_index.set()
        return is_made

    has_index = threading.Event()
    monkeypatch.setattr(ObjectStore, "create", waits)
    winner, loser = checkpointer(spec), checkpointer(spec)
    winner.save(10, state(1), tokens=0, data=None)
    assert has_index.wait(30)
    loser.save(10, state(2), tokens=0, data=None)
    with pytest.raises(FencedError):
        loser.finish()
    has_lost.set()
    winner.finish()
    lineage.verify(ObjectStore(spec), KEYS.attempt(1).checkpoint(10))


def test_a_lost_answer_is_not_a_lost_commit(
    spec: StoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ObjectStore.create

    def answers_lost(self: ObjectStore, key: str, data: bytes) -> bool:
        create(self, key, data)
        if key.endswith("manifest.json"):
            raise StorageError("the connection broke")
        return False

    monkeypatch.setattr(ObjectStore, "create", answers_lost)
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    assert saver.finish() == Position(attempt=1, step=10)
    assert same(loaded(spec, Position(attempt=1, step=10)), state(1))


@pytest.mark.parametrize("broken", ["put_chunks", "create .metadata", "create manifest.json"])
def test_a_save_that_fails_leaves_the_older_one_and_the_next_works(
    spec: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    recorder = Recorder(spec, KEYS.attempt(1), tmp_path, 30)
    saver = checkpointer(spec, recorder=recorder)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    method, _, name = broken.partition(" ")
    real = getattr(ObjectStore, method)

    def fails(self: ObjectStore, key: str, data: Any, **how: Any) -> Any:
        if "step-0000000020" in key and key.endswith(name):
            raise StorageError("no space left", where=key)
        return real(self, key, data, **how)

    monkeypatch.setattr(ObjectStore, method, fails)
    saver.save(20, state(2), tokens=0, data=None)
    saver.save(30, state(3), tokens=0, data=None)
    assert saver.finish() == Position(attempt=1, step=30)
    assert steps(spec) == [10, 30]
    assert not [key for key in files(spec) if "step-0000000020" in key]
    assert len(saver.failures) == 1
    recorder.close()
    progress = Progress.parse(ObjectStore(spec).read_json(KEYS.attempt(1).progress) or {})
    (note,) = progress.notes
    assert note.startswith("the checkpoint at step 20 was not saved: ")
    assert "no space left" in note
    assert note.endswith("step 10 is the newest")


def test_the_last_save_must_be_committed(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fails(_self: ObjectStore, key: str, _chunks: Iterable[bytes], **_how: Any) -> None:
        tries.append(key)
        raise StorageError("no space left", where=key)

    monkeypatch.setattr(ObjectStore, "put_chunks", fails)
    saver = checkpointer(spec)
    assert saver.finish() is None
    saver.save(10, state(1), tokens=0, data=None)
    with pytest.raises(StorageError, match="no space left"):
        saver.finish()
    assert len(tries) == 4


def test_the_last_save_is_tried_again(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = ObjectStore.put_chunks, []

    def fails_twice(self: ObjectStore, key: str, chunks: Iterable[bytes], **how: Any) -> None:
        tries.append(key)
        if len(tries) < 3:
            raise StorageError("the store failed", where=key)
        real(self, key, chunks, **how)

    monkeypatch.setattr(ObjectStore, "put_chunks", fails_twice)
    saver = checkpointer(spec)
    live = state(1)
    saver.save(10, live, tokens=0, data=None)
    live["model"]["w"].zero_()
    assert saver.finish() == Position(attempt=1, step=10)
    assert same(loaded(spec, Position(attempt=1, step=10)), state(1))
    assert len(files(spec)) == 3, "what failed is removed"


def test_a_commit_waits_for_the_metrics_of_its_steps(
    spec: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(spec, KEYS.attempt(1), tmp_path, 10)
    saver = checkpointer(spec, recorder=recorder)
    seen: list[int] = []
    create = ObjectStore.create

    def looks(self: ObjectStore, key: str, data: bytes) -> bool:
        if key.endswith("manifest.json"):
            raw = b"".join(self.get(m.key) for m in self.walk(KEYS.attempt(1).metrics))
            seen.extend(json.loads(line)["step"] for line in raw.splitlines())
        return create(self, key, data)

    monkeypatch.setattr(ObjectStore, "create", looks)
    for step in range(1, 11):
        recorder.step(step, {"loss": 1.0})
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    recorder.close()
    assert seen == list(range(1, 11))


def test_no_commit_without_its_metrics(
    spec: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ObjectStore.put

    def loses_metrics(self: ObjectStore, key: str, data: bytes) -> None:
        if "/metrics/" in key:
            raise StorageError("down", where=key)
        put(self, key, data)

    monkeypatch.setattr(ObjectStore, "put", loses_metrics)
    monkeypatch.setattr(checkpoint, "FLUSH_LIMIT_S", 0.2)
    recorder = Recorder(spec, KEYS.attempt(1), tmp_path, 10)
    recorder.step(10, {"loss": 1.0})
    saver = checkpointer(spec, recorder=recorder)
    saver.save(10, state(1), tokens=0, data=None)
    with pytest.raises(StorageError, match="the metrics of its steps"):
        saver.finish()
    assert files(spec, "runs/run/stages/pretrain/attempts/000001/checkpoints/") == []
    assert not recorder.close(0.1)


@pytest.mark.parametrize(
    ("value", "kind"), [(Path("x"), "PosixPath"), ({1}, "set"), (DATA, "DataPosition")]
)
def test_only_tensors_and_plain_data_are_saved(spec: StoreSpec, value: Any, kind: str) -> None:
    saver = checkpointer(spec)
    with pytest.raises(CheckpointError, match=f"a {kind} cannot be saved") as caught:
        saver.save(10, {"extra": {"thing": value}}, tokens=0, data=None)
    assert caught.value.where == "extra.thing"
    assert saver.finish() is None


def test_random_states_are_tensors_and_come_back(spec: StoreSpec) -> None:
    rng = torch.get_rng_state()
    saver = checkpointer(spec)
    saver.save(10, {"rng": rng, "names": ["a", "b"], "n": 3}, tokens=0, data=None)
    saver.finish()
    blank: dict[str, Any] = {"rng": torch.zeros_like(rng), "names": ["", ""], "n": 0}
    load(spec, KEYS.attempt(1).checkpoint(10), blank)
    assert torch.equal(blank["rng"], rng)
    assert (blank["names"], blank["n"]) == (["a", "b"], 3)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"model": {"w": torch.zeros(3, 3)}}, "w"),
        ({"model": {"other": torch.zeros(3)}}, "model.other"),
    ],
)
def test_what_does_not_fit_is_refused(spec: StoreSpec, wanted: dict[str, Any], says: str) -> None:
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    with pytest.raises(CheckpointError, match=says):
        load(spec, KEYS.attempt(1).checkpoint(10), wanted)


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_malicious_index_runs_no_code(spec: StoreSpec, tmp_path: Path, is_listed: bool) -> None:
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    store, folder = ObjectStore(spec), KEYS.attempt(1).checkpoint(10)
    evil = pickle.dumps(_Canary(tmp_path / "canary"))
    store.put(f"{folder}/.metadata", evil)
    if is_listed:  # by one who can write the manifest as well
        manifest = Manifest.model_validate_json(store.get(f"{folder}/manifest.json"))
        listed = tuple(
            file.model_copy(update={"digest": digest_of(evil), "size": len(evil)})
            if file.path == ".metadata"
            else file
            for file in manifest.files
        )
        raw = manifest.model_copy(update={"files": listed}).model_dump_json()
        store.put(f"{folder}/manifest.json", raw.encode())
    says = "does not belong there" if is_listed else "its digest is wrong"
    with pytest.raises(CheckpointError, match=says):
        load(spec, folder, state())
    assert not (tmp_path / "canary").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_full_disk_stops_no_training_and_harms_no_older_checkpoint(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_measured: bool
) -> None:
    spec = StoreSpec(url=small_disk.as_uri())
    if not is_measured:  # as if the space went while the shard was written
        monkeypatch.setattr(ObjectStore, "bytes_free", lambda _self: None)
    recorder = Recorder(spec, KEYS.attempt(1), tmp_path / "spool", 40)
    saver = checkpointer(spec, recorder=recorder)
    saver.save(10, state(1, size=1000), tokens=0, data=None)  # 4 MB
    saver.finish()
    (small_disk / "other").write_bytes(bytes(2_000_000))
    for step in (20, 30):
        recorder.step(step, {"loss": 1.0})
        saver.save(step, state(2, size=1000), tokens=0, data=None)
    with pytest.raises(StorageError, match="no space left"):
        saver.finish()
    assert len(saver.failures) == 2
    left = {path.name for path in small_disk.rglob("*") if path.is_file()}
    assert not [name for name in left if "#" in name]
    assert not [key for key in files(spec) if "0020" in key or "0030" in key]
    lineage.verify(ObjectStore(spec), KEYS.attempt(1).checkpoint(10))
    (small_disk / "other").unlink()
    saver = checkpointer(spec, keep=1, recorder=recorder)
    saver.save(31, state(3, size=100), tokens=0, data=None)
    assert saver.finish() == Position(attempt=1, step=31)
    recorder.close()
    progress = Progress.parse(ObjectStore(spec).read_json(KEYS.attempt(1).progress) or {})
    assert [note.partition(":")[0] for note in progress.notes] == [
        "the checkpoint at step 30 was not saved"
    ]


def test_the_interval_is_chosen_from_what_saves_took(spec: StoreSpec) -> None:
    now = [0.0]
    schedule = Schedule(start=0, last=1000, every="auto", mtbf_s=1e15, clock=lambda: now[0])
    saver = checkpointer(spec, schedule=schedule)
    saved = []
    for step in range(1, 1001):
        now[0] += 1.0
        if saver.due(step) is not None:
            saved.append(step)
            saver.save(step, state(1), tokens=0, data=None)
            saver.finish()
    assert saved == [10, 1000], "where nothing ever fails, the last one is enough"


def test_waiting_is_counted(spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    upload = ObjectStore.put_chunks

    def slow(self: ObjectStore, key: str, chunks: Iterable[bytes], **how: Any) -> None:
        gate.wait(0.3)
        upload(self, key, chunks, **how)

    monkeypatch.setattr(ObjectStore, "put_chunks", slow)
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    first = saver.blocked_s
    assert 0 < first < 0.3
    saver.save(20, state(2), tokens=0, data=None)
    assert saver.blocked_s - first > 0.1
    gate.set()
    saver.finish()


def test_a_file_size_limit_is_a_full_disk_too(spec: StoreSpec) -> None:
    saver = checkpointer(spec)
    saver.save(10, state(1), tokens=0, data=None)
    saver.finish()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        saver.save(20, state(2, size=1000), tokens=0, data=None)
        with pytest.raises(StorageError, match="may not grow further"):
            saver.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert steps(spec) == [10]
    assert not [key for key in files(spec) if "0020" in key]
    saver.save(30, state(3, size=1000), tokens=0, data=None)
    assert saver.finish() == Position(attempt=1, step=30)
