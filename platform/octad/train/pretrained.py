"""Weights in Hugging Face's naming and adapters in PEFT's format, as checkpoints of ours: what
`octad.train.export` does, the other way round.

Every file is checked against its digest first, then every header, then names, shapes and dtypes of
all tensors against the model; only then is a weight read. At most `PART_BYTES` of them are in
memory at once, or one tensor. One process does it.
"""

from __future__ import annotations

import pickle
import secrets
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.checkpoint.storage import WriteResult

from octad import __version__
from octad.data import tokenizer as bpe
from octad.errors import DataError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import Manifest, StoredFile
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, Position
from octad.spec.tensor_files import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    TOKENIZER,
    Entry,
    read_json,
    tensors,
    used,
)
from octad.storage.artefacts import publish_folder
from octad.storage.lineage import MANIFEST
from octad.storage.objects import ObjectStore, digest_of
from octad.train._dcp import METADATA, ShardWriter
from octad.train.checkpoint import canonical
from octad.train.export import Groups, empty, groups
from octad.train.foreign import brought
from octad.train.settings import adapter_of, family_reading

PART_BYTES = 4 << 30
_ITEM_BYTES = 4  # of a weight in fp32
_DTYPES = ("F32", "F16", "BF16", "F64")

Outcome = tuple[tuple[Artefact, ...], dict[str, float], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Model:
    """A folder of Hugging Face's, checked.

    Attributes:
        label: What people call it.
        files: By name.
        held: Its tensors, by their full names, with the names that they have there.
        groups: Names of theirs, each with those of ours that come of it.
    """

    label: str
    family: Any
    settings: Any
    files: Mapping[str, Path]
    held: Mapping[str, tuple[str, Entry]]
    groups: Groups
    shapes: Mapping[str, torch.Size]


def take_in(
    order: AttemptOrder, weights: Any, adapter: Any, part_bytes: int = PART_BYTES
) -> Outcome:
    """The artefacts of a folder of weights, and of an adapter's if there is one; figures and notes.

    Args:
        order: The attempt that takes them in.
        weights: Where the model is (`octad.stages._pretrained_settings`).
        adapter: Where the adapter is; has no label if there is none.
        part_bytes: The most weights that are in memory at once.

    Raises:
        ConfigError: The model, or the adapter, is one that cannot be computed here.
        DataError: A file is missing, changed, damaged, or holds other tensors.
    """
    store = ObjectStore(order.store)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="octad-pretrained-") as scratch:
        found = brought(store, weights, Path(scratch) / "weights", notes)
        model = _checked(used(weights.kind, found, weights.label), weights.label)
        tuned = None
        if adapter.label:
            found = brought(store, adapter, Path(scratch) / "adapter", notes)
            # Before the weights are written, which may take long.
            tuned = _adapter(model, used(adapter.kind, found, adapter.label), adapter.label)
        keys = StageKeys(order.run, order.stage.name).attempt(order.attempt)
        made = _Target(store, f"{keys.artefacts}checkpoint", order, model)
        base = made.commit("weights", _parts(model, part_bytes))
        words = Path(scratch) / "tokenizer"
        words.mkdir()
        (words / TOKENIZER).write_bytes(model.files[TOKENIZER].read_bytes())
        key = f"{keys.artefacts}tokenizer"
        artefacts = [base, publish_folder(store, key, "tokenizer", "tokenizer", words)]
        if tuned is not None:
            own, state = tuned
            made = _Target(store, f"{keys.artefacts}adapter", order, model)
            artefacts.append(made.commit("adapter", iter([state]), base=base, adapter=own))
    parameters = float(sum(shape.numel() for shape in model.shapes.values()))
    return tuple(artefacts), {"parameters": parameters}, tuple(notes)


def _checked(files: Mapping[str, Path], label: str) -> _Model:
    where = f"{label}/{CONFIG}"
    config = read_json(files[CONFIG], where)
    family = family_reading(config, where)
    settings = family.hugging_face.settings_of(config, where).resolved()
    held = _by_full_name(family, settings, tensors(files, label), label)
    if settings.depth > len(held):
        # Also keeps a config from asking for a model that no memory can hold.
        raise DataError(f"{settings.depth} blocks, but there are {len(held)} tensors", where=where)
    shapes = {name: p.shape for name, p in empty(family, settings).named_parameters()}
    whole = groups(family, settings, shapes)
    model = _Model(label, family, settings, files, held, whole, shapes)
    _check_tensors(model)
    _check_tokenizer(files[TOKENIZER], settings.vocab, f"{label}/{TOKENIZER}")
    return model


def _by_full_name(
    family: Any, settings: Any, found: Mapping[str, Entry], label: str
) -> dict[str, tuple[str, Entry]]:
    held: dict[str, tuple[str, Entry]] = {}
    for name, entry in found.items():
        full = family.hugging_face.full_name(settings, name)
        if family.hugging_face.is_left_out(settings, full):
            continue
        if full in held:
            raise DataError(f"both {held[full][0]} and {name} are {full}", where=label)
        held[full] = name, entry
    return held


def _check_tensors(model: _Model) -> None:
    """Refuse tensors that are not exactly those of the model."""
    mapping = model.family.hugging_face
    for theirs, names in model.groups.items():
        if theirs not in model.held:
            raise DataError(f"there is no {theirs}", where=model.label, hint=_hint(model))
        parts = [torch.empty(model.shapes[name], device="meta") for name in names]
        wanted = tuple(mapping.joined(model.settings, theirs, parts).shape)
        _check_entry(*model.held[theirs], wanted, model.label)
    for theirs in sorted(model.held.keys() - model.groups.keys()):
        twin = mapping.twin(model.settings, theirs)
        if twin is None:
            raise DataError(
                f"the model has no place for {model.held[theirs][0]}",
                where=f"{model.label}/{model.held[theirs][1].file}",
                hint=_hint(model),
            )
        _check_entry(*model.held[theirs], model.held[twin][1].shape, model.label)


def _hint(model: _Model) -> str:
    return f"{CONFIG} and the weights are of different models"


def _check_entry(name: str, entry: Entry, wanted: tuple[int, ...], label: str) -> None:
    where = f"{label}/{entry.file}"
    if entry.shape != wanted:
        raise DataError(f"{name} has the shape {entry.shape}, not {wanted}", where=where)
    if entry.dtype not in _DTYPES:
        raise DataError(
            f"{name} is {entry.dtype}, no format of weights",
            where=where,
            hint=f"save them as one of {', '.join(_DTYPES)}",
        )


def _check_tokenizer(path: Path, vocab: int, where: str) -> None:
    try:
        raw = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8: {error}", where=where) from None
    tokens = bpe.num_ids(bpe.parsed(raw, where))
    if tokens > vocab:
        raise DataError(f"has {tokens} tokens, but the model has {vocab}", where=where)


def _parts(model: _Model, part_bytes: int) -> Iterator[dict[str, Tensor]]:
    """The weights by our names, in fp32, a bounded part at a time."""
    part: dict[str, Tensor] = {}
    taken = 0
    mapping = model.family.hugging_face
    for theirs, names in model.groups.items():
        size = sum(model.shapes[name].numel() for name in names) * _ITEM_BYTES
        if part and taken + size > part_bytes:
            yield part
            part, taken = {}, 0
        whole = _weight(model, theirs)
        parts = mapping.parted(model.settings, theirs, whole, len(names))
        part |= dict(zip(names, parts, strict=True))
        taken += size
    yield part
    for theirs in model.held.keys() - model.groups.keys():
        twin = mapping.twin(model.settings, theirs)
        if not torch.equal(_weight(model, theirs), _weight(model, twin)):
            raise DataError(
                f"{CONFIG} ties {model.held[theirs][0]} to {model.held[twin][0]}, but they differ",
                where=model.label,
                hint="set tie_word_embeddings to false there",
            )


def _weight(model: _Model, theirs: str) -> Tensor:
    name, entry = model.held[theirs]
    return _read(model.files[entry.file], name, f"{model.label}/{entry.file}")


def _read(path: Path, name: str, where: str) -> Tensor:
    """A tensor in fp32."""
    with safe_open(path, framework="pt") as file:
        weight: Tensor = file.get_tensor(name).float()
    if not torch.isfinite(weight).all():
        raise DataError(f"{name} holds values that are not finite", where=where)
    return weight


def _adapter(
    model: _Model, files: Mapping[str, Path], label: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Kind and settings of an adapter for the model, and its weights by our names."""
    where = f"{label}/{ADAPTER_CONFIG}"
    config = read_json(files[ADAPTER_CONFIG], where)
    peft = model.family.peft
    peft.kind_of(config, where)
    found = tensors(files, label)
    for name, entry in found.items():
        _check_entry(name, entry, entry.shape, label)
    place = f"{label}/{ADAPTER}"
    weights = {name: _read(files[ADAPTER], name, place) for name in found}
    own, state = peft.into(model.settings, config, weights, label)
    kind, settings = adapter_of(own, label)
    kind.check(settings, model.family, model.settings, label)
    return settings.plain(), state


@dataclass(slots=True)
class _Target:
    """A checkpoint that is written part by part, and committed by its manifest."""

    store: ObjectStore
    key: str
    order: AttemptOrder
    model: _Model
    index: Metadata = field(default_factory=lambda: Metadata({}, {}, {}))
    files: list[StoredFile] = field(default_factory=list)

    def commit(
        self,
        content: Literal["weights", "adapter"],
        parts: Iterator[dict[str, Tensor]],
        **about: Any,
    ) -> Artefact:
        """Write all parts, then the manifest."""
        self.store.delete_folder(f"{self.key}/")  # what is left of a task that was lost
        for part in parts:
            self._add(part)
        self.index.storage_meta = StorageMeta(checkpoint_id=self.key, save_id=secrets.token_hex(4))
        raw = pickle.dumps(self.index)
        self.store.put(f"{self.key}/{METADATA}", raw)
        plain = self.model.settings.plain()
        manifest = Manifest(
            content=content,
            run=self.order.run,
            stage=self.order.stage.name,
            position=Position(attempt=self.order.attempt, step=0),
            tokens=0,
            data=None,
            layout=Layout(dp_shard=1),
            dtype="float32",
            model=plain,
            model_digest=digest_of(canonical(plain)),
            files=(
                *self.files,
                StoredFile(path=METADATA, size=len(raw), digest=digest_of(raw)),
            ),
            versions={"torch": torch.__version__, "octad": __version__},
            **about,
        )
        sealed = manifest.model_dump_json().encode()
        self.store.put(f"{self.key}/{MANIFEST}", sealed)
        name: Any = "adapter" if content == "adapter" else "checkpoint"
        return Artefact(
            name=name, type=name, uri=self.store.url(self.key), digest=digest_of(sealed)
        )

    def _add(self, part: dict[str, Tensor]) -> None:
        writer = _PartWriter(self)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save_shards({"model": part}, storage_writer=writer, no_dist=True)


class _PartWriter(ShardWriter):
    """Adds one shard to a checkpoint instead of committing it."""

    def __init__(self, target: _Target) -> None:
        super().__init__(target.store, target.key, secrets.token_hex(4), _never)
        self._target = target

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Remember what was written, and where."""
        self.placed(metadata, results)
        index = self._target.index
        index.version = metadata.version
        index.state_dict_metadata |= metadata.state_dict_metadata
        index.planner_data |= metadata.planner_data
        index.storage_data |= metadata.storage_data
        self._target.files += self.files_of(results)


def _never(_metadata: bytes, _shards: tuple[StoredFile, ...]) -> None:
    raise AssertionError("a part commits nothing")
