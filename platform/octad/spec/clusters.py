"""Cards, nodes, clusters and the fleet, as asked for and as seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from pydantic import Field

from octad.spec.frozen import Spec
from octad.spec.layouts import CARDS_PER_NODE
from octad.spec.names import Name

CardKind = Literal["gpu", "npu", "sim"]
ClusterState = Literal["down", "starting", "up", "unreachable"]
# The Ray resource that counts a cluster's cards, whatever their kind.
CARD_RESOURCE = "card"
# What not every card can do, and how a person is told of one that cannot.
Ability = Literal["bf16", "fp16", "fp8", "cp"]
# What may be asked of a card: an ability, or to be of a kind.
Quality = Ability | CardKind
ABILITIES: tuple[Ability, ...] = get_args(Ability)
QUALITIES: dict[Quality, str] = {
    "bf16": "compute in bf16",
    "fp16": "compute in fp16",
    "fp8": "compute in fp8",
    "cp": "split a sequence over cards (cp)",
    "gpu": "be used as GPUs",
    "npu": "be used as NPUs",
    "sim": "be used as simulated cards",
}


class CardSpec(Spec):
    """A card model: `sim` is a CPU process standing in for one.

    Attributes:
        abilities: What it can do besides computing in fp32. What is not named here it is not given.
    """

    kind: CardKind
    name: str
    abilities: tuple[Ability, ...] = ()

    def lacks(self, asked: Iterable[Quality]) -> list[Quality]:
        """What of `asked` it cannot do, or is not."""
        return [quality for quality in asked if quality not in {*self.abilities, self.kind}]


class ClusterSpec(Spec):
    """A cluster as asked for.

    Attributes:
        name: Unique in the fleet.
        kind: A file of `octad.clusters`: who provides it.
        card: What its nodes hold.
        isolation: `shared` gives each node to one team at a time, `dedicated` the whole cluster.
        price_per_card_hour: What a card costs, in whatever the others are given in; of two clusters
            that would do, work goes to the cheaper one.
        settings: The provider's own settings, already validated by it.
    """

    name: Name
    kind: Name
    card: CardSpec
    isolation: Literal["shared", "dedicated"] = "shared"
    price_per_card_hour: float = Field(default=0.0, ge=0)
    settings: dict[str, Any] = Field(default_factory=dict)


class FleetSpec(Spec):
    """All clusters that the control plane is to know."""

    clusters: tuple[ClusterSpec, ...]


class NodeView(Spec):
    """A node as last seen."""

    id: str
    address: str
    cards: int = CARDS_PER_NODE
    is_alive: bool = True


class ClusterView(Spec):
    """A cluster as last seen.

    Attributes:
        reason: Why it is not up, in plain words; empty when it is.
        cards, cards_free: Total, and what Ray itself reports as free.
        address: Of its Jobs API.
    """

    name: str
    kind: str
    card: CardSpec
    state: ClusterState
    reason: str = ""
    nodes: tuple[NodeView, ...] = ()
    cards: int = 0
    cards_free: int = 0
    address: str = ""


class FleetView(Spec):
    """The fleet as last seen. `tracker_url` is where people look at runs, empty if none."""

    clusters: tuple[ClusterView, ...]
    tracker_url: str = ""
