"""The training loop: the same on one card and on many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octad.errors import StageError
from octad.train import optimizers
from octad.train.data_parallel import last_of_step
from octad.train.loss import IGNORE, split_vocabulary, summed_loss
from octad.train.mesh import Ranks
from octad.train.meters import StepMeter
from octad.train.packing import packed
from octad.train.parallelise import Model
from octad.train.settings import Training
from octad.train.watchdog import Watchdog


@dataclass(slots=True)
class Loop:
    """One stage's steps.

    Attributes:
        after_step: Called on every rank with the step, its metrics, and the sample indices that
            this rank used. Saves checkpoints, records, reports.
        blocked_s: Seconds that checkpoints have blocked so far.
        meter, watchdog: Running.
        end_of_text: The token that ends a document, where documents are kept apart.
    """

    ranks: Ranks
    model: Model
    optimizers: Sequence[torch.optim.Optimizer]
    training: Training
    after_step: Callable[[int, dict[str, float], Any], None]
    blocked_s: Callable[[], float]
    meter: StepMeter
    watchdog: Watchdog
    end_of_text: int | None = None

    def run(self, batches: Iterator[Any], *, first: int, tokens: int) -> int:
        """Take the steps `first` to the last one. Returns the tokens trained on in all.

        Args:
            batches: Of this rank; each has `tokens` (integers, samples x sequence + 1), `indices`
                and `wait_s`.
            first: The first step to take, counted from 1.
            tokens: Trained on before.

        Raises:
            StageError: The loss or the gradient is not finite. The step changes nothing.
        """
        last = self.training.steps
        for step in range(first, last + 1):
            batch = next(batches)
            # Shards hold two or four bytes for a token: only the device needs eight.
            samples = torch.as_tensor(batch.tokens).to(self.ranks.device, non_blocking=True)
            metrics, counted = self._step(step, samples.long())
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

    def _step(self, step: int, samples: Tensor) -> tuple[dict[str, float], int]:
        """One optimizer step on this rank's share of the global batch."""
        _, targets, _ = packed(samples, self.end_of_text)
        layout = self.ranks.layout
        tp, parts = layout.tp, layout.data_parallel
        (counted,) = optimizers.summed((targets != IGNORE).sum() / (tp * layout.pp))
        loss_sum = self._backward(samples, scale=parts / counted)
        grads = optimizers.gradients(self.model)
        loss, squared = optimizers.summed(loss_sum / (counted * tp), optimizers.squared_norm(grads))
        norm = math.sqrt(squared) if math.isfinite(squared) else math.inf
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise StageError(
                f"step {step}: loss {loss}, gradient norm {norm}",
                where=self.training.optimizer.kind,
                hint="lower optimizer.lr, or lengthen optimizer.warmup_steps",
            )
        lr = optimizers.rate(self.training.optimizer, step, self.training.steps)
        optimizers.clip(grads, norm, self.training.optimizer.clip_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"loss": loss, "lr": lr, "grad_norm": norm}, round(counted)

    def _backward(self, samples: Tensor, *, scale: float) -> Tensor:
        """Gradients of all micro-batches; the summed loss of this rank's share.

        FSDP takes the mean over data-parallel parts: `scale` undoes that, and divides by the
        number of tokens that count in the whole global batch.
        """
        model = self.model.whole
        micro_batches = samples.split(self.training.micro_batch or len(samples))
        total = torch.zeros((), device=self.ranks.device)
        for number, micro in enumerate(micro_batches, start=1):
            last_of_step(model, is_last=number == len(micro_batches))
            ids, targets, segments = packed(micro, self.end_of_text)
            logits = model(ids, segments=segments)
            with split_vocabulary(logits):
                loss = summed_loss(logits, targets)
                (loss * scale).backward()
            total += loss.detach()
        return total
