"""What every object store must do, over a local folder and over an S3 server on loopback."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, ThreadedMotoServer

from octad.errors import ConfigError, NotFoundError, StorageError
from octad.spec.stages import StoreSpec
from octad.storage.objects import ObjectStore, digest_of, part_bytes

RACERS = 8


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    patch = pytest.MonkeyPatch()
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    # The server looks whether an object is there and makes it in two steps; a store does it in one.
    answering, answer = threading.Lock(), DomainDispatcherApplication.__call__

    def one_at_a_time(*request: Any) -> Any:
        with answering:
            return answer(*request)

    patch.setattr(DomainDispatcherApplication, "__call__", one_at_a_time)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    make_bucket = urllib.request.Request(f"{endpoint}/octad", method="PUT")
    urllib.request.urlopen(make_bucket).close()
    yield endpoint
    server.stop()
    patch.undo()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return ObjectStore(StoreSpec(url=tmp_path.as_uri() + "/a store"))
    endpoint = request.getfixturevalue("s3_endpoint")
    options = {"endpoint": endpoint, "region": "us-east-1", "allow_http": "true"}
    return ObjectStore(StoreSpec(url=f"s3://octad/{os.urandom(4).hex()}", options=options))


def test_what_is_put_is_read_back_whole_and_in_part(store: ObjectStore) -> None:
    data = os.urandom(100_000)
    store.put("a/b.bin", data)
    assert store.get("a/b.bin") == data
    assert store.get_range("a/b.bin", 99_000, 500) == data[99_000:99_500]
    assert store.size("a/b.bin") == len(data)
    assert store.digest("a/b.bin") == digest_of(data)
    assert b"".join(store.chunks("a/b.bin")) == data


def test_put_replaces_and_create_does_not(store: ObjectStore) -> None:
    assert store.create("k", b"1")
    assert not store.create("k", b"2")
    assert store.get("k") == b"1"
    store.put("k", b"3")
    assert store.get("k") == b"3"


def test_of_racing_creators_exactly_one_wins(store: ObjectStore) -> None:
    for race in range(10):
        start = threading.Barrier(RACERS)
        won: dict[int, bool] = {}

        def run(racer: int, key: str = f"race/{race}", start: Any = start, won: Any = won) -> None:
            start.wait()
            won[racer] = store.create(key, str(racer).encode() * 1000)

        threads = [threading.Thread(target=run, args=(racer,)) for racer in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [racer for racer, is_first in won.items() if is_first]
        assert len(won) == RACERS
        assert len(winners) == 1
        assert store.get(f"race/{race}") == str(winners[0]).encode() * 1000


def test_an_absent_object_is_named(store: ObjectStore) -> None:
    assert store.find("no") is None
    assert store.size("no") is None
    assert store.read_json("no") is None
    for read in (store.get, store.digest, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(NotFoundError, match="no such object") as caught:
            read("no/such")
        assert caught.value.where.endswith("no/such")
    store.delete(["no", "no/such"])


def test_walk_and_folders_list_in_order(store: ObjectStore) -> None:
    for key in ("r/b/2", "r/b/1", "r/a/x/y", "r/c", "rest"):
        store.put(key, key.encode())
    assert [meta.key for meta in store.walk("r/")] == ["r/a/x/y", "r/b/1", "r/b/2", "r/c"]
    assert [meta.size for meta in store.walk("r/b/")] == [5, 5]
    assert store.folders("r/") == ["a", "b"]
    assert list(store.walk("nothing/")) == []
    assert store.folders("nothing/") == []
    store.delete(["r/b/1", "r/b/2"])
    assert store.folders("r/") == ["a"]


def test_a_stream_of_many_parts_appears_whole(store: ObjectStore) -> None:
    pieces = [os.urandom(3_000_001) for _ in range(8)]
    store.put_chunks("big", iter(pieces))
    assert store.size("big") == 8 * 3_000_001
    assert store.digest("big") == digest_of(b"".join(pieces))
    store.put_chunks("empty", iter([]))
    assert store.get("empty") == b""


def test_a_stream_that_breaks_leaves_nothing(store: ObjectStore) -> None:
    def broken() -> Iterator[bytes]:
        for _ in range(5):
            yield bytes(4_000_000)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store.put_chunks("half", broken())
    assert store.size("half") is None
    root = store.local_path("")
    assert root is None or [path.name for path in root.rglob("*") if path.is_file()] == []


def test_views_of_memory_are_taken_as_chunks(store: ObjectStore) -> None:
    data = os.urandom(20_000_000)
    whole = memoryview(data)
    chunks = (whole[start : start + 3_000_000] for start in range(0, len(data), 3_000_000))
    store.put_chunks("views", chunks, most_bytes=len(data))
    assert store.digest("views") == digest_of(data)


def test_a_range_is_a_file_of_its_own(store: ObjectStore) -> None:
    data = os.urandom(20_000_000)
    store.put("large", data)
    with store.open_range("large", 1_000, 18_000_000) as part:
        assert part.read() == data[1_000:18_001_000]
        assert part.seek(-5, os.SEEK_END) == 17_999_995
        assert part.read(100) == data[18_000_995:18_001_000]
        part.seek(10)
        assert part.read(3) == data[1_010:1_013]
    with pytest.raises(StorageError):
        store.open_range("large", 1_000, 20_000_000)
    with pytest.raises(NotFoundError):
        store.open_range("nothing", 0, 1)


def test_parts_grow_with_the_object() -> None:
    mib, tb = 1024**2, 10**12
    assert part_bytes(0) == part_bytes(10**9) == 8 * mib
    for size in (80 * 10**9, tb, 5 * tb):
        assert size / part_bytes(size) <= 10_000
        assert part_bytes(size) % mib == 0


def test_a_large_object_is_read_by_requests_of_bounded_size(store: ObjectStore) -> None:
    data = os.urandom(20_000_000)
    store.put("large", data)
    parts = list(store.chunks("large"))
    assert max(map(len, parts)) <= 8 * 1024 * 1024
    assert b"".join(parts) == data


def test_a_local_disk_that_takes_no_file_is_a_storage_error(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.put("f", b"x")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/x"):
        store.download("f", tmp_path / "file" / "x")


def test_files_go_up_and_come_down(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5_000_000))
    store.put_file("f", source)
    store.download("f", tmp_path / "deep" / "target")
    assert (tmp_path / "deep" / "target").read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


@pytest.mark.parametrize("key", ["a b/ü=1.txt", "a%20b", "a+b&c", "a#1b"])
def test_keys_may_hold_odd_characters(store: ObjectStore, key: str) -> None:
    store.put(f"odd/{key}", b"x")
    assert store.get(f"odd/{key}") == b"x"
    assert [meta.key for meta in store.walk("odd/")] == [f"odd/{key}"]


def test_urls_and_keys_are_each_others_inverse(store: ObjectStore) -> None:
    assert store.key(store.url("a/b")) == "a/b"
    for foreign in ("file:///etc/passwd", store.url("../x"), store.spec.url + "-other/x"):
        with pytest.raises(ConfigError, match="does not lie in the store"):
            store.key(foreign)


def test_a_server_that_is_not_there_is_a_storage_error() -> None:
    options = {
        "endpoint": "http://127.0.0.1:9",
        "region": "us-east-1",
        "allow_http": "true",
        "skip_signature": "true",
        "max_retries": "0",
    }
    store = ObjectStore(StoreSpec(url="s3://octad/x", options=options))
    with pytest.raises(StorageError):
        store.get("k")


def test_a_bucket_that_is_not_there_is_named(s3_endpoint: str) -> None:
    options = {"endpoint": s3_endpoint, "region": "us-east-1", "allow_http": "true"}
    store = ObjectStore(StoreSpec(url="s3://none/x", options=options | {"max_retries": "0"}))
    calls: list[Any] = [
        lambda: store.put("k", b"x"),
        lambda: store.create("k", b"x"),
        lambda: store.find("k"),
        lambda: list(store.walk("r/")),
        lambda: store.folders("r/"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="no such bucket"):
            call()


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot store at 'ftp://x'"):
        ObjectStore(StoreSpec(url="ftp://x"))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory:///", {}),
        ("file:relative", {}),
        ("file://relative/x", {}),
        ("file:///a?b", {}),
        ("s3://octad/x?y=1", {}),
        ("s3://octad/x#y", {}),
        ("s3://", {}),
        ("s3://octad/a//b", {}),
        ("s3://octad/x", {"timeout": "soon"}),
        ("s3://octad/x", {"max_retries": "-1"}),
        ("s3://octad/x", {"retry_timeout_s": "-1"}),
    ],
)
def test_a_store_that_cannot_be_is_a_users_mistake(url: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="storage"):
        ObjectStore(StoreSpec(url=url, options={"region": "x"} | options if options else {}))


@pytest.mark.parametrize("option", ["secret_access_key", "regoin"])
def test_an_option_that_is_unknown_or_a_secret_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="no option") as caught:
        ObjectStore(StoreSpec(url="s3://octad/x", options={option: "x"}))
    assert caught.value.where == f"storage.options.{option}"
    assert "environment" in caught.value.hint
