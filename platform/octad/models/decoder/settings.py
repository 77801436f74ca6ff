"""Sizes and shape of a decoder, and what a mesh must divide. No torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from octad.errors import ConfigError
from octad.spec.frozen import Spec
from octad.spec.layouts import Layout

DEFAULT_ROTARY_BASE = 10_000.0
# GPT-2's start, at the width it was chosen for; narrower models start wider.
_INIT_STD, _INIT_WIDTH = 0.02, 768


class Settings(Spec):
    """A decoder. GPT-2: learned, layernorm, gelu, tied, bias. LLaMA: rotary, rmsnorm, swiglu.

    Attributes:
        vocab: Number of tokens; None means as many as the tokenizer has.
        context: The longest sequence, in tokens.
        width: Features of one token between blocks.
        depth: Number of blocks.
        heads: Query heads; the width of one head is `width / heads`.
        kv_heads: Key and value heads; None means as many as `heads`.
        mlp_width: Features inside the MLP; None means four times the width.
        positions: A learned table of `context` rows, or rotation of queries and keys.
        tied: The output layer shares the token embedding's weights.
        bias: Linear layers and layernorm have a bias.
    """

    kind: Literal["decoder"] = "decoder"
    vocab: int | None = Field(default=None, ge=2)
    context: int = Field(default=128, ge=2)
    width: int = Field(ge=1)
    depth: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    mlp_width: int | None = Field(default=None, ge=1)
    positions: Literal["learned", "rotary"] = "learned"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    mlp: Literal["gelu", "swiglu"] = "gelu"
    tied: bool = True
    bias: bool = True
    norm_eps: float = Field(default=1e-5, gt=0)
    rotary_base: float = Field(default=DEFAULT_ROTARY_BASE, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"rotary positions need an even head width, but width {self.width} / heads "
                f"{self.heads} is {self.head_width}"
            )
        return self

    @property
    def head_width(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def num_mlp(self) -> int:
        """Features inside the MLP."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width

    def resolved(self) -> Self:
        """The same, with what follows from other sizes filled in: equal where the network is."""
        sizes = {"kv_heads": self.num_kv_heads, "mlp_width": self.num_mlp}
        return self.model_copy(update=sizes)


def check(settings: Settings, layout: Layout, where: str = "model") -> None:
    """Refuse a mesh that does not divide the model. A vocabulary needs no check: one that `tp`
    does not divide is kept whole on every card.

    Raises:
        ConfigError: Names both numbers.
    """
    if settings.depth < layout.num_pp_parts:
        raise ConfigError(
            f"depth {settings.depth} cannot be split into {layout.num_pp_parts} parts, as pp "
            f"{layout.pp} with pp_schedule {layout.pp_schedule} needs",
            where="layout.pp",
            hint=f"use a pp of at most {max(1, settings.depth * layout.pp // layout.num_pp_parts)}",
        )
    sizes = {
        "heads": settings.heads,
        "kv_heads": settings.num_kv_heads,
        "width": settings.width,
        "mlp_width": settings.num_mlp,
    }
    for name, size in sizes.items():
        if size % layout.tp:
            raise ConfigError(
                f"{name} {size} cannot be divided by tp {layout.tp}",
                where=f"{where}.{name}",
                hint=f"use a layout.tp that divides {size}",
            )


def width(settings: Settings) -> int:
    """Features of one token between blocks."""
    return settings.width


def shared(settings: Settings) -> tuple[str, ...]:
    """Parameters that both the first and the last part of a split model hold."""
    return ("embedding.token",) if settings.tied else ()


def layers(settings: Settings) -> dict[str, tuple[int, int]]:
    """The linear layers of a block, which an adapter can be put on: name to features in and out."""
    width, mlp = settings.width, settings.num_mlp
    kv_width = settings.num_kv_heads * settings.head_width
    gate = {"gate": (width, mlp)} if settings.mlp == "swiglu" else {}
    return {
        "query": (width, width),
        "key": (width, kv_width),
        "value": (width, kv_width),
        "out": (width, width),
        **gate,
        "up": (width, mlp),
        "down": (mlp, width),
    }


def flops_per_token(settings: Settings, sequence: int, *, adapters: bool = False) -> float:
    """Floating-point operations that training takes for one token (PaLM, arXiv 2204.02311, app. B).

    6 for each weight that multiplies: 2 forward, 2 for the gradient of what comes in, 2 for the
    weight's own, which frozen weights do not need. These are the linear layers and the output
    layer, tied or not; embeddings are looked up. Attention's scores and sums are
    12 x depth x width x sequence, not halved for the causal mask.

    Args:
        settings: Sizes; the vocabulary is filled in.
        sequence: Tokens of a sample.
        adapters: Only adapters are trained; theirs, far fewer, are left out.
    """
    assert settings.vocab is not None
    width, kv_width = settings.width, settings.num_kv_heads * settings.head_width
    attention = 2 * width * width + 2 * width * kv_width
    mlp = (2 if settings.mlp == "gelu" else 3) * width * settings.num_mlp
    weights = settings.depth * (attention + mlp) + settings.vocab * width
    scores = 12 * settings.depth * width * sequence
    return float((4 if adapters else 6) * weights + scores)


def init_std(settings: Settings, name: str) -> float | None:
    """Standard deviation of the normal draw that a parameter starts from; None means that norms
    start at 1 and biases at 0. Layers that write to the residual stream start smaller (GPT-2).
    """
    layer, _, leaf = name.rpartition(".")
    if leaf == "bias" or layer.endswith("norm"):
        return None
    std = _INIT_STD * float((_INIT_WIDTH / settings.width) ** 0.5)
    if layer.endswith(("out", "down")):
        return std / float((2 * settings.depth) ** 0.5)
    return std
