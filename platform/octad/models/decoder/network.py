"""The decoder itself, as it reads on one card. Sharding is added from outside (`sharding.py`).

Shapes in comments: B batch, S sequence, W width, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from octad.models.decoder.settings import Settings


class Embedding(nn.Module):
    """Tokens, and learned positions where there are any: B S -> B S W."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        assert settings.vocab is not None, "the vocabulary is filled in before a model is built"
        self.token = nn.Parameter(torch.empty(settings.vocab, settings.width))
        self.position: nn.Parameter | None = None
        if settings.positions == "learned":
            self.position = nn.Parameter(torch.empty(settings.context, settings.width))

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` are int64 of shape B S."""
        hidden = F.embedding(ids, self.token)
        return hidden if self.position is None else hidden + self.position[: ids.shape[1]]


class Attention(nn.Module):
    """Causal self-attention; with fewer key than query heads, each serves a group of queries."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.head_width = settings.head_width
        self.rotary_base = settings.rotary_base if settings.positions == "rotary" else None
        width, kv_width = settings.width, settings.num_kv_heads * settings.head_width
        self.query = nn.Linear(width, width, bias=settings.bias)
        self.key = nn.Linear(width, kv_width, bias=settings.bias)
        self.value = nn.Linear(width, kv_width, bias=settings.bias)
        self.out = nn.Linear(width, width, bias=settings.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """B S W -> B S W."""
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # B H S D
            for layer in (self.query, self.key, self.value)
        )
        if self.rotary_base is not None:
            cos, sin = rotation(query.shape[2], self.head_width, self.rotary_base, query)
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class GeluMlp(nn.Module):
    """GPT-2's: up, GELU (tanh form), down."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.up = nn.Linear(settings.width, settings.num_mlp, bias=settings.bias)
        self.down = nn.Linear(settings.num_mlp, settings.width, bias=settings.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """B S W -> B S W."""
        return self.down(F.gelu(self.up(hidden), approximate="tanh"))


class SwigluMlp(nn.Module):
    """LLaMA's: up, gated by SiLU of a second projection, down."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.gate = nn.Linear(settings.width, settings.num_mlp, bias=settings.bias)
        self.up = nn.Linear(settings.width, settings.num_mlp, bias=settings.bias)
        self.down = nn.Linear(settings.num_mlp, settings.width, bias=settings.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """B S W -> B S W."""
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Block(nn.Module):
    """Pre-norm: attention, then MLP, each added to what came in."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.attention_norm = norm(settings)
        self.attention = Attention(settings)
        self.mlp_norm = norm(settings)
        self.mlp = GeluMlp(settings) if settings.mlp == "gelu" else SwigluMlp(settings)

    def forward(self, hidden: Tensor) -> Tensor:
        """B S W -> B S W."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.mlp(self.mlp_norm(hidden))


class Head(nn.Module):
    """From features to logits, by weights of its own or by those of the token embedding."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = None
        if not settings.tied:
            assert settings.vocab is not None
            self.weight = nn.Parameter(torch.empty(settings.vocab, settings.width))

    def forward(self, hidden: Tensor, token: Tensor) -> Tensor:
        """B S W -> B S V; `token` is the embedding's table."""
        return F.linear(hidden, token if self.weight is None else self.weight)


class Decoder(nn.Module):
    """Token ids in, logits of the next token out."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = Embedding(settings)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.depth))
        self.norm = norm(settings)
        self.head = Head(settings)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 B S -> B S V."""
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden), self.embedding.token)


def norm(settings: Settings) -> nn.Module:
    """The kind of normalisation that is asked for."""
    if settings.norm == "rmsnorm":
        return nn.RMSNorm(settings.width, eps=settings.norm_eps)
    return nn.LayerNorm(settings.width, eps=settings.norm_eps, bias=settings.bias)


def rotation(length: int, width: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each S D, of the angles by which positions turn features.

    Features i and i + D/2 turn together, as in Hugging Face's LLaMA.
    """
    pairs = torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width
    places = torch.arange(length, device=like.device, dtype=torch.float32)
    angles = torch.outer(places, base**-pairs)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """B H S D turned by its positions."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
