"""The source code of the Python that runs here: always there, several megabytes."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from octad.data.text import decoded
from octad.errors import DataError
from octad.ports.data import Document, Objects, Skipped, SourceSettings

# Tests hold bad source on purpose; packages are not part of the library; the help texts are a
# source of their own, which a model must not have seen before it is fine-tuned on them.
_SKIPPED = frozenset(
    {"__pycache__", "dist-packages", "idle_test", "pydoc_data", "site-packages", "test", "tests"}
)


class Settings(SourceSettings):
    """Only what all sources share."""


class StandardLibrary:
    """One part per module, by its path in the library."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def parts(self) -> Sequence[str]:
        """Paths of modules, with `/`; tests and empty modules are left out."""
        found = []
        for folder, inner, names in os.walk(self.root):
            inner[:] = [name for name in inner if name not in _SKIPPED]
            base = Path(folder).relative_to(self.root)
            found += [
                (base / name).as_posix()
                for name in names
                if name.endswith(".py") and (self.root / base / name).stat().st_size
            ]
        if not found:
            raise DataError(
                "this Python has no source of its standard library",
                where=str(self.root),
                hint="use another Python, or data=folder",
            )
        return sorted(found)

    def size_bytes(self, part: str) -> int:
        """The size of the module's file."""
        return (self.root / part).stat().st_size

    def left_out(self) -> dict[str, str]:
        """Nothing that one would miss."""
        return {}

    def read(self, part: str, skipped: Skipped) -> Iterator[Document]:
        """The module's source, as one document."""
        try:
            raw = (self.root / part).read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=part) from None
        text, num_bad = decoded(raw)
        skipped.bad_bytes += num_bad
        yield Document(part, text)


def build(settings: Settings, store: Objects) -> StandardLibrary:
    """The source."""
    return StandardLibrary(Path(sysconfig.get_path("stdlib")))
