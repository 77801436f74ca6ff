"""What MLflow's limits do to long values, without a server."""

import os

import pytest
from mlflow.utils.validation import _validate_metric_name

from octad.errors import ConfigError
from octad.spec.flat import flattened
from octad.trackers.mlflow import MOST_PARAM, _key, build, shortened


def test_flat_names_and_texts() -> None:
    config = {"a": {"b": {"c": 1e-3}, "empty": {}}, "list": [1, "é"], "text": "x", "none": None}
    assert flattened(config) == {
        "a.b.c": "0.001",
        "a.empty": "{}",
        "list": '[1, "é"]',
        "text": "x",
        "none": "null",
    }


def test_what_is_cut_says_so_and_fits() -> None:
    assert shortened("x" * MOST_PARAM, MOST_PARAM) == "x" * MOST_PARAM
    cut = shortened("x" * (MOST_PARAM + 1), MOST_PARAM)
    assert len(cut) == MOST_PARAM
    assert f"{MOST_PARAM + 1} characters" in cut


@pytest.mark.parametrize(
    "name", ["a//b", "/a", "a/", "./a", "a/../b", "..", "..a", "/", "a[0]", "é", "x" * 249 + "/y"]
)
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    _validate_metric_name(_key(name))


@pytest.mark.parametrize("url", ["", "mlruns", "sqlite:///here", "host:5000"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="the address of MLflow is needed"):
        build(url)


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        ("http://127.0.0.1:5000", "corp.example,127.0.0.1"),
        ("http://localhost:5000", "corp.example,localhost"),
        ("https://mlflow.example", "corp.example"),
    ],
)
def test_a_server_on_this_machine_is_reached_past_every_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str, direct: str
) -> None:
    monkeypatch.setenv("no_proxy", "corp.example")
    monkeypatch.setenv("NO_PROXY", "corp.example")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    build(url)
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == direct
