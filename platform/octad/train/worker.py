"""One training process of a stage attempt: what `octad.train.group` runs on every card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from octad.data.loader import Loader
from octad.data.mixture import MixedOrder
from octad.data.sampler import Order
from octad.data.shards import TokenDataset
from octad.data.weights import shares
from octad.errors import FencedError, StageError, StorageError
from octad.spec.artefacts import Artefact
from octad.spec.checkpoints import DataPosition, Manifest
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.stages import AttemptOrder, Position
from octad.storage.cache import Cache
from octad.storage.objects import ObjectStore
from octad.train import optimizers, states
from octad.train.artefacts import fetch, node_cache, node_folder, num_nodes
from octad.train.checkpoint import Checkpointer, artefact_of, load
from octad.train.export import export
from octad.train.inputs import checked_position
from octad.train.interval import Schedule
from octad.train.loop import Loop
from octad.train.mesh import Ranks, join
from octad.train.meters import StepMeter
from octad.train.node_tier import NodeTier
from octad.train.parallelise import spread
from octad.train.precision import LossScale
from octad.train.recorder import Recorder, recorded
from octad.train.reproducible import set_deterministic
from octad.train.settings import TrainingJob, family_of
from octad.train.watchdog import Watchdog, teller

_LOSS_SCALE = "loss_scale"  # in a checkpoint's state


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train one stage to its last step. Returns the artefacts and final metrics, on rank 0.

    Args:
        config: A `TrainingJob` as plain data.
    """
    job = TrainingJob.parse(config)
    ranks = join(job.order.stage.layout)
    set_deterministic(is_on=job.training.deterministic)
    with node_folder(job.order) as folder, node_cache(job.order) as cache:
        recorder = None
        if ranks.is_first:
            keys = keys_of(job.order)
            recorder = Recorder(job.order.store, keys, folder, job.training.steps)
            recorder.phase("loading")
        try:
            return _Stage(job, ranks, recorder, folder, cache).run()
        finally:
            if recorder is not None:
                recorder.close()


def keys_of(order: AttemptOrder) -> AttemptKeys:
    """Where the attempt writes."""
    return StageKeys(order.run, order.stage.name).attempt(order.attempt)


def checkpoint_key(order: AttemptOrder, position: Position) -> str:
    """Where a committed checkpoint of this stage lies."""
    return (
        StageKeys(order.run, order.stage.name).attempt(position.attempt).checkpoint(position.step)
    )


def _final(metrics: Mapping[str, float]) -> dict[str, float]:
    """Of a step's metrics, those that say how a stage ended."""
    return {k: metrics[k] for k in ("loss", "tokens", "tokens_per_s") if k in metrics}


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a stage begins: fresh, or after a committed checkpoint."""

    step: int = 0
    tokens: int = 0
    samples: int = 0


class _Stage:
    """One rank's view of one training attempt."""

    def __init__(
        self,
        job: TrainingJob,
        ranks: Ranks,
        recorder: Recorder | None,
        folder: Path,
        cache: Cache | None,
    ) -> None:
        self.job, self.ranks, self.recorder, self.folder = job, ranks, recorder, folder
        self.training, self.order = job.training, job.order
        self.store = ObjectStore(job.order.store)
        self.keys = keys_of(job.order)
        self.family, self.settings = family_of(job.training.model)
        data = [
            fetch(self.store, job.datasets[name], folder, cache) for name in sorted(job.datasets)
        ]
        self.dataset = TokenDataset(data, "train", self.training.sequence)
        self.model = spread(
            self.family,
            self.settings,
            ranks,
            seed=self.order.seed,
            adapter=job.adapter,
            training=self.training,
        )
        self.optimizers = optimizers.build(self.model, self.training.optimizer)
        self.loss_scale = LossScale.of(self.training.precision)
        self.metrics: dict[str, float] = {}
        self.parent = job.resume
        self.node_tier = self._opened_tier()

    @property
    def is_adapter(self) -> bool:
        """Only adapters are trained and saved."""
        return self.job.adapter is not None

    def run(self) -> dict[str, Any]:
        """Load, train, save, export."""
        start = self._load()
        position = self.job.resume
        if start.step < self.training.steps:
            position = self._train(start)
        elif position is not None and self.ranks.is_first:
            keys = StageKeys(self.order.run, self.order.stage.name).attempt(position.attempt)
            self.metrics = _final(recorded(self.store, keys, position.step))
        assert position is not None
        if self.node_tier is not None:
            self.node_tier.remove()
        artefacts = [artefact_of(self.order.store, self.order, position)]
        if self.job.tokenizer is not None:
            artefacts += self._exported(artefacts[0], self.job.tokenizer)
        return {"artefacts": [a.plain() for a in artefacts], "metrics": self.metrics}

    def _load(self) -> _Start:
        if self.job.start is not None and (self.is_adapter or self.job.resume is None):
            load(
                self.order.store,
                self.store.key(self.job.start.uri),
                states.weights(self.model, adapter=False),
            )
            states.copy_shared(self.model)
        if self.job.tuned is not None and self.job.resume is None:
            load(
                self.order.store,
                self.store.key(self.job.tuned.uri),
                states.weights(self.model, adapter=True),
            )
        if self.node_tier is not None:
            found = self.node_tier.resume(self.job.resume, self._state)
            if found is not None:
                self.parent = found[0].parent
                return self._restored(found[1], found[0], "a checkpoint on the nodes")
        if self.job.resume is None:
            return _Start()
        state = self._state()
        key = checkpoint_key(self.order, self.job.resume)
        return self._restored(state, load(self.order.store, key, state), self.store.url(key))

    def _restored(self, state: dict[str, Any], manifest: Manifest, where: str) -> _Start:
        states.restore(self.model, self.optimizers, state, adapter=self.is_adapter)
        if self.loss_scale is not None:
            self.loss_scale.restore(state[_LOSS_SCALE])
        data = checked_position(self.job, manifest, where)
        return _Start(manifest.position.step, manifest.tokens, data.samples)

    def _state(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        state = states.full(self.model, self.optimizers, adapter=self.is_adapter)
        if self.loss_scale is not None:
            state[_LOSS_SCALE] = self.loss_scale.state()
        return state

    def _train(self, start: _Start) -> Position:
        checkpointer = self._checkpointer(start)
        loader = Loader(
            self.dataset,
            self._sample_order(),
            start=start.samples,
            global_batch=self.training.global_batch,
            rank=self.ranks.data_rank,
            num_ranks=self.ranks.layout.data_parallel,
        )
        if self.recorder is not None:
            self.recorder.phase("working")

        def after_step(step: int, metrics: dict[str, float], indices: Any) -> None:
            if self.training.record_samples and self.ranks.is_data_first:
                self._record_samples(step, indices)
            self._record(step, metrics)
            self.metrics = _final(metrics)
            tier = checkpointer.due(step)
            if tier is not None:
                samples = start.samples + (step - start.step) * self.training.global_batch
                checkpointer.save(
                    step,
                    self._state(),
                    tokens=round(metrics["tokens"]),
                    data=DataPosition(
                        fingerprint=self.job.fingerprint,
                        seed=self.order.seed,
                        samples=samples,
                    ),
                    tier=tier,
                )

        batches: Iterator[Any] = iter(loader)
        try:
            with self._meter() as meter, self._watchdog(meter) as watchdog:
                loop = Loop(
                    self.ranks,
                    self.model,
                    self.optimizers,
                    self.training,
                    after_step,
                    lambda: checkpointer.blocked_s,
                    self._record,
                    meter,
                    watchdog,
                    self.dataset.end_of_text if self.training.packing == "documents" else None,
                    self.loss_scale,
                )
                loop.run(batches, first=start.step + 1, tokens=start.tokens)
        except StageError:
            # Every rank is at the same step: what is being saved of those before still counts.
            with suppress(StorageError, FencedError):
                checkpointer.finish()
            raise
        if self.recorder is not None:
            self.recorder.phase("saving")
        position = checkpointer.finish()
        assert position is not None
        return position

    def _sample_order(self) -> Order | MixedOrder:
        sizes = self.dataset.num_samples
        if not self.training.mix:
            return Order(sizes[0], self.order.seed)
        named = dict(zip(sorted(self.job.datasets), sizes, strict=True))
        return MixedOrder(named, shares(self.training.mix), self.order.seed)

    def _meter(self) -> StepMeter:
        flops = self.family.flops_per_token(
            self.settings, self.training.sequence, adapters=self.is_adapter
        )
        return StepMeter(self.ranks, flops_per_token=flops, note=self._note("stragglers"))

    def _watchdog(self, meter: StepMeter) -> Watchdog:
        rank = self.ranks.rank
        return Watchdog(
            self.training.step_timeout_s,
            rank=rank,
            is_waiting=lambda: meter.is_waiting,
            tell=teller(self.store, self.keys, rank, self._note("watchdog")),
        )

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        if self.recorder is not None:
            self.recorder.step(step, metrics)

    def _note(self, topic: str) -> Callable[[str], None] | None:
        return None if self.recorder is None else partial(self.recorder.note, topic=topic)

    def _checkpointer(self, start: _Start) -> Checkpointer:
        return Checkpointer(
            self.order.store,
            self.order,
            content="adapter" if self.is_adapter else "full",
            model=self.settings.plain(),
            dtype="float32",
            layout=self.ranks.layout,
            base=self.job.start if self.is_adapter else None,
            adapter=self.job.adapter,
            parent=self.parent,
            keep=self.training.keep_checkpoints,
            keep_every=self.training.keep_every,
            recorder=self.recorder,
            node=self.node_tier,
            schedule=self._schedule(start),
        )

    def _schedule(self, start: _Start) -> Schedule:
        training = self.training
        return Schedule(
            start=start.step,
            last=training.steps,
            every=training.checkpoint_every,
            node_every=training.node_checkpoint_every if self.node_tier is not None else None,
            mtbf_s=training.node_mtbf_h * 3600 / num_nodes(),
        )

    def _opened_tier(self) -> NodeTier | None:
        if self.training.node_checkpoint_every is None:
            return None
        root = Path(self.training.node_checkpoint_folder or tempfile.gettempdir())
        try:
            return NodeTier(root, self.order, self.recorder)
        except StorageError as error:
            if self.recorder is not None:
                self.recorder.note(f"no checkpoints on the nodes: {error}")
            return None

    def _record_samples(self, step: int, indices: Any) -> None:
        line = json.dumps({"step": step, "indices": [int(i) for i in indices]}) + "\n"
        name = f"samples/rank-{self.ranks.data_rank}-{step:08d}.jsonl"
        self.store.put(f"{self.keys.root}/{name}", line.encode())

    def _exported(self, checkpoint: Artefact, tokenizer: Artefact) -> list[Artefact]:
        words = fetch(self.store, tokenizer, self.folder)
        if not self.ranks.is_first:
            return []
        name = "peft" if self.is_adapter else "weights"
        made = export(
            self.store,
            checkpoint,
            tokenizer=words,
            scratch=self.folder / name,
            key=f"{self.keys.artefacts}{name}",
        )
        return [made]
