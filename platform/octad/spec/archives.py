"""What a zip that somebody sends may hold. Pure: it looks at the list of members alone."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from octad.errors import PackageError

_ENCRYPTED = 0x1
_MOST_NAME_BYTES = 1024
# Text shrinks to a tenth, zeros to a thousandth. What is small may shrink as it likes.
_MOST_RATIO = 200
_SMALL_BYTES = 16 * 1024**2


class ArchiveLimits(NamedTuple):
    """How much may come out of an archive.

    Attributes:
        members: Files and folders.
        member_bytes: Of one file.
        bytes: Of all files.
    """

    members: int
    member_bytes: int
    bytes: int


def check_members(
    members: Iterable[zipfile.ZipInfo], limits: ArchiveLimits, where: str
) -> list[zipfile.ZipInfo]:
    """The files of a zip, if it can be unpacked without harm.

    The sizes that a zip declares are enough to judge it by: Python's `zipfile` gives no more of a
    member than that.

    Raises:
        PackageError: A name leads out of the folder, is no plain file or folder, comes twice or
            needs a password; or there are too many, too large, or too well packed.
    """
    files: list[zipfile.ZipInfo] = []
    seen: set[str] = set()
    total = packed = 0
    for number, info in enumerate(members, start=1):
        if number > limits.members:
            raise PackageError(f"holds more than {limits.members:,} files", where=where)
        path = _checked_path(info, where)
        _check_kind(info, where)
        if info.is_dir():
            continue
        if path in seen:
            raise PackageError(f"holds {_shown(path)} twice", where=where)
        seen.add(path)
        if info.file_size > limits.member_bytes:
            raise PackageError(f"holds a file of {info.file_size:,} bytes", where=where)
        total, packed = total + info.file_size, packed + info.compress_size
        if total > limits.bytes:
            raise PackageError(f"unpacks to more than {limits.bytes:,} bytes", where=where)
        files.append(info)
    if total > max(_SMALL_BYTES, _MOST_RATIO * packed):
        raise PackageError(f"unpacks from {packed:,} to {total:,} bytes", where=where)
    return files


def _checked_path(info: zipfile.ZipInfo, where: str) -> str:
    # Python cuts a name at a NUL; what the zip says is in `orig_filename`.
    name = info.orig_filename
    path = PurePosixPath(name)
    if "\0" in name or "\\" in name or len(name.encode(errors="replace")) > _MOST_NAME_BYTES:
        raise PackageError(f"holds a name that cannot be, {_shown(name)}", where=where)
    has_drive = len(name) > 1 and name[1] == ":"
    if not path.parts or path.is_absolute() or has_drive or ".." in path.parts:
        raise PackageError(f"holds a path that leads out of it, {_shown(name)}", where=where)
    return str(path)


def _check_kind(info: zipfile.ZipInfo, where: str) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if stat.S_ISLNK(kind):
        raise PackageError(f"holds a link, {_shown(info.filename)}", where=where)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise PackageError(f"holds something that is no file, {_shown(info.filename)}", where=where)
    if info.flag_bits & _ENCRYPTED:
        raise PackageError(f"needs a password for {_shown(info.filename)}", where=where)


def _shown(name: str) -> str:
    return ascii(name[:200])
