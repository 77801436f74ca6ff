"""gitignore's rules."""

import pathspec
import pytest

from octad.client.ignore import USUAL, Ignore
from octad.errors import PackageError

PATTERNS = [
    "data/", "/data", "data", "*.ckpt", "a/b", "a/**/b", "**/logs", "logs/**", "a*c", "?.txt", "[ab].py",
    "[!a].py", "[^a].py", "[]a].py", "[a^].py", "!keep.ckpt", "#note", "", "  ", "\\#note", "sp ace", "trail ", "*.tar.gz", "/*/x",
]  # fmt: skip
PATHS = [
    "data", "x/data", "a.ckpt", "keep.ckpt", "x/keep.ckpt", "a/b", "x/a/b", "a/x/y/b", "logs", "x/logs",
    "logs/y", "logs/y/z", "abc", "ac", "a/c", "q.txt", "qq.txt", "a.py", "c.py", "#note", "sp ace", "trail",
    "].py", "^.py", "m.tar.gz", "p/x", "p/q/x", "x",
]  # fmt: skip


def stays_behind(ignore: Ignore, path: str) -> bool:
    """Whether a file is left out, or a folder on the way down to it."""
    folders = [path[:i] for i, letter in enumerate(path) if letter == "/"]
    return any(ignore.leaves_out(folder, is_folder=True) for folder in folders) or (
        ignore.leaves_out(path, is_folder=False)
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_means_what_it_means_to_git(pattern: str) -> None:
    ours = Ignore(["*.ckpt", pattern])
    theirs = pathspec.GitIgnoreSpec.from_lines(["*.ckpt", pattern])
    for path in PATHS:
        assert stays_behind(ours, path) == theirs.match_file(path), path


@pytest.mark.parametrize("pattern", ["[z-a]", "x[b-a]*"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(PackageError, match="is no pattern"):
        Ignore([pattern])


@pytest.mark.parametrize("pattern", ["[", "[]", "[!]", "[^]", "a[", "\\", "!", "/"])
def test_what_is_not_closed_is_taken_as_it_stands(pattern: str) -> None:
    assert not Ignore([pattern]).leaves_out("x.py", is_folder=False)


def test_the_usual_stays_behind() -> None:
    ignore = Ignore(USUAL)
    for folder in (".git", "x/__pycache__", ".venv", "mlruns", "sub/.mypy_cache"):
        assert ignore.leaves_out(folder, is_folder=True)
    for file in ("a.pyc", "x/mlflow.db"):
        assert ignore.leaves_out(file, is_folder=False)
    assert not ignore.leaves_out("train.py", is_folder=False)
