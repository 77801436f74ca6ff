"""Loss of several weights on held-out text, and a sample of what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from octad.data.shards import TokenDataset
from octad.spec.checkpoints import Manifest
from octad.storage.cache import Cache
from octad.storage.objects import ObjectStore
from octad.train import states
from octad.train.artefacts import fetch, node_cache, node_folder
from octad.train.checkpoint import load
from octad.train.generate import generate
from octad.train.loss import IGNORE, split_vocabulary, summed_loss
from octad.train.mesh import Ranks, join
from octad.train.optimizers import summed
from octad.train.packing import packed
from octad.train.parallelise import spread
from octad.train.settings import EvaluationJob, Packing, Weights, family_of


def evaluate(config: dict[str, Any]) -> dict[str, Any]:
    """Mean loss per token for every weights and dataset, and a generated sample of each.

    Args:
        config: An `EvaluationJob` as plain data.

    Returns:
        `{"losses": {weights: {dataset: nats}}, "tokens": {dataset: count}, "prompt": ids,
        "samples": {weights: ids}}`
    """
    job = EvaluationJob.parse(config)
    ranks = join(job.order.stage.layout)
    store = ObjectStore(job.order.store)
    with node_folder(job.order) as folder, node_cache(job.order) as cache:
        datasets = _datasets(job, store, folder, cache)
        prompt = _prompt(job, datasets)
        losses: dict[str, dict[str, float]] = {}
        samples: dict[str, list[int]] = {}
        tokens: dict[str, int] = {}
        for weights in job.weights:
            model, context = _loaded(job, weights, ranks, store)
            losses[weights.name] = {}
            for name, dataset in datasets.items():
                loss, tokens[name] = mean_loss(
                    model,
                    dataset,
                    ranks,
                    batch=job.batch,
                    max_samples=job.max_samples,
                    packing=job.packing,
                )
                losses[weights.name][name] = loss
            samples[weights.name] = generate(
                model, prompt, length=job.sample_tokens, context=context, seed=job.order.seed
            )
        return {"losses": losses, "tokens": tokens, "prompt": prompt, "samples": samples}


def _datasets(
    job: EvaluationJob, store: ObjectStore, folder: Path, cache: Cache | None
) -> dict[str, TokenDataset]:
    return {
        name: TokenDataset(fetch(store, artefact, folder, cache), "heldout", job.sequence)
        for name, artefact in job.datasets.items()
    }


def _prompt(job: EvaluationJob, datasets: dict[str, TokenDataset]) -> list[int]:
    first = datasets[job.prompt_from].tokens(np.array([0]))[0]
    return [int(token) for token in first[: job.prompt_tokens]]


def _loaded(
    job: EvaluationJob, weights: Weights, ranks: Ranks, store: ObjectStore
) -> tuple[nn.Module, int]:
    """A model with its weights, ready to evaluate, and the longest sequence it takes."""
    base = Manifest.parse(
        store.read_json(f"{store.key(weights.checkpoint.uri)}/manifest.json") or {}
    )
    family, settings = family_of(base.model)
    adapter = None
    if weights.adapter is not None:
        raw = store.read_json(f"{store.key(weights.adapter.uri)}/manifest.json") or {}
        adapter = Manifest.parse(raw).adapter
    model = spread(family, settings, ranks, seed=job.order.seed, adapter=adapter)
    load(job.order.store, store.key(weights.checkpoint.uri), states.weights(model, adapter=False))
    if weights.adapter is not None:
        load(job.order.store, store.key(weights.adapter.uri), states.weights(model, adapter=True))
    return model.whole.eval(), int(settings.context)


@torch.no_grad()
def mean_loss(
    model: nn.Module,
    dataset: TokenDataset,
    ranks: Ranks,
    *,
    batch: int,
    max_samples: int,
    packing: Packing,
) -> tuple[float, int]:
    """Mean loss per token over at most `max_samples` samples, and the number of tokens.

    The samples are spread evenly over the dataset, since neighbours come from one document.
    Every rank makes the same number of forward passes: samples that are missing to fill the last
    one do not count.
    """
    num_samples = min(len(dataset), max_samples)
    parts = ranks.layout.data_parallel
    rounds = -(-num_samples // (batch * parts))
    chosen = np.linspace(0, len(dataset) - 1, num_samples).astype(np.int64)
    places = np.arange(rounds * batch * parts).reshape(rounds, parts, batch)[:, ranks.data_rank]
    end_of_text = dataset.end_of_text if packing == "documents" else None
    loss_sum = torch.zeros((), device=ranks.device)
    counted = torch.zeros((), device=ranks.device)
    for row in places:
        samples = torch.as_tensor(dataset.tokens(chosen[np.minimum(row, num_samples - 1)]))
        ids, targets, segments = packed(samples.to(ranks.device).long(), end_of_text)
        is_surplus = torch.as_tensor(row >= num_samples, device=ranks.device)
        targets = targets.masked_fill(is_surplus[:, None], IGNORE)
        logits = model(ids, segments=segments)
        with split_vocabulary(logits):
            loss_sum += summed_loss(logits, targets)
        counted += (targets != IGNORE).sum()
    tp = ranks.layout.tp
    total, tokens = summed(loss_sum / tp, counted / tp)
    return total / tokens, round(tokens)
