"""Runs are moved on, stage by stage, on clusters that forget, fall silent and lose replies."""

from __future__ import annotations

import json
import shlex
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from octad.control.tables import Event, Stage
from octad.errors import CapacityError, ConfigError, ConflictError, NotFoundError
from octad.spec.keys import StageKeys
from octad.spec.runs import RunResume, RunSpec
from octad.spec.stages import AttemptFailure, AttemptOrder, Progress
from octad.spec.states import AttemptState, RunState, StageState

if TYPE_CHECKING:
    from tests.unit.control.conftest import World

S, A, R = StageState, AttemptState, RunState


def fail(world: World, run: str, stage: str, attempt: int, *, is_final: bool) -> None:
    """A driver says why it failed, and ends."""
    failure = AttemptFailure(
        attempt=attempt, is_final=is_final, error={"kind": "DataError", "what": "no text"}
    )
    key = StageKeys(run, stage).attempt(attempt).error
    world.store.put(key, failure.model_dump_json().encode())
    job = f"{run}-{stage}-{attempt}"
    world.cluster_of(job).end(job, "FAILED", "exit code 1")


def test_a_run_goes_through_its_stages_and_each_gets_what_it_needs(world: World) -> None:
    first, second = world.spec("one"), world.spec("two", needs={"base": "one.out"})
    run = world.submit(first, second).id
    world.tick()
    assert world.accepted() == [f"{run}-one-1"]
    assert world.stage(run, "two").reason == "needs one"
    world.succeed(f"{run}-one-1")
    world.tick()
    # The next stage is sent in the same tick in which the end of the one before is seen.
    assert world.accepted() == [f"{run}-one-1", f"{run}-two-1"]
    order = AttemptOrder.model_validate_json(
        world.store.get(StageKeys(run, "two").attempt(1).order)
    )
    assert order.inputs["base"].uri.endswith(f"{run}/stages/one/attempts/000001/artefacts/out")
    world.succeed(f"{run}-two-1")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


def test_the_job_is_sent_with_its_order_its_code_and_its_mark(world: World) -> None:
    run = world.submit(world.spec("one"), world.spec("own", kind="job", cards=2)).id
    world.tick()
    with world.cluster_of(f"{run}-one-1").state() as state:
        job = state["jobs"][f"{run}-one-1"]
    words = shlex.split(job["entrypoint"])
    assert words[:2] == ["python", "jobs/pretrain.py"]
    assert words[words.index("--order") + 1].endswith("attempts/000001/order.json")
    assert json.loads(words[words.index("--store-options") + 1]) == {}
    assert job["env"]["PYTHONPATH"] == "platform"
    assert job["env"]["OCTAD_STAGE"] == "one"
    assert job["metadata"]["octad.run"] == run
    assert world.fleet.clusters["alpha"].job_states().keys() == {f"{run}-one-1", f"{run}-own-1"}


def test_progress_is_shown_and_silence_is_not_death(world: World) -> None:
    run = world.submit(run="r1").id
    world.tick()
    progress = Progress(phase="working", step=7, total=9, first_step_at_ms=123)
    keys = StageKeys(run, "one").attempt(1)
    world.store.put(keys.progress, progress.model_dump_json().encode())
    world.tick(8)
    stage = world.stage(run, "one")
    assert (stage.state, stage.progress) == (S.RUNNING, progress)
    assert stage.attempts[0].first_step_at_ms == 123
    alpha = world.fleet.clusters["alpha"]
    alpha.fake_jobs.silent = True
    world.tick(60, each_s=60)
    stage = world.stage(run, "one")
    assert stage.state is S.RUNNING
    assert stage.reason.startswith("unreachable: cluster alpha")
    alpha.fake_jobs.silent = False
    world.tick(8)
    assert world.stage(run, "one").reason == ""
    world.succeed("r1-one-1")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_lost_call_is_repeated_and_the_job_exists_once(world: World, lost: str) -> None:
    alpha = world.fleet.clusters["alpha"]
    world.submit(run="r1")
    # Asking for the job, then for the package, then putting it, then submitting.
    for nth in range(1, 5):
        run = world.submit(run=f"r{nth + 1}").id
        world.tick(0)
        jobs = alpha.fake_jobs
        before = jobs.calls

        def break_nth(jobs: object = jobs, nth: int = nth, before: int = before) -> None:
            if jobs.calls - before == nth:  # type: ignore[attr-defined]
                jobs.lose = lost  # type: ignore[attr-defined]

        original = jobs._line

        def line() -> object:
            break_nth()
            return original()  # noqa: B023

        jobs._line = line  # type: ignore[method-assign, assignment]
        world.tick(40)
        jobs._line = original  # type: ignore[method-assign]
        assert world.accepted().count(f"{run}-one-1") == 1
        assert world.stage(run, "one").attempts[-1].number == 1


def test_a_failed_attempt_is_followed_by_others_until_retries_are_spent(world: World) -> None:
    run = world.submit(world.spec("one", retries=2)).id
    for number in (1, 2, 3):
        world.tick(60)
        job = f"{run}-one-{number}"
        world.cluster_of(job).end(job, "FAILED", "worker died")
    world.tick(60)
    view = world.runs.view(run)
    assert view.state is R.FAILED
    assert [a.state for a in view.stages[0].attempts] == [A.FAILED] * 3
    assert "worker died" in view.stages[0].reason
    assert "3 attempts failed" in view.stages[0].reason


def test_a_users_mistake_is_not_tried_again(world: World) -> None:
    run = world.submit().id
    world.tick()
    fail(world, run, "one", 1, is_final=True)
    world.tick(8)
    stage = world.stage(run, "one")
    assert (stage.state, len(stage.attempts)) == (S.FAILED, 1)
    assert "no text" in stage.reason


def test_a_result_counts_whatever_the_cluster_says_of_the_job(world: World, fake: object) -> None:
    run = world.submit(run="r1").id
    world.tick()
    alpha = world.fleet.clusters["alpha"]
    fake.finish(alpha.entrypoint("r1-one-1"))  # type: ignore[attr-defined]
    alpha.end("r1-one-1", "FAILED", "died while tearing down")
    world.tick(8)
    assert world.runs.view(run).state is R.SUCCEEDED


def test_a_result_that_cannot_be_read_is_a_failure_that_says_so(world: World) -> None:
    run = world.submit(run="r1").id
    world.tick()
    world.store.put(StageKeys(run, "one").attempt(1).result, b"{}")
    world.fleet.clusters["alpha"].end("r1-one-1", "SUCCEEDED")
    world.tick(12)
    stage = world.stage(run, "one")
    assert (stage.state, len(stage.attempts)) == (S.FAILED, 1)
    assert "result cannot be read" in stage.reason


def test_the_last_word_on_progress_comes_with_the_result(world: World) -> None:
    run = world.submit(run="r1").id
    world.tick(8)
    last = Progress(phase="done", step=9, total=9)
    key = StageKeys(run, "one").attempt(1).progress
    world.store.put(key, last.model_dump_json().encode())
    world.succeed("r1-one-1")
    world.tick()
    assert world.stage(run, "one").progress == last


def test_a_head_that_forgot_its_jobs_has_lost_them_and_the_stage_goes_on(world: World) -> None:
    run = world.submit(world.spec("one", retries=0)).id
    world.tick(8)
    world.fleet.clusters["alpha"].forget_all()
    world.tick(40)
    stage = world.stage(run, "one")
    assert [a.state for a in stage.attempts] == [A.LOST, A.RUNNING]
    world.succeed(f"{run}-one-2")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


def test_a_foreign_job_under_our_id_is_left_alone(world: World) -> None:
    alpha = world.fleet.clusters["alpha"]
    alpha.add_foreign("r1-one-1")
    run = world.submit(run="r1").id
    world.tick(40)
    stage = world.stage(run, "one")
    assert stage.state is S.FAILED
    assert "did not send" in stage.reason
    assert alpha.job_states() == {"r1-one-1": "RUNNING"}
    assert alpha.stopped() == []
    assert world.logs.read(run, "one", 1, 0).data == b""


def test_cancel_stops_jobs_and_ends_stay_ends(world: World, fake: object) -> None:
    run = world.submit(world.spec("one"), world.spec("two", needs={"base": "one.out"})).id
    world.tick(8)
    assert world.runs.cancel(run).state is R.CANCELLED
    world.tick(8)
    alpha = world.fleet.clusters["alpha"]
    assert alpha.job_states() == {f"{run}-one-1": "STOPPED"}
    # A result that comes late changes nothing.
    fake.finish(alpha.entrypoint(f"{run}-one-1"))  # type: ignore[attr-defined]
    world.tick(8)
    assert world.runs.cancel(run).state is R.CANCELLED
    assert [s.state for s in world.runs.view(run).stages] == [S.CANCELLED] * 2


def test_cards_are_held_until_the_job_is_over(world: World, fake: object) -> None:
    first = world.submit(world.spec("one", cards=16, cluster="alpha"), run="r1").id
    second = world.submit(world.spec("one", cards=8, cluster="alpha"), run="r2").id
    world.tick()
    assert "alpha has 0 free" in world.stage(second, "one").reason
    assert "r1-one-1" in world.stage(second, "one").reason
    alpha = world.fleet.clusters["alpha"]
    fake.finish(alpha.entrypoint("r1-one-1"))  # type: ignore[attr-defined]
    world.tick(8)
    assert world.runs.view(first).state is R.SUCCEEDED
    assert world.accepted() == ["r1-one-1"]  # its driver still tears down
    world.tick(80, each_s=1.0)
    assert alpha.stopped() == ["r1-one-1"]
    assert world.accepted() == ["r1-one-1", "r2-one-1"]


def test_the_log_of_an_attempt_is_kept_and_read_by_offset(world: World) -> None:
    run = world.submit(run="r1").id
    world.tick()
    live = world.logs.read(run, "one", 1, 4)
    assert (live.data, live.is_complete) == (b"of r1-one-1\n", False)
    world.succeed("r1-one-1")
    world.tick(12)
    world.fleet.clusters["alpha"].forget_all()
    kept = world.logs.read("r1-one-1", "one", 1, live.next_offset)
    assert (kept.data, kept.next_offset, kept.is_complete) == (b"", live.next_offset, True)
    assert world.store.get(StageKeys(run, "one").attempt(1).log) == b"log of r1-one-1\n"


def test_resume_goes_on_under_the_same_id_with_the_next_attempt(world: World) -> None:
    run = world.submit(world.spec("one"), world.spec("two", needs={"base": "one.out"})).id
    world.tick()
    world.succeed(f"{run}-one-1")
    world.tick()
    with pytest.raises(ConflictError, match="running"):
        world.runs.resume(run, RunResume())
    fail(world, run, "two", 1, is_final=True)
    world.tick(8)
    assert world.runs.view(run).state is R.FAILED
    newer = "b" * 64
    with pytest.raises(NotFoundError):
        world.runs.resume(run, RunResume(package=newer))
    world.store.put(f"blobs/{newer}", b"newer code")
    world.runs.resume(run, RunResume(package=newer))
    world.tick()
    assert world.accepted() == [f"{run}-one-1", f"{run}-two-1", f"{run}-two-2"]
    view = world.runs.view(run)
    assert [len(s.attempts) for s in view.stages] == [1, 2]
    assert view.stages[1].attempts[1].package == newer
    assert view.stages[1].attempts[0].package != newer
    order = AttemptOrder.model_validate_json(
        world.store.get(StageKeys(run, "two").attempt(2).order)
    )
    assert order.since == 1
    world.succeed(f"{run}-two-2")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


def test_resume_from_a_stage_does_it_and_what_needs_it_anew(world: World) -> None:
    names = ["one", "two", "three"]
    run = world.submit(
        world.spec("one"),
        world.spec("two", needs={"base": "one.out"}),
        world.spec("three", needs={"base": "two.out"}),
    ).id
    for name in names:
        world.tick()
        world.succeed(f"{run}-{name}-1")
    world.tick()
    with pytest.raises(ConflictError, match="nothing to go on with"):
        world.runs.resume(run, RunResume())
    world.runs.resume(run, RunResume(from_stage="two"))
    world.tick(2)
    assert world.accepted()[3:] == [f"{run}-two-2"]
    order = AttemptOrder.model_validate_json(
        world.store.get(StageKeys(run, "two").attempt(2).order)
    )
    assert order.since == 2
    # A second try of the same life may use the checkpoints of the first.
    world.cluster_of(f"{run}-two-2").end(f"{run}-two-2", "FAILED")
    world.tick(20)
    order = AttemptOrder.model_validate_json(
        world.store.get(StageKeys(run, "two").attempt(3).order)
    )
    assert order.since == 2
    world.succeed(f"{run}-two-3")
    world.tick()
    world.succeed(f"{run}-three-2")
    world.tick()
    assert world.runs.view(run).state is R.SUCCEEDED


def test_a_failed_stage_gives_up_what_has_not_started(world: World) -> None:
    run = world.submit(
        world.spec("bad"),
        world.spec("big", cards=16, cluster="alpha"),
        world.spec("after", needs={"base": "bad.out"}),
    ).id
    world.tick()
    assert world.stage(run, "big").state in {S.QUEUED, S.STARTING}
    fail(world, run, "bad", 1, is_final=True)
    world.tick(12)
    view = world.runs.view(run)
    states = {s.name: s.state for s in view.stages}
    assert states["bad"] is S.FAILED
    assert states["after"] is S.WAITING
    if states["big"] is S.CANCELLED:
        assert view.state is R.FAILED


def test_in_a_failed_run_nothing_is_tried_again(world: World) -> None:
    run = world.submit(world.spec("bad"), world.spec("other")).id
    world.tick()
    fail(world, run, "bad", 1, is_final=True)
    world.tick(4)
    assert world.runs.view(run).state is R.RUNNING
    fail(world, run, "other", 1, is_final=False)
    world.tick(4)
    assert world.runs.view(run).state is R.FAILED
    other = world.stage(run, "other")
    assert other.state is S.CANCELLED
    assert other.reason.endswith("its run has failed")
    assert len(world.accepted()) == 2


def test_a_stage_that_cannot_be_moved_on_keeps_no_other_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    bad = world.submit(world.spec("one"), world.spec("two", needs={"base": "one.out"})).id
    with world.database.write() as session:
        row = session.scalars(select(Stage).where(Stage.name == "two")).one()
        row.spec = row.spec | {"needs": {"base": "nothing.out"}}
    good = world.submit(world.spec("one"), world.spec("two", needs={"base": "one.out"})).id
    world.tick(4)
    for run in (bad, good):
        world.succeed(f"{run}-one-1")
    world.tick(4)
    assert world.stage(good, "two").attempts
    assert world.stage(bad, "two").reason.startswith("a bug in octad: KeyError")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "stages",
    [
        [("one", {"needs": {"base": "nothing.out"}})],
        [("one", {"needs": {"base": "one.out"}})],
        [("one", {"needs": {"base": "two.out"}}), ("two", {})],
        [("one", {"cards": -8})],
    ],
)
def test_a_run_that_could_not_be_moved_on_cannot_be_asked_for(
    world: World, stages: list[tuple[str, dict[str, Any]]]
) -> None:
    one = world.spec("one").plain()
    plain = [{**one, "name": name, **changed} for name, changed in stages]
    with pytest.raises(ConfigError, match="one"):
        RunSpec.parse({"pipeline": "test", "title": "a test", "stages": plain})


def test_a_stage_that_cannot_be_sent_is_held_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.submit().id
    tries = []

    def fails(*_: object) -> None:
        tries.append(1)
        raise ZeroDivisionError("of ours")

    with monkeypatch.context() as patched:
        patched.setattr("octad.control.dispatch.Dispatcher.send", fails)
        world.tick(20)
    assert world.stage(run, "one").reason == "a bug in octad: ZeroDivisionError: of ours"
    assert len(tries) <= 4
    world.tick(80)
    assert world.accepted() == [f"{run}-one-1"]


def test_a_long_queue_is_told_in_one_write_and_not_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cards in (16, 8):
        world.submit(world.spec("one", cards=cards))
    world.tick(2)
    runs = [world.submit(world.spec("one")).id for _ in range(20)]
    world.tick()
    assert len({world.stage(run, "one").reason for run in runs}) == 1
    writes = []
    write = world.database.write

    def counted() -> AbstractContextManager[Session]:
        writes.append(1)
        return write()

    monkeypatch.setattr(world.database, "write", counted)
    world.tick(4)
    assert writes == []
    monkeypatch.setattr("octad.scheduler.place.Place.holders", lambda _: "others")
    world.tick()
    assert len(writes) == 1
    assert "held by others" in world.stage(runs[-1], "one").reason


def test_two_runs_whose_names_run_together_get_different_ids(world: World) -> None:
    world.submit(world.spec("b-c"), run="a")
    world.submit(world.spec("c"), run="a-b")
    world.tick()
    assert sorted(world.accepted()) == ["a-b-c-1", "a-b-c-2"]


def test_what_the_fleet_never_holds_is_refused_at_once(world: World) -> None:
    with pytest.raises(CapacityError, match="alpha, has 16"):
        world.submit(world.spec("one", cards=24))
    with pytest.raises(CapacityError, match=r"at least 24 cards.*alpha, has 16"):
        world.submit(world.spec("one", sizes=[24, 32]))
    with pytest.raises(CapacityError, match="no cluster is called 'aplha'"):
        world.submit(world.spec("one", cluster="aplha"))
    assert world.runs.page(limit=10, before=None, sweep=None).runs == ()


def test_every_transition_leaves_one_event(world: World) -> None:
    run = world.submit(run="r1").id
    world.tick(8)
    world.succeed("r1-one-1")
    world.tick(8)
    with world.database.read() as session:
        events = [
            (e.stage, e.attempt, e.before, e.after)
            for e in session.scalars(select(Event).where(Event.run == run).order_by(Event.seq))
        ]
    assert [e[2:] for e in events if e[0] == "one" and e[1] is None] == [
        ("waiting", "queued"),
        ("queued", "starting"),
        ("starting", "running"),
        ("running", "succeeded"),
    ]
    assert [e[2:] for e in events if e[1] == 1] == [
        ("intended", "submitted"),
        ("submitted", "running"),
        ("running", "succeeded"),
    ]
    assert [e[2:] for e in events if e[0] == ""] == [
        ("queued", "running"),
        ("running", "succeeded"),
    ]


def test_an_order_of_another_control_plane_in_the_store_is_not_overwritten(world: World) -> None:
    world.store.put("runs/r1/stages/one/spec.json", b"{}")
    with pytest.raises(ConflictError, match="does not know"):
        world.submit(run="r1")
    assert world.store.get("runs/r1/stages/one/spec.json") == b"{}"
