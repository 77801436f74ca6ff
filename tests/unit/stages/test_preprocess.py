"""Preprocessing, whole, without Ray: the same functions that the tasks run."""

import gzip
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from octad.data.shards import DatasetFile, TokenDataset, read_dataset_file
from octad.data.tokenizer import end_of_text, loaded
from octad.errors import ConfigError, DataError
from octad.spec.artefacts import Artefact
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.stages import preprocess
from octad.stages._attempt import Attempt
from octad.stages._corpora import _grouped, prepare
from octad.stages._spread import Progress, R, Spread, T, in_turn
from octad.storage import ObjectStore
from octad.storage.artefacts import publish_folder, stored_file

ROOT = Path(__file__).resolve().parents[3]
WORDS = [
    "over",
    "under",
    "river",
    "stone",
    "light",
    "green",
    "quick",
    "letter",
    "window",
    "summer",
    "café",
    "東京",
]


def on_threads(count: int) -> Spread:
    """As `count` cards would: pieces at once, in a mixed-up order."""

    def spread(function: Callable[[T], R], work: Sequence[T], progress: Progress) -> list[R]:
        numbers = list(range(len(work)))
        random.Random(count).shuffle(numbers)
        with ThreadPoolExecutor(count) as pool:
            made = dict(zip(numbers, pool.map(lambda n: function(work[n]), numbers), strict=True))
        progress(len(work), len(work))
        return [made[number] for number in range(len(work))]

    return spread


class Trial:
    """A stage on a store of its own."""

    def __init__(
        self,
        root: Path,
        spread: Spread = in_turn,
        inputs: dict[str, Artefact] | None = None,
        **settings: Any,
    ) -> None:
        store = StoreSpec(url=f"file://{root}/store")
        defaults = {"vocab": 400, "tokenizer_bytes": 20_000}
        self.settings = preprocess.Settings.parse({**defaults, **settings})
        stage = StageSpec(
            name="prep",
            kind="preprocess",
            cards=2,
            layout=Layout(dp_shard=2),
            settings=self.settings.plain(),
        )
        preprocess.check(stage, self.settings)
        order = AttemptOrder(run="run", attempt=1, stage=stage, inputs=inputs or {}, store=store)
        self.context = Attempt(order, None, ObjectStore(store), root / "scratch")
        found, self.metrics = prepare(self.context, self.settings, spread)
        self.artefacts: dict[str, Artefact] = {artefact.name: artefact for artefact in found}
        self.notes = self.context.notes

    def folder(self, name: str) -> Path:
        return self.context.fetch(self.artefacts[name])

    def file(self, name: str = "corpus") -> DatasetFile:
        return read_dataset_file(self.folder(name))

    def texts(self, split: str, name: str = "corpus") -> list[str]:
        """The documents of a split, decoded from its tokens."""
        tokenizer = loaded(self.folder("tokenizer"))
        dataset = TokenDataset(self.folder(name), split, 1)
        ids = [*dataset.tokens(np.arange(len(dataset)))[:, 0], end_of_text(tokenizer)]
        groups = itertools.groupby(ids, lambda i: i == end_of_text(tokenizer))
        return [tokenizer.decode([int(i) for i in group]) for is_end, group in groups if not is_end]


def prose(seed: int, words: int = 150) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words)) + "\n"


def fill(folder: Path, count: int = 12) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    held = {f"part-{number:02d}.txt": prose(number) for number in range(count)}
    for name, text in held.items():
        (folder / name).write_text(text)
    return held


def source(folder: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "folder", "path": str(folder), **more}


def test_all_text_comes_back_and_held_out_parts_are_whole(tmp_path: Path) -> None:
    held = fill(tmp_path / "in")
    trial = Trial(tmp_path, source=source(tmp_path / "in"))
    train, heldout = trial.texts("train"), trial.texts("heldout")
    assert sorted(train + heldout) == sorted(held.values())
    assert heldout
    file = trial.file()
    assert file.vocab == trial.metrics["vocab"] <= 400
    assert file.splits["train"].documents == len(train)
    assert file.splits["train"].text_bytes == sum(len(text.encode()) for text in train)
    assert trial.metrics["corpus_heldout_tokens"] == file.splits["heldout"].tokens
    assert trial.notes == ()
    assert trial.artefacts["tokenizer"].type == "tokenizer"


def test_a_tokenizer_that_is_given_is_used_as_it_is(tmp_path: Path) -> None:
    """One of LLaMA 2's kind, with an id that no token has."""
    held = fill(tmp_path / "in")
    first = Trial(tmp_path, source=source(tmp_path / "in"))
    raw = json.loads((first.folder("tokenizer") / "tokenizer.json").read_text())
    vocab = raw["model"]["vocab"]
    num_tokens = len(vocab)
    vocab["</s>"] = vocab.pop("<|endoftext|>")
    (added,) = raw["added_tokens"]
    added["content"] = "</s>"
    last = max(vocab, key=lambda token: vocab[token])
    vocab[last] += 1
    given = tmp_path / "given"
    given.mkdir()
    (given / "tokenizer.json").write_bytes(json.dumps(raw, indent=1).encode() + b"\r\n")
    words = publish_folder(first.context.store, "given", "tokenizer", "tokenizer", given)

    trial = Trial(tmp_path, inputs={"tokenizer": words}, source=source(tmp_path / "in"))
    assert sorted(trial.texts("train") + trial.texts("heldout")) == sorted(held.values())
    assert trial.file().vocab == num_tokens + 1
    used = trial.folder("tokenizer") / "tokenizer.json"
    assert used.read_bytes() == (given / "tokenizer.json").read_bytes()
    assert trial.file().tokenizer == stored_file("", used).digest


def test_the_number_of_cards_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "in", 30)
    (tmp_path / "in" / "big.txt").write_text(prose(99, 120_000))
    digests = []
    for cards, spread in ((1, in_turn), (2, on_threads(2)), (8, on_threads(8))):
        root = tmp_path / str(cards)
        tuning = {"kind": "pydoc_topics", "limit_bytes": 50_000}
        trial = Trial(root, spread, source=source(tmp_path / "in"), tuning_source=tuning)
        digests.append({name: artefact.digest for name, artefact in trial.artefacts.items()})
        assert set(digests[-1]) == {"tokenizer", "corpus", "tuning"}
        assert len(trial.file().splits["train"].files) > 1
    assert digests[0] == digests[1] == digests[2]


def test_several_sources_become_datasets_of_one_tokenizer(tmp_path: Path) -> None:
    fill(tmp_path / "in")
    (tmp_path / "odd").mkdir()
    for number in range(12):
        (tmp_path / "odd" / f"{number}.txt").write_text("zyxwvut " * 40 + str(number))
    sources = {"plain": source(tmp_path / "in"), "odd": source(tmp_path / "odd")}
    trial = Trial(tmp_path, sources=sources)
    assert set(trial.artefacts) == {"tokenizer", "plain", "odd"}
    assert trial.file("plain").tokenizer == trial.file("odd").tokenizer
    assert len(trial.texts("train", "odd")) + len(trial.texts("heldout", "odd")) == 12
    for words in (" zyxwvut", " window"):
        assert len(loaded(trial.folder("tokenizer")).encode(words).ids) == 1, "trained on both"


def test_everything_odd_is_counted_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    held = fill(folder)
    (folder / "bad.txt").write_bytes(b"three \xff\xfe\xfd bytes")
    (folder / "copy.txt").write_text(held["part-03.txt"])
    (folder / "copy.md.gz").write_bytes(gzip.compress(held["part-03.txt"].encode()))
    (folder / "dos.txt").write_bytes(b"\xef\xbb\xbf" + held["part-04.txt"].encode()[:-1] + b"\r\n")
    (folder / "empty.txt").touch()
    (folder / "blank.md").write_text(" \n\t\n")
    (folder / "lines.jsonl").write_text('{"text": "a line"}\nno json\n{"text": "more"}\n')
    (folder / "out.txt").symlink_to(ROOT / "README.md")
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    (folder / "none.parquet").touch()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "rows.parquet")
    trial = Trial(tmp_path, source=source(folder, on_error="count"))
    skipped = trial.file().skipped
    assert (skipped.bad_bytes, skipped.bad_lines) == (3, 1)
    assert (skipped.empty, skipped.copies) == (3, 3)
    assert set(skipped.files) == {"cut.txt.gz", "none.parquet", "out.txt"}
    notes = "\n".join(trial.notes)
    assert "corpus: 3 bad bytes in 1 file: bad.txt" in trial.notes
    assert "corpus: 1 line without text in 1 file: lines.jsonl" in trial.notes
    assert "corpus: 3 files without text: blank.md, empty.txt, rows.parquet" in trial.notes
    assert "part-03.txt (of copy.md.gz)" in notes
    assert "out.txt (a link that leads out of the folder)" in notes
    texts = trial.texts("train") + trial.texts("heldout")
    assert texts.count(held["part-03.txt"]) == texts.count(held["part-04.txt"]) == 1


def test_a_damaged_file_ends_the_stage_by_default(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    fill(folder)
    (folder / "none.parquet").touch()
    with pytest.raises(DataError, match="not a whole Parquet file") as caught:
        Trial(tmp_path / "1", source=source(folder))
    assert caught.value.where == f"{folder}/none.parquet"
    (folder / "cut.txt.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match=r"2 files cannot be read: cut\.txt\.gz .* none\.parquet"):
        Trial(tmp_path / "2", source=source(folder))


def test_exact_copies_of_records_are_on_one_side(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [json.dumps({"text": prose(number, 20)}) for number in range(200)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "b.jsonl").write_text("\n".join(reversed(lines)))
    trial = Trial(tmp_path, source=source(folder), heldout_share=0.2)
    train, heldout = trial.texts("train"), trial.texts("heldout")
    assert not set(train) & set(heldout)
    assert len(train) + len(heldout) == 400
    assert 40 < len(heldout) < 120


def test_one_file_of_records_is_enough_and_one_text_is_not(tmp_path: Path) -> None:
    records, single = tmp_path / "records", tmp_path / "single"
    records.mkdir()
    table = pa.table({"body": [prose(number, 30) for number in range(2)]})
    pq.write_table(table, records / "a.parquet")
    trial = Trial(tmp_path / "1", source=source(records, text_key="body"))
    assert len(trial.texts("train")) == len(trial.texts("heldout")) == 1
    fill(single, 1)
    (single / "copy.txt").write_text((single / "part-00.txt").read_text())
    with pytest.raises(DataError, match="one text is too few") as caught:
        Trial(tmp_path / "2", source=source(single))
    assert str(single) in str(caught.value)


@pytest.mark.parametrize("content", ["blank", "rows", "nulls"])
def test_a_folder_without_text_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        if content == "blank":
            (folder / f"{number}.txt").write_text("\n")
        else:
            column = pa.array([], pa.string()) if content == "rows" else pa.nulls(2)
            pq.write_table(pa.table({"text": column}), folder / f"{number}.parquet")
    with pytest.raises(DataError, match="no text in its 3") as caught:
        Trial(tmp_path, source=source(folder))
    assert str(folder) in str(caught.value)


def test_null_columns_in_some_files_do_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"text": pa.nulls(2)}), folder / "a.parquet")
    pq.write_table(pa.table({"text": [prose(n) for n in range(20)]}), folder / "b.parquet")
    pq.write_table(pa.table({"text": pa.nulls(1)}), folder / "c.parquet")
    trial = Trial(tmp_path, source=source(folder))
    assert len(trial.texts("train")) + len(trial.texts("heldout")) == 20


def test_one_changed_byte_changes_the_digest(tmp_path: Path) -> None:
    held = fill(tmp_path / "in")
    before = Trial(tmp_path / "1", source=source(tmp_path / "in"))
    (tmp_path / "in" / "part-05.txt").write_text(held["part-05.txt"].replace("r", "R", 1))
    after = Trial(tmp_path / "2", source=source(tmp_path / "in"))
    assert before.artefacts["corpus"].digest != after.artefacts["corpus"].digest


def test_a_limit_bounds_the_standard_library(tmp_path: Path) -> None:
    trial = Trial(tmp_path, source={"kind": "stdlib", "limit_bytes": 100_000})
    total = sum(split.text_bytes for split in trial.file().splits.values())
    assert 90_000 < total < 400_000


def test_ports_follow_the_settings() -> None:
    alone = preprocess.Settings.parse({"source": {"kind": "stdlib"}})
    both = preprocess.Settings.parse(
        {"source": {"kind": "stdlib"}, "tuning_source": {"kind": "pydoc_topics"}}
    )
    assert {name: port.is_required for name, port in preprocess.takes(both).items()} == {
        "tokenizer": False
    }
    assert set(preprocess.gives(alone)) == {"tokenizer", "corpus"}
    assert set(preprocess.gives(both)) == {"tokenizer", "corpus", "tuning"}


@pytest.mark.parametrize(
    ("settings", "where", "hint"),
    [
        ({"source": {"kind": "stdlb"}}, "prep.source.kind", "stdlib"),
        ({"source": {}}, "prep.source.kind", ""),
        ({"source": {"kind": "stdlib", "limit": 3}}, "prep.source.limit", "limit_bytes"),
        ({"source": {"kind": "folder"}}, "prep.source", ""),
        ({"source": {"kind": "stdlib"}, "vocab": 256}, "prep.vocab", ""),
        ({"source": {"kind": "stdlib"}, "heldout_share": 1.0}, "prep.heldout_share", ""),
        (
            {"source": {"kind": "stdlib"}, "tuning_source": {"kind": "folder", "path": 3}},
            "prep.tuning_source.path",
            "",
        ),
    ],
)
def test_what_cannot_be_is_refused_on_the_laptop(
    settings: dict[str, Any], where: str, hint: str
) -> None:
    stage = StageSpec(name="prep", kind="preprocess", cards=1, layout=Layout(dp_shard=1))
    with pytest.raises(ConfigError) as caught:
        preprocess.check(stage, preprocess.Settings.parse(settings, where="prep"))
    assert caught.value.where == where
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("preprocess", {"torch", "ray", "pyarrow", "numpy", "tokenizers", "obstore"}),
        ("_corpus_tasks", {"torch", "ray", "mlflow"}),
    ],
)
def test_laptops_and_tasks_import_only_what_they_need(module: str, heavy: set[str]) -> None:
    listing = "print(*{name.partition('.')[0] for name in sys.modules})"
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, octad.stages.{module}; {listing}"],
        env={"PYTHONPATH": "platform"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert not heavy & set(told.stdout.split())


@pytest.mark.parametrize(("number", "num_bytes"), [(10, 1), (400_000, 10), (40_000, 10_000_000)])
def test_a_large_corpus_is_surveyed_by_a_bounded_number_of_tasks(
    number: int, num_bytes: int
) -> None:
    sizes = {f"{i:06d}": num_bytes for i in range(number)}
    groups = _grouped(list(sizes), sizes)
    assert [part for group in groups for part in group] == list(sizes)
    assert len(groups) <= 1024
