"""The states and the moves between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.spec.states import MOVES, RunState, StageState, run_state

S = StageState


def test_every_state_has_its_moves_and_only_a_resume_leaves_an_end() -> None:
    assert set(MOVES) == set(S)
    for state in S:
        if state.is_terminal:
            assert MOVES[state] == {S.WAITING}
        else:
            assert S.CANCELLED in MOVES[state]


@pytest.mark.parametrize(
    ("stages", "run"),
    [
        ([S.QUEUED, S.WAITING], RunState.QUEUED),
        ([S.STARTING, S.WAITING], RunState.RUNNING),
        ([S.SUCCEEDED, S.WAITING], RunState.RUNNING),
        ([S.SUCCEEDED, S.RECOVERING], RunState.RUNNING),
        ([S.SUCCEEDED, S.FAILED, S.WAITING], RunState.FAILED),
        ([S.FAILED, S.RUNNING], RunState.RUNNING),
        ([S.SUCCEEDED, S.CANCELLED], RunState.CANCELLED),
        ([S.SUCCEEDED, S.SUCCEEDED], RunState.SUCCEEDED),
    ],
)
def test_a_run_stands_as_its_stages_do(stages: list[StageState], run: RunState) -> None:
    assert run_state(stages) is run


@given(st.lists(st.sampled_from(S), min_size=1, max_size=6))
def test_a_run_is_over_only_when_nothing_runs(stages: list[StageState]) -> None:
    if run_state(stages) in {RunState.SUCCEEDED, RunState.FAILED}:
        assert not {S.STARTING, S.RUNNING} & set(stages)
