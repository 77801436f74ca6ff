"""Shapes that cannot be, and the arithmetic of the parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octad.errors import ConfigError
from octad.models import decoder
from octad.models.decoder import Settings, check, flops_per_token, hugging_face, layers
from octad.models.decoder.network import Attention, Decoder, rotate, rotation
from octad.spec.layouts import Layout
from octad.train.export import groups

SMALL: dict[str, Any] = {"vocab": 31, "context": 8, "width": 16, "depth": 2, "heads": 4}


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"heads": 3}, ("16", "3")),
        ({"kv_heads": 3}, ("4", "3")),
        ({"width": 20, "positions": "rotary"}, ("20", "5")),
    ],
)
def test_sizes_that_do_not_divide_name_both(
    changes: dict[str, Any], numbers: tuple[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.parse({**SMALL, **changes})
    assert all(number in caught.value.what for number in numbers)


@pytest.mark.parametrize(
    ("changes", "tp", "name", "size"),
    [
        ({}, 8, "heads", 4),
        ({"kv_heads": 2}, 4, "kv_heads", 2),
        ({"mlp_width": 18}, 4, "mlp_width", 18),
    ],
)
def test_tp_that_does_not_divide_names_both(
    changes: dict[str, Any], tp: int, name: str, size: int
) -> None:
    settings = Settings.parse({**SMALL, **changes})
    with pytest.raises(ConfigError, match=f"{name} {size} cannot be divided by tp {tp}"):
        check(settings, Layout(dp_shard=1, tp=tp))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False, "bias": False},
        {"mlp": "swiglu", "mlp_width": 20, "kv_heads": 2, "positions": "rotary"},
    ],
)
def test_flops_are_those_of_the_weights_that_multiply(changes: dict[str, Any]) -> None:
    settings = Settings.parse({**SMALL, **changes})
    with torch.device("meta"):
        linear = [m for m in Decoder(settings).modules() if isinstance(m, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in linear) + 31 * 16  # and the output layer
    scores = 12 * 2 * 16 * 8
    assert flops_per_token(settings, 8) == 6 * weights + scores
    assert flops_per_token(settings, 8, adapters=True) == 4 * weights + scores


def test_flops_of_gpt2_are_as_published() -> None:
    """124M: 6 x 124e6 for its weights, tied, and 12 x 12 x 768 x 1024 for attention."""
    gpt2 = Settings(vocab=50257, context=1024, width=768, depth=12, heads=12)
    assert flops_per_token(gpt2, 1024) == pytest.approx(6 * 124e6 + 12 * 12 * 768 * 1024, rel=0.01)


def test_rotation_depends_on_distance_only() -> None:
    cos, sin = rotation(9, 6, 100.0, torch.zeros(()))
    query, key = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    turned_q = rotate(query.expand(1, 1, 9, 6), cos, sin)[0, 0]
    turned_k = rotate(key.expand(1, 1, 9, 6), cos, sin)[0, 0]
    scores = turned_q @ turned_k.T
    for distance in range(9):
        diagonal = scores.diagonal(-distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5)
    assert torch.allclose(turned_q.norm(dim=-1), query.norm().expand(9), atol=1e-5)


def test_fewer_key_heads_equal_repeated_ones() -> None:
    torch.manual_seed(0)
    few = Attention(Settings.parse({**SMALL, "kv_heads": 2}))
    many = Attention(Settings.parse(SMALL))
    many.load_state_dict(
        {
            name: weight
            if weight.shape == dict(many.named_parameters())[name].shape
            else weight.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1)
            for name, weight in few.state_dict().items()
        }
    )
    hidden = torch.randn(2, 8, 16)
    assert torch.allclose(few(hidden), many(hidden), atol=1e-6)


def renamed(settings: Settings, model: Decoder) -> dict[str, torch.Tensor]:
    """The weights as an export has them."""
    state = model.state_dict()
    return {
        theirs: hugging_face.joined(settings, theirs, [state[name] for name in ours])
        for theirs, ours in groups(decoder, settings, state).items()
    }


def test_gpt2_names_hold_the_same_function() -> None:
    """Query, key and value side by side and transposed, as GPT-2's checkpoints have them."""
    settings = Settings.parse(SMALL)
    model = Decoder(settings)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    named = renamed(settings, model)
    hidden = torch.randn(1, 5, 16)
    layer = model.get_submodule("blocks.1.attention")
    joined = hidden @ named["transformer.h.1.attn.c_attn.weight"]
    joined = joined + named["transformer.h.1.attn.c_attn.bias"]
    parts = [layer.get_submodule(part)(hidden) for part in ("query", "key", "value")]
    assert torch.allclose(joined, torch.cat(parts, -1), atol=1e-5)
    assert hugging_face.config(settings)["model_type"] == "gpt2"
    assert "lm_head.weight" not in named


def test_llama_names() -> None:
    shape = {
        "positions": "rotary",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "bias": False,
        "tied": False,
    }
    settings = Settings.parse({**SMALL, **shape})
    named = renamed(settings, Decoder(settings))
    assert hugging_face.config(settings)["architectures"] == ["LlamaForCausalLM"]
    assert {
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    } <= set(named)
    assert set(layers(settings)) == {"query", "key", "value", "out", "gate", "up", "down"}
