"""Schedules in global steps."""

from __future__ import annotations

import itertools

import pytest

from octad.train.optimizers import clipping, rate
from octad.train.settings import Optimizer

STEPS = 100


def rates(**changes: object) -> list[float]:
    settings = Optimizer.parse({"lr": 2.0, "warmup_steps": 10, **changes})
    return [rate(settings, step, STEPS) for step in range(1, STEPS + 1)]


def test_warm_up_rises_in_a_line_to_the_highest_rate() -> None:
    assert rates()[:10] == pytest.approx([0.2 * n for n in range(1, 11)])


def test_cosine_falls_to_its_final_share() -> None:
    found = rates(schedule="cosine", final_share=0.1)
    assert found[54] == pytest.approx(1.1)  # half way
    assert found[-1] == pytest.approx(0.2)
    assert all(a >= b for a, b in itertools.pairwise(found[9:]))


def test_wsd_stays_then_falls_in_a_line() -> None:
    found = rates(schedule="wsd", decay_share=0.2, final_share=0.0)
    assert found[9:81] == pytest.approx([2.0] * 72)
    assert found[90] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.0)


def test_constant_stays_and_no_warm_up_starts_high() -> None:
    assert rates(schedule="constant", warmup_steps=0) == pytest.approx([2.0] * STEPS)


def test_clipping_brings_a_norm_down_to_its_limit_and_leaves_less_alone() -> None:
    assert 5.0 * clipping(5.0, limit=2.0) == pytest.approx(2.0)
    assert clipping(1.5, limit=2.0) == 1.0
