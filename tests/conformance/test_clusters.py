"""What every kind of cluster provider must do; none of it needs a network or a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from octad.errors import ConfigError, OctadError
from octad.ports.clusters import Provider
from octad.ports.registry import kinds, load
from octad.spec.clusters import CardSpec, ClusterSpec
from octad.spec.frozen import Spec

CONF = Path(__file__).resolve().parents[2] / "conf"
KINDS = kinds("octad.clusters")


def composed(group: str, option: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base=None):
        config = OmegaConf.to_container(compose(f"{group}/{option}"), resolve=True)
    assert isinstance(config, dict)
    found = config[group]
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def spec_of(raw: dict[str, Any], name: str = "alpha") -> ClusterSpec:
    common = {key: raw[key] for key in raw if key in ClusterSpec.model_fields}
    settings = {key: value for key, value in raw.items() if key not in common}
    return ClusterSpec.parse({**common, "name": name, "settings": settings})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def provider(kind: str, tmp_path: Path) -> Provider:
    built: Provider = load("octad.clusters", kind).build(
        spec_of(composed("cluster", kind)), tmp_path / "home"
    )
    return built


def test_every_kind_has_a_config_and_every_config_a_kind() -> None:
    used = {composed("cluster", file.stem)["kind"] for file in (CONF / "cluster").glob("*.yaml")}
    assert used == set(KINDS)


def test_settings_are_closed_and_come_back(kind: str) -> None:
    settings = load("octad.clusters", kind).Settings
    assert issubclass(settings, Spec)
    given = spec_of(composed("cluster", kind)).settings
    assert settings.parse(settings.parse(given).plain()) == settings.parse(given)
    with pytest.raises(ConfigError, match="unknown key 'colour'"):
        settings.parse({**given, "colour": 1})


def test_the_config_shows_every_setting_with_its_default(kind: str) -> None:
    settings = load("octad.clusters", kind).Settings
    shown = spec_of(composed("cluster", kind)).settings
    assert set(shown) == set(settings.model_fields)
    required = {n: shown[n] for n, f in settings.model_fields.items() if f.is_required()}
    assert settings.parse(required) == settings.parse(shown)


def test_every_cluster_shows_what_all_have_with_its_default(kind: str) -> None:
    raw = composed("cluster", kind)
    least = ClusterSpec.parse({**{key: raw[key] for key in ("kind", "card")}, "name": "alpha"})
    found = spec_of(raw)
    assert found.model_copy(update={"settings": {}}) == least
    assert {"isolation", "price_per_card_hour"} <= set(raw)


def test_a_plan_says_what_would_be_done_and_does_nothing(
    provider: Provider, tmp_path: Path
) -> None:
    steps = provider.plan()
    assert steps
    assert all(step.action and step.detail for step in steps)
    assert provider.plan() == steps
    assert list(tmp_path.iterdir()) == []


def test_stop_of_what_was_never_started_does_nothing(provider: Provider, tmp_path: Path) -> None:
    provider.stop()
    provider.stop()
    assert list(tmp_path.iterdir()) == []


def test_observe_never_raises(provider: Provider, kind: str) -> None:
    view = provider.observe()
    assert (view.name, view.kind, view.card) == ("alpha", kind, provider.spec.card)
    assert view.state in {"down", "unreachable"}
    assert view.reason
    assert (view.nodes, view.cards, view.cards_free) == ((), 0, 0)


def test_jobs_fail_in_a_way_that_can_be_tried_again(provider: Provider) -> None:
    with pytest.raises(OctadError) as caught:
        provider.jobs.status("r1-pretrain-1")
    assert caught.value.exit_code == 10


@pytest.mark.parametrize("file", sorted((CONF / "fleet").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_fleet_can_be_built(file: Path, tmp_path: Path) -> None:
    clusters = composed("fleet", file.stem)["clusters"]
    for name, raw in clusters.items():
        spec = spec_of(raw, name)
        load("octad.clusters", spec.kind).build(spec, tmp_path / name)


@pytest.mark.parametrize("file", sorted((CONF / "card").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_card_is_one(file: Path) -> None:
    assert CardSpec.parse(composed("card", file.stem)).name


def test_the_local_fleet_has_sixteen_and_eight_cards() -> None:
    clusters = composed("fleet", "local")["clusters"]
    assert {name: raw["nodes"] for name, raw in clusters.items()} == {"alpha": 2, "beta": 1}
    assert {raw["card"]["kind"] for raw in clusters.values()} == {"sim"}
