"""The decoder itself, as it reads on one card. Sharding is added from outside (`sharding.py`).

Shapes in comments: B batch, S sequence, W width, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.attention.bias import causal_lower_right

from octad.models.decoder.settings import Settings


class Embedding(nn.Module):
    """Tokens, and learned positions where there are any: B S -> B S W.

    Attributes:
        first: The position of the first token: after a prefix, if there is one.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        assert settings.vocab is not None, "the vocabulary is filled in before a model is built"
        self.token = nn.Parameter(torch.empty(settings.vocab, settings.width))
        self.position: nn.Parameter | None = None
        self.first = 0
        if settings.positions == "learned":
            self.position = nn.Parameter(torch.empty(settings.context, settings.width))

    def forward(self, ids: Tensor, places: Tensor | None = None) -> Tensor:
        """`ids` are int64 of shape B S, `places` where each stands in its text; None: in order."""
        hidden = F.embedding(ids, self.token)
        if self.position is None:
            return hidden
        if places is None:
            return hidden + self.position[self.first : self.first + ids.shape[1]]
        return hidden + F.embedding(places + self.first, self.position)


class Attention(nn.Module):
    """Causal self-attention; with fewer key than query heads, each serves a group of queries.

    Attributes:
        prefix_key, prefix_value: Learned keys, already turned, and values, that all tokens see:
            one row for each place of the prefix. None without one.
    """

    prefix_key: nn.Parameter | None
    prefix_value: nn.Parameter | None

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.head_width = settings.head_width
        self.rotary_base = settings.rotary_base if settings.positions == "rotary" else None
        width, kv_width = settings.width, settings.num_kv_heads * settings.head_width
        self.query = nn.Linear(width, width, bias=settings.bias)
        self.key = nn.Linear(width, kv_width, bias=settings.bias)
        self.value = nn.Linear(width, kv_width, bias=settings.bias)
        self.out = nn.Linear(width, width, bias=settings.bias)
        self.register_parameter("prefix_key", None)
        self.register_parameter("prefix_value", None)

    def add_prefix(self, tokens: int) -> None:
        """Make room for a prefix; over `tp` it is split by heads, as keys and values are."""
        like = self.key.weight
        for name in ("prefix_key", "prefix_value"):
            rows = torch.empty(tokens, self.key.out_features, device=like.device)
            if isinstance(like, DTensor):
                rows = distribute_tensor(rows, like.device_mesh, [Shard(1)], src_data_rank=None)
            setattr(self, name, nn.Parameter(rows))

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """B S W -> B S W.

        Args:
            hidden: Normed features.
            mask: bool B 1 S S, what sees what; None is plain causal.
            places: int64 B S, where each token stands in its document; None: in order.
        """
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # B H S D
            for layer in (self.query, self.key, self.value)
        )
        if self.rotary_base is not None:
            cos, sin = self._rotation(self.rotary_base, query, places)
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if self.prefix_key is not None and self.prefix_value is not None:
            key, value = _after(self.prefix_key, key), _after(self.prefix_value, value)
            mask = _seeing(len(self.prefix_key), query.shape[2], mask)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _rotation(self, base: float, query: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        length = query.shape[2]
        if self.prefix_key is None:  # rotation hangs on distances alone
            return rotation(length, self.head_width, base, query)
        first = len(self.prefix_key)
        cos, sin = rotation(first + length, self.head_width, base, query)
        if places is None:
            return cos[first:], sin[first:]
        rows = places[:, None] + first  # B 1 S
        return cos[rows], sin[rows]


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

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """B S W -> B S W."""
        hidden = hidden + self.attention(self.attention_norm(hidden), mask=mask, places=places)
        return hidden + self.mlp(self.mlp_norm(hidden))


class Head(nn.Module):
    """From features to logits, by weights of its own or by those of the token embedding."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = None
        if not settings.tied:
            assert settings.vocab is not None
            self.weight = nn.Parameter(torch.empty(settings.vocab, settings.width))

    def forward(self, hidden: Tensor, token: Tensor | None) -> Tensor:
        """B S W -> B S V; `token` is the embedding's table."""
        weight = token if self.weight is None else self.weight
        assert weight is not None
        return F.linear(hidden, weight)


class Decoder(nn.Module):
    """Token ids in, logits of the next token out; or a part of it, features in or out.

    Blocks go by their number in the whole model, so that a part has the names of the whole.

    Attributes:
        embeds: It takes token ids. A part that does not may still hold the embedding's table, for
            its head.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embeds = True
        self.embedding: Embedding | None = Embedding(settings)
        self.blocks = nn.ModuleDict({str(n): Block(settings) for n in range(settings.depth)})
        self.norm: nn.Module | None = norm(settings)
        self.head: Head | None = Head(settings)

    def forward(self, hidden: Tensor, segments: Tensor | None = None) -> Tensor:
        """int64 B S, or features B S W -> B S V, or features.

        Args:
            hidden: Token ids; in a part without the embedding, what the part before gave.
            segments: int64 B S, the number of the document that each token is of; tokens of one
                see nothing of another. None: the whole sequence is one.
        """
        mask = None if segments is None else within_documents(segments)
        where = None if segments is None else places(segments)
        if self.embeds:
            assert self.embedding is not None
            hidden = self.embedding(hidden, where)
        for block in self.blocks.values():
            hidden = block(hidden, mask=mask, places=where)
        if self.norm is None or self.head is None:
            return hidden
        return self.head(
            self.norm(hidden), None if self.embedding is None else self.embedding.token
        )


def split(model: Decoder, part: int, parts: int) -> None:
    """Keep one of `parts` runs of blocks, in place; the first also embeds, the last also predicts.

    The first runs are one block longer where the depth does not divide. A tied table is in both
    the first and the last part.
    """
    names = list(model.blocks)
    size, longer = divmod(len(names), parts)
    start = part * size + min(part, longer)
    kept = set(names[start : start + size + (part < longer)])
    for name in names:
        if name not in kept:
            del model.blocks[name]
    if part < parts - 1:
        model.norm = model.head = None
    if part > 0:
        model.embeds = False
        assert model.embedding is not None
        if model.head is not None and model.head.weight is None:
            model.embedding.position = None
        else:
            model.embedding = None


def add_prefix(model: Decoder, tokens: int) -> None:
    """Give every attention a prefix of learned keys and values, in place."""
    for block in model.blocks.values():
        assert isinstance(block, Block)
        block.attention.add_prefix(tokens)
    if model.embedding is not None:
        model.embedding.first = tokens


def _after(prefix: Tensor, heads: Tensor) -> Tensor:
    """B H S D with the rows of a prefix (P, H x D) before it: B H P+S D."""
    own = prefix.to_local() if isinstance(prefix, DTensor) else prefix
    rows = own.unflatten(1, (heads.shape[1], -1)).transpose(0, 1)
    return torch.cat((rows.expand(heads.shape[0], -1, -1, -1), heads), dim=2)


def _seeing(prefix: int, length: int, mask: Tensor | None) -> Tensor:
    """A mask of what sees what, for keys with a prefix that all see."""
    if mask is None:
        return causal_lower_right(length, prefix + length)
    return F.pad(mask, (prefix, 0), value=True)


def places(segments: Tensor) -> Tensor:
    """Where each token stands in its document, from 0: int64 B S -> int64 B S."""
    order = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = F.pad(segments.diff(dim=1) != 0, (1, 0))
    return order - torch.where(starts, order, 0).cummax(dim=1).values


def within_documents(segments: Tensor) -> Tensor:
    """What each token sees: itself and what is before it in its document. B S -> bool B 1 S S."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]


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
