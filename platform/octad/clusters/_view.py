"""What a Ray dashboard says about nodes and cards, as our own types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octad.clusters._api import RayApi
from octad.spec.clusters import CARD_RESOURCE, NodeView


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a cluster.

    Attributes:
        nodes: Those that live; of dead ones a dashboard keeps no more than a number.
        cards, cards_free: In all live nodes.
        resources: Names of everything the live nodes have.
        head_address: Address of the head node; empty if the cluster shows none.
    """

    nodes: tuple[NodeView, ...]
    cards: int
    cards_free: int
    resources: tuple[str, ...] = ()
    head_address: str = ""


def look(api: RayApi, card_resource: str = CARD_RESOURCE) -> Seen:
    """Ask a cluster about its nodes and cards.

    Raises:
        UnreachableError, AccessError: It does not answer, or not to us.
    """
    nodes = api.json("/nodes", view="summary")
    status = api.json("/api/cluster_status")
    return parse(nodes, status, card_resource)


def parse(nodes: Mapping[str, Any], status: Mapping[str, Any], card_resource: str) -> Seen:
    """Read the answers of `/nodes?view=summary` and `/api/cluster_status`.

    Args:
        nodes: Lists every node that ever was, with its resources.
        status: Says what is in use, some seconds late; says nothing at first.
        card_resource: The Ray resource that counts cards.
    """
    key = _camel(card_resource)
    raylets = [
        _dict(_dict(n).get("raylet")) for n in _list(_dict(nodes.get("data")).get("summary"))
    ]
    alive = [r for r in raylets if r.get("state") == "ALIVE"]
    cards = sum(_cards(r, key) for r in alive)
    report = _dict(_dict(_dict(status.get("data")).get("clusterStatus")).get("loadMetricsReport"))
    used = _list(_dict(report.get("usage")).get(key))
    in_use = min(cards, round(used[0])) if used and isinstance(used[0], int | float) else 0
    return Seen(
        nodes=tuple(sorted((_node(r, key) for r in alive), key=lambda n: n.id)),
        cards=cards,
        cards_free=cards - in_use,
        resources=tuple(
            sorted({n for r in alive for n in _dict(r.get("resourcesTotal")) if ":" not in n})
        ),
        head_address=next(
            (str(r.get("nodeManagerAddress")) for r in alive if r.get("isHeadNode")), ""
        ),
    )


def _node(raylet: Mapping[str, Any], key: str) -> NodeView:
    return NodeView(
        id=str(raylet.get("nodeName") or raylet.get("nodeId") or "?"),
        address=str(raylet.get("nodeManagerAddress") or ""),
        cards=_cards(raylet, key),
    )


def _cards(raylet: Mapping[str, Any], key: str) -> int:
    amount = _dict(raylet.get("resourcesTotal")).get(key, 0)
    return int(amount) if isinstance(amount, int | float) else 0


def _camel(name: str) -> str:
    """The name of a resource as the dashboard spells it: `my_card` becomes `myCard`."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
