"""The peer of `gpu.py`: a decoder and its training loop as one writes them by hand in one file, in
the manner of nanoGPT. One projection for query, key and value, autocast, the whole model compiled,
fused AdamW, and the loss looked at every tenth step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from octad.models.decoder.settings import Settings


class Attention(nn.Module):
    def __init__(self, sizes: Settings) -> None:
        super().__init__()
        self.sizes = sizes
        self.widths = [sizes.width] + [sizes.num_kv_heads * sizes.head_width] * 2
        self.qkv = nn.Linear(sizes.width, sum(self.widths), bias=sizes.bias)
        self.out = nn.Linear(sizes.width, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, -1, self.sizes.head_width).transpose(1, 2)
            for part in self.qkv(x).split(self.widths, dim=2)
        )
        if turn is not None:
            q, k = rotated(q, *turn), rotated(k, *turn)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, sizes: Settings) -> None:
        super().__init__()
        self.is_gated = sizes.mlp == "swiglu"
        self.up = nn.Linear(sizes.width, sizes.num_mlp * (1 + self.is_gated), bias=sizes.bias)
        self.down = nn.Linear(sizes.num_mlp, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.is_gated:
            gate, x = x.chunk(2, dim=-1)
            return self.down(F.silu(gate) * x)
        return self.down(F.gelu(x, approximate="tanh"))


def norm(sizes: Settings) -> nn.Module:
    return nn.RMSNorm(sizes.width) if sizes.norm == "rmsnorm" else nn.LayerNorm(sizes.width)


class Block(nn.Module):
    def __init__(self, sizes: Settings) -> None:
        super().__init__()
        self.first, self.attention = norm(sizes), Attention(sizes)
        self.second, self.mlp = norm(sizes), Mlp(sizes)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.first(x), turn)
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    def __init__(self, sizes: Settings) -> None:
        super().__init__()
        assert sizes.vocab is not None
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocab, sizes.width)
        self.places = None
        if sizes.positions == "learned":
            self.places = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.depth))
        self.norm = norm(sizes)
        self.head = nn.Linear(sizes.width, sizes.vocab, bias=False)
        if sizes.tied:
            self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x, turn = self.tokens(ids), None
        if self.places is not None:
            x = x + self.places(places)
        else:
            pairs = torch.arange(0, self.sizes.head_width, 2, device=ids.device)
            angles = torch.outer(
                places.float(), self.sizes.rotary_base ** (-pairs / self.sizes.head_width)
            )
            turn = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def train(
    sizes: Settings,
    batches: Iterator[Any],
    *,
    device: str,
    steps: int,
    warm_up: int,
    lr: float,
    compiled: bool,
) -> tuple[float, list[float]]:
    """Tokens per second after the warm-up, and the loss of every tenth step."""
    with torch.device(device):
        model = Gpt(sizes)
    called: Any = model
    if compiled:
        backend = "aot_eager" if device == "cpu" else "inductor"
        called = torch.compile(model, backend=backend)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    losses: list[float] = []
    tokens, began = 0, time.perf_counter()
    for step in range(steps):
        if step == warm_up:
            _wait(device)
            tokens, began = 0, time.perf_counter()
        samples = torch.from_numpy(next(batches))
        if device == "cuda":
            samples = samples.pin_memory().to(device, non_blocking=True)
        samples = samples.long()
        with torch.autocast(device, torch.bfloat16):
            loss = called(samples[:, :-1], samples[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            losses.append(loss.item())
        tokens += samples[:, 1:].numel()
    _wait(device)
    return tokens / (time.perf_counter() - began), losses


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
