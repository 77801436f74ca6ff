"""What a block computes again in its backward pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octad.models.decoder.network import Decoder
from octad.models.decoder.settings import Settings
from octad.train.activation import recompute
from octad.train.settings import Recompute

SETTINGS = Settings(
    vocab=11, width=16, depth=2, heads=4, kv_heads=2, context=8, positions="rotary", mlp="swiglu"
)
PRODUCTS = ("mm", "addmm", "_scaled_dot_product_flash_attention_for_cpu")


class Counts(TorchDispatchMode):
    """How often each operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def trained(how: Recompute) -> tuple[list[str], torch.Tensor, list[torch.Tensor], Counter[str]]:
    """Names of weights, logits, gradients, and what the backward pass has computed."""
    model = Decoder(SETTINGS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    recompute(list(model.blocks.values()), how)
    names = [name for name, _ in model.named_parameters()]
    ids = torch.arange(16).reshape(2, 8) % 11
    logits = model(ids, segments=ids.cumsum(1) // 20)
    with Counts() as counts:
        logits.square().sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return names, logits.detach(), grads, counts.found


@pytest.mark.parametrize("how", ["selective", "full"])
def test_results_and_names_do_not_change(how: Recompute) -> None:
    names, logits, grads, _ = trained(how)
    wanted_names, wanted_logits, wanted_grads, _ = trained("none")
    assert names == wanted_names
    assert torch.equal(logits, wanted_logits)
    assert len(grads) == len(wanted_grads)
    assert all(torch.equal(*pair) for pair in zip(grads, wanted_grads, strict=True))


def test_selective_computes_no_product_again_but_the_rest() -> None:
    counts = {how: trained(how)[3] for how in ("none", "selective", "full")}
    for name in PRODUCTS:
        assert counts["selective"][name] == counts["none"][name]
    assert sum(counts["full"][n] for n in PRODUCTS) > sum(counts["none"][n] for n in PRODUCTS)
    for how in ("selective", "full"):
        assert counts[how]["silu"] == SETTINGS.depth
    assert counts["none"]["silu"] == 0
