"""Code of the user's own, wherever it lies: a folder, an archive, one file."""

from __future__ import annotations

import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from octad.client.ignore import IGNORE_FILE, USUAL, Ignore
from octad.errors import NotFoundError, PackageError
from octad.spec.archives import ArchiveLimits, check_members
from octad.spec.home import expanded

_MAX_SEEN = 200_000  # files looked at before giving up on counting
_MAX_MEMBER_BYTES = 1 << 30
_ZIP_LIMITS = ArchiveLimits(_MAX_SEEN, _MAX_MEMBER_BYTES, _MAX_MEMBER_BYTES)
# What reading an archive ends with that was cut or changed.
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a package.

    Attributes:
        path: Its place in the package, with `/`.
        size: In bytes.
        is_executable: Whether its mode says so.
        read: Gives its content.
        shown: Where it comes from, for messages.
        file: Where it lies, if it is a file of its own.
    """

    path: str
    size: int
    is_executable: bool
    read: Callable[[], bytes]
    shown: str
    file: Path | None = None

    def is_same(self, other: Entry) -> bool:
        """Whether both are one file on this machine, or hold the same."""
        if self.file is not None and other.file is not None and self.file.samefile(other.file):
            return True
        return self.size == other.size and self.read() == other.read()


def own_code(path: Path) -> Iterator[Entry]:
    """The files that `code.path` names.

    Raises:
        NotFoundError: There is nothing there.
        PackageError: It is something else, or holds what cannot be sent.
    """
    place = expanded(path)
    where = str(path)
    if not place.exists():
        raise NotFoundError("there is nothing there", where=where, hint="code.path")
    if place.is_dir():
        found = walk(place, _ignore(place))
    elif zipfile.is_zipfile(place):
        found = _from_zip(place)
    elif tarfile.is_tarfile(place):
        found = _from_tar(place)
    elif place.suffix == ".py":
        found = iter([_entry(place, place.name, place.stat())])
    else:
        raise PackageError(
            "neither a folder nor a .zip, .tar.gz or .py", where=where, hint="code.path"
        )
    for entry in found:
        check_line_ends(entry)
        yield entry


def walk(folder: Path, ignore: Ignore, *, under: str = "") -> Iterator[Entry]:
    """The files of a folder, without those that stay behind.

    Raises:
        PackageError: A link leads out of the folder or nowhere, a name is not UTF-8, or there are
            far too many files.
    """
    top = folder.resolve()
    seen = 0
    waiting = [("", folder, frozenset({top}))]
    while waiting:
        relative, place, above = waiting.pop()
        with os.scandir(place) as listing:
            items = sorted(listing, key=lambda item: item.name)
        for item in items:
            path = f"{relative}{item.name}"
            if ignore.leaves_out(path, is_folder=item.is_dir()) or _is_environment(item):
                continue
            _check_name(path, folder)
            here = Path(item.path)
            if item.is_symlink():
                _check_link(here, top, folder)
            if item.is_dir():
                real = here.resolve()
                if real not in above:  # a link to a folder above would never end
                    waiting.append((f"{path}/", here, above | {real}))
            elif item.is_file():
                seen += 1
                if seen > _MAX_SEEN:
                    raise PackageError(f"more than {_MAX_SEEN:,} files", where=str(folder))
                yield _entry(here, under + path, item.stat())


def check_line_ends(entry: Entry) -> None:
    """Refuse a script that no Unix shell can run.

    Raises:
        PackageError: It has Windows line ends; names the file and the line.
    """
    is_shell = entry.path.endswith((".sh", ".bash", ".ksh", ".zsh"))
    if entry.size > 1 << 20 or not (is_shell or entry.is_executable or entry.path.endswith(".py")):
        return
    content = entry.read()
    first = content.split(b"\n", 1)[0]
    has_bad_interpreter = first.startswith(b"#!") and first.endswith(b"\r")
    place = content.find(b"\r\n")
    if has_bad_interpreter or (is_shell and place >= 0):
        line = content.count(b"\n", 0, place) + 1
        raise PackageError(
            "Windows line ends (CR LF): no shell on a node can run it",
            where=f"{entry.shown}:{line}",
            hint="save it with LF, for example with: sed -i 's/\\r$//' FILE",
        )


def _ignore(folder: Path) -> Ignore:
    own = folder / IGNORE_FILE
    lines = own.read_text(errors="replace").splitlines() if own.is_file() else []
    return Ignore([*USUAL, f"/{IGNORE_FILE}", *lines])


def _is_environment(item: os.DirEntry[str]) -> bool:
    return item.is_dir() and Path(item.path, "pyvenv.cfg").exists()


def _check_name(path: str, folder: Path) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PackageError(
            f"the name {path.encode(errors='backslashreplace').decode()!r} is not UTF-8",
            where=str(folder),
            hint=f"rename it, or leave it out in {IGNORE_FILE}",
        ) from None


def _check_link(link: Path, top: Path, folder: Path) -> None:
    target = link.resolve()
    hint = f"copy what it names, or leave it out in {IGNORE_FILE}"
    if not target.exists():
        raise PackageError(f"a link to {target}, which is not there", where=str(link), hint=hint)
    if not target.is_relative_to(top):
        raise PackageError(f"a link out of {folder}, to {target}", where=str(link), hint=hint)


def _entry(file: Path, path: str, status: os.stat_result) -> Entry:
    return Entry(
        path=path,
        size=status.st_size,
        is_executable=bool(status.st_mode & stat.S_IXUSR),
        read=file.read_bytes,
        shown=str(file),
        file=file,
    )


def _from_zip(archive: Path) -> Iterator[Entry]:
    try:
        with zipfile.ZipFile(archive) as source:
            for info in check_members(source.infolist(), _ZIP_LIMITS, str(archive)):
                is_executable = bool(info.external_attr >> 16 & 0o100)
                content = source.read(info)
                yield _member(archive, info.filename, content, is_executable=is_executable)
    except (*_BROKEN, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise PackageError(f"cannot be unpacked: {error}", where=str(archive)) from None


def _from_tar(archive: Path) -> Iterator[Entry]:
    try:
        with tarfile.open(archive) as source:
            for member in source:
                if member.isdir():
                    continue
                held = source.extractfile(member) if member.isreg() else None
                if held is None:
                    raise PackageError(
                        f"holds something that is no file, {member.name}", where=str(archive)
                    )
                content = held.read() if _fits(member.size, archive) else b""
                yield _member(
                    archive, member.name, content, is_executable=bool(member.mode & 0o100)
                )
    except (*_BROKEN, tarfile.TarError) as error:
        raise PackageError(f"cannot be unpacked: {error}", where=str(archive)) from None


def _fits(size: int, archive: Path) -> bool:
    if size > _MAX_MEMBER_BYTES:
        raise PackageError(f"holds a file of {size:,} bytes", where=str(archive))
    return True


def _member(archive: Path, name: str, content: bytes, *, is_executable: bool) -> Entry:
    path = PurePosixPath(name.removeprefix("./"))
    if path.is_absolute() or ".." in path.parts:
        raise PackageError(f"holds a path that leads out of it, {name}", where=str(archive))
    return Entry(
        path=str(path),
        size=len(content),
        is_executable=is_executable,
        read=lambda: content,
        shown=f"{archive}!{path}",
    )
