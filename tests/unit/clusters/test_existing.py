from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octad.clusters.existing import ExistingCluster, build
from octad.errors import AccessError, ConfigError, UnreachableError
from octad.spec.clusters import CardSpec, ClusterSpec

CARD = CardSpec(kind="gpu", name="H100-SXM-80GB")


def provider(home: Path, address: str, **settings: Any) -> ExistingCluster:
    settings = {"address": address, **settings}
    return build(ClusterSpec(name="main", kind="existing", card=CARD, settings=settings), home)


def test_a_cluster_with_cards_is_used_and_not_changed(dashboard: Any, tmp_path: Path) -> None:
    dashboard.resources = {"CPU": 64.0, "GPU": 8.0}
    dashboard.used = {"GPU": [2.0, 8.0]}
    cluster = provider(tmp_path / "home", dashboard.address, card_resource="GPU")
    cluster.start()
    view = cluster.observe()
    assert (view.state, view.reason, view.cards, view.cards_free) == ("up", "", 8, 6)
    assert [node.address for node in view.nodes] == ["10.0.0.1"]
    cluster.stop()
    assert cluster.observe().state == "up"
    assert {call.split()[0] for call in dashboard.calls} == {"GET"}
    assert not (tmp_path / "home").exists()


def test_a_cluster_without_cards_names_what_it_has(dashboard: Any, tmp_path: Path) -> None:
    dashboard.resources = {"CPU": 64.0, "NPU": 8.0}
    cluster = provider(tmp_path, dashboard.address)
    with pytest.raises(ConfigError, match="has no resource 'card' on its 1 live nodes") as caught:
        cluster.start()
    assert caught.value.where == "fleet.clusters.main.card_resource"
    assert caught.value.hint == "it has: CPU, NPU"
    assert "no cards" in cluster.observe().reason


def test_one_that_does_not_answer_or_not_to_us(
    dashboard: Any, tmp_path: Path, unused_port: int
) -> None:
    cluster = provider(tmp_path, f"http://127.0.0.1:{unused_port}")
    with pytest.raises(UnreachableError):
        cluster.start()
    view = cluster.observe()
    assert (view.state, view.cards) == ("unreachable", 0)
    assert "does not answer" in view.reason
    dashboard.token = "secret"
    with pytest.raises(AccessError):
        provider(tmp_path, dashboard.address).start()
    assert "wants a token" in provider(tmp_path, dashboard.address).observe().reason


def test_a_job_finds_the_head_that_the_dashboard_names(dashboard: Any, tmp_path: Path) -> None:
    cluster = provider(tmp_path, dashboard.address)
    assert cluster.job_env["RAY_ADDRESS"] == "10.0.0.1:6379"
    calls = len(dashboard.calls)
    assert cluster.job_env["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert len(dashboard.calls) == calls
    set_by_hand = provider(tmp_path, dashboard.address, ray_address="head:7000")
    assert set_by_hand.job_env["RAY_ADDRESS"] == "head:7000"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"address": "head:8265"}, "must be a URL"),
        ({"address": "http://me:secret@head:8265"}, "put the token in token_file"),
        ({"address": "http://head", "adress": "x"}, "unknown key 'adress'"),
        ({}, "a value is needed"),
        ({"address": 8265}, "must be a valid string"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    spec = ClusterSpec(name="main", kind="existing", card=CARD, settings=settings)
    with pytest.raises(ConfigError, match=says) as caught:
        build(spec, tmp_path)
    assert caught.value.where.startswith("fleet.clusters.main")
