"""Weights and config in the naming of Hugging Face's GPT-2 and LLaMA: to it, so that other tools
open them, and from it. A shape that is neither gets LLaMA's names and no `architectures`.

Weights go tensor by tensor: one of theirs is made of one of ours, or of query, key and value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octad.errors import ConfigError
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
# GPT-2 keeps query, key and value in one layer.
_GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
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
MODEL_TYPES = ("gpt2", "llama", "octad-decoder")  # of a `config.json`
# The only values that this decoder computes, of keys that need not be there.
_BOTH_ONLY: dict[str, tuple[Any, ...]] = {"quantization_config": (None,)}
_GPT2_ONLY: dict[str, tuple[Any, ...]] = {
    **_BOTH_ONLY,
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
_LLAMA_ONLY: dict[str, tuple[Any, ...]] = {
    **_BOTH_ONLY,
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling": (None,),
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


def layer(settings: Settings, name: str) -> str:
    """Their name of a layer of ours: `blocks.3.mlp.up` is `transformer.h.3.mlp.c_fc`."""
    _, number, inner = name.split(".", 2)
    if is_gpt2(settings):
        return f"transformer.h.{number}.{_GPT2_BLOCK[inner]}"
    return f"model.layers.{number}.{_LLAMA_BLOCK[inner]}"


def tensor(settings: Settings, name: str) -> str:
    """Their name of the tensor that one of ours goes to."""
    if not name.startswith("blocks."):
        return (_GPT2 if is_gpt2(settings) else _LLAMA)[name]
    inner, _, leaf = name.rpartition(".")
    return f"{layer(settings, inner)}.{leaf}"


def is_transposed(settings: Settings, theirs: str) -> bool:
    """GPT-2 keeps linear weights as input x output."""
    inner = theirs.removesuffix(".weight")
    linear = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    return is_gpt2(settings) and theirs != inner and inner.endswith(linear)


def joined(settings: Settings, theirs: str, parts: Sequence[Tensor]) -> Tensor:
    """One of their tensors, of those of ours that go to it, in our order."""
    import torch  # noqa: PLC0415  laptops load this module

    whole = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return whole.t().contiguous() if is_transposed(settings, theirs) else whole.contiguous()


def parted(settings: Settings, theirs: str, whole: Tensor, parts: int) -> list[Tensor]:
    """What `joined` was made of."""
    ours = whole.t() if is_transposed(settings, theirs) else whole
    return [part.contiguous() for part in ours.chunk(parts)]


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


def settings_of(raw: Mapping[str, Any], where: str) -> Settings:
    """The decoder that a `config.json` describes.

    Args:
        raw: The file's content.
        where: The file, for messages.

    Raises:
        ConfigError: It is another model, or has something that this decoder does not compute;
            names the key.
    """
    kind = raw.get("model_type")
    if kind == "octad-decoder" and isinstance(raw.get("octad"), dict):
        return Settings.parse(raw["octad"], where=where)
    if kind not in {"gpt2", "llama"}:
        raise ConfigError(
            f"model_type is {kind!r}, of which this decoder is none",
            where=where,
            hint="gpt2 and llama can be imported",
        )
    try:
        found = _gpt2_settings(raw, where) if kind == "gpt2" else _llama_settings(raw, where)
        found |= {"kind": "decoder", "vocab": int(raw["vocab_size"])}
    except KeyError as error:
        raise ConfigError(f"the key {error} is missing", where=where) from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(f"a key has a value that cannot be: {error}", where=where) from None
    return Settings.parse(found, where=where)


def _gpt2_settings(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    _refuse(raw, _GPT2_ONLY, where)
    return {
        "context": raw["n_positions"],
        "width": raw["n_embd"],
        "depth": raw["n_layer"],
        "heads": raw["n_head"],
        "mlp_width": raw.get("n_inner"),
        "tied": raw.get("tie_word_embeddings", True),
        "norm_eps": raw.get("layer_norm_epsilon", 1e-5),
    }


def _llama_settings(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    _refuse(raw, _LLAMA_ONLY, where)
    rope = raw.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise _unknown("rope_parameters.rope_type", rope["rope_type"], where)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        key = "rope_parameters.partial_rotary_factor"
        raise _unknown(key, rope["partial_rotary_factor"], where)
    width, heads = raw["hidden_size"], raw["num_attention_heads"]
    if raw.get("head_dim") not in {None, width // heads}:
        raise _unknown("head_dim", raw["head_dim"], where)
    return {
        "context": raw["max_position_embeddings"],
        "width": width,
        "depth": raw["num_hidden_layers"],
        "heads": heads,
        "kv_heads": raw.get("num_key_value_heads"),
        "mlp_width": raw["intermediate_size"],
        "positions": "rotary",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "bias": False,
        "tied": raw.get("tie_word_embeddings", False),
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "rotary_base": float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
    }


def _refuse(raw: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str) -> None:
    for key, values in only.items():
        if key in raw and raw[key] not in values:
            raise _unknown(key, raw[key], where)


def _unknown(key: str, value: Any, where: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}, which this decoder does not compute", where=where)


def is_left_out(settings: Settings, theirs: str) -> bool:
    """Older files hold masks and rotation tables, which are computed here."""
    if is_gpt2(settings):
        return theirs.endswith((".attn.bias", ".attn.masked_bias"))
    return theirs.endswith(".rotary_emb.inv_freq")


def full_name(settings: Settings, theirs: str) -> str:
    """A tensor's name with the prefix that files of a bare GPT-2 or LLaMA leave out."""
    prefix = "transformer." if is_gpt2(settings) else "model."
    return theirs if theirs.startswith((prefix, "lm_head.")) else prefix + theirs


def twin(settings: Settings, theirs: str) -> str | None:
    """The tensor that this one is the same as, where a file may hold both."""
    head = _GPT2["head.weight"] if is_gpt2(settings) else _LLAMA["head.weight"]
    if settings.tied and theirs == head:
        return tensor(settings, "embedding.token")
    return None
