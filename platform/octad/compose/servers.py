"""A control plane: composed, validated, frozen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octad.compose.hydra_session import composed
from octad.compose.overrides import bounded, parse_single
from octad.compose.values import plain
from octad.errors import ConfigError
from octad.ports.registry import load
from octad.spec.clusters import CardSpec, ClusterSpec
from octad.spec.frozen import nearest
from octad.spec.home import Home
from octad.spec.names import checked_name
from octad.spec.server import ServerSpec

_COMMON = ("kind", "card", "isolation", "price_per_card_hour")


@bounded()
def compose_server(overrides: Sequence[str], home: Home, conf: Path | None = None) -> ServerSpec:
    """The control plane that these overrides describe.

    Args:
        overrides: `key=value`, `group=option`.
        home: Its private folder; where no storage is configured, the store lies there.
        conf: A folder of the user's own configs, looked into before octad's.

    Raises:
        ConfigError: Something is unknown, of the wrong type or impossible.
    """
    config = plain(composed("server", parse_single(overrides), conf))
    fleet = config.get("fleet")
    clusters = fleet.get("clusters") if isinstance(fleet, dict) else None
    if not isinstance(clusters, dict):
        raise ConfigError("a block of clusters is needed", where="fleet.clusters")
    unknown = set(fleet or {}) - {"clusters"}
    for key in sorted(unknown):
        raise ConfigError(
            f"unknown key {key!r}", where=f"fleet.{key}", hint=nearest(key, ["clusters"])
        )
    specs = [_cluster(str(name), raw).plain() for name, raw in clusters.items()]
    storage = config.get("storage")
    if isinstance(storage, dict) and not storage.get("url"):
        storage = {**storage, "url": home.store.absolute().as_uri()}
    spec = ServerSpec.parse(
        {
            **config,
            "storage": storage,
            "python": config.get("python") or sys.executable,
            "fleet": {"clusters": specs},
        }
    )
    load("octad.trackers", spec.tracker.kind, where="tracker.kind")
    return spec


def _cluster(name: str, raw: Any) -> ClusterSpec:
    where = f"fleet.clusters.{name}"
    try:
        checked_name(name)
    except ValueError as error:
        raise ConfigError(str(error), where=where) from None
    if not isinstance(raw, dict) or "kind" not in raw:
        raise ConfigError("a cluster needs a kind", where=f"{where}.kind")
    module = load("octad.clusters", str(raw["kind"]), where=f"{where}.kind")
    known = {*_COMMON, *module.Settings.model_fields}
    for key in raw:
        if key not in known:
            raise ConfigError(
                f"unknown key {key!r}", where=f"{where}.{key}", hint=nearest(key, known)
            )
    card = raw.get("card")
    if not isinstance(card, dict):
        raise ConfigError(f"must be a card, not {card!r}", where=f"{where}.card")
    own = {key: value for key, value in raw.items() if key not in _COMMON}
    plain = {key: raw[key] for key in ("isolation", "price_per_card_hour") if key in raw}
    return ClusterSpec.parse(
        plain
        | {
            "name": name,
            "kind": raw["kind"],
            "card": CardSpec.parse(card, where=f"{where}.card").plain(),
            "settings": module.Settings.parse(own, where=where).plain(),
        },
        where=where,
    )
