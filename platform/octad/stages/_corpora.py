"""Preprocessing as its driver sees it: survey the parts, train a tokenizer unless one is given,
make the shards.

Every decision is made here from the survey, so that the result is the same on any number of cards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octad.data.shards import (
    DATASET_FILE,
    DatasetFile,
    Shard,
    SkippedText,
    SplitFiles,
    split_files,
)
from octad.data.split import (
    SPLITS,
    ShardPlan,
    Survey,
    border,
    has_side,
    place_of,
    shard_plans,
    within_limit,
    without_copies,
)
from octad.data.tokenizer import FILE, end_of_text, num_ids, parsed
from octad.errors import DataError
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import StoredFile
from octad.spec.keys import StageKeys
from octad.stages._corpus_settings import Settings, source_settings
from octad.stages._corpus_tasks import (
    ShardWork,
    SourceSpec,
    SurveyWork,
    TokenizerWork,
    make_shard,
    survey_parts,
    train_tokenizer,
)
from octad.stages._spread import Spread
from octad.storage.artefacts import seal_folder
from octad.storage.objects import digest_of

# What one task looks into at least; more where there would be too many tasks, as each of them
# lists the whole source first.
_SURVEY_BYTES, _SURVEY_PARTS, _MAX_SURVEYS = 512 * 1024, 256, 1024
_NUM_NAMED = 3
_TOKENIZER = "tokenizer"

Outcome = tuple[tuple[Artefact, ...], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A surveyed source, and the decisions about it.

    Attributes:
        name: Of the dataset.
        parts: With text, without exact copies; sorted by name.
        cut: Texts whose place is below are held out.
        skipped: For `dataset.json`.
        notes: For the person.
    """

    name: str
    source: SourceSpec
    parts: tuple[Survey, ...]
    cut: float
    skipped: SkippedText
    notes: tuple[str, ...]

    @property
    def plans(self) -> list[ShardPlan]:
        """Its shards."""
        return shard_plans(self.parts, self.cut)


def prepare(context: Context, settings: Settings, spread: Spread) -> Outcome:
    """Do the whole stage.

    Raises:
        DataError: A source is empty, too small, or a part of it cannot be read.
    """
    context.phase("loading")
    corpora = [
        _surveyed(context, name, named, settings.heldout_share, spread)
        for name, named in settings.datasets().items()
    ]
    for note in (note for corpus in corpora for note in corpus.notes):
        context.note(note)
    context.phase("working")
    raw = _given(context) or _trained(context, corpora, settings, spread)
    tokenizer = _published(context, raw)
    shards = _encoded(context, corpora, tokenizer, spread)
    context.phase("saving")
    files = {corpus.name: _dataset_file(corpus, shards[corpus.name], raw) for corpus in corpora}
    datasets = [_sealed(context, name, file) for name, file in files.items()]
    return (tokenizer, *datasets), _metrics(files)


def _surveyed(
    context: Context,
    name: str,
    named: tuple[str, dict[str, object]],
    heldout_share: float,
    spread: Spread,
) -> Corpus:
    key, block = named
    where = f"{context.order.stage.name}.{key}"
    spec = SourceSpec(context.order.store, block, where)
    _, settings = source_settings(block, where)
    label = str(block.get("path") or block["kind"])
    source = spec.opened()
    sizes = {part: source.size_bytes(part) for part in source.parts()}
    chosen = within_limit(sizes, settings.limit_bytes)
    work = [SurveyWork(spec, group) for group in _grouped(chosen, sizes)]
    surveys = [s for found in spread(survey_parts, work, context.progress) for s in found]
    damaged = {s.part: s for s in surveys if s.error}
    if damaged and settings.on_error == "fail":
        raise _damage(label, list(damaged.values()))
    whole = [s for s in surveys if not s.error]
    parts, copies = without_copies(whole)
    left_out = source.left_out() | {s.part: s.error for s in damaged.values()}
    if not parts:
        raise DataError(
            f"no text in its {len(surveys)} files or parts", where=label, hint=_some(left_out)
        )
    try:
        cut = border(parts, heldout_share)
    except DataError as error:
        raise error.at(label) from None
    skipped = SkippedText(
        bad_bytes=sum(s.skipped.bad_bytes for s in whole),
        bad_lines=sum(s.skipped.bad_lines for s in whole),
        empty=sum(not s.num_documents for s in whole),
        copies=len(copies),
        files=left_out,
    )
    return Corpus(name, spec, tuple(parts), cut, skipped, _notes(name, whole, copies, left_out))


def _grouped(parts: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    groups: list[tuple[str, ...]] = []
    whole = sum(sizes[part] for part in parts)
    most_bytes = max(_SURVEY_BYTES, math.ceil(whole / _MAX_SURVEYS))
    most_parts = max(_SURVEY_PARTS, math.ceil(len(parts) / _MAX_SURVEYS))
    group: list[str] = []
    total = 0
    for part in parts:
        group.append(part)
        total += sizes[part]
        if total >= most_bytes or len(group) == most_parts:
            groups.append(tuple(group))
            group, total = [], 0
    return [*groups, tuple(group)] if group else groups


def _given(context: Context) -> str | None:
    """The JSON of the tokenizer that the stage takes, if it takes one."""
    if _TOKENIZER not in context.order.inputs:
        return None
    path = context.fetch(context.input(_TOKENIZER)) / FILE
    try:
        raw = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from None
    parsed(raw, str(path))
    return raw


def _trained(
    context: Context, corpora: Sequence[Corpus], settings: Settings, spread: Spread
) -> str:
    """The tokenizer's JSON, from training texts only; those for fine-tuning count if all are."""
    general = [corpus for corpus in corpora if corpus.name != "tuning"] or corpora
    members = [
        (place_of(survey.part, "tokenizer"), survey.part, number)
        for number, corpus in enumerate(general)
        for survey in corpus.parts
        if has_side(survey, "train", corpus.cut)
    ]
    work = TokenizerWork(
        sources=tuple((corpus.source, corpus.cut) for corpus in general),
        parts=tuple((number, part) for _, part, number in sorted(members)),
        num_bytes=settings.tokenizer_bytes,
        vocab=settings.vocab,
    )
    return spread(train_tokenizer, [work], context.progress)[0]


def _published(context: Context, raw: str) -> Artefact:
    folder = context.scratch / _TOKENIZER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(raw.encode())
    return context.publish_folder(_TOKENIZER, "tokenizer", folder)


def _encoded(
    context: Context, corpora: Sequence[Corpus], tokenizer: Artefact, spread: Spread
) -> dict[str, list[tuple[ShardPlan, Shard]]]:
    """The shards of every dataset, all made at once, the largest first."""
    key = context.store.key(tokenizer.uri)
    planned = [(corpus, plan) for corpus in corpora for plan in corpus.plans]
    planned.sort(key=lambda pair: -pair[1].num_bytes)
    work = [
        ShardWork(
            source=corpus.source,
            plan=plan,
            cut=corpus.cut,
            tokenizer_key=f"{key}/{FILE}",
            folder_key=_folder_key(context, corpus.name),
        )
        for corpus, plan in planned
    ]
    shards: dict[str, list[tuple[ShardPlan, Shard]]] = {corpus.name: [] for corpus in corpora}
    made = spread(make_shard, work, context.progress)
    for (corpus, plan), shard in zip(planned, made, strict=True):
        shards[corpus.name].append((plan, shard))
    return shards


def _dataset_file(
    corpus: Corpus, made: Sequence[tuple[ShardPlan, Shard]], tokenizer: str
) -> DatasetFile:
    opened = parsed(tokenizer, FILE)
    ordered = sorted(made, key=lambda pair: pair[0].file)
    splits: dict[str, SplitFiles] = {
        split: split_files(tuple(shard for plan, shard in ordered if plan.split == split))
        for split in SPLITS
    }
    return DatasetFile(
        vocab=num_ids(opened),
        end_of_text=end_of_text(opened),
        tokenizer=digest_of(tokenizer.encode()),
        splits=splits,
        skipped=corpus.skipped,
    )


def _sealed(context: Context, name: str, file: DatasetFile) -> Artefact:
    key = _folder_key(context, name)
    raw = file.model_dump_json(indent=1).encode()
    context.store.put(f"{key}/{DATASET_FILE}", raw)
    stored = [StoredFile(path=DATASET_FILE, size=len(raw), digest=digest_of(raw))]
    for split in file.splits.values():
        stored += [StoredFile(path=s.path, size=s.size, digest=s.digest) for s in split.files]
    return seal_folder(context.store, key, name, "dataset", stored)


def _folder_key(context: Context, name: str) -> str:
    order = context.order
    keys = StageKeys(order.run, order.stage.name).attempt(order.attempt)
    return f"{keys.artefacts}{name}"


def _metrics(files: Mapping[str, DatasetFile]) -> dict[str, float]:
    metrics = {"vocab": float(next(iter(files.values())).vocab)}
    for name, file in files.items():
        for split, held in file.splits.items():
            metrics[f"{name}_{split}_tokens"] = float(held.tokens)
            metrics[f"{name}_{split}_documents"] = float(held.documents)
        metrics[f"{name}_bad_bytes"] = float(file.skipped.bad_bytes)
        metrics[f"{name}_skipped_files"] = float(len(file.skipped.files))
    return metrics


def _damage(label: str, damaged: Sequence[Survey]) -> DataError:
    if len(damaged) == 1:
        only = damaged[0]
        hint = only.hint or "mend or remove it, or set on_error=count of the data to leave it out"
        return DataError(only.error, where=f"{label}/{only.part}", hint=hint)
    return DataError(
        f"{len(damaged)} files cannot be read: {_some({s.part: s.error for s in damaged})}",
        where=label,
        hint="mend or remove them, or set on_error=count of the data to leave them out",
    )


def _notes(
    name: str, whole: Sequence[Survey], copies: Mapping[str, str], left_out: Mapping[str, str]
) -> tuple[str, ...]:
    bad_bytes = {s.part: s.skipped.bad_bytes for s in whole if s.skipped.bad_bytes}
    bad_lines = {s.part: s.skipped.bad_lines for s in whole if s.skipped.bad_lines}
    empty = [s.part for s in whole if not s.num_documents]
    notes = []
    if bad_bytes:
        notes.append(f"{_count(bad_bytes, 'bad byte', 'bad bytes')}: {_named(bad_bytes)}")
    if bad_lines:
        lines = _count(bad_lines, "line without text", "lines without text")
        notes.append(f"{lines}: {_named(bad_lines)}")
    if empty:
        notes.append(f"{_many(len(empty), 'file', 'files')} without text: {_named(empty)}")
    if copies:
        same = [f"{copy} (of {kept})" for copy, kept in copies.items()]
        notes.append(f"{_many(len(copies), 'exact copy', 'exact copies')} left out: {_named(same)}")
    if left_out:
        notes.append(f"{_many(len(left_out), 'file', 'files')} skipped: {_some(left_out)}")
    return tuple(f"{name}: {note}" for note in notes)


def _count(found: Mapping[str, int], one: str, many: str) -> str:
    return f"{_many(sum(found.values()), one, many)} in {_many(len(found), 'file', 'files')}"


def _many(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _some(reasons: Mapping[str, str]) -> str:
    return _named([f"{part} ({reason})" for part, reason in reasons.items()])


def _named(names: Sequence[str] | Mapping[str, object]) -> str:
    first = list(names)[:_NUM_NAMED]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")
