"""The interval between checkpoints, from what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octad.errors import ConfigError
from octad.spec.layouts import Layout
from octad.spec.stages import StageSpec
from octad.train.interval import Plan, Schedule, Tier, steps_between, young_s
from octad.train.settings import Training, check_training

HOUR = 3600.0


@pytest.mark.parametrize(
    ("cost_s", "mtbf_h", "minutes"), [(5, 24, 15.5), (5, 3, 5.5), (1, 24, 6.9), (1, 3, 2.4)]
)
def test_youngs_own_figures(cost_s: float, mtbf_h: float, minutes: float) -> None:
    assert young_s(cost_s, mtbf_h * HOUR) / 60 == pytest.approx(minutes, abs=0.06)


@given(st.floats(1e-3, 100), st.floats(1e3, 1e7), st.floats(0.3, 3.0))
def test_no_other_interval_loses_less(cost_s: float, mtbf_s: float, other: float) -> None:
    """Of the time spent on saving and the expected time lost to a failure."""

    def lost(interval_s: float) -> float:
        return cost_s / interval_s + interval_s / (2 * mtbf_s)

    best = young_s(cost_s, mtbf_s)
    if best < mtbf_s:
        assert lost(best) <= lost(best * other) + 1e-12


def test_a_save_that_costs_more_than_failures_leave_time_for_is_bounded() -> None:
    assert young_s(1000, 1500) == 1500


@given(
    blocked_s=st.floats(0, 100),
    durable_s=st.floats(0, 1e4),
    step_s=st.floats(1e-3, 100),
    mtbf_s=st.floats(60, 1e8),
)
def test_saves_never_overlap(
    blocked_s: float, durable_s: float, step_s: float, mtbf_s: float
) -> None:
    steps = steps_between(blocked_s=blocked_s, durable_s=durable_s, step_s=step_s, mtbf_s=mtbf_s)
    assert steps >= 1
    assert steps * step_s >= durable_s
    if durable_s == 0:
        assert steps * step_s < young_s(blocked_s, mtbf_s) + step_s + 1e-9


def saves(
    plan: Plan, steps: range, durable_steps: int, step_s: float, blocked_s: float
) -> list[int]:
    """The steps at which a plan saves, if each save is committed so many steps later."""
    found: list[int] = []
    look, done = plan.first_look(), 0
    for step in steps:
        if step == done:
            plan.measured(blocked_s=blocked_s, durable_s=durable_steps * step_s)
        if step == look:
            plan.stepped(step_s)
            is_due, look = plan.at(step, is_saving=step < done)
            assert look > step
            if is_due:
                found.append(step)
                done = step + durable_steps
    return found


def test_a_plan_measures_first_and_then_keeps_the_best_interval() -> None:
    plan = Plan(mtbf_s=HOUR, saved_at=100)
    found = saves(plan, range(101, 1000), durable_steps=3, step_s=1.0, blocked_s=0.5)
    assert found[0] == 110
    assert {later - former for former, later in pairwise(found[1:])} == {60}


def test_a_plan_follows_what_changes() -> None:
    plan = Plan(mtbf_s=HOUR, saved_at=0)
    before = saves(plan, range(1, 1000), durable_steps=3, step_s=1.0, blocked_s=0.5)
    plan.measured(blocked_s=8.0, durable_s=3.0)
    for _ in range(5):
        plan.measured(blocked_s=8.0, durable_s=3.0)
    is_due, look = plan.at(before[-1] + 60, is_saving=False)
    assert not is_due
    assert look <= before[-1] + 240


def test_nothing_is_saved_while_the_save_before_is_under_way() -> None:
    plan = Plan(mtbf_s=60.0, saved_at=0)
    found = saves(plan, range(1, 500), durable_steps=40, step_s=1.0, blocked_s=0.1)
    assert all(later - former >= 40 for former, later in pairwise(found))
    assert len(found) >= 9


def tiers(schedule: Schedule, last: int, *, is_node_busy: bool = False) -> dict[int, Tier]:
    found: dict[int, Tier] = {}
    for step in range(1, last + 1):
        if schedule.is_certain(step):
            found[step] = "store"
        elif schedule.is_asked(step):
            decision = schedule.decided(step, is_store_busy=False, is_node_busy=is_node_busy)
            tier = schedule.followed(decision)
            if tier is not None:
                found[step] = tier
    return found


def test_a_fixed_schedule_saves_the_last_step_and_on_the_nodes_between() -> None:
    schedule = Schedule(start=0, last=25, every=10, mtbf_s=HOUR, node_every=4)
    assert tiers(schedule, 25) == {
        4: "node",
        8: "node",
        12: "node",
        16: "node",
        24: "node",
        10: "store",
        20: "store",
        25: "store",
    }


def test_a_save_on_the_nodes_is_not_waited_for() -> None:
    schedule = Schedule(start=0, last=25, every=10, mtbf_s=HOUR, node_every=4)
    assert set(tiers(schedule, 25, is_node_busy=True).values()) == {"store"}


def test_auto_follows_the_clock_and_all_ranks_follow_one() -> None:
    now = [0.0]
    deciding = Schedule(start=0, last=1000, every="auto", mtbf_s=HOUR, clock=lambda: now[0])
    following = Schedule(start=0, last=1000, every="auto", mtbf_s=HOUR, clock=lambda: -1.0)
    saved = []
    for step in range(1, 1001):
        now[0] += 2.0
        assert deciding.is_asked(step) == following.is_asked(step)
        if deciding.is_asked(step):
            decision = deciding.decided(step, is_store_busy=False, is_node_busy=True)
            tier = deciding.followed(decision)
            assert following.followed(decision) == tier
            if tier == "store":
                saved.append(step)
                deciding.measured(blocked_s=0.5, durable_s=3.0)
    # sqrt(2 * 0.5 s * 1 h) is 60 s, of steps of 2 s.
    assert {later - former for former, later in pairwise(saved)} == {30}


TRAINING = {
    "model": {"kind": "decoder", "vocab": 64, "width": 16, "depth": 2, "heads": 2, "context": 16},
    "optimizer": {"lr": 0.1, "warmup_steps": 0},
    "steps": 10,
    "sequence": 16,
    "global_batch": 4,
}


@pytest.mark.parametrize("every", [0, -1, 1.5, "often", True, None])
def test_an_interval_is_a_number_of_steps_or_auto(every: object) -> None:
    with pytest.raises(ConfigError, match=r"a.checkpoint_every: must be a number of steps, 1 or m"):
        Training.parse({**TRAINING, "checkpoint_every": every}, where="a")
    for good in (1, "auto"):
        training = Training.parse({**TRAINING, "checkpoint_every": good})
        assert Training.parse(training.plain()).checkpoint_every == good


def test_a_tier_that_would_never_be_used_is_refused() -> None:
    spec = StageSpec(name="a", kind="pretrain", cards=1, layout=Layout(dp_shard=1))
    more = {"checkpoint_every": 10, "node_checkpoint_every": 20}
    with pytest.raises(ConfigError, match=r"a.node_checkpoint_every.*use fewer than 10"):
        check_training(spec, Training.parse({**TRAINING, **more}))
    check_training(spec, Training.parse({**TRAINING, **more, "node_checkpoint_every": 4}))
    with pytest.raises(ConfigError, match="must be a whole path"):
        Training.parse({**TRAINING, "node_checkpoint_folder": "shm"})
