"""What a training stage is given, checked by its driver before any worker starts. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octad.errors import CheckpointError, DataError
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import DataPosition, Manifest
from octad.train.settings import TrainingJob

_DATASET, _TOKENIZER = "dataset.json", "tokenizer.json"


def vocabulary(
    context: Context, datasets: Mapping[str, Artefact], tokenizer: Artefact | None
) -> int:
    """The number of tokens that the datasets were made with.

    Raises:
        DataError: A file is missing or has another size, or two of the inputs were not made with
            one tokenizer.
    """
    from octad.storage.artefacts import files_of  # noqa: PLC0415  not there on a laptop

    words, origin = "", "the tokenizer"
    if tokenizer is not None:
        files = {file.path: file for file in files_of(context.store, tokenizer)}
        words = files[_TOKENIZER].digest if _TOKENIZER in files else ""
    vocab = 0
    for name, dataset in datasets.items():
        files_of(context.store, dataset)
        described = _described(context, dataset)
        if words and described["tokenizer"] != words:
            raise DataError(
                f"{name} was not made with {origin}",
                where=f"{context.order.stage.name}.needs.{name}",
                hint="take the datasets and the tokenizer from one preprocess stage",
            )
        words, origin = described["tokenizer"], f"the tokenizer of {name}"
        vocab = max(vocab, described["vocab"])
    return vocab


def _described(context: Context, dataset: Artefact) -> dict[str, Any]:
    key = f"{context.store.key(dataset.uri)}/{_DATASET}"
    raw: dict[str, Any] = context.store.read_json(key) or {}
    if not isinstance(raw.get("vocab"), int) or not isinstance(raw.get("tokenizer"), str):
        raise DataError(f"there is no {_DATASET} that names a vocabulary", where=dataset.uri)
    return raw


def checked_position(job: TrainingJob, manifest: Manifest, where: str) -> DataPosition:
    """Where in the data a checkpoint of this stage stands.

    Args:
        job: What is to go on.
        manifest: Of the checkpoint.
        where: The checkpoint, for messages.

    Raises:
        CheckpointError: It was made on other data, with another seed, or for other weights.
    """
    data, start, seed = manifest.data, job.start, job.order.seed
    if data is None or data.fingerprint != job.fingerprint:
        named = ", ".join(artefact.uri for artefact in job.datasets.values())
        raise CheckpointError(
            f"the checkpoint was made on other data, or another mix or sequence, than {named}",
            where=where,
            hint="give the stage the data it began with, or begin a new run",
        )
    if data.seed != seed:
        raise CheckpointError(
            f"the checkpoint was made with seed {data.seed}, not {seed}",
            where=where,
            hint="set the seed back, or begin a new run",
        )
    is_adapter = job.adapter is not None
    if is_adapter and (manifest.base and manifest.base.digest) != (start and start.digest):
        raise CheckpointError(
            "the adapter was made for other weights than it would go on with",
            where=where,
            hint="begin a new run",
        )
    return data
