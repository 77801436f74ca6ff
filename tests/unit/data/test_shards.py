"""Shards: what is written comes back, memory-mapped, and damage is named."""

from pathlib import Path

import numpy as np
import pytest

from octad.data import shards
from octad.data.shards import DatasetFile, Shard, ShardWriter, TokenDataset, split_files
from octad.errors import DataError


def write(folder: Path, *streams: list[int], vocab: int = 500) -> None:
    made = []
    for number, ids in enumerate(streams):
        path = folder / f"train-{number:05d}.arrow"
        with ShardWriter(path, vocab) as writer:
            for start in range(0, len(ids), 7):
                writer.add(ids[start : start + 7])
        made.append(
            Shard(
                path=path.name,
                tokens=writer.num_tokens,
                documents=1,
                text_bytes=1,
                size=path.stat().st_size,
                digest="sha256:" + "0" * 64,
            )
        )
    file = DatasetFile(
        vocab=vocab, end_of_text=0, tokenizer="x", splits={"train": split_files(tuple(made))}
    )
    (folder / "dataset.json").write_text(file.model_dump_json())


@pytest.mark.parametrize("batch_tokens", [1 << 20, 5])
@pytest.mark.parametrize("vocab", [500, 1 << 16, (1 << 16) + 1])
def test_samples_run_over_the_ends_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocab: int, batch_tokens: int
) -> None:
    monkeypatch.setattr(shards, "_BATCH_TOKENS", batch_tokens)
    stream = np.random.default_rng(0).integers(0, vocab, 100).tolist()
    write(tmp_path, stream[:13], stream[13:15], stream[15:], vocab=vocab)
    dataset = TokenDataset(tmp_path, "train", sequence=6)
    assert len(dataset) == 99 // 6
    got = dataset.tokens(np.arange(len(dataset)))
    assert got.dtype == (np.uint16 if vocab <= 1 << 16 else np.uint32)
    assert got.tolist() == [stream[i * 6 : i * 6 + 7] for i in range(len(dataset))]
    assert dataset.tokens(np.array([9, 2])).tolist() == [stream[54:61], stream[12:19]]
    assert dataset.vocab == vocab


def test_samples_of_several_datasets_follow_each_other(tmp_path: Path) -> None:
    streams = {"a": list(range(23)), "b": list(range(100, 110)), "c": list(range(200, 231))}
    for name, stream in streams.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, stream[:9], [], stream[9:])
    dataset = TokenDataset([tmp_path / name for name in streams], "train", 4)
    assert dataset.num_samples == (5, 2, 7)
    expected = [
        stream[start : start + 5]
        for stream in streams.values()
        for start in range(0, len(stream) - 4, 4)
    ]
    assert len(dataset) == len(expected)
    order = np.random.default_rng(0).permutation(len(dataset))
    first = dataset.tokens(order)
    assert first.tolist() == [expected[index] for index in order]
    assert dataset.tokens(order[::-1], first) is first
    assert first.tolist() == [expected[index] for index in order[::-1]]


def test_datasets_of_two_tokenizers_are_not_read_as_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, [1] * 50)
    path = tmp_path / "b" / "dataset.json"
    path.write_text(path.read_text().replace('"tokenizer":"x"', '"tokenizer":"y"'))
    with pytest.raises(DataError, match=f"{tmp_path}/b: made with another tokenizer"):
        TokenDataset([tmp_path / "a", tmp_path / "b"], "train", 4)


def test_a_token_takes_two_bytes_where_the_vocabulary_allows(tmp_path: Path) -> None:
    for vocab in (1 << 16, (1 << 16) + 1):
        with ShardWriter(tmp_path / str(vocab), vocab) as writer:
            writer.add([vocab - 1] * 10_000)
    small, large = (tmp_path / str(v) for v in (1 << 16, (1 << 16) + 1))
    assert small.stat().st_size < 21_000
    assert large.stat().st_size > 40_000


def test_text_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [1] * 8)
    assert len(TokenDataset(tmp_path, "train", 7)) == 1
    with pytest.raises(DataError, match="8 tokens, but one sample takes 9") as caught:
        TokenDataset(tmp_path, "train", 8)
    assert "sequence" in caught.value.hint
    with pytest.raises(DataError, match="no split 'heldout'"):
        TokenDataset(tmp_path, "heldout", 4)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "empty"])
def test_a_damaged_shard_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, [1] * 50, [2] * 50)
    path = tmp_path / "train-00001.arrow"
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        # The footer's length stands in the last ten bytes.
        flipped = raw[:-10] + b"\xff\xff\xff\x7f" + raw[-6:]
        path.write_bytes({"cut": raw[:-8], "flipped": flipped, "empty": b""}[damage])
    with pytest.raises(DataError) as caught:
        TokenDataset(tmp_path, "train", 4)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("raw", [None, b"", b"{}", b'{"format": 2}', b"\xff"])
def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path, raw: bytes | None) -> None:
    if raw is not None:
        (tmp_path / "dataset.json").write_bytes(raw)
    with pytest.raises(DataError) as caught:
        TokenDataset(tmp_path, "train", 4)
    assert "dataset.json" in caught.value.where


def test_an_index_outside_is_a_bug_that_shows(tmp_path: Path) -> None:
    write(tmp_path, [1] * 50)
    dataset = TokenDataset(tmp_path, "train", 4)
    for index in (-1, len(dataset)):
        with pytest.raises(IndexError):
            dataset.tokens(np.array([index]))
