from __future__ import annotations

from typing import Any

import pytest

from octad.clusters._view import parse


def raylet(name: str, state: str = "ALIVE", **more: Any) -> dict[str, Any]:
    resources = {"card": 8.0, "CPU": 32.0, "node:10.0.0.1": 1.0} if state == "ALIVE" else {}
    return {
        "raylet": {
            "nodeName": name,
            "nodeId": f"id-of-{name}",
            "nodeManagerAddress": "10.0.0.1",
            "state": state,
            "resourcesTotal": resources,
            **more,
        }
    }


def nodes(*found: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"summary": list(found)}}


def used(**amounts: list[float]) -> dict[str, Any]:
    return {"data": {"clusterStatus": {"loadMetricsReport": {"usage": amounts}}}}


def test_cards_of_live_nodes_less_those_in_use() -> None:
    seen = parse(
        nodes(raylet("a-0", isHeadNode=True), raylet("a-1")), used(card=[3.0, 16.0]), "card"
    )
    assert (seen.cards, seen.cards_free) == (16, 13)
    assert seen.head_address == "10.0.0.1"
    assert seen.resources == ("CPU", "card")
    assert [node.id for node in seen.nodes] == ["a-0", "a-1"]


def test_dead_nodes_are_left_out() -> None:
    # Ray keeps of them neither name nor address.
    seen = parse(nodes(raylet("a-0"), raylet("", "DEAD"), raylet("", "DEAD")), used(), "card")
    assert [(n.id, n.is_alive, n.cards) for n in seen.nodes] == [("a-0", True, 8)]


def test_a_resource_is_found_as_the_dashboard_spells_it() -> None:
    found = raylet("a-0")
    found["raylet"]["resourcesTotal"] = {"myCard": 4.0}
    assert parse(nodes(found), used(myCard=[1.0, 4.0]), "my_card").cards_free == 3


def test_use_that_is_older_than_the_loss_of_a_node_is_not_negative() -> None:
    assert parse(nodes(raylet("a-0")), used(card=[12.0, 16.0]), "card").cards_free == 0


@pytest.mark.parametrize(
    "odd", [{}, {"data": None}, {"data": {"summary": [None, {}]}}, {"data": []}]
)
def test_answers_that_say_nothing_show_nothing(odd: dict[str, Any]) -> None:
    seen = parse(odd, odd, "card")
    assert (seen.nodes, seen.cards, seen.cards_free) == ((), 0, 0)


def test_before_the_first_report_all_cards_are_free() -> None:
    assert parse(nodes(raylet("a-0")), {"data": {"clusterStatus": None}}, "card").cards_free == 8
