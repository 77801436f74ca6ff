"""What runs on the cards during preprocessing. Imports no torch, so that a task starts fast.

Nodes may be different machines: a task reads from its source, writes to the store, and gives back
digests and counts only.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from octad.data import tokenizer as bpe
from octad.data.shards import Shard, ShardWriter
from octad.data.split import ShardPlan, Split, Survey, place_in_split, side_of, survey, texts_of
from octad.ports.data import Document, Source
from octad.spec.stages import StoreSpec
from octad.stages._corpus_settings import source_settings
from octad.storage import ObjectStore
from octad.storage.artefacts import stored_file


@dataclass(frozen=True)
class SourceSpec:
    """A source, as a task is told of it: the store it may read from, its kind and settings."""

    store: StoreSpec
    block: dict[str, Any]
    where: str

    def opened(self) -> Source:
        """The source on this node."""
        module, settings = source_settings(self.block, self.where)
        source: Source = module.build(settings, ObjectStore(self.store))
        return source


@dataclass(frozen=True)
class SurveyWork:
    """Parts to look into."""

    source: SourceSpec
    parts: tuple[str, ...]


@dataclass(frozen=True)
class TokenizerWork:
    """What to train a tokenizer on: training texts of these parts, in order, up to a size.

    Attributes:
        sources: Each with the place below which its texts are held out.
        parts: Number of the source, and name.
    """

    sources: tuple[tuple[SourceSpec, float], ...]
    parts: tuple[tuple[int, str], ...]
    num_bytes: int
    vocab: int


@dataclass(frozen=True)
class ShardWork:
    """One shard to make.

    Attributes:
        tokenizer_key: Where `tokenizer.json` lies in the store.
        folder_key: The dataset's folder in the store.
    """

    source: SourceSpec
    plan: ShardPlan
    cut: float
    tokenizer_key: str
    folder_key: str


def survey_parts(work: SurveyWork) -> list[Survey]:
    """What each part holds."""
    source = work.source.opened()
    return [survey(source, part) for part in work.parts]


def train_tokenizer(work: TokenizerWork) -> str:
    """The JSON of a tokenizer."""
    return bpe.train(_sample(work), work.vocab)


def make_shard(work: ShardWork) -> Shard:
    """Encode the texts of one shard and put it into the store."""
    source = work.source.opened()
    store = ObjectStore(work.source.store)
    raw = store.get(work.tokenizer_key).decode()
    tokenizer = _tokenizer(raw, store.url(work.tokenizer_key))
    documents = text_bytes = 0
    with tempfile.TemporaryDirectory(prefix="octad-shard-") as folder:
        path = Path(folder) / work.plan.file
        with ShardWriter(path, bpe.num_ids(tokenizer)) as writer:
            for part in work.plan.parts:
                for document in _side(source, part, work.plan.split, work.cut):
                    documents += 1
                    text_bytes += len(document.text.encode())
                    for ids in bpe.encoded(tokenizer, document.text):
                        writer.add(ids)
        stored = stored_file(work.plan.file, path)
        store.put_file(f"{work.folder_key}/{work.plan.file}", path)
    return Shard(
        path=stored.path,
        tokens=writer.num_tokens,
        documents=documents,
        text_bytes=text_bytes,
        size=stored.size,
        digest=stored.digest,
    )


def _sample(work: TokenizerWork) -> Iterator[str]:
    sources = [(spec.opened(), cut) for spec, cut in work.sources]
    left = work.num_bytes
    for number, part in work.parts:
        source, cut = sources[number]
        for document in _side(source, part, "train", cut):
            raw = document.text.encode()
            if len(raw) >= left:
                yield raw[:left].decode(errors="ignore")
                return
            left -= len(raw)
            yield document.text


def _side(source: Source, part: str, split: Split, cut: float) -> Iterator[Document]:
    for document in texts_of(source, part):
        if side_of(place_in_split(part, document), cut) == split:
            yield document


@functools.lru_cache(maxsize=1)
def _tokenizer(raw: str, where: str) -> Tokenizer:
    return bpe.parsed(raw, where)
