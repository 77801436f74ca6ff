"""Which checkpoints count, whether they are whole, and what a fence does."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octad.errors import CheckpointError, FencedError
from octad.spec.checkpoints import Manifest, StoredFile
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Epoch, Position, StageSpec, StoreSpec
from octad.storage import lineage
from octad.storage.objects import ObjectStore, digest_of

KEYS = StageKeys("run", "pretrain")
STAGE = StageSpec(name="pretrain", kind="pretrain", cards=1, layout=Layout(dp_shard=1))


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(StoreSpec(url=tmp_path.as_uri()))


def order(store: ObjectStore, attempt: int, since: int = 1) -> AttemptOrder:
    return AttemptOrder(
        run="run", attempt=attempt, stage=STAGE, inputs={}, store=store.spec, since=since
    )


def commit(store: ObjectStore, attempt: int, step: int, content: str = "full") -> str:
    """A checkpoint with two files; returns its folder."""
    keys = KEYS.attempt(attempt)
    folder = keys.checkpoint(step)
    files = []
    for name in ("shard-00000.distcp", ".metadata"):
        data = os.urandom(2000)
        store.put(f"{folder}/{name}", data)
        files.append(StoredFile(path=name, size=len(data), digest=digest_of(data)))
    manifest = Manifest.parse(
        {
            "content": content,
            "run": "run",
            "stage": "pretrain",
            "position": {"attempt": attempt, "step": step},
            "tokens": step,
            "data": None,
            "layout": {"dp_shard": 1},
            "dtype": "float32",
            "model": {"kind": "decoder"},
            "model_digest": digest_of(b"{}"),
            "files": [file.plain() for file in files],
        }
    )
    store.create(keys.manifest(step), manifest.model_dump_json().encode())
    return folder


def steps(store: ObjectStore, since: int = 1) -> list[tuple[int, int]]:
    return [(c.position.attempt, c.position.step) for c in lineage.commits(store, KEYS, since)]


def test_the_newest_whole_commit_is_the_base(store: ObjectStore) -> None:
    assert lineage.claim(store, order(store, 1)) is None
    commit(store, 1, 10)
    commit(store, 1, 20)
    assert steps(store) == [(1, 10), (1, 20)]
    assert lineage.claim(store, order(store, 2)) == Position(attempt=1, step=20)
    fence = Epoch.model_validate_json(store.get(KEYS.epoch(2)))
    assert fence.base == Position(attempt=1, step=20)


def test_what_a_fenced_attempt_commits_later_does_not_count(store: ObjectStore) -> None:
    lineage.claim(store, order(store, 1))
    commit(store, 1, 10)
    lineage.claim(store, order(store, 2))
    commit(store, 1, 20)
    assert steps(store) == [(1, 10)]
    commit(store, 2, 15)
    assert steps(store) == [(1, 10), (2, 15)]
    assert lineage.claim(store, order(store, 3)) == Position(attempt=2, step=15)


def test_an_attempt_is_claimed_once_and_never_after_a_newer_one(store: ObjectStore) -> None:
    lineage.claim(store, order(store, 2))
    for late in (1, 2):
        with pytest.raises(FencedError, match="attempt 2 of pretrain has begun already"):
            lineage.claim(store, order(store, late))
    assert lineage.newest_epoch(store, KEYS) == 2


def test_a_stage_started_anew_takes_nothing_from_before(store: ObjectStore) -> None:
    lineage.claim(store, order(store, 1))
    commit(store, 1, 10)
    assert lineage.claim(store, order(store, 2, since=2)) is None
    assert steps(store) == []
    commit(store, 2, 5)
    assert lineage.claim(store, order(store, 3, since=2)) == Position(attempt=2, step=5)


def test_a_folder_without_a_manifest_is_no_commit_and_is_swept(store: ObjectStore) -> None:
    lineage.claim(store, order(store, 1))
    whole = commit(store, 1, 10)
    half = commit(store, 1, 20)
    store.delete([f"{half}/manifest.json"])
    assert steps(store) == [(1, 10)]
    lineage.claim(store, order(store, 2))
    going_on = KEYS.attempt(2).checkpoint(12)
    store.put(f"{going_on}/shard-00000.distcp", b"being written")
    assert lineage.sweep(store, order(store, 2)) == 2
    assert list(store.walk(f"{half}/")) == []
    assert len(list(store.walk(f"{whole}/"))) == 3
    assert len(list(store.walk(f"{going_on}/"))) == 1


def test_sweep_removes_artefacts_of_attempts_without_a_result(store: ObjectStore) -> None:
    for attempt in (1, 2, 3):
        store.put(f"{KEYS.attempt(attempt).artefacts}corpus/train-00000.arrow", b"tokens")
        store.put(KEYS.attempt(attempt).segment(0), b"")
    store.put(KEYS.attempt(1).result, b"{}")
    lineage.claim(store, order(store, 3))
    assert lineage.sweep(store, order(store, 3)) == 1
    left = [len(list(store.walk(KEYS.attempt(n).artefacts))) for n in (1, 2, 3)]
    assert left == [1, 0, 1]
    assert store.size(KEYS.attempt(2).segment(0)) == 0


def test_sweep_removes_what_a_fenced_attempt_committed_too_late(store: ObjectStore) -> None:
    lineage.claim(store, order(store, 1))
    base = commit(store, 1, 10)
    lineage.claim(store, order(store, 2))
    late = commit(store, 1, 20)
    own = commit(store, 2, 15)
    assert lineage.sweep(store, order(store, 2)) == 3
    left = [len(list(store.walk(f"{folder}/"))) for folder in (base, late, own)]
    assert left == [3, 0, 3]


def test_sweep_keeps_what_a_life_before_gave_away(store: ObjectStore) -> None:
    """A stage that was started anew, and one that has a result."""
    lineage.claim(store, order(store, 1))
    given = commit(store, 1, 10)
    lineage.claim(store, order(store, 2, since=2))
    assert lineage.sweep(store, order(store, 2, since=2)) == 0
    result = commit(store, 2, 20)
    store.put(KEYS.attempt(2).result, b"{}")
    lineage.claim(store, order(store, 3, since=3))
    commit(store, 2, 30)
    assert lineage.sweep(store, order(store, 3, since=2)) == 0
    assert [len(list(store.walk(f"{folder}/"))) for folder in (given, result)] == [3, 3]


@pytest.mark.parametrize(
    ("steps", "newest", "every", "kept"),
    [
        ([10, 20, 30, 40], 2, None, [30, 40]),
        ([10, 20, 30, 40, 50], 1, 20, [20, 40, 50]),
        ([16, 32, 48, 64, 80], 1, 1000, [80]),
        ([7, 23, 38, 55, 61, 80], 1, 20, [23, 55, 61, 80]),  # chosen by time, not by number
        ([10], 3, 5, [10]),
        ([], 3, 5, []),
    ],
)
def test_the_newest_stay_and_one_of_each_so_many_steps(
    steps: list[int], newest: int, every: int | None, kept: list[int]
) -> None:
    committed = [Position(attempt=1, step=step) for step in steps]
    stay = lineage.to_keep(committed, newest, every)
    assert sorted(position.step for position in stay) == kept


@given(st.lists(st.integers(1, 500), unique=True), st.integers(1, 5), st.integers(1, 50))
def test_what_stays_does_not_depend_on_when_one_looks(
    steps: list[int], newest: int, every: int
) -> None:
    present: list[Position] = []
    for step in sorted(steps):
        present.append(Position(attempt=1, step=step))
        stay = lineage.to_keep(present, newest, every)
        present = [position for position in present if position in stay]
    everything = [Position(attempt=1, step=step) for step in sorted(steps)]
    assert set(present) == lineage.to_keep(everything, newest, every)


def _flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("name", ["shard-00000.distcp", ".metadata"])
@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "missing", "empty"])
def test_damage_is_found_and_named_and_the_one_before_is_used(
    store: ObjectStore, name: str, damage: str
) -> None:
    commit(store, 1, 10)
    folder = commit(store, 1, 20)
    path = store.local_path(f"{folder}/{name}")
    assert path is not None
    if damage.startswith("flip"):
        _flip(path, 0 if damage == "flip first" else -1)
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -1 if damage == "cut" else 0])
    damaged: list[str] = []
    found = lineage.newest_good(
        store, KEYS, on_damaged=lambda commit, error: damaged.append(f"{commit} {error}")
    )
    assert found is not None
    assert found[1].position == Position(attempt=1, step=10)
    assert len(damaged) == 1
    assert f"step-{20:010d}/{name}" in damaged[0]
    with pytest.raises(CheckpointError, match=name):
        lineage.verify(store, folder)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "not a manifest"),
        (b"{}", "not a manifest"),
        (b"\x80\x04N.", "not a manifest"),
        (b'{"format": 2}', "not a manifest"),
    ],
)
def test_a_manifest_that_is_none_is_refused(store: ObjectStore, raw: bytes, what: str) -> None:
    folder = commit(store, 1, 10)
    store.put(f"{folder}/manifest.json", raw)
    with pytest.raises(CheckpointError, match=what):
        lineage.verify(store, folder)
    assert lineage.newest_good(store, KEYS) is None


def test_a_manifest_is_bound_to_its_digest(store: ObjectStore) -> None:
    folder = commit(store, 1, 10)
    digest = digest_of(store.get(f"{folder}/manifest.json"))
    lineage.verify(store, folder, digest)
    edited = json.loads(store.get(f"{folder}/manifest.json")) | {"tokens": 99}
    store.put(f"{folder}/manifest.json", json.dumps(edited).encode())
    with pytest.raises(CheckpointError, match="the manifest was changed"):
        lineage.verify(store, folder, digest)


@pytest.mark.parametrize("path", ["../../order.json", "/etc/passwd", "a/../b", "", "a//b"])
def test_a_manifest_names_no_file_outside_its_folder(store: ObjectStore, path: str) -> None:
    folder = commit(store, 1, 10)
    edited = json.loads(store.get(f"{folder}/manifest.json"))
    edited["files"][0]["path"] = path
    store.put(f"{folder}/manifest.json", json.dumps(edited).encode())
    with pytest.raises(CheckpointError, match="outside its folder"):
        lineage.verify(store, folder)


class _Canary:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_a_pickle_put_in_place_of_the_index_is_refused_unopened(
    store: ObjectStore, tmp_path: Path
) -> None:
    folder = commit(store, 1, 10)
    canary = tmp_path / "canary"
    size = len(store.get(f"{folder}/.metadata"))
    store.put(f"{folder}/.metadata", pickle.dumps(_Canary(str(canary))).ljust(size, b"."))
    with pytest.raises(CheckpointError, match="its digest is wrong"):
        lineage.verify(store, folder)
    assert not canary.exists()


def test_artefacts_carry_the_manifests_digest(store: ObjectStore) -> None:
    folder = commit(store, 1, 10)
    commit(store, 1, 20, "adapter")
    made = lineage.artefact_of(store, order(store, 1), Position(attempt=1, step=10))
    assert (made.name, made.type, made.uri) == ("checkpoint", "checkpoint", store.url(folder))
    assert made.digest == digest_of(store.get(f"{folder}/manifest.json"))
    made = lineage.artefact_of(store, order(store, 1), Position(attempt=1, step=20))
    assert made.type == "adapter"
    with pytest.raises(CheckpointError, match="never committed"):
        lineage.artefact_of(store, order(store, 1), Position(attempt=1, step=30))


# --- the rule itself: histories in which attempts live, die, and write on as zombies


class _History:
    """A model of the store: fences and commits by position, and each attempt's next step."""

    def __init__(self) -> None:
        self.fences: list[Epoch] = []
        self.commits: list[Position] = []
        self.next_step: dict[int, int] = {}

    def counting(self) -> list[Position]:
        found = [p for p in self.commits if lineage.counts(p, self.fences)]
        return sorted(found, key=lambda p: (p.step, p.attempt))

    def begin(self, *, damaged: int) -> None:
        """A new attempt, from the newest commit but `damaged` ones."""
        whole = self.counting()
        whole = whole[: len(whole) - damaged] if damaged else whole
        base = whole[-1] if whole else None
        number = len(self.fences) + 1
        self.fences.append(Epoch(attempt=number, base=base))
        self.next_step[number] = (base.step if base is not None else 0) + 1

    def save(self, attempt: int, steps: int) -> Position:
        """An attempt, alive or not, commits some steps on."""
        position = Position(attempt=attempt, step=self.next_step[attempt] + steps)
        self.next_step[attempt] = position.step + 1
        self.commits.append(position)
        return position


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("save"), st.integers(0, 100), st.integers(0, 5)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(MOVES)
def test_zombies_never_change_what_a_fenced_attempt_contributes(
    moves: list[tuple[str, int, int]],
) -> None:
    history = _History()
    history.begin(damaged=0)
    for move, number, more in moves:
        before = history.counting()
        newest = len(history.fences)
        if move == "begin":
            history.begin(damaged=number)
            # A fence only ever takes away, and keeps exactly what leads to its base.
            base = history.fences[-1].base
            kept = [p for p in before if base is not None and p.step <= base.step]
            assert history.counting() == kept
            continue
        attempt = number % newest + 1
        position = history.save(attempt, more)
        # Only the newest attempt can add, and adds exactly what it commits.
        expected = [*before, position] if attempt == newest else before
        assert history.counting() == expected
    counting = [position.step for position in history.counting()]
    assert counting == sorted(set(counting))


@settings(max_examples=25, deadline=None)
@given(MOVES)
def test_the_store_follows_the_same_rule(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int, int]]
) -> None:
    store = ObjectStore(StoreSpec(url=tmp_path_factory.mktemp("history").as_uri()))
    history = _History()
    history.begin(damaged=0)
    assert lineage.claim(store, order(store, 1)) is None
    for move, number, more in moves:
        newest = len(history.fences)
        if move == "begin":
            history.begin(damaged=0)
            assert lineage.claim(store, order(store, newest + 1)) == history.fences[-1].base
        else:
            position = history.save(number % newest + 1, more)
            commit(store, position.attempt, position.step)
    assert lineage.positions(store, KEYS) == history.counting()
