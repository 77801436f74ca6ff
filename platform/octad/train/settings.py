"""What every training stage can be told, and what it must divide. No torch: laptops load it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from octad.data.weights import shares
from octad.errors import ConfigError
from octad.ports.registry import kinds, load
from octad.spec.artefacts import Artefact, Port, Vocabulary
from octad.spec.clusters import Ability
from octad.spec.frozen import Spec
from octad.spec.layouts import Layout
from octad.spec.names import Name
from octad.spec.stages import AttemptOrder, Position, StageSpec
from octad.train.micro_batches import micro_batch_size


class Optimizer(Spec):
    """AdamW and its schedule. All steps are global: they do not know how many cards there are.

    Attributes:
        lr: The highest learning rate.
        clip_norm: Gradients are scaled down to this global norm.
        warmup_steps: Steps over which the rate rises from 0.
        schedule: After the warm-up: `cosine` falls to the end; `wsd` stays, and falls in a line
            over the last `decay_share` of the steps; `constant` stays.
        final_share: Share of `lr` at the last step.
    """

    kind: Literal["adamw"] = "adamw"
    lr: float = Field(gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    warmup_steps: int = Field(default=10, ge=0)
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay_share: float = Field(default=0.2, ge=0, le=1)
    final_share: float = Field(default=0.1, ge=0, le=1)


class Precision(Spec):
    """Number format of compute; weights, gradient sums and optimizer state stay in fp32.

    Attributes:
        kind: `bf16` and `fp16` for everything; `fp8` for the linear layers of blocks, with bf16
            around them, by torchao.
        initial_scale: For `fp16`: the loss is multiplied by it, so that small gradients are not
            lost. It adapts itself.
        growth_steps: For `fp16`: after so many steps without overflow the scale doubles.
        recipe: For `fp8`: one scale for each tensor, which is faster, or for each row, which is
            more exact.
        emulate: For `fp8`: compute what fp8 would on a card that has none, slowly. For tests.
    """

    kind: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    initial_scale: float = Field(default=65536.0, ge=1)
    growth_steps: int = Field(default=2000, ge=1)
    recipe: Literal["tensorwise", "rowwise"] = "tensorwise"
    emulate: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.emulate and self.kind != "fp8":
            raise ValueError(f"only fp8 can be emulated, not {self.kind}")
        return self

    @property
    def asks(self) -> dict[Ability, str]:
        """What a card must be able to do, and the setting that asks for it."""
        formats: dict[str, tuple[Ability, ...]] = {
            "bf16": ("bf16",),
            "fp16": ("fp16",),
            "fp8": ("bf16",) if self.emulate else ("fp8", "bf16"),
        }
        return dict.fromkeys(formats.get(self.kind, ()), "precision.kind")


Packing = Literal["stream", "documents"]
Recompute = Literal["none", "selective", "full"]
_FP8_MULTIPLE = 16  # of the sizes that cards multiply in fp8


def _steps_or_auto(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"must be a number of steps, 1 or more, or auto, not {value!r}")


def _whole_path(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError("must be a whole path, such as /dev/shm")
    return path


class Training(Spec):
    """Keys that all training stages share.

    Attributes:
        mix: Several datasets to train on: the name of an input to its weight. Of every few samples
            (7 and 3 of ten, for weights 0.7 and 0.3) each dataset gives exactly its share.
        packing: How documents share a sample. `stream`: the sample is one text. `documents`: no
            token sees another document, each counts its positions from 0, and what follows the
            end of a document is not a target.
        steps: Optimizer steps of the whole stage.
        sequence: Tokens of one sample.
        global_batch: Samples of one step, over all cards.
        micro_batch: Samples that one card takes at once; None takes its whole share, or with a
            pipeline a size that keeps its cards busy (`octad.train.micro_batches`).
        activation_checkpointing: What a block keeps for its backward pass; the rest is computed
            again. `selective`: results of matrix products and attention. `full`: only its input.
        cpu_offload: Weights, gradients and optimizer state wait in host memory, and the optimizer
            works there: for models that the cards cannot hold. Slow.
        compile: Compile each block (`torch.compile`): faster steps after a slow first one.
        deterministic: Only operations that sum in one order: the same layout gives the same curve
            bit for bit, also on an accelerator. Slower.
        checkpoint_every: Steps between checkpoints in the store, or `auto`: as often as pays, by what
            a save costs and by `node_mtbf_h`. The last step always gets one.
        keep_checkpoints: How many of the newest are kept.
        keep_every: Of each so many steps, one checkpoint is kept as well.
        node_checkpoint_every: Steps between checkpoints on the nodes themselves, for a restart on
            the same nodes; None makes none.
        node_checkpoint_folder: Where on the nodes: a disk of theirs, or `/dev/shm` for their
            memory; empty for the folder of temporary files.
        node_mtbf_h: Mean hours between failures of one node; for `checkpoint_every: auto`.
        step_timeout_s: A step that takes longer hangs: the attempt ends, and the next one goes on.
            The first step of an attempt may take four times as long.
        record_samples: Write the sample indices of every step to the store, for proofs.
    """

    model: dict[str, Any]
    optimizer: Optimizer
    precision: Precision = Precision()
    mix: dict[Name, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    packing: Packing = "stream"
    steps: int = Field(ge=1)
    sequence: int = Field(ge=2)
    global_batch: int = Field(ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    activation_checkpointing: Recompute = "none"
    cpu_offload: bool = False
    compile: bool = False
    deterministic: bool = False
    checkpoint_every: Annotated[int | Literal["auto"], BeforeValidator(_steps_or_auto)] = 100
    keep_checkpoints: int = Field(default=3, ge=1)
    keep_every: int | None = Field(default=None, ge=1)
    node_checkpoint_every: int | None = Field(default=None, ge=1)
    node_checkpoint_folder: Annotated[str, AfterValidator(_whole_path)] = ""
    # The Llama 3 Herd of Models, 3.3.4: 2,048 nodes of eight H100 failed 419 times in 54 days.
    node_mtbf_h: float = Field(default=6300.0, gt=0)
    step_timeout_s: float = Field(default=300.0, gt=0)
    record_samples: bool = False


class TrainingJob(Spec):
    """All that the workers of one training attempt need.

    Attributes:
        order: The attempt.
        training: The shared settings, with the vocabulary filled in.
        datasets: What to train on, by the name of the input.
        start: A checkpoint whose weights to start from; None starts from fresh ones.
        resume: The committed checkpoint of this stage to go on from.
        adapter: Train an adapter of this kind and settings alone; needs `start`.
        tuned: An adapter of that kind to start from; None starts from a fresh one.
        tokenizer: Set to export the final weights, with this tokenizer beside them.
    """

    order: AttemptOrder
    training: Training
    datasets: dict[str, Artefact] = Field(min_length=1)
    start: Artefact | None = None
    resume: Position | None = None
    adapter: dict[str, Any] | None = None
    tuned: Artefact | None = None
    tokenizer: Artefact | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides, with the seed, which samples come and in which order."""
        decisive = {
            "datasets": {name: artefact.digest for name, artefact in self.datasets.items()},
            "mix": shares(self.training.mix) if self.training.mix else {},
            "sequence": self.training.sequence,
        }
        raw = json.dumps(decisive, sort_keys=True).encode()
        return f"sha256:{hashlib.sha256(raw).hexdigest()}"


class Weights(Spec):
    """A network to evaluate: a checkpoint, perhaps with an adapter on it."""

    name: str
    checkpoint: Artefact
    adapter: Artefact | None = None


class EvaluationJob(Spec):
    """All that the workers of one validation need.

    Attributes:
        weights: What to compare.
        datasets: Name to dataset; the held-out split is used.
        sequence: Tokens of one sample.
        batch: Samples that one card takes at once.
        max_samples: Of each dataset.
        prompt_tokens, sample_tokens: Lengths of the prompt and of the generated text.
        prompt_from: The dataset whose first held-out sample gives the prompt.
        packing: As the weights were trained.
    """

    order: AttemptOrder
    weights: tuple[Weights, ...]
    datasets: dict[str, Artefact]
    sequence: int
    batch: int
    max_samples: int
    prompt_tokens: int
    sample_tokens: int
    prompt_from: str
    packing: Packing = "stream"


def family_of(model: Mapping[str, Any], where: str = "model") -> tuple[Any, Any]:
    """The module of a model's family, and its settings.

    Raises:
        ConfigError: There is no such family, or a size cannot be.
    """
    kind = model.get("kind")
    if not isinstance(kind, str):
        raise ConfigError("a model needs a kind", where=f"{where}.kind")
    family = load("octad.models", kind, where=f"{where}.kind")
    return family, family.Settings.parse(model, where=where)


def family_reading(config: Mapping[str, Any], where: str) -> Any:
    """The module of the model family that takes in a `config.json` of Hugging Face's.

    Raises:
        ConfigError: There is none.
    """
    known: list[str] = []
    for kind in kinds("octad.models"):
        family = load("octad.models", kind)
        types = family.hugging_face.MODEL_TYPES if hasattr(family, "hugging_face") else ()
        if config.get("model_type") in types:
            return family
        known += types
    raise ConfigError(
        f"model_type is {config.get('model_type')!r}, which no model family takes in",
        where=where,
        hint=f"those that are: {', '.join(known)}",
    )


def model_values(settings: Any, setting: str = "model") -> dict[str, Any]:
    """What a stage says of its model, by its settings; a vocabulary only if it is named."""
    named = settings.resolved().plain()
    return {f"{setting}.{key}": value for key, value in named.items() if value is not None}


def adapter_of(adapter: Mapping[str, Any], where: str = "adapter") -> tuple[Any, Any]:
    """The module of an adapter's kind (`octad.train.adapters`), and its settings.

    Raises:
        ConfigError: There is no such kind, or a setting cannot be.
    """
    kind = adapter.get("kind")
    if not isinstance(kind, str):
        raise ConfigError("an adapter needs a kind", where=f"{where}.kind")
    module = load("octad.train.adapters", kind, where=f"{where}.kind")
    return module, module.Settings.parse(adapter, where=where)


def dataset_ports(training: Training, usual: str) -> dict[str, Port]:
    """The inputs to train on: those of the mix, or the usual one."""
    return {name: Port(type="dataset") for name in training.mix or (usual,)}


def checkpoint_port(training: Training, *, is_required: bool = True) -> Port:
    """The input of weights of this very model."""
    _, settings = family_of(training.model)
    return Port(type="checkpoint", is_required=is_required, values=model_values(settings))


def tokenizer_port(training: Training) -> Port:
    """The input of a tokenizer whose every token the model has."""
    vocab = training.model.get("vocab")
    if not isinstance(vocab, int):
        return Port(type="tokenizer")
    return Port(type="tokenizer", vocabulary=Vocabulary(most=vocab, setting="model.vocab"))


def check_training(spec: StageSpec, training: Training) -> None:
    """Refuse what the layout cannot divide.

    Raises:
        ConfigError: Names both numbers.
    """
    family, model = family_of(training.model, f"{spec.name}.model")
    try:
        _check_cp(spec.layout)
        family.check(model, spec.layout)
        check_sequence(training.sequence, spec.layout, model.context)
        micro_batch_size(training.micro_batch, training.global_batch, spec.layout)
        _check_zero_bubble(training, spec.layout)
        _check_compile(training, spec.layout)
        _check_fp8(training, spec.layout, family.layers(model))
        _check_mix(training)
    except ConfigError as error:
        raise error.at(spec.name) from None
    _check_tiers(spec, training)
    if training.optimizer.warmup_steps > training.steps:
        raise ConfigError(
            f"warm-up takes {training.optimizer.warmup_steps} steps, but there are only "
            f"{training.steps}",
            where=f"{spec.name}.optimizer.warmup_steps",
        )


def _check_cp(layout: Layout) -> None:
    # torch's ring attention is a prototype, and has no kernel on a CPU to test it with.
    if layout.cp > 1:
        raise ConfigError(
            f"cp is {layout.cp}, but context parallelism is not available in this version: torch's "
            "is a prototype that runs on accelerators only",
            where="layout.cp",
            hint="use tp: between attention and MLP it splits the sequence as well",
        )


def _check_tiers(spec: StageSpec, training: Training) -> None:
    often, store = training.node_checkpoint_every, training.checkpoint_every
    if often is not None and store != "auto" and often % store == 0:
        raise ConfigError(
            f"every {often} steps there is a checkpoint in the store anyway, each {store}",
            where=f"{spec.name}.node_checkpoint_every",
            hint=f"use fewer than {store}",
        )


def check_sequence(sequence: int, layout: Layout, context: int) -> None:
    """Refuse a sequence that is longer than the model's context, or that `tp` cannot split."""
    if sequence > context:
        raise ConfigError(
            f"a sequence of {sequence} is longer than the model's context of {context}",
            where="sequence",
        )
    if sequence % layout.tp:
        raise ConfigError(
            f"a sequence of {sequence} cannot be divided by tp {layout.tp}", where="sequence"
        )


def _check_zero_bubble(training: Training, layout: Layout) -> None:
    if layout.pp == 1 or layout.pp_schedule != "zero_bubble":
        return
    if training.compile:
        raise ConfigError(
            "compiled blocks compute all their gradients at once, which pp_schedule zero_bubble "
            "does in two parts",
            where="compile",
            hint="use another layout.pp_schedule, or do not compile",
        )
    if training.activation_checkpointing == "selective":
        raise ConfigError(
            "selective recomputation lasts for one backward pass, and pp_schedule zero_bubble "
            "makes two",
            where="activation_checkpointing",
            hint="use full or none, or another layout.pp_schedule",
        )


def _check_compile(training: Training, layout: Layout) -> None:
    if training.compile and layout.tp > 1 and training.activation_checkpointing == "full":
        raise ConfigError(
            "torch 2.13 cannot compile blocks that are both split over tp and computed again as a "
            "whole",
            where="activation_checkpointing",
            hint="use selective, or compile: false",
        )


def _check_fp8(training: Training, layout: Layout, layers: Mapping[str, tuple[int, int]]) -> None:
    if training.precision.kind != "fp8":
        return
    for name, sizes in layers.items():
        for size in sizes:
            if size % (_FP8_MULTIPLE * layout.tp):
                raise ConfigError(
                    f"layer {name!r} has {size} features, which cannot be divided by "
                    f"{_FP8_MULTIPLE} x tp {layout.tp}, as fp8 needs",
                    where="precision.kind",
                    hint="use precision=bf16, or other sizes",
                )


def _check_mix(training: Training) -> None:
    for name in ("base", "tokenizer", "adapter"):
        if name in training.mix:
            raise ConfigError(f"{name!r} is another input of the stage", where=f"mix.{name}")
    if training.mix:
        shares(training.mix)


def check_adapter(spec: StageSpec, training: Training, adapter: Mapping[str, Any]) -> None:
    """Refuse an adapter that cannot be put on the model, or leaves too little of its context."""
    where = f"{spec.name}.{adapter['kind']}"
    module, own = adapter_of(adapter, where)
    family, model = family_of(training.model, f"{spec.name}.model")
    module.check(own, family, model, where)
    left = model.context - module.room(own)
    if training.sequence > left:
        raise ConfigError(
            f"a sequence of {training.sequence} is longer than the {left} that the adapter leaves "
            f"of the model's context of {model.context}",
            where=f"{spec.name}.sequence",
        )
