"""Tensor and sequence parallelism of the decoder.

Between blocks each card of a `tp` group holds its part of the sequence (norms and sums are done
once, not `tp` times); attention and MLP see the whole sequence and their part of the heads or
features. Embedding and head are split by vocabulary, or kept whole where `tp` does not divide it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from octad.models.decoder.network import Block, Decoder, SwigluMlp

SEQUENCE = Shard(1)


class _Vocabulary(ParallelStyle):
    """Split the tables of one module by vocabulary, and lay out what goes in and out.

    Args:
        outputs: Where the module's output is to lie: None leaves it as computed.
        inputs: How the first argument lies when it comes in; others are whole.
    """

    def __init__(self, *, inputs: Any, outputs: Any) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tp = device_mesh.size()
        for name, weight in module.named_parameters(recurse=False):
            is_table = name != "position" and weight.shape[0] % tp == 0
            placement = Shard(0) if is_table else Replicate()
            table = distribute_tensor(weight, device_mesh, [placement], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(table))

        def whole(argument: Any) -> Any:
            if not isinstance(argument, Tensor) or isinstance(argument, DTensor):
                return argument
            return DTensor.from_local(argument, device_mesh, [Replicate()], run_check=False)

        def before(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            first: Tensor | DTensor = arguments[0]
            if not isinstance(first, DTensor):
                first = DTensor.from_local(first, device_mesh, [self.inputs], run_check=False)
            return (first.redistribute(placements=[Replicate()]), *map(whole, arguments[1:]))

        def after(_: nn.Module, __: Any, output: DTensor) -> Tensor:
            if self.outputs is None:
                return output
            return output.redistribute(placements=[self.outputs]).to_local()

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


def shard(model: Decoder, tp: DeviceMesh) -> None:
    """Split a model over the cards of a `tp` mesh, in place. Its logits become DTensors."""
    into_sublayer = PrepareModuleInput(
        input_layouts=(SEQUENCE,), desired_input_layouts=(Replicate(),)
    )
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=SEQUENCE)
    block = {
        "attention_norm": SequenceParallel(),
        "attention": into_sublayer,
        "attention.query": columns,
        "attention.key": columns,
        "attention.value": columns,
        "attention.out": rows,
        "mlp_norm": SequenceParallel(),
        "mlp": into_sublayer,
        "mlp.up": columns,
        "mlp.down": rows,
    }
    for layer in model.blocks.values():
        assert isinstance(layer, Block)
        gate = {"mlp.gate": columns} if isinstance(layer.mlp, SwigluMlp) else {}
        parallelize_module(layer, tp, {**block, **gate})
    outside = {
        "embedding": _Vocabulary(inputs=Replicate(), outputs=SEQUENCE),
        "norm": SequenceParallel(),
        "head": _Vocabulary(inputs=SEQUENCE, outputs=None),
    }
    held = {name: style for name, style in outside.items() if getattr(model, name) is not None}
    parallelize_module(model, tp, held)
