"""The states a run, a stage and an attempt can be in, and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class StageState(StrEnum):
    """Of one stage of one run."""

    WAITING = "waiting"  # for what it needs
    QUEUED = "queued"  # for cards
    STARTING = "starting"  # an attempt is on its way
    RUNNING = "running"
    RECOVERING = "recovering"  # an attempt was lost; the next is prepared
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing moves it any more, except a person's `resume`."""
        return self in {StageState.SUCCEEDED, StageState.FAILED, StageState.CANCELLED}


_S = StageState
MOVES: dict[StageState, frozenset[StageState]] = {
    _S.WAITING: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.STARTING, _S.FAILED, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.RECOVERING, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.RECOVERING, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    _S.RECOVERING: frozenset({_S.QUEUED, _S.FAILED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset({_S.WAITING}),  # resume from an earlier stage
    _S.FAILED: frozenset({_S.WAITING}),  # resume
    _S.CANCELLED: frozenset({_S.WAITING}),  # resume
}


class AttemptState(StrEnum):
    """Of one attempt."""

    INTENDED = "intended"  # the row exists; the cluster may or may not know it
    SUBMITTED = "submitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """It has ended."""
        return self in _ENDED_ATTEMPTS


_ENDED_ATTEMPTS = frozenset(
    {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.LOST, AttemptState.CANCELLED}
)


_A = AttemptState
ATTEMPT_MOVES: dict[AttemptState, frozenset[AttemptState]] = {
    _A.INTENDED: frozenset({_A.SUBMITTED, _A.RUNNING}) | _ENDED_ATTEMPTS,
    _A.SUBMITTED: frozenset({_A.RUNNING}) | _ENDED_ATTEMPTS,
    _A.RUNNING: _ENDED_ATTEMPTS,
    **{ended: frozenset() for ended in _ENDED_ATTEMPTS},
}


class RunState(StrEnum):
    """Of a run, derived from its stages."""

    QUEUED = "queued"  # nothing has started
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing moves it any more, except a person's `resume`."""
        return self in {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}


def run_state(stages: list[StageState]) -> RunState:
    """The state of a run with these stages."""
    if any(s is StageState.FAILED for s in stages):
        going = {StageState.STARTING, StageState.RUNNING}
        return RunState.RUNNING if going & set(stages) else RunState.FAILED
    if any(s is StageState.CANCELLED for s in stages):
        return RunState.CANCELLED
    if all(s is StageState.SUCCEEDED for s in stages):
        return RunState.SUCCEEDED
    if all(s in {StageState.WAITING, StageState.QUEUED} for s in stages):
        return RunState.QUEUED
    return RunState.RUNNING
