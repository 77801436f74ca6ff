"""Our training on one card in this process, without Ray, store or data set."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from octad.data.loader import Batch
from octad.spec.clusters import CardKind
from octad.spec.layouts import Layout
from octad.train import optimizers
from octad.train.loop import Loop
from octad.train.mesh import join
from octad.train.meters import StepMeter
from octad.train.parallelise import spread
from octad.train.precision import LossScale
from octad.train.processes import CARD_KIND, COMMUNICATION
from octad.train.settings import Training, family_of
from octad.train.watchdog import Watchdog

HANGS_S = 600.0


@dataclass(frozen=True)
class Trained:
    """What a run has left.

    Attributes:
        steps: The metrics of each.
        tokens_per_s: Of the steps after the warm-up.
        model, optimizers: As they stand.
    """

    steps: list[dict[str, float]]
    tokens_per_s: float
    model: Any
    optimizers: Any


def join_alone(device: str, folder: Path) -> None:
    """Bring up a process group of this process alone, on a `cuda` or `cpu` device."""
    card: CardKind = "gpu" if device == "cuda" else "sim"
    os.environ[CARD_KIND] = card
    os.environ["LOCAL_RANK"] = os.environ["NODE_RANK"] = "0"
    if card == "gpu":
        torch.cuda.set_device(0)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group(COMMUNICATION[card], init_method=meeting, rank=0, world_size=1)


def samples_of(training: Training, vocab: int, seed: int = 0) -> Iterator[np.ndarray[Any, Any]]:
    """Endless batches in which each token mostly follows from the one before."""
    rng = np.random.default_rng(seed)
    shape = (training.global_batch, training.sequence + 1)
    while True:
        steps = np.where(rng.random(shape) < 0.9, 7, rng.integers(0, vocab, shape))
        yield (np.cumsum(steps, axis=1) % vocab).astype(np.int32)


def synchronize(device: str) -> None:
    """Wait for all that the device is to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def train(settings: dict[str, Any], device: str, *, warm_up: int = 0) -> Trained:
    """Take all steps of a `Training`, as a stage does on a worker."""
    training = Training.parse(settings)
    family, model_settings = family_of(training.model)
    ranks = join(Layout(dp_shard=1))
    model = spread(family, model_settings, ranks, seed=0, training=training)
    built = optimizers.build(model, training.optimizer)
    steps: list[dict[str, float]] = []
    began = [0.0]

    def after_step(step: int, metrics: dict[str, float], _indices: Any) -> None:
        steps.append(metrics)
        if step == warm_up:
            synchronize(device)
            began[0] = time.perf_counter()

    samples = samples_of(training, model_settings.vocab)
    batches = (Batch(tokens, np.arange(len(tokens)), 0.0) for tokens in samples)
    flops = family.flops_per_token(model_settings, training.sequence)
    meter = StepMeter(ranks, flops_per_token=flops)
    watchdog = Watchdog(HANGS_S, rank=0, is_waiting=lambda: meter.is_waiting, tell=print)
    with meter, watchdog:
        began[0] = time.perf_counter()
        Loop(
            ranks,
            model,
            built,
            training,
            after_step,
            lambda: 0.0,
            lambda _step, metrics: steps.append(metrics),
            meter,
            watchdog,
            loss_scale=LossScale.of(training.precision),
        ).run(batches, first=1, tokens=0)
    synchronize(device)
    tokens = training.global_batch * training.sequence * (training.steps - warm_up)
    return Trained(steps, tokens / (time.perf_counter() - began[0]), model, built)
