"""The figures of the report."""

from __future__ import annotations

import math

import pytest

from octad.stages.validate import markdown, measures

LOSSES = {
    "base": {"corpus": 2.0, "tuning": 3.0},
    "tuned": {"corpus": 2.1, "tuning": 2.5},
}


def test_measures_compare_base_and_tuned() -> None:
    found = measures(LOSSES)
    assert found["base_tuning_perplexity"] == pytest.approx(math.exp(3.0))
    assert found["tuned_tuning_loss"] == pytest.approx(2.5)
    assert found["tuning_gain"] == pytest.approx(1 - math.exp(-0.5))
    assert found["corpus_gain"] == pytest.approx(1 - math.exp(0.1))


def test_a_loss_beyond_all_measure_is_reported_as_well() -> None:
    losses = {"base": {"corpus": 2.0}, "tuned": {"corpus": 1000.0}}
    found = measures(losses)
    assert found["tuned_corpus_perplexity"] == math.inf
    assert found["corpus_gain"] == -math.inf
    text = markdown(losses, {"corpus": 640}, found, "a", {})
    assert "| corpus | 640 | tuned | 1000.0000 | inf |" in text


def test_base_alone_has_no_gain() -> None:
    assert set(measures({"base": {"corpus": 1.0}})) == {
        "base_corpus_loss",
        "base_corpus_perplexity",
    }


def test_the_table_has_a_line_for_each() -> None:
    text = markdown(LOSSES, {"corpus": 640, "tuning": 320}, measures(LOSSES), "a", {"base": "b"})
    assert "| tuning | 320 | tuned | 2.5000 | 12.18 |" in text
    assert "Tuning lowers perplexity on tuning by 39.3%." in text
    assert "Tuning raises perplexity on corpus by 10.5%." in text
