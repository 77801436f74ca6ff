"""Which files of a folder count as text."""

import os
from pathlib import Path

import pytest

from octad.errors import DataError
from octad.spec.corpora import is_packed, scan, suffix_of


def put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")


@pytest.mark.parametrize(
    ("name", "suffix", "packed"),
    [
        ("a.txt", ".txt", False),
        ("deep/B.MD.GZ", ".md", True),
        ("c.jsonl.gz", ".jsonl", True),
        ("d.parquet", ".parquet", False),
        ("e.tar.gz", "", True),
        ("f.csv", "", False),
        ("txt", "", False),
        (".txt", "", False),
    ],
)
def test_a_name_says_how_a_file_is_read(name: str, suffix: str, packed: bool) -> None:
    assert suffix_of(name) == suffix
    assert is_packed(name) == packed


def test_files_at_any_depth_sorted_and_the_rest_counted(tmp_path: Path) -> None:
    put(tmp_path, "b.txt", "a/z.md", "a/é.py", "x.png", ".hidden.txt", ".git/c.txt")
    put(tmp_path, "__pycache__/d.py", "empty.PARQUET.gz")
    found = scan(tmp_path)
    assert list(found.files) == ["a/z.md", "a/é.py", "b.txt", "empty.PARQUET.gz"]
    assert found.num_ignored == 2
    assert found.skipped == {}


def test_links_out_and_links_to_folders_are_skipped_with_a_reason(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(root, "a.txt", "in/b.txt")
    put(outside, "secret.txt")
    (root / "out.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "round").symlink_to(root)
    (root / "inner.txt").symlink_to(root / "in" / "b.txt")
    (root / "broken.txt").symlink_to(root / "nowhere")
    (root / "loop.txt").symlink_to(root / "loop.txt")
    found = scan(root)
    assert list(found.files) == ["a.txt", "in/b.txt", "inner.txt"]
    assert found.skipped["out.txt"] == "a link that leads out of the folder"
    assert found.skipped["folder"] == found.skipped["round"] == "a link to a folder"
    assert found.skipped["broken.txt"].startswith("cannot be read")
    assert found.skipped["loop.txt"].startswith("cannot be read")


def test_what_is_no_file_or_has_no_name_is_skipped(tmp_path: Path) -> None:
    put(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / os.fsdecode(b"bad-\xff.txt")).write_text("x")
    assert scan(tmp_path).skipped == {
        "bad-\\xff.txt": "its name is not UTF-8",
        "pipe.txt": "not a regular file",
    }


def test_the_folder_itself_may_be_a_link_or_hidden(tmp_path: Path) -> None:
    put(tmp_path / ".real", "a.txt")
    (tmp_path / "link").symlink_to(tmp_path / ".real")
    assert list(scan(tmp_path / "link").files) == ["a.txt"]


def test_an_empty_folder_is_refused_with_its_path(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    with pytest.raises(DataError, match=r"2 other files") as caught:
        scan(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert ".jsonl" in caught.value.hint


@pytest.mark.parametrize("name", ["missing", "file.txt"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, "file.txt")
    with pytest.raises(DataError) as caught:
        scan(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
