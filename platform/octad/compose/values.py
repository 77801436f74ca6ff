"""Setting values in a composed config, and making it plain."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from octad.compose.overrides import Override
from octad.errors import ConfigError
from octad.spec.frozen import nearest


def assign(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Set values in place.

    A value inside a block that is an interpolation (`pretrain.model.layers` where `pretrain.model` is
    `${model}`) gives that place a copy of the block, made after everything else is set.

    Raises:
        ConfigError: A path leads through something that holds no keys.
    """
    with open_dict(config):
        later = [override for override in overrides if not _set(config, override, may_copy=False)]
        for override in later:
            _set(config, override, may_copy=True)


def _set(config: DictConfig, override: Override, *, may_copy: bool) -> bool:
    """Set one value; False if an interpolation is in the way and may not be copied."""
    node: Any = config
    *path, last = override.key.split(".")
    for depth, part in enumerate(path):
        where = ".".join(path[: depth + 1])
        if isinstance(node, DictConfig) and part not in node:
            if depth == 0:
                raise ConfigError(
                    f"unknown key {part!r}", where=where, hint=nearest(part, map(str, node))
                )
            node[part] = {}
        if OmegaConf.is_interpolation(node, part):
            if not may_copy:
                return False
            node[part] = copy.deepcopy(_target(node, part, where))
        node = node[_index(node, part, where)]
        if not isinstance(node, DictConfig | ListConfig):
            raise ConfigError(f"is {node!r} and holds no keys", where=where)
    if not path and last not in config:
        raise ConfigError(f"unknown key {last!r}", where=last, hint=nearest(last, map(str, config)))
    node[_index(node, last, override.key)] = override.value
    return True


def _target(node: Any, part: str, where: str) -> Any:
    try:
        return node[part]
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0], where=where) from None


def _index(node: Any, part: str, where: str) -> str | int:
    if not isinstance(node, ListConfig):
        return part
    if not part.isdecimal() or int(part) >= len(node):
        raise ConfigError(f"is a list of {len(node)}, and {part!r} is no place in it", where=where)
    return int(part)


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain data with every interpolation evaluated, once.

    Raises:
        ConfigError: A value is missing, or an interpolation leads nowhere.
    """
    if not OmegaConf.has_resolver("random"):
        OmegaConf.register_new_resolver("random", _random, use_cache=True, replace=True)
    try:
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config))
        held = OmegaConf.to_container(config, resolve=False, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise ConfigError(
            str(error).splitlines()[0],
            where=_failing(config),
            hint="text that is not an interpolation is written with \\${",
        ) from None
    if missing:
        raise ConfigError("a value is needed", where=missing[0], hint=f"set {missing[0]}=…")
    assert isinstance(held, dict)
    return {str(key): value for key, value in held.items()}


def _failing(node: Any, path: str = "") -> str:
    """The path of the first value that cannot be evaluated."""
    keys = range(len(node)) if isinstance(node, ListConfig) else list(node)
    for key in keys:
        here = f"{path}.{key}".strip(".")
        try:
            held = None if OmegaConf.is_missing(node, key) else node[key]
        except OmegaConfBaseException:
            return here
        if isinstance(held, DictConfig | ListConfig) and (found := _failing(held, here)):
            return found
    return ""


def _random() -> int:
    """`${random:}`: a number below 2^31, the same wherever one config names it."""
    return secrets.randbelow(2**31)
