"""The code package of a run: octad, its jobs and configs, and code of the user's own, as one zip.

The same files give the same bytes, whenever and wherever they are packed: entries are sorted, and their
times and modes are fixed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import octad
from octad.client.code_files import Entry, own_code, walk
from octad.client.ignore import USUAL, Ignore
from octad.compose import conf_folders
from octad.errors import PackageError

MAX_BYTES = 200 * (1 << 20)
MAX_ENTRIES = 20_000
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_OURS = ("platform/octad/", "jobs/")
_HINT = (
    "list what the run does not need in .octadignore (gitignore's rules) at the top of the folder"
)


@dataclass(frozen=True, slots=True)
class Package:
    """A packed code package.

    Attributes:
        digest: sha256 of `data`, in hex.
        data: The zip.
        num_entries: Files in it.
    """

    digest: str
    data: bytes
    num_entries: int


def build_package(code: Path | None = None) -> Package:
    """Pack octad and, over it, code of the user's own.

    Args:
        code: A folder, `.zip`, `.tar.gz` or `.py`; None for octad alone.

    Raises:
        PackageError: Too large, too many files, a link that leads out of the folder, a script with
            Windows line ends, or a file in the place of one of octad's.
    """
    entries = {entry.path: entry for entry in _octad()}
    if code is not None:
        for entry in own_code(code):
            ours = entries.get(entry.path)
            if ours is not None and entry.is_same(ours):
                continue  # a checkout of octad itself
            _check_place(entry)
            entries[entry.path] = entry
    _check_size(entries.values())
    data = _zip(entries[path] for path in sorted(entries))
    return Package(hashlib.sha256(data).hexdigest(), data, len(entries))


def _octad() -> Iterable[Entry]:
    package = Path(octad.__file__).resolve().parent
    conf = conf_folders()[-1]
    ignore = Ignore([*USUAL, "/_bundled/"])
    yield from walk(package, ignore, under="platform/octad/")
    yield from walk(conf, Ignore(USUAL), under="conf/")
    yield from walk(conf.parent / "jobs", Ignore(USUAL), under="jobs/")


def _check_place(entry: Entry) -> None:
    for ours in _OURS:
        if entry.path.startswith(ours) or entry.path == ours.rstrip("/"):
            raise PackageError(
                f"lies where octad's own {ours.rstrip('/')} goes",
                where=entry.shown,
                hint="rename that folder, or leave it out in .octadignore",
            )
    if entry.path in {"platform", "platform.py", "platform/__init__.py", "conf/__init__.py"}:
        raise PackageError(
            "would hide a module of Python or octad", where=entry.shown, hint="rename it"
        )


def _check_size(entries: Iterable[Entry]) -> None:
    listed = list(entries)
    if len(listed) > MAX_ENTRIES:
        raise PackageError(
            f"the code has {len(listed):,} files, the limit is {MAX_ENTRIES:,}; most lie in "
            f"{_crowded(listed)}",
            where="code.path",
            hint=_HINT,
        )
    total = sum(entry.size for entry in listed)
    if total > MAX_BYTES:
        largest = sorted(listed, key=lambda entry: -entry.size)[:10]
        shown = ", ".join(f"{entry.path} ({_mebibytes(entry.size)})" for entry in largest)
        raise PackageError(
            f"the code has {_mebibytes(total)}, the limit is {_mebibytes(MAX_BYTES)}; the largest: "
            f"{shown}",
            where="code.path",
            hint=f"{_HINT}; data goes by data=folder data.path=DIR",
        )


def _crowded(entries: Iterable[Entry]) -> str:
    counts: dict[str, int] = {}
    for entry in entries:
        folder = entry.path.rpartition("/")[0] or "."
        counts[folder] = counts.get(folder, 0) + 1
    top = sorted(counts.items(), key=lambda item: -item[1])[:10]
    return ", ".join(f"{folder} ({count:,})" for folder, count in top)


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def _zip(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (0o100755 if entry.is_executable else 0o100644) << 16
            target.writestr(info, entry.read(), compresslevel=6)
    return buffer.getvalue()
