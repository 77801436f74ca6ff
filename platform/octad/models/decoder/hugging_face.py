"""Weights and config in the naming of Hugging Face's GPT-2 and LLaMA, so that other tools open
them. A shape that is neither gets LLaMA's names and no `architectures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octad.models.decoder.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

_LLAMA_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_LLAMA = {
    "embedding.token": "model.embed_tokens.weight",
    "embedding.position": "model.embed_positions.weight",
    "norm.weight": "model.norm.weight",
    "norm.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
}
_GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_GPT2 = {
    "embedding.token": "transformer.wte.weight",
    "embedding.position": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}


def is_gpt2(settings: Settings) -> bool:
    """Exactly what Hugging Face's GPT-2 can hold."""
    return (
        (settings.positions, settings.norm, settings.mlp) == ("learned", "layernorm", "gelu")
        and settings.bias
        and settings.num_kv_heads == settings.heads
    )


def is_llama(settings: Settings) -> bool:
    """Exactly what Hugging Face's LLaMA can hold."""
    shape = (settings.positions, settings.norm, settings.mlp)
    return shape == ("rotary", "rmsnorm", "swiglu") and not settings.bias


def config(settings: Settings) -> dict[str, Any]:
    """`config.json`."""
    both = {
        "vocab_size": settings.vocab,
        "tie_word_embeddings": settings.tied,
        "torch_dtype": "float32",
    }
    if is_gpt2(settings):
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": settings.context,
            "n_embd": settings.width,
            "n_layer": settings.depth,
            "n_head": settings.heads,
            "n_inner": settings.num_mlp,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": settings.norm_eps,
            **both,
        }
    llama = {
        "hidden_size": settings.width,
        "intermediate_size": settings.num_mlp,
        "num_hidden_layers": settings.depth,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.num_kv_heads,
        "max_position_embeddings": settings.context,
        "rms_norm_eps": settings.norm_eps,
        "rope_theta": settings.rotary_base,
        "hidden_act": "silu",
        **both,
    }
    if is_llama(settings):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **llama}
    return {"model_type": "octad-decoder", "octad": settings.plain(), **llama}


def weights(settings: Settings, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights by Hugging Face's names."""
    if is_gpt2(settings):
        return _gpt2(settings, state)
    named = {}
    for name, weight in state.items():
        if name.startswith("blocks."):
            _, number, inner = name.split(".", 2)
            layer, _, leaf = inner.rpartition(".")
            named[f"model.layers.{number}.{_LLAMA_BLOCK[layer]}.{leaf}"] = weight
        else:
            named[_LLAMA[name]] = weight
    return named


def _gpt2(settings: Settings, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """GPT-2 keeps query, key and value in one layer, and linear weights as input x output."""
    import torch  # noqa: PLC0415

    named = {_GPT2[name]: weight for name, weight in state.items() if name in _GPT2}
    for number in range(settings.depth):
        own, theirs = f"blocks.{number}", f"transformer.h.{number}"
        for leaf in ("weight", "bias"):
            parts = [state[f"{own}.attention.{part}.{leaf}"] for part in ("query", "key", "value")]
            named[f"{theirs}.attn.c_attn.{leaf}"] = torch.cat(parts)
            for layer, other in _GPT2_BLOCK.items():
                named[f"{theirs}.{other}.{leaf}"] = state[f"{own}.{layer}.{leaf}"]
        for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            named[f"{theirs}.{layer}.weight"] = named[f"{theirs}.{layer}.weight"].t().contiguous()
    return named
