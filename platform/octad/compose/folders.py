"""Where config files lie, and what a config file must be before Hydra reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import octad
from octad.errors import ConfigError
from octad.spec.home import expanded

_PACKAGE = Path(octad.__file__).resolve().parent
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
MAX_FILE_BYTES = 1 << 20
_MAX_FILES = 5000


class FileState(NamedTuple):
    """One file at one time."""

    path: str
    modified_ns: int
    size: int
    inode: int


def conf_folders(own: Path | None = None) -> tuple[Path, ...]:
    """The folders that configs are looked for in, the first one winning.

    Octad's own is the repository's `conf/` where the package is not built into a wheel (an editable
    install, or a shipped code package), else the copy inside the wheel.

    Raises:
        ConfigError: There is no such folder.
    """
    beside = _PACKAGE.parent.parent / "conf"
    ours = beside if (beside / "config.yaml").is_file() else _PACKAGE / "_bundled" / "conf"
    if own is None:
        return (ours,)
    folder = expanded(own)
    if not folder.is_dir():
        raise ConfigError("not a folder", where=str(own), hint="--conf names a folder of configs")
    return (folder, ours)


def states(folders: Iterable[Path]) -> tuple[FileState, ...]:
    """What tells whether a file of these folders has changed, come or gone."""
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            stat = path.stat()
            found.append(FileState(str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def check_files(folders: Iterable[Path]) -> None:
    """Refuse config files that Hydra would misread or choke on.

    Raises:
        ConfigError: Names the file, and where it can the line and column.
    """
    for folder in folders:
        for number, path in enumerate(sorted(folder.rglob("*.y*ml"))):
            if number >= _MAX_FILES:
                raise ConfigError(f"more than {_MAX_FILES} config files", where=str(folder))
            if path.is_file():
                _check_file(path)


def _check_file(path: Path) -> None:
    where = str(path)
    if path.suffix == ".yml":
        raise ConfigError("Hydra reads only .yaml files", where=where, hint="rename it to .yaml")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ConfigError(
            f"{size:,} bytes is too much for a config; the limit is {MAX_FILE_BYTES:,}",
            where=where,
            hint="keep long lists in a file of their own and name that file in the config",
        )
    raw = path.read_bytes()
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(
            "starts with a byte-order mark", where=f"{where}:1:1", hint="save it as plain UTF-8"
        )
    bad = _CONTROL.search(raw)
    if bad is not None:
        raise ConfigError(
            f"byte 0x{raw[bad.start()]:02x} is a control character",
            where=f"{where}:{_place(raw, bad.start())}",
        )
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=f"{where}:{_place(raw, error.start)}",
            hint="save it as UTF-8",
        ) from None


def _place(raw: bytes, offset: int) -> str:
    """Line and column, from 1."""
    line = raw.count(b"\n", 0, offset) + 1
    column = offset - raw.rfind(b"\n", 0, offset)
    return f"{line}:{column}"
