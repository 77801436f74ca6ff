"""The fleet as the scheduler is shown it, and what is refused because no cluster could hold it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.control.placement import Held, capacity, check_capacity, cluster_of
from octad.errors import CapacityError
from octad.scheduler.snapshot import Cluster
from octad.spec.clusters import CardSpec, ClusterSpec, ClusterView, NodeView
from octad.spec.layouts import Layout
from octad.spec.sizes import CardRange
from octad.spec.stages import StageSpec

SIM = CardSpec(kind="sim", name="sim")


def a_room(name: str, total: int, card: CardSpec = SIM) -> Cluster:
    return Cluster(name, "up", card, capacity=total)


def free(cluster: Cluster) -> list[int]:
    return [node.free for node in cluster.nodes]


def test_free_is_the_lower_of_our_books_and_rays_report() -> None:
    spec = ClusterSpec(name="alpha", kind="local", card=SIM, settings={"nodes": 2})
    view = ClusterView(name="alpha", kind="local", card=SIM, state="up", cards=16, cards_free=10)
    # Six are in use, whoever has them.
    assert free(cluster_of(spec, view, {"a": Held(4)})) == [2, 8]
    assert free(cluster_of(spec, view, {"a": Held(8)})) == [0, 8]
    ending = cluster_of(spec, view, {"a": Held(4), "b": Held(8, is_ending=True)})
    assert free(ending) == [0, 4]
    assert [(job.name, job.nodes, job.is_ending) for job in ending.jobs] == [
        ("b", ((0, 8),), True),
        ("a", ((1, 4),), False),
    ]
    assert cluster_of(spec, None, {}).nodes == ()
    assert capacity(spec, None) == 16
    assert capacity(spec, view.model_copy(update={"cards": 8})) == 16
    assert capacity(spec.model_copy(update={"settings": {}}), None) is None


@given(
    sizes=st.lists(st.integers(0, 8), max_size=4),
    held=st.lists(st.integers(1, 24), max_size=6),
    reported=st.integers(0, 32),
    is_named=st.booleans(),
)
def test_no_more_is_said_to_be_free_than_either_says(
    sizes: list[int], held: list[int], reported: int, is_named: bool
) -> None:
    nodes = tuple(NodeView(id=f"n{i}", address="", cards=n) for i, n in enumerate(sizes))
    cards = sum(sizes)
    view = ClusterView(
        name="alpha", kind="local", card=SIM, state="up", nodes=nodes if is_named else (),
        cards=cards, cards_free=min(cards, reported),
    )  # fmt: skip
    spec = ClusterSpec(name="alpha", kind="local", card=SIM)
    cluster = cluster_of(spec, view, {f"j{i}": Held(n) for i, n in enumerate(held)})
    assert sum(node.cards for node in cluster.nodes) == cards
    assert sum(free(cluster)) == max(0, min(cards - sum(held), view.cards_free))
    assert all(0 <= node.free <= node.cards for node in cluster.nodes)


A100 = CardSpec(kind="gpu", name="A100", abilities=("bf16",))
H100 = CardSpec(kind="gpu", name="H100", abilities=("bf16", "fp8"))


def a_stage(**changed: Any) -> StageSpec:
    layout = Layout(dp_shard=changed.get("cards", 1))
    return StageSpec(**{"name": "one", "kind": "pretrain", "cards": 1, "layout": layout, **changed})


@pytest.mark.parametrize(
    ("stage", "where", "says"),
    [
        (
            a_stage(cards=8, cards_asked=CardRange(min=6, max=8), sizes=(6, 8)),
            "one.cards.min",
            "at least 6 cards are asked for; the largest cluster that could be used, alpha, has 4",
        ),
        (
            a_stage(asks={"fp8": "precision.kind"}),
            "one.precision.kind",
            "alpha's A100 cards cannot compute in fp8 (precision.kind)",
        ),
        (
            a_stage(asks={"cp": "layout.cp"}, cluster="alpha"),
            "one.layout.cp",
            "cannot split a sequence over cards (cp) (layout.cp)",
        ),
        (
            a_stage(asks={"npu": "entrypoint_resources.NPU"}),
            "one.entrypoint_resources.NPU",
            "alpha's A100 cards cannot be used as NPUs (entrypoint_resources.NPU)",
        ),
    ],
)
def test_what_no_cluster_could_ever_do_is_refused(stage: StageSpec, where: str, says: str) -> None:
    with pytest.raises(CapacityError) as caught:
        check_capacity([stage], [a_room("alpha", 4, A100)])
    assert caught.value.where == where
    assert says in caught.value.what
    assert caught.value.hint


def test_what_some_cluster_could_do_is_let_through() -> None:
    rooms = [a_room("alpha", 16, A100), a_room("beta", 8, H100)]
    stage = a_stage(cards=8, asks={"fp8": "precision.kind"})
    check_capacity([stage, a_stage(cards=16), a_stage(cluster="alpha")], rooms)
    with pytest.raises(CapacityError, match="largest cluster that could be used, beta, has 8"):
        check_capacity([a_stage(cards=16, asks={"fp8": "precision.kind"})], rooms)
