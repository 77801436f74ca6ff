"""The folder that the processes of an attempt share on a node."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from octad.errors import StorageError
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.storage.objects import ObjectStore
from octad.train.artefacts import node_cache, node_folder


@pytest.fixture(autouse=True)
def local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def order(run: str, stage: str, attempt: int = 1, store: str = "file:///a") -> AttemptOrder:
    spec = StageSpec(name=stage, kind="pretrain", cards=1, layout=Layout(dp_shard=1))
    return AttemptOrder(run=run, attempt=attempt, stage=spec, inputs={}, store=StoreSpec(url=store))


def test_it_is_gone_at_the_end(local_disk: Path) -> None:
    with node_folder(order("run", "own")) as folder:
        (folder / "file").touch()
    assert list(local_disk.iterdir()) == []


def test_stages_whose_names_run_together_have_their_own() -> None:
    with node_folder(order("a-b", "c")) as first, node_folder(order("a", "b-c")) as second:
        assert first != second


def test_runs_of_one_name_in_two_stores_have_their_own() -> None:
    one, two = order("a", "b"), order("a", "b", store="file:///other")
    with node_folder(one) as first, node_folder(two) as second:
        assert first != second


def test_what_a_killed_attempt_left_goes_with_the_next(local_disk: Path) -> None:
    killed = node_folder(order("run", "own", 1))
    (killed.__enter__() / "file").touch()
    other = node_folder(order("run", "own-2", 1))
    kept = other.__enter__()
    with node_folder(order("run", "own", 2)) as folder:
        assert sorted(local_disk.iterdir()) == sorted([folder, kept])


def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StorageError, match="another user"), node_folder(order("run", "own")):
        pass


def test_only_a_remote_store_has_a_cache_on_the_node(
    local_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = order("run", "own", store=f"{local_disk.as_uri()}/store")
    with node_cache(own) as cache:
        assert cache is None
    monkeypatch.setattr(ObjectStore, "local_path", lambda _store, _key: None)
    with node_cache(own) as cache:
        assert cache is not None
        assert cache.held.is_relative_to(local_disk)
    assert not cache.held.exists()
    monkeypatch.setenv("LOCAL_RANK", "1")
    with node_cache(own) as cache:
        assert cache is None
