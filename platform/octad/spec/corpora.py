"""What a folder of text is: which files count, on a laptop that sends it and on a node that
reads it. Looks at names and kinds of files only, never into them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import Field

from octad.errors import DataError
from octad.spec.checkpoints import StoredFile
from octad.spec.frozen import Spec

SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".parquet")
PACKED = ".gz"
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
WANTED = f"files that end in {', '.join(SUFFIXES)}, each also with {PACKED}"


class Snapshot(Spec):
    """A folder as it was when it was sent: a blob that lists blobs.

    Attributes:
        files: Path inside the folder, size in bytes and `sha256:<hex>`; sorted by path.
        skipped: Path to the reason why the sender left it out.
    """

    files: tuple[StoredFile, ...] = Field(min_length=1)
    skipped: dict[str, str] = Field(default_factory=dict)


@dataclass(slots=True)
class Scan:
    """What a walk over a folder found.

    Attributes:
        files: Path inside the folder, with `/`, to the file; sorted.
        skipped: Path to the reason, for what a person would expect to be read.
        num_ignored: Files of other kinds and hidden ones.
    """

    files: dict[str, Path] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    num_ignored: int = 0


def suffix_of(name: str) -> str:
    """The suffix that says how a file is read, in lower case and without `.gz`; "" if none does."""
    path = PurePosixPath(name.lower())
    if path.suffix == PACKED:
        path = path.with_suffix("")
    return path.suffix if path.suffix in SUFFIXES else ""


def is_packed(name: str) -> bool:
    """Whether the file is compressed with gzip, by its name."""
    return name.lower().endswith(PACKED)


def scan(root: Path, where: str = "data.path") -> Scan:
    """The files of a folder that hold text, whatever the depth.

    Hidden names, `__pycache__` and other suffixes do not count. A link is followed if it leads to
    a file inside the folder; one that leads out of it, or to a folder, is skipped with a reason.

    Raises:
        DataError: There is no such folder, or nothing in it can be read.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "is not there"
        raise DataError(f"{root} {what}", where=where, hint="name a folder that holds text")
    found = Scan()
    top = root.resolve()
    for folder, name in _names(top, found):
        _sort_in(top, folder / name, found)
    if not found.files:
        others = f"; {found.num_ignored} other files lie there" if found.num_ignored else ""
        others += f"; skipped: {_some(found.skipped)}" if found.skipped else ""
        raise DataError(f"no text in {root}{others}", where=where, hint=f"put in it {WANTED}")
    found.files = dict(sorted(found.files.items()))
    return found


def _names(top: Path, found: Scan) -> Iterator[tuple[Path, str]]:
    def unreadable(error: OSError) -> None:
        found.skipped[_shown(top, Path(error.filename))] = f"cannot be listed: {error.strerror}"

    for folder, inner, names in os.walk(top, onerror=unreadable):
        linked = [name for name in inner if (Path(folder) / name).is_symlink()]
        for name in linked:
            if not _is_hidden(name):
                found.skipped[_shown(top, Path(folder) / name)] = "a link to a folder"
        inner[:] = [n for n in inner if n not in linked and not _is_hidden(n)]
        inner.sort()
        for name in sorted(names):
            yield Path(folder), name


def _sort_in(top: Path, path: Path, found: Scan) -> None:
    if _is_hidden(path.name) or not suffix_of(path.name):
        found.num_ignored += 1
        return
    reason = _unfit(top, path)
    if reason:
        found.skipped[_shown(top, path)] = reason
    else:
        found.files[path.relative_to(top).as_posix()] = path


def _unfit(top: Path, path: Path) -> str:
    try:
        str(path.relative_to(top)).encode()
        if path.is_symlink() and not path.resolve(strict=True).is_relative_to(top):
            return "a link that leads out of the folder"
        if not stat.S_ISREG(path.stat().st_mode):
            return "not a regular file"
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    except (OSError, RuntimeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or 'links in a circle'}"
    return "" if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS


def _shown(top: Path, path: Path) -> str:
    return os.fsencode(path.relative_to(top)).decode(errors="backslashreplace")


def _some(skipped: dict[str, str]) -> str:
    first = [f"{path} ({reason})" for path, reason in list(skipped.items())[:3]]
    rest = len(skipped) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")
