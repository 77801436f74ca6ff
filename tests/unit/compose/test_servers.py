"""Control planes as composed."""

import sys
from pathlib import Path

import pytest

from octad.compose import compose_server
from octad.errors import ConfigError
from octad.spec.clusters import ABILITIES
from octad.spec.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_the_default_is_a_local_fleet_and_a_store_in_the_home(home: Home) -> None:
    spec = compose_server([], home)
    assert [(c.name, c.kind, c.settings["nodes"]) for c in spec.fleet.clusters] == [
        ("alpha", "local", 2),
        ("beta", "local", 1),
    ]
    assert {c.card.kind for c in spec.fleet.clusters} == {"sim"}
    assert spec.storage.url == home.store.as_uri()
    assert (spec.tracker.kind, spec.tracker.url) == ("mlflow", "")
    assert (spec.host, spec.port, spec.python) == ("127.0.0.1", 0, sys.executable)


@pytest.mark.parametrize(
    ("card", "cannot"),
    [
        ("sim", ["fp8", "cp"]),
        ("a100", ["fp8"]),
        ("ascend_910b", ["fp8", "cp"]),
        *((card, []) for card in ("l40s", "h100", "h200", "h800", "b200")),
    ],
)
def test_what_cards_cannot_do(home: Home, card: str, cannot: list[str]) -> None:
    spec = compose_server([f"card@fleet.clusters.alpha.card={card}"], home)
    assert spec.fleet.clusters[0].card.lacks(ABILITIES) == cannot


def test_what_is_typed_counts(home: Home) -> None:
    spec = compose_server(
        ["fleet.clusters.alpha.nodes=1", "storage=s3", "storage.url=s3://b/k", "tracker=none"], home
    )
    assert spec.fleet.clusters[0].settings["nodes"] == 1
    assert spec.storage.url == "s3://b/k"
    assert spec.tracker.kind == "none"


def test_isolation_and_price_are_the_clusters_not_its_providers(home: Home) -> None:
    typed = [
        "fleet.clusters.alpha.isolation=dedicated",
        "fleet.clusters.beta.price_per_card_hour=2",
    ]
    alpha, beta = compose_server(typed, home).fleet.clusters
    assert (alpha.isolation, alpha.price_per_card_hour) == ("dedicated", 0.0)
    assert (beta.isolation, beta.price_per_card_hour) == ("shared", 2.0)
    assert not {"isolation", "price_per_card_hour"} & set(alpha.settings)


def test_options_of_a_store_are_words_however_they_are_typed(home: Home) -> None:
    typed = ["storage=s3", "storage.url=s3://b", "+storage.options.allow_http=true"]
    spec = compose_server([*typed, "+storage.options.max_retries=3"], home)
    options = {"region": "us-east-1", "allow_http": "true", "max_retries": "3"}
    assert spec.storage.options == options


@pytest.mark.parametrize(
    ("override", "where", "hint"),
    [
        ("fleet=locl", "fleet", "'local'"),
        ("fleet.clusters.alpha.nods=1", "fleet.clusters.alpha.nods", "'nodes'"),
        ("fleet.clusters.alpha.nodes=x", "fleet.clusters.alpha.nodes", ""),
        ("fleet.clusters.alpha.kind=slurm", "fleet.clusters.alpha.kind", "local"),
        ("fleet.clusters.A.kind=local", "fleet.clusters.A", ""),
        ("fleet.cluster.a=1", "fleet.cluster", "'clusters'"),
        ("fleet.clusters={'a:b': {kind: local}}", "fleet.clusters.a:b", ""),
        ("fleet.clusters.alpha.card.kind=tpu", "fleet.clusters.alpha.card.kind", ""),
        ("fleet.clusters.alpha.card.abilities=[fp4]", "fleet.clusters.alpha.card.abilities.0", ""),
        ("fleet.clusters.alpha.isolation=alone", "fleet.clusters.alpha.isolation", ""),
        (
            "fleet.clusters.alpha.price_per_card_hour=-1",
            "fleet.clusters.alpha.price_per_card_hour",
            "",
        ),
        (
            "fleet.clusters.alpha.price_per_card_hour=x",
            "fleet.clusters.alpha.price_per_card_hour",
            "",
        ),
        ("prot=1", "prot", "'port'"),
        ("port=99999", "port", ""),
        ("storage=s3", "storage.url", ""),
        ("storage.url=s3://key:secret@bucket", "storage.url", ""),
        ("tracker.url=http://me:secret@host", "tracker.url", ""),
        ("tracker.kind=mlfow", "tracker.kind", "'mlflow'"),
    ],
)
def test_mistakes_are_refused(home: Home, override: str, where: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_server([override], home)
    assert caught.value.where == where
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value)
