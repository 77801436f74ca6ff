"""Pipeline parallelism: micro-batches through the parts of a model, each on its own cards.

torch's stages and schedules do the work: who computes what when, and who sends it to whom.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from octad.train.loss import split_vocabulary, summed_loss
from octad.train.mesh import Ranks
from octad.train.parallelise import Model

_OF_SEVERAL_PARTS = {
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleZBVZeroBubble,
}


class Pipeline:
    """The parts of a model that this process holds, and when they work.

    Every rank must make one. Gradients are summed over data-parallel parts once a step, after the
    last micro-batch.

    Args:
        model: The parts.
        ranks: The mesh.
        sequence: Tokens of one sample.
        micro_batch: Samples of a micro-batch.
        num_micro_batches: Of one step.
    """

    def __init__(
        self,
        model: Model,
        ranks: Ranks,
        *,
        sequence: int,
        micro_batch: int,
        num_micro_batches: int,
    ) -> None:
        assert ranks.pp is not None
        self._model, self._ranks = model, ranks
        self._group = ranks.pp.get_group()
        # NCCL connects a group when all its ranks first meet, and a schedule's first exchanges are
        # between two.
        dist.all_reduce(torch.zeros(1, device=ranks.device), group=self._group)
        stages = [
            self._stage(part, number, micro_batch, sequence)
            for part, number in zip(model.parts, ranks.pp_parts, strict=True)
        ]
        several = _OF_SEVERAL_PARTS.get(ranks.layout.pp_schedule)
        self._schedule = (
            Schedule1F1B(stages[0], num_micro_batches, self._loss, scale_grads=False)
            if several is None
            else several(list(stages), num_micro_batches, self._loss, scale_grads=False)
        )
        self._losses: list[Tensor] = []  # of this step's micro-batches

    def _stage(self, part: nn.Module, number: int, samples: int, sequence: int) -> PipelineStage:
        """A part with the shapes of what goes in and out, so that none has to be tried out."""
        layout, parts = self._ranks.layout, self._ranks.num_pp_parts
        between = torch.empty(
            (samples, sequence // (layout.cp * layout.tp), self._model.width),
            dtype=self._model.dtype,
            device="meta",
            requires_grad=True,
        )
        ids = torch.empty((samples, sequence // layout.cp), dtype=torch.int64, device="meta")
        return PipelineStage(
            part,
            number,
            parts,
            self._ranks.device,
            input_args=ids if number == 0 else between,
            output_args=between,  # of the last part too: its logits go nowhere
            group=self._group,
        )

    def step(self, ids: Tensor, targets: Tensor, segments: Tensor | None, scale: float) -> Tensor:
        """Gradients of all micro-batches; the summed loss of this rank's share, where the last part
        is, and else 0.

        Args:
            ids: int64 B S, the whole share; this and what follows is the same on all ranks of a
                pipeline.
            targets: int64 B S.
            segments: int64 B S, or None.
            scale: What is differentiated is so many times the summed loss.
        """
        self._losses.clear()
        more: dict[str, Any] = {} if segments is None else {"segments": segments}
        with ExitStack() as entered:
            self._schedule.step(
                ids,
                target=targets,
                return_outputs=False,
                loss_kwargs={"scale": scale, "entered": entered},
                **more,
            )
        return (
            torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=ids.device)
        )

    def _loss(self, logits: Tensor, targets: Tensor, *, scale: float, entered: ExitStack) -> Tensor:
        if not self._losses:
            # All that follows in the step, backward passes too, is to run in it.
            entered.enter_context(split_vocabulary(logits))
        loss = summed_loss(logits, targets)
        self._losses.append(loss.detach())
        return loss * scale

    @torch.no_grad()
    def sum_shared(self) -> None:
        """Give both copies of a parameter that the first and the last part hold the sum of their
        gradients. They start and stay equal.
        """
        for name in self._model.shared:
            grads = [_local(p.grad) for p in self._at_ends(name) if p.grad is not None]
            if len(grads) == 2:
                grads[0].add_(grads[1])
                grads[1].copy_(grads[0])
            elif grads:
                grads[0].add_(self._exchanged(grads[0]))

    def _at_ends(self, name: str) -> list[nn.Parameter]:
        """This process's copies of a parameter that the first and the last part hold."""
        ends = {0, self._ranks.num_pp_parts - 1}
        return [
            part.get_parameter(name)
            for part, number in zip(self._model.parts, self._ranks.pp_parts, strict=True)
            if number in ends
        ]

    def _exchanged(self, own: Tensor) -> Tensor:
        """What the other end of the pipeline has in this one's place."""
        other_end = self._ranks.layout.pp - 1 - self._ranks.pp_rank
        sent = own.to(self._ranks.device)
        received = torch.empty_like(sent)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, group=self._group, group_peer=other_end),
                dist.P2POp(dist.irecv, received, group=self._group, group_peer=other_end),
            ]
        )
        for work in works:
            work.wait()
        return received.to(own.device)


def _local(grad: Tensor) -> Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad
