"""Time in which nothing but collectives runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.train.waiting import alone_ns

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], sum(s))))


@pytest.mark.parametrize(
    ("collectives", "others", "alone"),
    [
        ([(0, 10)], [], 10),
        ([(0, 10)], [(2, 5)], 7),
        ([(2, 5)], [(0, 10)], 0),
        ([(0, 10), (5, 20)], [(8, 12)], 16),
        ([], [(0, 10)], 0),
    ],
)
def test_only_what_no_other_kernel_covers_counts(
    collectives: list[tuple[int, int]], others: list[tuple[int, int]], alone: int
) -> None:
    assert alone_ns(collectives, others) == alone


@given(SPANS, SPANS)
def test_it_is_what_counting_each_moment_gives(
    collectives: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    def moments(spans: list[tuple[int, int]]) -> set[int]:
        return {moment for start, end in spans for moment in range(start, end)}

    assert alone_ns(collectives, others) == len(moments(collectives) - moments(others))
