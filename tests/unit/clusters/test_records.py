from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octad.clusters import _records
from octad.clusters._records import ClusterRecord, NodeRecord
from octad.errors import StorageError


def node(name: str, pid: int = 0) -> NodeRecord:
    return NodeRecord(
        name=name,
        pid=pid,
        created_at=1.5,
        address="127.8.0.1",
        gcs=20000,
        dashboard=20001,
        agent=20002,
        temp="/tmp/x",
        log="/tmp/x.log",
    )


def test_a_record_comes_back_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    record = ClusterRecord(nodes=(node("alpha-0", 7), node("alpha-1", 8)))
    _records.write(path, record)
    assert _records.read(path) == record
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["nodes.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": [{"name": "a"}]}', '{"more": 1}'])
def test_a_record_that_cannot_be_understood_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.json"
    assert _records.read(path) == ClusterRecord()
    path.write_text(text)
    assert _records.read(path) == ClusterRecord()


def test_a_node_takes_the_place_of_its_name() -> None:
    record = ClusterRecord().with_node(node("a-0")).with_node(node("a-1"))
    assert record.with_node(node("a-0", 9)).nodes == (node("a-0", 9), node("a-1"))
    assert record.head == node("a-0")


def test_a_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "nodes.json"
    with pytest.raises(StorageError, match="cannot be written") as caught:
        _records.write(path, ClusterRecord())
    assert caught.value.where == str(path)
    with pytest.raises(StorageError):
        _records.token(path)


def test_all_who_ask_at_once_get_one_token(tmp_path: Path) -> None:
    path = tmp_path / "ray-token"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: _records.token(path), range(32)))
    assert len(tokens) == 1
    assert len(tokens.pop()) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["ray-token"]


def test_every_cluster_has_a_token_of_its_own(tmp_path: Path) -> None:
    assert _records.token(tmp_path / "a") != _records.token(tmp_path / "b")
