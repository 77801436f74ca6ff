"""A folder of text: every kind of file, whole, odd and damaged."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from octad.data.sources import folder
from octad.errors import ConfigError, DataError, NotFoundError
from octad.ports.data import Document, Skipped


class Blobs:
    """A store of blobs in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.held[f"blobs/{digest}"] = data
        return digest

    def get(self, key: str) -> bytes:
        if key not in self.held:
            raise NotFoundError("no such object", where=key)
        return self.held[key]

    def download(self, key: str, path: Path) -> None:
        path.write_bytes(self.get(key))


def read(root: Path, part: str, **settings: Any) -> tuple[list[Document], Skipped]:
    source = folder.build(folder.Settings(path=str(root), **settings), Blobs())
    skipped = Skipped()
    return list(source.read(part, skipped)), skipped


def texts(root: Path, part: str, **settings: Any) -> list[str]:
    return [document.text for document in read(root, part, **settings)[0]]


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "a.TXT"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_text_file_is_one_document(tmp_path: Path, name: str, packed: bool) -> None:
    raw = b"\xef\xbb\xbfone\r\ntwo\xff"
    name += ".gz" if packed else ""
    (tmp_path / name).write_bytes(gzip.compress(raw) if packed else raw)
    documents, skipped = read(tmp_path, name)
    assert documents == [Document(name, "one\ntwo\ufffd")]
    assert skipped.bad_bytes == 1


def test_lines_without_text_are_counted(tmp_path: Path) -> None:
    lines = [
        '\ufeff{"text": "first"}',
        "",
        "not json",
        '{"text": 3}',
        '{"other": "x"}',
        '["text"]',
        "[" * 100_000,
        '{"text": "lone \\ud800 half"}',
        '{"text": "last", "more": {"deep": null}}',
    ]
    raw = "\r\n".join(lines).encode() + b'\n{"text": "b\xffd", "id": "\xfe"}'
    (tmp_path / "a.jsonl").write_bytes(raw)
    documents, skipped = read(tmp_path, "a.jsonl")
    assert [d.text for d in documents] == ["first", "lone \ufffd half", "last", "b\ufffdd"]
    assert [d.name for d in documents] == [f"a.jsonl:{n}" for n in (1, 8, 9, 10)]
    assert all(d.is_record for d in documents)
    assert (skipped.bad_lines, skipped.bad_bytes) == (5, 2)


def test_lines_that_all_lack_the_key_name_the_keys_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"body": "x", "id": 1}\n' * 3))
    with pytest.raises(DataError, match=r"none of its 3 lines .* body, id") as caught:
        read(tmp_path, "a.jsonl.gz")
    assert caught.value.where == "a.jsonl.gz"
    assert texts(tmp_path, "a.jsonl.gz", text_key="body") == ["x"] * 3


def test_an_empty_jsonl_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n\n")
    assert texts(tmp_path, "a.jsonl") == []


@pytest.mark.parametrize("how", ["cut", "flipped", "tail", "none", "plain"])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, how: str, suffix: str) -> None:
    raw = gzip.compress(b'{"text": "some text"}\n' * 1000)
    middle = len(raw) // 2
    damaged = {
        "cut": raw[:-6],
        "flipped": raw[:middle] + bytes([raw[middle] ^ 0xFF]) + raw[middle + 1 :],
        "tail": raw + b"rubbish",
        "none": b"",
        "plain": b'{"text": "x"}',
    }[how]
    (tmp_path / f"a{suffix}.gz").write_bytes(damaged)
    with pytest.raises(DataError, match="gzip") as caught:
        read(tmp_path, f"a{suffix}.gz")
    assert caught.value.where == f"a{suffix}.gz"


STRINGS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_a_column_of_any_kind_of_text(tmp_path: Path, kind: Any, packed: bool) -> None:
    column = pa.array(["one\r\n", None, "zwei é", ""]).cast(kind)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": column}), path)
    if packed:
        path = tmp_path / "a.parquet.gz"
        path.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    documents, skipped = read(tmp_path, path.name)
    assert [d.text for d in documents] == ["one\n", "zwei é", ""]
    assert [d.name for d in documents] == [f"{path.name}:{row}" for row in (0, 2, 3)]
    assert skipped.bad_lines == 1


def test_bad_bytes_in_a_column_are_counted(tmp_path: Path) -> None:
    column = pa.array([b"ok", b"b\xffd"], pa.binary())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    documents, skipped = read(tmp_path, "a.parquet")
    assert [d.text for d in documents] == ["ok", "b\ufffdd"]
    assert skipped.bad_bytes == 1


def test_a_column_all_null_gives_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "a.parquet")
    documents, skipped = read(tmp_path, "a.parquet")
    assert documents == []
    assert skipped.bad_lines == 3


@pytest.mark.parametrize("columns", [{}, {"text": pa.array([], pa.string())}, {"id": pa.array([])}])
def test_a_file_without_rows_is_fine(tmp_path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert texts(tmp_path, "a.parquet") == []


def test_many_rows_in_one_group_come_in_order(tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {i}" for i in range(5000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5000)
    assert texts(tmp_path, "a.parquet") == [f"row {i}" for i in range(5000)]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": ["x"], "id": [1]}, r"no column 'text'; its columns are: body \(string\), id"),
        ({"text": [[1, 2]]}, "column 'text' holds list"),
        ({"text": [1]}, "column 'text' holds int64"),
    ],
)
def test_a_table_without_text_says_what_it_has(
    tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=reason) as caught:
        read(tmp_path, "a.parquet")
    assert caught.value.where == "a.parquet"


@pytest.mark.parametrize("keep", [0, 3, 40, -5])
def test_a_parquet_file_cut_off_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 100] * 10}), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="not a whole Parquet file") as caught:
        read(tmp_path, "a.parquet")
    assert caught.value.where == "a.parquet"


def test_a_flipped_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * 100, "y" * 50] * 100}), path, compression="gzip")
    raw = bytearray(path.read_bytes())
    raw[4:60] = bytes(56)
    path.write_bytes(raw)
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read(tmp_path, "a.parquet")


def snapshot(blobs: Blobs, files: dict[str, bytes], skipped: dict[str, str]) -> str:
    listed = [
        {"path": path, "size": len(data), "digest": f"sha256:{blobs.put(data)}"}
        for path, data in files.items()
    ]
    return blobs.put(json.dumps({"files": listed, "skipped": skipped}).encode())


def test_a_snapshot_reads_as_the_folder_did(tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["row"]}), table)
    files = {"b.txt": b"text b", "a/x.jsonl": b'{"text": "line"}', "t.parquet": table.read_bytes()}
    blobs = Blobs()
    settings = folder.Settings(snapshot=snapshot(blobs, files, {"l.txt": "a link"}), path="/gone")
    source = folder.build(settings, blobs)
    assert source.parts() == ["a/x.jsonl", "b.txt", "t.parquet"]
    assert source.size_bytes("b.txt") == 6
    assert source.left_out() == {"l.txt": "a link"}
    found = [d.text for part in source.parts() for d in source.read(part, Skipped())]
    assert found == ["line", "text b", "row"]


def test_a_damaged_or_missing_blob_is_named() -> None:
    blobs = Blobs()
    settings = folder.Settings(snapshot=snapshot(blobs, {"a.txt": b"a", "b.txt": b"b"}, {}))
    blobs.held[f"blobs/{hashlib.sha256(b'a').hexdigest()}"] = b"A"
    del blobs.held[f"blobs/{hashlib.sha256(b'b').hexdigest()}"]
    source = folder.build(settings, blobs)
    for part, reason in (("a.txt", "damaged"), ("b.txt", "not sent whole")):
        with pytest.raises(DataError, match=reason) as caught:
            list(source.read(part, Skipped()))
        assert caught.value.where == part


def test_a_missing_snapshot_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not in the store"):
        folder.build(folder.Settings(snapshot="0" * 64), Blobs())
    with pytest.raises(DataError, match="not there"):
        folder.build(folder.Settings(path=str(tmp_path / "no")), Blobs())
    with pytest.raises(ConfigError, match=r"data\.path=DIR"):
        folder.Settings.parse({}, where="data")


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    source = folder.build(folder.Settings(path=str(tmp_path)), Blobs())
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(source.read("a.txt", Skipped()))
