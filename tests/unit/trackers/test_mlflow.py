"""What MLflow's limits do to long values, without a server."""

from octad.spec.flat import flattened
from octad.trackers.mlflow import MOST_PARAM, shortened


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
