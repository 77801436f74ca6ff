"""Stages with a range of cards: what each attempt gets; and stages that not every card can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octad.control.placement import SETTLE_S
from octad.errors import CapacityError
from octad.spec.clusters import CardSpec
from octad.spec.keys import StageKeys
from octad.spec.sizes import CardRange
from octad.spec.stages import AttemptFailure, AttemptOrder, Progress
from octad.spec.states import RunState, StageState

if TYPE_CHECKING:
    from tests.unit.control.conftest import World

S, R = StageState, RunState


def order_of(world: World, run: str, stage: str, attempt: int) -> AttemptOrder:
    key = StageKeys(run, stage).attempt(attempt).order
    return AttemptOrder.model_validate_json(world.store.get(key))


def test_a_range_loses_a_node_goes_on_with_less_and_then_with_more(world: World) -> None:
    alpha = world.fleet.clusters["alpha"]
    run = world.submit(world.spec("one", sizes=[2, 4, 8], cluster="alpha"), run="r1").id
    assert world.stage(run, "one").cards_asked == CardRange(min=2, max=8)
    world.tick()
    world.submit(world.spec("other", cards=4, cluster="alpha"), run="r2")
    world.tick()
    stage = world.stage(run, "one")
    assert (stage.cards, stage.layout.dp_shard) == (8, 8)
    # Four cards of the node that is left are taken.
    alpha.lose_node()
    alpha.end("r1-one-1", "FAILED", "a node died")
    world.tick(12)
    stage = world.stage(run, "one")
    assert [(a.number, a.cards) for a in stage.attempts] == [(1, 8), (2, 4)]
    assert (stage.cards, stage.layout.dp_shard) == (4, 4)
    order = order_of(world, run, "one", 2)
    assert (order.stage.cards, order.stage.layout.axes["dp_shard"]) == (4, 4)
    assert order.stage.sizes == (2, 4, 8)
    assert order_of(world, run, "one", 1).stage.cards == 8
    # The same seed, data and settings: only the size is another.
    first = order_of(world, run, "one", 1)
    assert first.stage.settings == order.stage.settings
    assert (first.seed, first.since) == (order.seed, order.since)
    # Nothing that runs is ended to grow; the next attempt takes what there is then.
    alpha.regain_nodes()
    world.tick(80)
    assert world.stage(run, "one").attempts[-1].number == 2
    alpha.end("r1-one-2", "FAILED", "a worker died")
    world.tick(12)
    stage = world.stage(run, "one")
    assert [(a.number, a.cards, a.layout.dp_shard) for a in stage.attempts] == [
        (1, 8, 8),
        (2, 4, 4),
        (3, 8, 8),
    ]
    world.succeed("r1-one-3")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


def test_an_attempt_keeps_its_size_when_it_is_sent_by_the_next_control_plane(
    world: World,
) -> None:
    alpha = world.fleet.clusters["alpha"]
    alpha.lose_node()
    run = world.submit(world.spec("one", sizes=[4, 8, 16], cluster="alpha"), run="r1").id
    alpha.fake_jobs.lose = "request"
    world.tick()
    assert world.accepted() == []
    alpha.regain_nodes()
    again = world.restart()
    again.tick(8)
    assert again.accepted() == ["r1-one-1"]
    assert order_of(again, run, "one", 1).stage.cards == 8
    assert [a.cards for a in again.stage(run, "one").attempts] == [8]
    again.database.close()


def test_a_range_waits_for_its_own_cards_a_moment_and_not_longer(world: World) -> None:
    for other, cards in (("r2", 8), ("r3", 4)):
        world.submit(world.spec("one", cards=cards, cluster="alpha"), run=other)
    world.tick()
    run = world.submit(world.spec("one", sizes=[2, 4, 8]), run="r1").id
    world.tick()
    assert world.stage(run, "one").cluster == "beta"
    beta = world.fleet.clusters["beta"]
    # Its job goes on after it said that it failed, so its cards are not back yet.
    failure = AttemptFailure(attempt=1, is_final=False, error={"what": "a worker died"})
    key = StageKeys(run, "one").attempt(1).error
    world.store.put(key, failure.model_dump_json().encode())
    beta.fake_jobs.is_deaf = True
    world.tick(48)
    stage = world.stage(run, "one")
    assert stage.state is S.QUEUED
    assert stage.reason == "could have 4 cards now; waits a moment for 8"
    world.tick(int(SETTLE_S * 4))
    stage = world.stage(run, "one")
    assert [(a.cluster, a.cards) for a in stage.attempts] == [("beta", 8), ("alpha", 4)]


def test_a_range_whose_least_size_is_taken_is_told_so(world: World) -> None:
    world.submit(world.spec("other", cards=16, cluster="alpha"), run="r2")
    run = world.submit(world.spec("one", sizes=[4, 8], cluster="alpha"), run="r1").id
    world.tick()
    stage = world.stage(run, "one")
    assert (stage.state, stage.attempts) == (S.QUEUED, ())
    assert stage.reason.startswith("needs at least 4 cards; alpha has 0 free")


def test_a_stage_goes_only_where_the_cards_can_do_what_it_asks(world: World) -> None:
    beta = world.fleet.clusters["beta"]
    card = CardSpec(kind="gpu", name="H100", abilities=("bf16", "fp8"))
    beta.spec = beta.spec.model_copy(update={"card": card})
    asks = {"fp8": "precision.kind"}
    run = world.submit(world.spec("one", asks=asks), run="r1").id
    waits = world.submit(world.spec("one", asks=asks, cards=8), run="r2").id
    world.tick()
    assert world.stage(run, "one").cluster == "beta"
    reason = world.stage(waits, "one").reason
    assert reason.startswith("needs 8 cards; beta has 7 free")
    assert reason.endswith("alpha's sim cards cannot compute in fp8 (precision.kind)")
    with pytest.raises(CapacityError, match="sim cards cannot compute in fp8") as caught:
        world.submit(world.spec("one", asks=asks, cluster="alpha"))
    assert caught.value.where == "one.precision.kind"


def test_the_queue_says_until_when_as_far_as_the_pace_of_what_runs_tells(world: World) -> None:
    first = world.submit(world.spec("one", cards=8, cluster="beta"), run="r1").id
    world.tick()
    world.submit(world.spec("one", cards=8, cluster="beta"), run="r2")
    world.submit(world.spec("one", cards=1, cluster="beta"), run="r3")
    world.tick()
    shown = world.reconciler.waiting.view().stages
    assert [(s.run, s.cards, s.starts_at_ms, s.unknown) for s in shown] == [
        ("r2", 8, None, "nobody can tell when r1-one-1 ends"),
        ("r3", 1, None, "nobody can tell when r1-one-1 ends"),
    ]
    assert shown[0].reason == "needs 8 cards; beta has 0 free, the others held by r1-one-1"
    progress = Progress(phase="working", step=10, total=110, metrics={"step_time_s": 3.0})
    key = StageKeys(first, "one").attempt(1)
    world.store.put(key.progress, progress.model_dump_json().encode())
    world.tick(20)
    shown = world.reconciler.waiting.view().stages
    assert shown[0].starts_at_ms == world.clock.ms() + 300_000
    assert shown[1].unknown == "nobody can tell when what is ahead of it ends"
    world.cluster_of("r1-one-1").end("r1-one-1", "FAILED", "a worker died")
    world.runs.cancel(first)
    world.tick(8)
    assert world.stage("r2", "one").state is S.RUNNING
    assert [s.run for s in world.reconciler.waiting.view().stages] == ["r3"]


def test_a_dedicated_cluster_is_shown_as_one_and_the_cheaper_is_taken_first(world: World) -> None:
    fleet = world.fleet.clusters
    fleet["alpha"].spec = fleet["alpha"].spec.model_copy(update={"price_per_card_hour": 2.0})
    fleet["beta"].spec = fleet["beta"].spec.model_copy(update={"isolation": "dedicated"})
    assert [c.isolation for c in world.reconciler.rooms()] == ["shared", "dedicated"]
    run = world.submit(world.spec("one", cards=2)).id
    world.tick()
    assert world.stage(run, "one").cluster == "beta"
