"""A nested config as flat names and texts."""

from __future__ import annotations

import json
from collections.abc import Mapping


def flattened(config: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """A config as flat params: `pretrain.optimizer.lr`; lists and empty blocks as JSON."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{path}."))
        else:
            flat[path] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat
