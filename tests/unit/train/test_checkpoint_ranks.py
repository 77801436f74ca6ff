"""Checkpoints of several ranks, and of a process that is killed: real processes over gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from octad.errors import CheckpointError
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position, StageSpec, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore

RANKS = Path(__file__).with_name("checkpoint_ranks.py")
MOMENTS = 7
DEATHS = 20
KEYS = StageKeys("run", "pretrain")


def run_ranks(scenario: str, store: StoreSpec, folder: Path) -> None:
    """Start the ranks of a scenario, named by how many there are, and wait."""
    platform = Path(__file__).parents[3] / "platform"
    environment = {**os.environ, "PYTHONPATH": str(platform), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = subprocess.Popen(
        [sys.executable, str(RANKS), scenario, store.url, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = ranks.communicate(timeout=120)[0].decode()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
    assert ranks.returncode == 0, said


@pytest.fixture
def store(tmp_path: Path) -> StoreSpec:
    return StoreSpec(url=(tmp_path / "store").as_uri())


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which four ranks have saved a checkpoint."""
    folder = tmp_path_factory.mktemp("four")
    run_ranks("save-4", StoreSpec(url=(folder / "store").as_uri()), folder)
    return folder


@pytest.mark.long
def test_saved_by_four_ranks_is_read_by_two_and_by_one(four: Path) -> None:
    store, tmp_path = StoreSpec(url=(four / "store").as_uri()), four
    manifest = lineage.verify(ObjectStore(store), KEYS.attempt(1).checkpoint(3))
    assert manifest.layout == Layout(dp_shard=2, tp=2)
    shards = [file.path for file in manifest.files if file.path.startswith("shard-")]
    assert len(shards) == 4
    saved = torch.load(tmp_path / "save-4", weights_only=True)
    for scenario in ("read-2", "read-1"):
        run_ranks(scenario, store, tmp_path)
        came = torch.load(tmp_path / scenario, weights_only=True)
        for part in ("model", "optimizer"):
            assert came[part].keys() == saved[part].keys()
            for name, value in saved[part].items():
                is_same = (
                    torch.equal(value, came[part][name])
                    if isinstance(value, torch.Tensor)
                    else value == came[part][name]
                )
                assert is_same, f"{scenario}: {name}"


@pytest.mark.long
def test_any_flipped_byte_of_any_rank_is_found(four: Path) -> None:
    store = StoreSpec(url=(four / "store").as_uri())
    objects, folder = ObjectStore(store), KEYS.attempt(1).checkpoint(3)
    manifest = lineage.verify(objects, folder)
    for file in manifest.files:
        key = f"{folder}/{file.path}"
        whole = objects.get(key)
        for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            objects.put(key, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match=file.path):
                lineage.verify(objects, folder)
        objects.delete([key])
        with pytest.raises(CheckpointError, match=f"{file.path} is missing"):
            lineage.verify(objects, folder)
        objects.put(key, whole)
    lineage.verify(objects, folder)


@pytest.mark.long
def test_a_shard_that_fails_on_one_rank_fails_the_save_on_all(
    store: StoreSpec, tmp_path: Path
) -> None:
    run_ranks("fail-2", store, tmp_path)
    told = {(tmp_path / f"fail-2-{rank}").read_text() for rank in range(2)}
    assert len(told) == 1
    assert "no space left" in told.pop()
    assert not list(ObjectStore(store).walk(f"{KEYS.attempt(1).checkpoint(1)}/"))


def test_killed_at_any_moment_of_a_save_the_older_one_stays(
    store: StoreSpec, tmp_path: Path
) -> None:
    run_ranks("die-0", store, tmp_path)
    for number in range(MOMENTS):
        spec = StoreSpec(url=f"{store.url}/{number}")
        objects = ObjectStore(spec)
        stage = StageSpec(name="pretrain", kind="pretrain", cards=1, layout=Layout(dp_shard=1))
        order = AttemptOrder(run="run", attempt=2, stage=stage, inputs={}, store=spec)
        newest = 20 if number == MOMENTS - 1 else 10
        assert lineage.claim(objects, order) == Position(attempt=1, step=newest)
        lineage.sweep(objects, order)
        half = list(objects.walk(f"{KEYS.attempt(1).checkpoint(20)}/"))
        assert bool(half) == (newest == 20)
        left = [path.name for path in (tmp_path / "store" / str(number)).rglob("*#*")]
        assert left == [], "unfinished uploads"


@pytest.mark.long
def test_killed_at_random_moments_a_whole_one_is_gone_on_from(
    store: StoreSpec, tmp_path: Path
) -> None:
    """J01: of both tiers, the newest that was committed, and never a half."""
    for number in range(DEATHS):
        (tmp_path / f"node-{number}").mkdir()
    run_ranks("random-0", store, tmp_path)
    num_whole = 0
    for number in range(DEATHS):
        objects = ObjectStore(StoreSpec(url=f"{store.url}/random-{number}"))
        found = lineage.newest_good(objects, KEYS)
        committed = lineage.positions(objects, KEYS)
        assert (found[1].position if found else None) == (committed[-1] if committed else None)
        (folder,) = (tmp_path / f"node-{number}").iterdir()
        here = ObjectStore(StoreSpec(url=folder.as_uri()))
        for name in here.folders(""):
            if here.size(f"{name}/manifest.json") is not None:
                lineage.verify(here, name)
                num_whole += 1
    assert num_whole > DEATHS / 2


@pytest.mark.long
def test_on_several_nodes_only_what_all_have_is_gone_on_from(
    store: StoreSpec, tmp_path: Path
) -> None:
    run_ranks("nodes-2", store, tmp_path)
    whole, came = torch.load(tmp_path / "nodes-2", weights_only=True)
    for part in ("model", "optimizer"):
        for name, value in whole[part].items():
            both = value, came[part][name]
            assert torch.equal(*both) if isinstance(value, torch.Tensor) else both[0] == both[1]
