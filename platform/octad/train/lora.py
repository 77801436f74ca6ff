"""Low-rank adapters on linear layers. The names of the wrapped weights do not change."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from octad.train.settings import Lora

INIT_STD = {"lora_a": 0.02}  # `lora_b` starts at zero: an adapter first changes nothing


class LoraLinear(nn.Linear):
    """A frozen linear layer, plus `lora_b @ lora_a` scaled by `alpha / rank`."""

    def __init__(self, layer: nn.Linear, lora: Lora) -> None:
        super().__init__(
            layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta"
        )
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = lora.alpha / lora.rank
        device = layer.weight.device
        self.lora_a = nn.Parameter(torch.empty(lora.rank, layer.in_features, device=device))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, lora.rank, device=device))

    def forward(self, features: Tensor) -> Tensor:
        """... in -> ... out."""
        low = F.linear(features, self.lora_a)
        return super().forward(features) + self.scale * F.linear(low, self.lora_b)


def insert(model: nn.Module, lora: Lora) -> None:
    """Freeze a model and put an adapter on each target layer, in place."""
    model.requires_grad_(requires_grad=False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in lora.targets and isinstance(child, nn.Linear):
                setattr(parent, name, LoraLinear(child, lora))
