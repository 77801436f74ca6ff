"""How many micro-batches a pipeline gets, and that torch's schedules take them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from octad.errors import ConfigError
from octad.spec.layouts import Layout
from octad.train.micro_batches import micro_batch_size

KINDS = ["1f1b", "interleaved_1f1b", "zero_bubble"]


def layout(**axes: Any) -> Layout:
    return Layout.parse({"dp_shard": 1, **axes})


def test_without_a_pipeline_a_card_takes_its_whole_share() -> None:
    assert micro_batch_size(None, 24, layout(dp_shard=2, tp=2)) == 12
    assert micro_batch_size(3, 24, layout(dp_shard=2, tp=2)) == 3


@pytest.mark.parametrize(
    ("share", "pp", "size"),
    [(64, 2, 8), (64, 4, 4), (64, 16, 1), (24, 3, 2), (12, 4, 1), (7, 7, 1), (100, 2, 10)],
)
def test_a_pipeline_gets_four_micro_batches_for_each_card_or_what_there_are(
    share: int, pp: int, size: int
) -> None:
    assert micro_batch_size(None, share, layout(pp=pp)) == size


def test_too_few_micro_batches_are_refused_with_those_that_can_be() -> None:
    with pytest.raises(ConfigError, match="8 makes 3 micro-batches") as caught:
        micro_batch_size(8, 24, layout(pp=4))
    assert caught.value.hint.startswith("use 6 or 4 or 3 or 2 or 1")
    with pytest.raises(ConfigError, match=r"gets 3 samples of a step.* pp 4") as caught:
        micro_batch_size(None, 6, layout(pp=4, dp_shard=2))
    assert "multiple of 8" in caught.value.hint


def test_interleaving_works_in_rounds_of_one_length() -> None:
    with pytest.raises(ConfigError, match="gets 5 samples"):
        micro_batch_size(1, 5, layout(pp=2, pp_schedule="interleaved_1f1b"))
    assert micro_batch_size(1, 6, layout(pp=2, pp_schedule="interleaved_1f1b")) == 1
    assert micro_batch_size(1, 5, layout(pp=2)) == 1


class Part:
    """What a schedule wants to know of a part of the model."""

    submod = group = None
    device = "cpu"
    group_rank = 0

    def __init__(self, number: int, layout: Layout) -> None:
        self.stage_index, self.num_stages = number, layout.num_pp_parts
        self.group_size = layout.pp
        self.is_first, self.is_last = number == 0, number == layout.num_pp_parts - 1


def planned(pipe: Layout, count: int) -> Any:
    """torch's own plan for so many micro-batches."""
    parts: list[Any] = [Part(number, pipe) for number in pipe.pp_parts(0)]
    if pipe.pp_schedule == "1f1b":
        return schedules.Schedule1F1B(parts[0], count, lambda: None)
    if pipe.pp_schedule == "interleaved_1f1b":
        return schedules.ScheduleInterleaved1F1B(parts, count, lambda: None)
    return schedules.ScheduleZBVZeroBubble(parts, count, lambda: None)


@given(
    st.sampled_from(KINDS),
    st.integers(2, 5),
    st.integers(2, 3),
    st.integers(1, 16),
    st.none() | st.integers(1, 4),
)
def test_torch_takes_what_is_let_through_and_holds_parts_where_the_layout_says(
    kind: str, pp: int, per_card: int, share: int, asked: int | None
) -> None:
    pipe = layout(pp=pp, pp_schedule=kind, pp_parts_per_card=per_card)
    try:
        size = micro_batch_size(asked, share, pipe)
    except ConfigError:
        return
    assert size == (asked or size)
    plan = planned(pipe, share // size)
    held: dict[int, set[int]] = {}
    work: dict[tuple[int, str], int] = {}
    for rank, actions in plan.pipeline_order.items():
        for action in actions:
            if action is not None and action.microbatch_index is not None:
                held.setdefault(rank, set()).add(action.stage_index)
                key = action.stage_index, action.computation_type.name
                work[key] = work.get(key, 0) + 1
    assert held == {rank: set(pipe.pp_parts(rank)) for rank in range(pp)}
    assert {n for n, _ in work} == set(range(pipe.num_pp_parts))
    assert all(work[number, "FORWARD"] == share // size for number in range(pipe.num_pp_parts))
