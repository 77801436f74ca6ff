"""Checkpoints on the nodes themselves, of one process; several are in test_checkpoint_ranks.py."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from octad.errors import StorageError
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position, Progress, StageSpec, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore
from octad.train.checkpoint import Checkpointer, load
from octad.train.node_tier import NodeTier
from octad.train.recorder import Recorder

LAYOUT = Layout(dp_shard=1)
KEYS = StageKeys("run", "pretrain")


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((300, 300), value)}, "optimizer": {"lr": value}}


class Life:
    """One attempt at a stage, on a node; `end` is sudden, and leaves all as it is."""

    def __init__(self, home: Path, attempt: int, *, since: int = 1, node: str = "node") -> None:
        self.spec = StoreSpec(url=(home / "store").as_uri())
        self.order = AttemptOrder(
            run="run",
            attempt=attempt,
            stage=StageSpec(name="pretrain", kind="pretrain", cards=1, layout=LAYOUT),
            inputs={},
            store=self.spec,
            since=since,
        )
        self.base = lineage.claim(ObjectStore(self.spec), self.order)
        self.keys = KEYS.attempt(attempt)
        self.recorder = Recorder(self.spec, self.keys, home / f"spool-{attempt}", 1000)
        root = home / node
        root.mkdir(exist_ok=True)
        self.tier = NodeTier(root, self.order, self.recorder)
        self.step = 0
        found = self.tier.resume(self.base, lambda: state(-1.0))
        self.found = None
        if found is not None:
            self.found, self.state = found
            self.step = self.found.position.step
        elif self.base is not None:
            self.state = state(-1.0)
            key = KEYS.attempt(self.base.attempt).checkpoint(self.base.step)
            self.step = load(self.spec, key, self.state).position.step
        self.saver = Checkpointer(
            self.spec,
            self.order,
            content="full",
            model={},
            dtype="float32",
            layout=LAYOUT,
            recorder=self.recorder,
            node=self.tier,
        )

    def train(self, last: int) -> None:
        for step in range(self.step + 1, last + 1):
            self.recorder.step(step, {"loss": 1.0 / step})
        self.step = last

    def save(self, tier: Any = "node") -> None:
        self.saver.save(self.step, state(float(self.step)), tokens=0, data=None, tier=tier)
        self.saver.finish()

    def end(self) -> None:
        self.recorder.close()
        self.tier.close()

    @property
    def folder(self) -> Path:
        """That of the newest checkpoint on the node."""
        return max(self.tier._folder.glob("step-*"))

    @property
    def notes(self) -> str:
        raw = ObjectStore(self.spec).read_json(self.keys.progress)
        return " | ".join(Progress.parse(raw or {}).notes)

    @property
    def steps(self) -> list[int]:
        """Of which the attempt has recorded metrics."""
        store = ObjectStore(self.spec)
        raw = b"".join(store.get(meta.key) for meta in store.walk(self.keys.metrics))
        return [json.loads(line)["step"] for line in raw.splitlines()]


def first_life(home: Path, *, on_nodes: int = 14) -> None:
    """Ten steps into the store, some more on the node, and some that are lost."""
    life = Life(home, 1)
    life.train(10)
    life.save("store")
    life.train(on_nodes)
    life.save()
    life.train(on_nodes + 2)
    life.end()


def test_a_restart_goes_on_from_the_newest_on_the_node_without_a_hole(tmp_path: Path) -> None:
    first_life(tmp_path)
    life = Life(tmp_path, 2)
    assert life.base == Position(attempt=1, step=10)
    assert life.found is not None
    assert life.found.position == Position(attempt=2, step=14)
    assert life.found.parent == Position(attempt=1, step=14)
    assert life.state["model"]["w"].eq(14).all()
    assert life.state["optimizer"]["lr"] == 14.0
    life.train(20)
    life.save("store")
    life.end()
    assert "went on from step 14" in life.notes
    # The fence says that attempt 1 counts up to step 10: the rest is all ours.
    assert life.steps == list(range(11, 21))
    assert lineage.positions(ObjectStore(life.spec), KEYS) == [
        Position(attempt=1, step=10),
        Position(attempt=2, step=20),
    ]


def test_a_stage_without_any_checkpoint_in_the_store_goes_on_too(tmp_path: Path) -> None:
    life = Life(tmp_path, 1)
    life.train(4)
    life.save()
    life.end()
    life = Life(tmp_path, 2)
    assert life.base is None
    assert (life.step, (life.steps and life.state["optimizer"]["lr"]) or 4.0) == (4, 4.0)
    life.end()
    assert life.steps == [1, 2, 3, 4]


def test_what_an_attempt_went_on_from_is_its_own(tmp_path: Path) -> None:
    first_life(tmp_path)
    life = Life(tmp_path, 2)
    life.end()  # before it saved anything
    life = Life(tmp_path, 3)
    assert life.found is not None
    assert life.found.parent == Position(attempt=2, step=14)
    life.end()
    assert life.steps == [11, 12, 13, 14]


def test_what_is_older_than_the_stores_is_of_no_use(tmp_path: Path) -> None:
    first_life(tmp_path)
    life = Life(tmp_path, 2, node="other")
    assert (life.found, life.step) == (None, 10)
    life.train(30)
    life.save("store")
    life.end()
    life = Life(tmp_path, 3)
    assert (life.found, life.step) == (None, 30)
    assert not list(life.tier._folder.glob("step-*"))
    life.end()


def test_what_another_attempt_has_passed_by_is_not_taken(tmp_path: Path) -> None:
    """Attempt 2 ran on another node, from the store's: its steps are others than ours were."""
    first_life(tmp_path)
    life = Life(tmp_path, 2, node="other")
    life.train(12)
    life.end()
    life = Life(tmp_path, 3)
    assert (life.found, life.step) == (None, 10)
    life.end()


def test_a_stage_started_anew_takes_nothing_from_before(tmp_path: Path) -> None:
    first_life(tmp_path)
    life = Life(tmp_path, 2, since=2)
    assert (life.found, life.step) == (None, 0)
    life.end()


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "no index", "no manifest", "bad"])
def test_a_damaged_one_is_passed_over_for_the_stores(tmp_path: Path, damage: str) -> None:
    life = Life(tmp_path, 1)
    life.train(10)
    life.save("store")
    life.train(14)
    life.save()
    shard = next(life.folder.glob("shard-*"))
    raw = shard.read_bytes()
    if damage == "flip":
        shard.write_bytes(raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:])
    elif damage == "cut":
        shard.write_bytes(raw[:-1])
    elif damage == "missing":
        shard.unlink()
    elif damage == "bad":
        (life.folder / "ranks.json").write_text("[]")
    else:
        (life.folder / {"no index": ".metadata", "no manifest": "manifest.json"}[damage]).unlink()
    life.end()
    life = Life(tmp_path, 2)
    assert (life.found, life.step) == (None, 10)
    life.end()
    is_named = damage in {"flip", "cut", "missing", "no index"}
    assert ("the checkpoint of step 14 on the nodes was passed over" in life.notes) == is_named


def test_one_whose_metrics_are_lost_is_passed_over(tmp_path: Path) -> None:
    first_life(tmp_path)
    shutil.rmtree(tmp_path / "store" / KEYS.attempt(1).metrics)
    life = Life(tmp_path, 2)
    assert (life.found, life.step) == (None, 10)
    life.end()
    assert "the metrics of its steps are not all in the store" in life.notes


def test_a_save_waits_for_the_metrics_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, 1)
    life.train(5)
    life.save()
    kept = life.folder
    monkeypatch.setattr(Recorder, "flush", lambda _self, _timeout_s: False)
    life.train(9)
    life.save()
    assert life.folder == kept
    monkeypatch.undo()
    life.end()
    assert "step 9 was not saved on the nodes: the metrics" in life.notes


def test_a_save_that_fails_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path, 1)
    life.train(5)
    life.save()
    monkeypatch.setattr(ObjectStore, "bytes_free", lambda _self: 1000)
    life.train(9)
    life.save()
    monkeypatch.undo()
    life.end()
    assert "step 9 was not saved on the nodes: " in life.notes
    assert "no space left" in life.notes
    life = Life(tmp_path, 2)
    assert life.step == 5
    life.end()


def test_only_the_newest_stays_and_nothing_of_a_stage_that_ended(tmp_path: Path) -> None:
    life = Life(tmp_path, 1)
    for step in (2, 4, 6):
        life.train(step)
        life.save()
    assert [path.name[:15] for path in life.tier._folder.glob("step-*")] == ["step-0000000006"]
    life.tier.remove()
    assert list((tmp_path / "node").iterdir()) == []
    life.end()


def test_two_attempts_never_share_a_folder(tmp_path: Path) -> None:
    zombie = Life(tmp_path, 1)
    with pytest.raises(StorageError, match="another attempt is still at work"):
        Life(tmp_path, 2)
    zombie.end()
    Life(tmp_path, 3).end()


def test_other_stages_have_other_folders(tmp_path: Path) -> None:
    first_life(tmp_path)
    order = AttemptOrder(
        run="other",
        attempt=2,
        stage=StageSpec(name="pretrain", kind="pretrain", cards=1, layout=LAYOUT),
        inputs={},
        store=StoreSpec(url=(tmp_path / "store").as_uri()),
    )
    tier = NodeTier(tmp_path / "node", order)
    assert tier.resume(None, lambda: state(0.0)) is None
    tier.remove()


def test_what_nobody_came_back_for_is_cleared_up(tmp_path: Path) -> None:
    first_life(tmp_path)
    (left,) = (tmp_path / "node").iterdir()
    order = AttemptOrder(
        run="other",
        attempt=1,
        stage=StageSpec(name="pretrain", kind="pretrain", cards=1, layout=LAYOUT),
        inputs={},
        store=StoreSpec(url=(tmp_path / "store").as_uri()),
    )
    NodeTier(tmp_path / "node", order).close()
    assert left.exists()
    os.utime(left, (0, 0))
    NodeTier(tmp_path / "node", order).close()
    assert not left.exists()


def test_a_root_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    order = AttemptOrder(
        run="run",
        attempt=1,
        stage=StageSpec(name="pretrain", kind="pretrain", cards=1, layout=LAYOUT),
        inputs={},
        store=StoreSpec(url=(tmp_path / "store").as_uri()),
    )
    with pytest.raises(StorageError):
        NodeTier(tmp_path / "file", order)
