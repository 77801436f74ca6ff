"""Python's own help texts: half a megabyte of English prose that is always there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pydoc_data.topics import topics

from octad.data.text import cleaned
from octad.errors import DataError
from octad.ports.data import Document, Objects, Skipped, SourceSettings


class Settings(SourceSettings):
    """Only what all sources share."""


class PydocTopics:
    """One part per topic, by its name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def parts(self) -> Sequence[str]:
        """Names of topics."""
        if not self.texts:
            raise DataError("this Python has no help topics", where="pydoc_data.topics")
        return sorted(self.texts)

    def size_bytes(self, part: str) -> int:
        """The size of the topic's text in UTF-8."""
        return len(self.texts[part].encode(errors="replace"))

    def left_out(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def read(self, part: str, skipped: Skipped) -> Iterator[Document]:
        """The topic's text, as one document."""
        if part not in self.texts:
            raise DataError("this Python has no such help topic", where=part)
        text, num_bad = cleaned(self.texts[part])
        skipped.bad_bytes += num_bad
        yield Document(part, text)


def build(settings: Settings, store: Objects) -> PydocTopics:
    """The source."""
    return PydocTopics(topics)
