"""The driver's side of a training stage: inputs checked, workers started, artefacts back.

Runs in the job's driver, which needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octad.errors import CheckpointError, ConfigError, StageError
from octad.ports.stages import Context
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import Manifest
from octad.spec.keys import StageKeys
from octad.train.inputs import checked_position, vocabulary
from octad.train.settings import Training, TrainingJob, check_adapter, family_of

Outcome = tuple[tuple[Artefact, ...], dict[str, float]]


def train_stage(  # noqa: PLR0913  what a stage takes, each by name
    context: Context,
    training: Training,
    *,
    datasets: Mapping[str, Artefact],
    tokenizer: Artefact | None,
    start: Artefact | None = None,
    adapter: Mapping[str, Any] | None = None,
    tuned: Artefact | None = None,
) -> Outcome:
    """Train on the workers of this attempt.

    Args:
        context: Of the attempt.
        training: The shared settings.
        datasets: What to train on, by the name of the input.
        tokenizer: Goes beside the exported weights; None exports none.
        start: A checkpoint whose weights to start from.
        adapter: Train an adapter on `start`; its kind and settings.
        tuned: Of that kind: go on with it, and with its own settings.

    Raises:
        CheckpointError: `start` or `tuned` is damaged, or for another model; or the checkpoint to go
            on from was made on other data, with another seed, or for other weights.
        ConfigError: The model's vocabulary is smaller than the data's, or the adapter is of another
            kind, or leaves too little room.
        DataError: A file of a dataset is missing or has another size, or the data was not made
            with the tokenizer.
    """
    order = context.order
    vocab = vocabulary(context, datasets, tokenizer)
    model = dict(training.model)
    hint = "leave it null to take the tokenizer's"
    if start is not None:
        made = verified(context, start)
        if model.get("vocab") is None:  # there may be room for more tokens than the data has
            model["vocab"] = made.model.get("vocab")
            hint = "cut the data up with the tokenizer of the weights, preprocess.needs.tokenizer"
        check_same_model(model, made, start.uri)
    model = _with_vocabulary(model, vocab, order.stage.name, hint)
    training = training.model_copy(update={"model": model})
    if tuned is not None:
        assert start is not None
        assert adapter is not None
        adapter = _going_on(context, training, start, adapter, tuned)
    job = TrainingJob(
        order=order,
        training=training,
        datasets=dict(datasets),
        start=start,
        resume=context.base,
        adapter=None if adapter is None else dict(adapter),
        tuned=tuned,
        tokenizer=tokenizer,
    )
    _check_resume(context, job)
    returned = on_workers(context, "octad.train.worker:train", job.plain())
    artefacts = tuple(Artefact.parse(raw) for raw in returned["artefacts"])
    return artefacts, returned["metrics"]


def _going_on(
    context: Context,
    training: Training,
    start: Artefact,
    adapter: Mapping[str, Any],
    tuned: Artefact,
) -> dict[str, Any]:
    """Kind and settings of an adapter to go on with."""
    stage = context.order.stage
    made = verified(context, tuned)
    if made.base is None or made.base.digest != start.digest:
        raise CheckpointError(
            "the adapter was made for other weights than it would go on with",
            where=f"{stage.name}.needs.adapter",
            hint="take both from one stage",
        )
    own = dict(made.adapter or {})
    if own.get("kind") != adapter["kind"]:
        raise ConfigError(
            f"the adapter is of the kind {own.get('kind')}, not {adapter['kind']}",
            where=f"{stage.name}.method",
            hint=f"set {stage.name}.method={own.get('kind')}",
        )
    check_adapter(stage, training, own)
    other = [f"{key} {own[key]}" for key in own if own[key] != adapter.get(key)]
    if other:
        context.note(f"goes on with the adapter's own {', '.join(other)}")
    return own


def _check_resume(context: Context, job: TrainingJob) -> None:
    if job.resume is None:
        return
    from octad.storage import lineage  # noqa: PLC0415  laptops load this module without obstore

    keys = StageKeys(job.order.run, job.order.stage.name).attempt(job.resume.attempt)
    key = keys.checkpoint(job.resume.step)
    manifest = lineage.read_manifest(context.store, key)
    checked_position(job, manifest, context.store.url(key))


def on_workers(context: Context, function: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run a function on every card of the attempt; what rank 0 returned.

    Raises:
        OctadError: What a worker raised, or StageError for one that died, or for a step that hung.
    """
    from octad.train.group import run_group  # noqa: PLC0415  ray is not there on a laptop
    from octad.train.watchdog import hang_of  # noqa: PLC0415  nor obstore

    order = context.order
    name = f"{order.run}-{order.stage.name}-{order.attempt}"
    try:
        return run_group(function, job, cards=order.stage.cards, name=name)
    except StageError as error:
        keys = StageKeys(order.run, order.stage.name).attempt(order.attempt)
        hang = hang_of(context.store, keys)
        if hang is None:
            raise
        raise hang from error


def verified(context: Context, checkpoint: Artefact) -> Manifest:
    """The manifest of a checkpoint whose every file has been checked.

    Raises:
        CheckpointError: Names the file that is missing or damaged.
    """
    key = context.store.key(checkpoint.uri)
    from octad.storage import lineage  # noqa: PLC0415  laptops load this module without obstore

    return lineage.verify(context.store, key, checkpoint.digest)


def check_same_model(asked: dict[str, Any], manifest: Manifest, where: str) -> None:
    """Refuse a checkpoint of another model than the one asked for.

    Raises:
        CheckpointError: Names the first size that differs.
    """
    ours_of, theirs_of = _resolved(asked), _resolved(manifest.model)
    for key in sorted({*ours_of, *theirs_of}):
        ours, theirs = ours_of.get(key), theirs_of.get(key)
        if ours != theirs:
            raise CheckpointError(
                f"the checkpoint's model has {key} {theirs}, the config has {ours}",
                where=where,
                hint="use the model that the checkpoint was made with",
            )


def _resolved(model: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model that are equal where the networks are."""
    _, settings = family_of(model)
    resolved: dict[str, Any] = settings.resolved().plain()
    return resolved


def _with_vocabulary(model: dict[str, Any], vocab: int, stage: str, hint: str) -> dict[str, Any]:
    _, settings = family_of(model, f"{stage}.model")
    if settings.vocab is None:
        settings = settings.model_copy(update={"vocab": vocab})
    if settings.vocab < vocab:
        raise ConfigError(
            f"the model has {settings.vocab} tokens, but the data was made with {vocab}",
            where=f"{stage}.model.vocab",
            hint=hint,
        )
    plain: dict[str, Any] = settings.plain()
    return plain
