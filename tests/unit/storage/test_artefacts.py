"""Artefacts: what is published comes back byte by byte, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from octad.errors import DataError
from octad.spec.artefacts import Artefact
from octad.spec.stages import StoreSpec
from octad.storage import artefacts
from octad.storage.objects import ObjectStore, digest_of


class Remote(ObjectStore):
    """A store that is not a local folder for those who read it."""

    def local_path(self, key: str) -> Path | None:
        return None


@pytest.fixture(params=[ObjectStore, Remote])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = request.param(StoreSpec(url=(tmp_path / "store").as_uri()))
    return made


@pytest.fixture
def published(store: ObjectStore, tmp_path: Path) -> Artefact:
    folder = tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"first")
    (folder / "deep" / "ü b.bin").write_bytes(bytes(100_000))
    (folder / "empty").touch()
    return artefacts.publish_folder(store, "x/made", "made", "files", folder)


def test_a_folder_comes_back_whole(store: ObjectStore, published: Artefact, tmp_path: Path) -> None:
    got = artefacts.fetch(store, published, tmp_path / "got")
    assert (got / "a.txt").read_bytes() == b"first"
    assert (got / "deep" / "ü b.bin").read_bytes() == bytes(100_000)
    assert (got / "empty").read_bytes() == b""
    assert artefacts.fetch(store, published, tmp_path / "got") == got
    sizes = {file.path: file.size for file in artefacts.files_of(store, published)}
    assert sizes == {"a.txt": 5, "deep/ü b.bin": 100_000, "empty": 0}


def test_a_local_store_is_not_copied(
    store: ObjectStore, published: Artefact, tmp_path: Path
) -> None:
    got = artefacts.fetch(store, published, tmp_path / "got")
    assert (got == store.local_path("x/made")) == (type(store) is ObjectStore)


@pytest.mark.parametrize("damage", ["flip", "missing", "manifest"])
def test_damage_is_refused(
    store: ObjectStore, published: Artefact, tmp_path: Path, damage: str
) -> None:
    if damage == "flip":
        store.put("x/made/a.txt", b"tsrif")
    elif damage == "missing":
        store.delete(["x/made/a.txt"])
    else:
        store.put("x/made/manifest.json", store.get("x/made/manifest.json") + b" ")
    with pytest.raises(DataError, match=r"changed|missing"):
        artefacts.fetch(store, published, tmp_path / "got")


def test_a_folder_behind_a_link_can_be_fetched_to(
    store: ObjectStore, published: Artefact, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    got = artefacts.fetch(store, published, tmp_path / "link" / "got")
    assert (got / "a.txt").read_bytes() == b"first"


def test_a_manifest_cannot_write_outside(store: ObjectStore, tmp_path: Path) -> None:
    store.put("evil", b"x")
    file = {"path": "../../evil", "size": 1, "digest": digest_of(b"x")}
    raw = json.dumps({"files": [file]}).encode()
    store.put("x/made/manifest.json", raw)
    evil = Artefact(name="made", type="files", uri=store.url("x/made"), digest=digest_of(raw))
    with pytest.raises(DataError, match="outside its folder"):
        artefacts.fetch(store, evil, tmp_path / "got" / "deep")
    assert not (tmp_path / "got").exists() or not list((tmp_path / "got").rglob("evil"))


def test_an_object_is_an_artefact_too(store: ObjectStore, tmp_path: Path) -> None:
    made = artefacts.publish_object(store, "x/report/r.json", "report", "report", b"{}")
    assert artefacts.fetch(store, made, tmp_path / "got").read_bytes() == b"{}"
    store.put("x/report/r.json", b"[]")
    with pytest.raises(DataError, match="digest"):
        artefacts.fetch(store, made, tmp_path / "other")
    store.delete(["x/report/r.json"])
    with pytest.raises(DataError, match="missing"):
        artefacts.fetch(store, made, tmp_path / "third")


def test_nothing_and_the_stores_own_name_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(DataError, match="has no files"):
        artefacts.publish_folder(store, "x/made", "made", "files", folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="needs for itself"):
        artefacts.publish_folder(store, "x/made", "made", "files", folder)


@pytest.mark.parametrize("name", [b"a#1", b"deep/two\nlines", b"not\xffutf-8", b"tab\t"])
def test_a_name_that_no_store_holds_is_refused_before_anything_is_sent(
    store: ObjectStore, tmp_path: Path, name: bytes
) -> None:
    folder = tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"fine")
    (folder / os.fsdecode(name)).write_bytes(b"x")
    with pytest.raises(DataError, match="cannot hold a file called") as caught:
        artefacts.publish_folder(store, "x/made", "made", "files", folder)
    assert str(caught.value).isprintable()
    assert list(store.walk("x/made/")) == []
