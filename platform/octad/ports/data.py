"""What a file of `octad.data.sources` fills. No torch, no ray at the top.

class Settings(Spec): ...
def build(settings, store) -> Source
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Skipped:
    """What a source could not use; counted and reported, never silently dropped."""

    bad_bytes: int = 0
    files: dict[str, str] = field(default_factory=dict)  # path: reason


@dataclass(frozen=True, slots=True)
class Document:
    """One text and the name it has in its source."""

    name: str
    text: str


class Source(Protocol):
    """Where text comes from."""

    def parts(self) -> Sequence[str]:
        """Names of independent parts (modules, files), sorted: the unit of splitting and of work.

        Raises:
            DataError: There is nothing to read.
        """
        ...

    def read(self, part: str, skipped: Skipped) -> Iterator[Document]:
        """The documents of one part; a bad byte becomes U+FFFD and is counted in `skipped`."""
        ...
