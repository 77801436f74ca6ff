"""Adapters in PEFT's file format, `adapter_config.json` and one file of tensors: out of ours, so
that `peft` puts them on the exported weights, and into ours.

GPT-2 keeps query, key and value in one layer. Adapters of theirs become one of the summed rank:
`lora_A` the three on top of each other, `lora_B` with each in its own rows and columns, and zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

from octad.errors import ConfigError
from octad.models.decoder import hugging_face
from octad.models.decoder.settings import Settings, layers

if TYPE_CHECKING:
    from torch import Tensor

_WRAPPED = "base_model.model."
_FUSED, _PARTS = "attn.c_attn", ("query", "key", "value")
_TASK = {"task_type": "CAUSAL_LM", "inference_mode": True, "base_model_name_or_path": None}
# What else their adapters can do; ours cannot.
_LORA_ONLY: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "velora_config": (None,),
}
_PREFIX_ONLY: dict[str, tuple[Any, ...]] = {
    "num_transformer_submodules": (None, 1),
    "modules_to_save": (None, []),
}
# Our kind of an adapter, and all that some keys of its config may say.
_KINDS = {"LORA": ("lora", _LORA_ONLY), "PREFIX_TUNING": ("prefix", _PREFIX_ONLY)}
# Of a pattern for names of layers: names, joined. More could take for ever to match.
_PATTERN = re.compile(r"[\w.\\|^$]+")


def out_of(
    settings: Settings, adapter: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`adapter_config.json` and the tensors by their names.

    Args:
        settings: Of the model that is adapted.
        adapter: Kind and settings of the adapter.
        state: Its whole weights, by our names.

    Raises:
        ConfigError: PEFT has no format for the kind.
    """
    if adapter["kind"] == "lora":
        return _lora_out(settings, adapter, state)
    if adapter["kind"] == "prefix":
        return _prefix_out(settings, adapter, state)
    raise ConfigError("PEFT has no format for it", where=str(adapter["kind"]))


def into(
    settings: Settings, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Kind and settings of an adapter of ours, and its weights by our names.

    Args:
        settings: Of the model that it is for.
        config: `adapter_config.json`.
        tensors: All of the file.
        where: The folder, for messages.

    Raises:
        ConfigError: It is of another kind, has something that ours do not, or is for another model.
    """
    if kind_of(config, where) == "lora":
        return _lora_in(settings, config, tensors, where)
    return _prefix_in(settings, config, tensors, where)


def kind_of(config: Mapping[str, Any], where: str) -> str:
    """Our kind of the adapter that an `adapter_config.json` describes.

    Raises:
        ConfigError: It has something that ours do not; names the key.
    """
    theirs = config.get("peft_type")
    if not isinstance(theirs, str) or theirs not in _KINDS:
        raise ConfigError(
            f"peft_type is {theirs!r}", where=where, hint="LORA and PREFIX_TUNING can be imported"
        )
    kind, only = _KINDS[theirs]
    for key, values in only.items():
        if key in config and config[key] not in values:
            raise ConfigError(f"{key} is {config[key]!r}, which ours cannot do", where=where)
    for key in ("r", "lora_alpha"):
        _check_number(key, config.get(key, 1), where)
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict):
            raise ConfigError(f"{key} is {patterns!r}, no object", where=where)
        for pattern, value in patterns.items():
            _check_pattern(key, pattern, where)
            _check_number(f"{key}.{pattern}", value, where)
    return kind


def _check_number(key: str, value: Any, where: str) -> None:
    if type(value) not in {int, float} or not 0 < value < inf:
        raise ConfigError(f"{key} is {value!r}, no number above 0", where=where)


def _check_pattern(key: str, pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{key} has {pattern!r}: {error}", where=where) from None
    if not _PATTERN.fullmatch(pattern):
        raise ConfigError(f"{key} has {pattern!r}, more than names of layers", where=where)


# --- prefixes


def _prefix_out(
    settings: Settings, adapter: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    import torch  # noqa: PLC0415  laptops load this module

    names = _prefix_names(settings)
    kv_width = settings.num_kv_heads * settings.head_width
    config = {
        "peft_type": "PREFIX_TUNING",
        "num_virtual_tokens": adapter["num_virtual_tokens"],
        "num_layers": settings.depth,
        "num_attention_heads": settings.num_kv_heads,
        "token_dim": kv_width,
        "num_transformer_submodules": 1,
        "encoder_hidden_size": kv_width,
        "prefix_projection": False,
        **_TASK,
    }
    return config, {"prompt_embeddings": torch.cat([state[name] for name in names], dim=1)}


def _prefix_in(
    settings: Settings, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    whole = tensors.get("prompt_embeddings")
    if whole is None or len(tensors) > 1:
        raise ConfigError("a prefix has one tensor, prompt_embeddings", where=where)
    names = _prefix_names(settings)
    shape = (
        config.get("num_virtual_tokens"),
        len(names) * settings.num_kv_heads * settings.head_width,
    )
    if tuple(whole.shape) != shape:
        raise ConfigError(
            f"prompt_embeddings is {tuple(whole.shape)}, but the model takes {shape}",
            where=where,
            hint="import it for the base that it was trained on",
        )
    rows = whole.chunk(len(names), dim=1)
    state = {name: part.float().contiguous() for name, part in zip(names, rows, strict=True)}
    return {"kind": "prefix", "num_virtual_tokens": whole.shape[0]}, state


def _prefix_names(settings: Settings) -> list[str]:
    return [
        f"blocks.{number}.attention.prefix_{kind}"
        for number in range(settings.depth)
        for kind in ("key", "value")
    ]


# --- low-rank adapters


def _lora_out(
    settings: Settings, adapter: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    members = 1
    targets = set()
    for theirs, held in _together(settings, state).items():
        a, b = _block(settings, held, state)
        tensors[f"{_WRAPPED}{theirs}.lora_A.weight"] = a
        tensors[f"{_WRAPPED}{theirs}.lora_B.weight"] = b
        members = max(members, len(held))
        targets.add(theirs.split(".", 3)[3])
    config = {
        "peft_type": "LORA",
        "r": adapter["rank"],
        "lora_alpha": adapter["alpha"],
        "target_modules": sorted(targets),
        "rank_pattern": {_FUSED: adapter["rank"] * members} if members > 1 else {},
        "alpha_pattern": {_FUSED: adapter["alpha"] * members} if members > 1 else {},
        "fan_in_fan_out": hugging_face.is_gpt2(settings),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        **_TASK,
    }
    return config, tensors


def _together(settings: Settings, state: Mapping[str, Tensor]) -> dict[str, dict[str, str]]:
    """Their layer to those of ours in it: the last part of the name to the whole."""
    found: dict[str, dict[str, str]] = {}
    for name in state:
        ours, _, leaf = name.rpartition(".")
        if leaf == "lora_a":
            theirs = hugging_face.layer(settings, ours)
            found.setdefault(theirs, {})[ours.rpartition(".")[2]] = ours
    return found


def _block(
    settings: Settings, held: Mapping[str, str], state: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """`lora_A` and `lora_B` of one of their layers."""
    import torch  # noqa: PLC0415  laptops load this module

    if not (hugging_face.is_gpt2(settings) and held.keys() <= set(_PARTS)):
        (ours,) = held.values()
        return state[f"{ours}.lora_a"].contiguous(), state[f"{ours}.lora_b"].contiguous()
    members = [part for part in _PARTS if part in held]
    a = torch.cat([state[f"{held[part]}.lora_a"] for part in members])
    b = a.new_zeros(len(_PARTS), settings.width, len(members), len(a) // len(members))
    for number, part in enumerate(members):
        b[_PARTS.index(part), :, number] = state[f"{held[part]}.lora_b"]
    return a, b.flatten(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class _LowRank:
    """One layer's adapter, its scale not yet in it."""

    a: Tensor
    b: Tensor
    scale: float


def _lora_in(
    settings: Settings, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    found: dict[str, _LowRank] = {}
    left = set(tensors)
    ours_of = _layers_of(settings)
    for theirs, ours in ours_of.items():
        names = [f"{_WRAPPED}{theirs}.lora_{side}.weight" for side in "AB"]
        if names[0] in tensors and names[1] in tensors:
            a, b = (tensors[name].float() for name in names)
            rank, scale = _rank_and_scale(config, theirs)
            if a.dim() != 2 or b.dim() != 2 or len(a) != rank:
                raise ConfigError(
                    f"lora_A of {theirs} is {tuple(a.shape)}, but its rank is {rank}", where=where
                )
            found |= _parted(settings, ours, a, b, scale, where)
            left -= set(names)
    if left or not found:
        name = min(left, default="")
        raise ConfigError(
            f"the model has no place for {name}" if left else "it has no low-rank adapters",
            where=where,
            hint="import it for the base that it was trained on",
        )
    return _alike(settings, found)


def _layers_of(settings: Settings) -> dict[str, list[str]]:
    """Their layers, with ours that each holds."""
    found: dict[str, list[str]] = {}
    for number in range(settings.depth):
        for name in layers(settings):
            inside = "attention" if name in {*_PARTS, "out"} else "mlp"
            ours = f"blocks.{number}.{inside}.{name}"
            found.setdefault(hugging_face.layer(settings, ours), []).append(ours)
    return found


def _rank_and_scale(config: Mapping[str, Any], theirs: str) -> tuple[Any, float]:
    """What PEFT multiplies an adapter by: a pattern is a regular expression of a name's end."""
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    rank = _by_pattern(config.get("rank_pattern"), theirs, rank)
    alpha = _by_pattern(config.get("alpha_pattern"), theirs, alpha)
    return rank, float(alpha) / (sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(patterns: Mapping[str, Any] | None, name: str, otherwise: Any) -> Any:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            return value
    return otherwise


def _parted(
    settings: Settings, ours: Sequence[str], a: Tensor, b: Tensor, scale: float, where: str
) -> dict[str, _LowRank]:
    """One of their adapters as those of ours: each without the rows that do nothing for it."""
    sizes = [layers(settings)[name.rpartition(".")[2]] for name in ours]
    rank = len(a)
    outputs = sum(out for _, out in sizes)
    if a.shape != (rank, sizes[0][0]) or b.shape != (outputs, rank):
        raise ConfigError(
            f"an adapter of {ours[0]} is {tuple(a.shape)} and {tuple(b.shape)}, but the layer takes "
            f"{sizes[0][0]} features and gives {outputs}",
            where=where,
            hint="import it for the base that it was trained on",
        )
    if len(ours) == 1:
        return {ours[0]: _LowRank(a, b, scale)}
    used = {}
    for name, rows in zip(ours, b.split([out for _, out in sizes]), strict=True):
        works = rows.any(dim=0)
        if works.any() or not b.any():
            keep = works if works.any() else ~works
            used[name] = _LowRank(a[keep], rows[:, keep], scale)
    return used


def _alike(
    settings: Settings, found: Mapping[str, _LowRank]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """All of one rank and scale, in every block: what lacks rows or adapters gets zeros."""
    import torch  # noqa: PLC0415

    rank = max(len(low.a) for low in found.values())
    scale = max(low.scale for low in found.values())
    targets = [t for t in layers(settings) if any(name.endswith(f".{t}") for name in found)]
    state: dict[str, Tensor] = {}
    for name in (ours for held in _layers_of(settings).values() for ours in held):
        target = name.rpartition(".")[2]
        if target in targets:
            features, outputs = layers(settings)[target]
            a, b = torch.zeros(rank, features), torch.zeros(outputs, rank)
            low = found.get(name)
            if low is not None:
                a[: len(low.a)] = low.a
                b[:, : len(low.a)] = low.b * (low.scale / scale)
            state[f"{name}.lora_a"], state[f"{name}.lora_b"] = a, b
    adapter = {"kind": "lora", "rank": rank, "alpha": scale * rank, "targets": targets}
    return adapter, state
