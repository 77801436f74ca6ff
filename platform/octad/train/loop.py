"""The training loop: the same on one card and on many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from octad.errors import StageError
from octad.train import optimizers
from octad.train.data_parallel import micro_batch, replicated
from octad.train.loss import IGNORE, split_vocabulary, summed_loss
from octad.train.mesh import Ranks
from octad.train.meters import StepMeter
from octad.train.micro_batches import micro_batch_size
from octad.train.packing import packed
from octad.train.parallelise import Model
from octad.train.pipeline import Pipeline
from octad.train.precision import LossScale
from octad.train.settings import Training
from octad.train.watchdog import Watchdog


@dataclass(slots=True)
class Loop:
    """One stage's steps.

    Attributes:
        after_step: Called on every rank with the step, its metrics, and the sample indices that
            this rank used. Saves checkpoints, records, reports.
        blocked_s: Seconds that checkpoints have blocked so far.
        diverged: Called with a step that is not finite and its metrics, before the stage fails.
        meter, watchdog: Running.
        end_of_text: The token that ends a document, where documents are kept apart.
        loss_scale: For fp16.
    """

    ranks: Ranks
    model: Model
    optimizers: Sequence[torch.optim.Optimizer]
    training: Training
    after_step: Callable[[int, dict[str, float], Any], None]
    blocked_s: Callable[[], float]
    diverged: Callable[[int, dict[str, float]], None]
    meter: StepMeter
    watchdog: Watchdog
    end_of_text: int | None = None
    loss_scale: LossScale | None = None
    _called: tuple[nn.Module, ...] = field(init=False)
    _micro_batch: int = field(init=False)
    _pipeline: Pipeline | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        training, layout = self.training, self.ranks.layout
        size = micro_batch_size(training.micro_batch, training.global_batch, layout)
        self._micro_batch = size
        if self.ranks.pp is not None:
            self._pipeline = Pipeline(
                self.model,
                self.ranks,
                sequence=training.sequence,
                micro_batch=size,
                num_micro_batches=training.global_batch // layout.data_parallel // size,
            )
        self._called = tuple(replicated(part, self.ranks) for part in self.model.parts)
        for called in self._called:
            self.meter.watch(called)

    def run(self, batches: Iterator[Any], *, first: int, tokens: int) -> int:
        """Take the steps `first` to the last one. Returns the tokens trained on in all.

        Args:
            batches: Of this rank; each has `tokens` (integers, samples x sequence + 1), `indices`
                and `wait_s`.
            first: The first step to take, counted from 1.
            tokens: Trained on before.

        Raises:
            StageError: The loss or the gradient is not finite, or the loss scale is at its least
                and the gradient still is not. The step changes nothing.
        """
        last = self.training.steps
        for step in range(first, last + 1):
            batch = next(batches)
            metrics, counted = self._step(step, self._on_device(batch.tokens))
            tokens += counted
            metrics["tokens"] = float(tokens)
            metrics |= self.meter.stop(
                step,
                tokens=counted,
                waited_s=batch.wait_s,
                blocked_s=self.blocked_s(),
                is_last=step == last,
            )
            self.watchdog.step_ended(step)
            with self.watchdog.paused():
                self.after_step(step, metrics, batch.indices)
        return tokens

    def _on_device(self, tokens: Any) -> Tensor:
        """Tokens as int64, on their way to the device: the host does not wait, neither for the copy
        nor for the optimizer's step, which the device may still be at.
        """
        # Shards hold two or four bytes for a token: only the device needs eight.
        samples = torch.as_tensor(tokens)
        if self.ranks.device.type != "cpu":
            samples = samples.pin_memory().to(self.ranks.device, non_blocking=True)
        return samples.long()

    def _step(self, step: int, samples: Tensor) -> tuple[dict[str, float], int]:
        """One optimizer step on this rank's share of the global batch."""
        layout, optimizer = self.ranks.layout, self.training.optimizer
        # Until the number of tokens that count is known, as if all did.
        most = self.training.global_batch * self.training.sequence
        loss_scale = self.loss_scale.scale if self.loss_scale else 1.0
        scale = loss_scale * layout.data_parallel / most
        own_loss, own_tokens = self._backward(samples, scale=scale)
        grads = optimizers.gradients(self.model)
        if self._pipeline is not None:
            self._pipeline.sum_shared()
        loss_sum, counted, squared = optimizers.summed(
            own_loss / layout.tp,
            own_tokens / (layout.tp * layout.pp),
            optimizers.squared_norm(grads, layout.data_parallel * layout.tp),
        )
        loss, more = loss_sum / max(counted, 1), most / max(counted, 1) / loss_scale
        norm = more * math.sqrt(squared) if math.isfinite(squared) else math.inf
        lr = optimizers.rate(optimizer, step, self.training.steps)
        metrics = {"loss": loss, "lr": lr}
        if self._is_usable(step, loss, norm):
            metrics["grad_norm"] = norm
            optimizers.scale(grads, more * optimizers.clipping(norm, optimizer.clip_norm))
            for taken in self.optimizers:
                for group in taken.param_groups:
                    group["lr"] = lr
                taken.step()
        for taken in self.optimizers:
            taken.zero_grad(set_to_none=True)
        if self.loss_scale:
            metrics |= self.loss_scale.metrics()
        return metrics, round(counted)

    def _is_usable(self, step: int, loss: float, norm: float) -> bool:
        """The gradient may change weights; if not, only the loss scale was too large for it.

        Raises:
            StageError: The loss or the gradient is not finite for another reason.
        """
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if self.loss_scale and math.isfinite(loss) and self.loss_scale.update(is_finite=is_finite):
            return is_finite
        if not is_finite:
            self.diverged(step, {"loss": loss, "grad_norm": norm})
            raise StageError(
                f"step {step}: loss {loss}, gradient norm {norm}",
                where=self.training.optimizer.kind,
                hint="lower optimizer.lr, or lengthen optimizer.warmup_steps"
                + (", or use precision=bf16" if self.loss_scale else ""),
            )
        return True

    def _backward(self, samples: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
        """Gradients of all micro-batches, of `scale` times the mean over data-parallel parts of
        their summed losses; the summed loss of this rank's share, and how many tokens count there.
        """
        if self._pipeline is not None:
            ids, targets, segments = packed(samples, self.end_of_text)
            return self._pipeline.step(ids, targets, segments, scale), (targets != IGNORE).sum()
        (model,) = self._called
        micro_batches = samples.split(self._micro_batch)
        total, counted = torch.zeros(2, device=self.ranks.device).unbind()
        for number, micro in enumerate(micro_batches, start=1):
            micro_batch(model, self.ranks.layout, is_last=number == len(micro_batches))
            ids, targets, segments = packed(micro, self.end_of_text)
            logits = model(ids, segments=segments)
            with split_vocabulary(logits):
                loss = summed_loss(logits, targets)
                (loss * scale).backward()
            total += loss.detach()
            counted += (targets != IGNORE).sum()
        return total, counted
