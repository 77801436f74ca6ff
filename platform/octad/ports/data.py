"""What a file of `octad.data.sources` fills. Its top imports nothing but octad and the standard
library: laptops load it to validate settings.

class Settings(SourceSettings): ...
def build(settings, store) -> Source
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from octad.spec.frozen import Spec


class SourceSettings(Spec):
    """Keys that all sources share.

    Attributes:
        limit_bytes: Read only so many bytes: whole parts, chosen by a hash of their names, until
            the limit is reached; None reads all.
        on_error: What a part that cannot be read does (cut off, damaged, not what its name says):
            `fail` ends the stage with its name, `count` leaves it out and says so.
    """

    limit_bytes: int | None = Field(default=None, ge=1)
    on_error: Literal["fail", "count"] = "fail"


class Objects(Protocol):
    """What a source needs of the object store."""

    def get(self, key: str) -> bytes:
        """The whole object; NotFoundError if there is none."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Copy an object to a local file; NotFoundError if there is none."""


@dataclass(slots=True)
class Skipped:
    """What a source could not use of one part; counted and reported, never silently dropped.

    Attributes:
        bad_bytes: Bytes that are not UTF-8.
        bad_lines: Lines or rows that hold no text where text is looked for.
    """

    bad_bytes: int = 0
    bad_lines: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """One text and the name it has in its source.

    Attributes:
        is_record: It is one of many independent texts in its part, so that its neighbours may
            be held out without it.
    """

    name: str
    text: str
    is_record: bool = False


class Source(Protocol):
    """Where text comes from."""

    def parts(self) -> Sequence[str]:
        """Names of independent parts (modules, files), sorted: the unit of work.

        Raises:
            DataError: There is nothing to read.
        """
        ...

    def size_bytes(self, part: str) -> int:
        """How large a part is where it lies."""
        ...

    def left_out(self) -> dict[str, str]:
        """Name to reason, for what a person would expect among the parts."""
        ...

    def read(self, part: str, skipped: Skipped) -> Iterator[Document]:
        """The documents of one part, always in the same order.

        Line ends become a line feed, a byte order mark is dropped, a bad byte becomes U+FFFD and
        is counted in `skipped`.

        Raises:
            DataError: The part cannot be read; perhaps only after some of its documents.
        """
        ...
