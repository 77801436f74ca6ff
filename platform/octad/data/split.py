"""Which parts are read, which texts are held out, and how the work is cut up. Pure: the same
texts give the same shards, whatever the number of cards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octad.errors import DataError
from octad.ports.data import Document, Skipped, Source

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
_MIN_SHARD_BYTES, _MAX_SHARD_BYTES, _NUM_SHARDS = 256 * 1024, 64 * 1024 * 1024, 32


def place_of(name: str, purpose: str) -> float:
    """A fixed place from 0 to 1 for a name or text; equal ones have equal places.

    Places for different purposes have nothing to do with each other: what a limit leaves must
    not decide what is held out.
    """
    person = purpose.encode()[:16]
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=person).digest()
    return int.from_bytes(digest) / 2**64


def place_in_split(part: str, document: Document) -> float:
    """Where a document stands between held-out (low) and training (high).

    A record goes by its own text, so that its exact copies stand with it; any other text by the
    name of its part.
    """
    return place_of(document.text if document.is_record else part, "heldout")


@dataclass(slots=True)
class Survey:
    """What one part holds.

    Attributes:
        part: Its name.
        digest: Of its texts; equal parts have equal digests.
        num_documents: Texts in it that are not blank.
        num_bytes: Bytes of text in it.
        lowest, highest: Places of its texts between held-out and training.
        skipped: What could not be used.
        error: Why it cannot be read at all, or "".
        hint: What to do about that.
    """

    part: str
    digest: str = ""
    num_documents: int = 0
    num_bytes: int = 0
    lowest: float = 1.0
    highest: float = 0.0
    skipped: Skipped = field(default_factory=Skipped)
    error: str = ""
    hint: str = ""


def survey(source: Source, part: str) -> Survey:
    """Read a part once, to know what it holds."""
    found = Survey(part)
    sha = hashlib.sha256()
    try:
        for document in texts_of(source, part, found.skipped):
            raw = document.text.encode()
            place = place_in_split(part, document)
            sha.update(f"{len(raw)}:".encode())
            sha.update(raw)
            found.num_documents += 1
            found.num_bytes += len(raw)
            found.lowest = min(found.lowest, place)
            found.highest = max(found.highest, place)
    except DataError as error:
        return Survey(part, error=error.what, hint=error.hint)
    found.digest = sha.hexdigest()
    return found


def texts_of(source: Source, part: str, skipped: Skipped | None = None) -> Iterator[Document]:
    """The documents of a part that are not blank."""
    for document in source.read(part, skipped or Skipped()):
        if document.text and not document.text.isspace():
            yield document


def within_limit(sizes: Mapping[str, int], limit_bytes: int | None) -> list[str]:
    """Names of the parts to read, sorted: all, or by a hash of the name up to the limit.

    The part that reaches the limit is the last one.
    """
    if limit_bytes is None:
        return sorted(sizes)
    chosen: list[str] = []
    total = 0
    for part in sorted(sizes, key=lambda name: (place_of(name, "limit"), name)):
        if total >= limit_bytes:
            break
        chosen.append(part)
        total += sizes[part]
    return sorted(chosen)


def without_copies(surveys: Iterable[Survey]) -> tuple[list[Survey], dict[str, str]]:
    """Parts with text, each once, and those left out: name to the name of what it is a copy of."""
    first: dict[str, Survey] = {}
    copies: dict[str, str] = {}
    for found in sorted(surveys, key=lambda s: s.part):
        if not found.num_documents:
            continue
        kept = first.setdefault(found.digest, found)
        if kept is not found:
            copies[found.part] = kept.part
    return list(first.values()), copies


def border(surveys: Sequence[Survey], heldout_share: float) -> float:
    """The place below which texts are held out: as near to `heldout_share` of the bytes as whole
    parts allow, but never none and never all.

    Raises:
        DataError: There are no two different texts.
    """
    lowest = min((s.lowest for s in surveys), default=0.0)
    highest = max((s.highest for s in surveys), default=0.0)
    if lowest >= highest:
        raise DataError(
            "one text is too few: some must be held out, and some trained on",
            hint="give at least two files or records that differ",
        )
    cut = _nearest_cut(surveys, heldout_share)
    return min(max(cut, math.nextafter(lowest, 2.0)), highest)


def _nearest_cut(surveys: Sequence[Survey], heldout_share: float) -> float:
    """Parts of records give bytes in proportion to the cut; any other part is on one side."""
    single = sorted((s.lowest, s.num_bytes) for s in surveys if s.lowest == s.highest)
    of_records = sum(s.num_bytes for s in surveys if s.lowest != s.highest)
    wanted = heldout_share * (of_records + sum(size for _, size in single))
    held = sum(size for place, size in single if place < heldout_share)
    best = (abs(held + of_records * heldout_share - wanted), heldout_share)
    held = 0
    for place, size in single:
        held += size
        best = min(best, (abs(held + of_records * place - wanted), math.nextafter(place, 2.0)))
    return best[1]


def side_of(place: float, cut: float) -> Split:
    """The split of a text."""
    return "heldout" if place < cut else "train"


def has_side(found: Survey, split: Split, cut: float) -> bool:
    """Whether a part holds texts of a split."""
    return found.lowest < cut if split == "heldout" else found.highest >= cut


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to make: its file, and the parts that its texts come from, in order."""

    file: str
    split: Split
    parts: tuple[str, ...]
    num_bytes: int


def shard_plans(surveys: Sequence[Survey], cut: float) -> list[ShardPlan]:
    """The shards of both splits. A part is never cut, a shard never holds both splits."""
    plans: list[ShardPlan] = []
    for split in SPLITS:
        members = [s for s in surveys if has_side(s, split, cut)]
        total = sum(s.num_bytes for s in members)
        wanted = min(max(total // _NUM_SHARDS, _MIN_SHARD_BYTES), _MAX_SHARD_BYTES)
        for number, group in enumerate(_groups(members, wanted)):
            plans.append(
                ShardPlan(
                    file=f"{split}-{number:05d}.arrow",
                    split=split,
                    parts=tuple(s.part for s in group),
                    num_bytes=sum(s.num_bytes for s in group),
                )
            )
    return plans


def _groups(members: Sequence[Survey], wanted_bytes: int) -> Iterator[list[Survey]]:
    group: list[Survey] = []
    num_bytes = 0
    for member in sorted(members, key=lambda s: s.part):
        group.append(member)
        num_bytes += member.num_bytes
        if num_bytes >= wanted_bytes:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group
