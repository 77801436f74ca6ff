"""A rank that stays much slower than its peers is named; jitter names nobody."""

from __future__ import annotations

import numpy as np
import pytest

from octad.train.stragglers import Stragglers


def test_a_slow_rank_is_named_after_two_windows_and_until_it_is_well() -> None:
    judge = Stragglers([0] * 4)
    well, ill = [0.1, 0.11, 0.1, 0.09], [0.1, 0.11, 0.1, 0.21]
    named = []
    for window in (well, ill, ill, ill, well, ill):
        slowest = judge.judge(window)
        named.append(list(judge.named))
    assert named == [[], [], [3], [3], [], []]
    assert slowest.rank == 3
    assert slowest.ratio == pytest.approx(2.1)
    assert slowest.usual_s == pytest.approx(0.1)


def test_one_pause_names_nobody_nor_do_two_ranks_in_turn() -> None:
    judge = Stragglers([0] * 3)
    for window in ([0.1, 0.9, 0.1], [0.9, 0.1, 0.1], [0.1, 0.1, 0.9], [0.1, 0.1, 0.1]):
        judge.judge(window)
        assert not judge.named


def test_a_slow_node_is_named_rank_by_rank() -> None:
    judge = Stragglers([0] * 32)
    window = [0.1] * 24 + [0.2] * 8
    judge.judge(window)
    judge.judge(window)
    assert list(judge.named) == list(range(24, 32))


def test_of_two_ranks_the_slow_one_is_named() -> None:
    judge = Stragglers([0, 0])
    judge.judge([0.3, 0.1])
    judge.judge([0.3, 0.1])
    assert list(judge.named) == [0]
    assert judge.named[0].ratio == pytest.approx(3.0)


def test_ranks_are_compared_with_those_that_hold_the_same_part_of_the_model() -> None:
    judge = Stragglers([0, 0, 0, 1, 1, 1])  # the second part is twice the work
    window = [0.1, 0.1, 0.1, 0.2, 0.2, 0.2]
    judge.judge(window)
    judge.judge(window)
    assert not judge.named
    window[4] = 0.4
    judge.judge(window)
    judge.judge(window)
    assert list(judge.named) == [4]


def test_a_rank_alone_in_its_part_is_compared_with_all_whose_work_may_differ() -> None:
    judge = Stragglers([0, 1, 2, 3])
    for _ in range(2):
        judge.judge([0.1, 0.1, 0.1, 0.22])
        assert not judge.named, "the last part has the output layer and the loss"
    for _ in range(2):
        judge.judge([0.1, 0.1, 0.32, 0.22])
    assert list(judge.named) == [2]


def test_milliseconds_name_nobody() -> None:
    judge = Stragglers([0, 0])
    judge.judge([0.001, 0.004])
    judge.judge([0.001, 0.004])
    assert not judge.named


@pytest.mark.parametrize("size", [2, 8, 64])
def test_equal_ranks_with_jitter_are_never_named(size: int) -> None:
    """Each step of each rank takes what the others' take, give or take a fifth, and one in fifty
    takes three times as long; a rank's window is its median of six steps.
    """
    rng = np.random.default_rng(size)
    judge = Stragglers([0] * size)
    for _ in range(500):
        steps = rng.lognormal(np.log(0.2), 0.2, (6, size))
        steps[rng.random((6, size)) < 0.02] *= 3
        judge.judge(np.median(steps, axis=0).tolist())
        assert not judge.named
