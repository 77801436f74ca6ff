"""A committed checkpoint as other tools read it: weights as safetensors in Hugging Face's naming,
adapters in PEFT's format.

It is read back from the store, so that it does not matter which layout wrote it, and written in
shards of a bounded size, of which one at a time is in memory and on disk. One process does it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import Manifest, StoredFile
from octad.storage import lineage
from octad.storage.artefacts import seal_folder, stored_file
from octad.storage.objects import ObjectStore
from octad.train.checkpoint import load
from octad.train.settings import adapter_of, family_of

SHARD_BYTES = 4 << 30
_PT = {"format": "pt"}  # readers of safetensors look for it
_ITEM_BYTES = 4  # of a weight in fp32

# Names of theirs, each with those of ours that go to it.
Groups = dict[str, list[str]]


@dataclass(slots=True)
class Target:
    """A folder artefact that is made file by file.

    Attributes:
        store: Where it is to lie.
        key: Its folder.
        scratch: A local folder for one file at a time.
    """

    store: ObjectStore
    key: str
    scratch: Path
    files: list[StoredFile]

    @classmethod
    def at(cls, store: ObjectStore, key: str, scratch: Path) -> Target:
        """A new one."""
        scratch.mkdir(parents=True, exist_ok=True)
        return cls(store, key, scratch, [])

    def add(self, name: str) -> Path:
        """Where to write a file before `put`."""
        return self.scratch / name

    def put(self, name: str) -> None:
        """A written file to the store; it is gone afterwards."""
        path = self.scratch / name
        self.files.append(stored_file(name, path))
        self.store.put_file(f"{self.key}/{name}", path)
        path.unlink()

    def put_json(self, name: str, value: Any) -> None:
        """A small one."""
        self.add(name).write_text(json.dumps(value, indent=2) + "\n")
        self.put(name)

    def sealed(self, name: str) -> Artefact:
        """The artefact, all its files in the store."""
        return seal_folder(self.store, self.key, name, "weights", self.files)


def export(
    store: ObjectStore,
    checkpoint: Artefact,
    *,
    tokenizer: Path,
    scratch: Path,
    key: str,
    shard_bytes: int = SHARD_BYTES,
) -> Artefact:
    """Write a checkpoint or an adapter to `key`, with `tokenizer.json` beside it.

    Args:
        store: Where all of it lies.
        checkpoint: What to write; its files have been verified.
        tokenizer: The folder of a tokenizer.
        scratch: A local folder, which must not be there yet.
        key: The folder to write to; its last part is the artefact's name.
        shard_bytes: The most of one file of weights.
    """
    folder = store.key(checkpoint.uri)
    manifest = lineage.read_manifest(store, folder, checkpoint.digest)
    target = Target.at(store, key, scratch)
    if manifest.adapter is not None:
        _adapter(target, folder, manifest, manifest.adapter)
    else:
        _weights(target, folder, manifest, shard_bytes)
    shutil.copyfile(tokenizer / "tokenizer.json", target.add("tokenizer.json"))
    target.put("tokenizer.json")
    return target.sealed(key.rpartition("/")[2])


def _weights(target: Target, folder: str, manifest: Manifest, shard_bytes: int) -> None:
    family, settings = family_of(manifest.model)
    shapes = {name: p.shape for name, p in empty(family, settings).named_parameters()}
    shards = list(_shards(groups(family, settings, shapes), shapes, shard_bytes))
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        ours = {name: shapes[name] for names in shard.values() for name in names}
        state = _read(target.store, folder, ours)
        named = {}
        for theirs, names in shard.items():
            parts = [state.pop(name) for name in names]
            named[theirs] = family.hugging_face.joined(settings, theirs, parts)
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(named, target.add(name), metadata=_PT)
        target.put(name)
        index |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        size = sum(shape.numel() for shape in shapes.values()) * _ITEM_BYTES
        whole = {"metadata": {"total_size": size}, "weight_map": index}
        target.put_json("model.safetensors.index.json", whole)
    target.put_json("config.json", family.hugging_face.config(settings))


def _adapter(target: Target, folder: str, manifest: Manifest, adapter: Mapping[str, Any]) -> None:
    family, settings = family_of(manifest.model)
    model = empty(family, settings)
    model.requires_grad_(requires_grad=False)
    kind, own = adapter_of(adapter)
    kind.insert(own, family, model)
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    state = _read(target.store, folder, shapes)
    config, tensors = family.peft.out_of(settings, own.plain(), state)
    save_file(tensors, target.add("adapter_model.safetensors"), metadata=_PT)
    target.put("adapter_model.safetensors")
    target.put_json("adapter_config.json", config)


def groups(family: Any, settings: Any, ours: Mapping[str, Any]) -> Groups:
    """Their tensors of a model with parameters of these names."""
    found: Groups = {}
    for name in ours:
        found.setdefault(family.hugging_face.tensor(settings, name), []).append(name)
    return found


def empty(family: Any, settings: Any) -> nn.Module:
    """A model without memory."""
    with torch.device("meta"):
        model: nn.Module = family.build(settings)
    return model


def _shards(whole: Groups, shapes: Mapping[str, torch.Size], shard_bytes: int) -> Iterator[Groups]:
    shard: Groups = {}
    held = 0
    for theirs, names in whole.items():
        size = sum(shapes[name].numel() for name in names) * _ITEM_BYTES
        if shard and held + size > shard_bytes:
            yield shard
            shard, held = {}, 0
        shard[theirs] = names
        held += size
    yield shard


def _read(store: ObjectStore, folder: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Whole weights of a checkpoint."""
    state = {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
    load(store.spec, folder, {"model": state}, is_alone=True)
    return state
