"""The cache of a node: each file fetched once, whole or not at all, within a limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.storage.cache_process import CONTENTS, file

from octad.errors import DataError, StorageError
from octad.spec.stages import StoreSpec
from octad.storage import artefacts, cache
from octad.storage.cache import Cache
from octad.storage.objects import ObjectStore

PROCESS = Path(__file__).with_name("cache_process.py")
ROOMY = 1 << 30


class Trial:
    """Caches in one folder, as several processes would open them, and what they download."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.downloaded: list[int] = []
        self.opened: list[Cache] = []

    def cache(self, limit_bytes: int = ROOMY) -> Cache:
        self.opened.append(Cache(self.root, limit_bytes))
        return self.opened[-1]

    def hold(self, held_by: Cache, number: int) -> Path:
        def download(path: Path) -> None:
            self.downloaded.append(number)
            path.write_bytes(CONTENTS[number])

        place = held_by.held / str(number)
        held_by.hold(file(number), place, download, f"store/{number}")
        assert place.read_bytes() == CONTENTS[number]
        return place

    @property
    def folder(self) -> Path:
        return self.root / f"octad-cache.{os.getuid()}"

    def kept(self) -> set[int]:
        """The numbers of the files that are kept."""
        sizes = {len(content): number for number, content in enumerate(CONTENTS)}
        return {sizes[path.stat().st_size] for path in (self.folder / "files").iterdir()}

    def start(self, limit_bytes: int, seed: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROCESS), str(self.root), str(limit_bytes), seed]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    for opened in made.opened:
        opened.close()


def test_a_file_is_downloaded_once(trial: Trial) -> None:
    first = trial.cache()
    place = trial.hold(first, 3)
    trial.hold(trial.cache(), 3)
    first.close()
    assert not place.exists()
    trial.hold(trial.cache(), 3)
    assert trial.downloaded == [3]


def test_the_longest_unused_files_go_first(trial: Trial) -> None:
    limit_bytes = 3 * 1000 + 100
    for number in (0, 1, 2, 0, 3):  # 1 has been unused for longest when 3 comes
        used = trial.cache(limit_bytes)
        trial.hold(used, number)
        used.close()
    assert trial.kept() == {0, 2, 3}
    assert trial.downloaded == [0, 1, 2, 3]


def test_what_is_in_use_stays_until_it_is_not(trial: Trial) -> None:
    one, other = trial.cache(2100), trial.cache(2100)
    places = [trial.hold(one, number) for number in range(4)]
    trial.hold(other, 4)
    assert trial.kept() == {0, 1, 2, 3, 4}
    assert [place.read_bytes() for place in places] == CONTENTS[:4]
    one.close()
    assert trial.kept() == {3, 4}
    other.close()
    assert trial.kept() == {3, 4}


def test_a_full_disk_makes_room_whatever_the_limit(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = trial.cache()
    trial.hold(used, 0)
    used.close()
    real = shutil.disk_usage(trial.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=10))
    trial.hold(trial.cache(), 1)
    assert trial.kept() == {1}


def test_a_kept_file_of_another_size_is_fetched_again(trial: Trial) -> None:
    used = trial.cache()
    trial.hold(used, 5)
    used.close()
    (kept,) = (trial.folder / "files").iterdir()
    os.truncate(kept, 10)
    trial.hold(trial.cache(), 5)
    assert trial.downloaded == [5, 5]


def test_what_the_digest_does_not_say_is_refused_and_not_kept(trial: Trial) -> None:
    used = trial.cache()
    with pytest.raises(DataError, match="store/x: was changed"):
        used.hold(file(0), used.held / "0", Path.touch, "store/x")
    assert not list((trial.folder / "files").iterdir())
    assert not list((trial.folder / "partial").iterdir())
    trial.hold(used, 0)


def test_who_wants_a_file_that_another_one_fetches_waits_for_it(trial: Trial) -> None:
    caches = [trial.cache() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        wanted = [(used, number) for number in range(12) for used in caches]
        list(pool.map(lambda pair: trial.hold(*pair), wanted))
    assert sorted(trial.downloaded) == list(range(12))


def test_processes_share_a_cache_that_is_too_small(trial: Trial) -> None:
    processes = [trial.start(4000, seed) for seed in "abc"]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(len(CONTENTS[number]) for number in trial.kept()) <= 4000
    assert not list((trial.folder / "held").iterdir())


def test_a_killed_writer_leaves_nothing_behind(trial: Trial) -> None:
    process = trial.start(ROOMY, "stuck")
    assert process.stdout is not None
    number = int(process.stdout.readline().split()[1])
    assert process.stdout.readline() == "stuck\n"
    assert list((trial.folder / "partial").iterdir())
    trial.cache()
    assert list((trial.folder / "partial").iterdir()), "it lives and is not to be disturbed"
    process.kill()
    process.communicate()
    used = trial.cache()
    assert not list((trial.folder / "partial").iterdir())
    assert used.held.parent in (trial.folder / "held").iterdir()
    assert len(list((trial.folder / "held").iterdir())) == 2
    trial.hold(used, number)
    assert trial.downloaded == [number]


def test_the_folder_of_somebody_else_is_refused(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(StorageError, match="another user"):
        Cache(trial.root, ROOMY)


def test_the_environment_names_folder_and_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "fast"))
    monkeypatch.setenv(cache.LIMIT, "10 GB")
    with pytest.raises(StorageError, match="OCTAD_CACHE_BYTES: '10 GB' is not a number of bytes"):
        Cache.of_node()
    monkeypatch.delenv(cache.LIMIT)
    used = Cache.of_node()
    assert used.held.is_relative_to(tmp_path / "fast")
    used.close()
    monkeypatch.setenv(cache.LIMIT, "0")
    Cache.of_node().close()


def test_an_artefact_is_read_from_the_cache(trial: Trial, tmp_path: Path) -> None:
    class Remote(ObjectStore):
        def local_path(self, key: str) -> Path | None:
            return None

    store = Remote(StoreSpec(url=(tmp_path / "store").as_uri()))
    made = tmp_path / "made"
    (made / "deep").mkdir(parents=True)
    (made / "a").write_bytes(b"first")
    (made / "deep" / "b").write_bytes(b"first")
    artefact = artefacts.publish_folder(store, "x", "made", "files", made)
    first = trial.cache()
    got = artefacts.fetch(store, artefact, tmp_path / "unused", first)
    first.close()
    store.delete(["x/a", "x/deep/b"])
    got = artefacts.fetch(store, artefact, tmp_path / "unused", trial.cache())
    assert (got / "a").read_bytes() == (got / "deep" / "b").read_bytes() == b"first"
    assert not (tmp_path / "unused").exists()
    assert len(list((trial.folder / "files").iterdir())) == 1
