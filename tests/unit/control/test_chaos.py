"""Any order of faults, restarts and commands: no run is lost, doubled or stuck."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from octad.errors import ConflictError
from octad.spec.keys import StageKeys
from octad.spec.runs import RunResume, StageView
from octad.spec.stages import AttemptOrder
from octad.spec.states import RunState, StageState

if TYPE_CHECKING:
    from types import ModuleType

    from tests.unit.control.conftest import World

CLUSTERS = st.sampled_from(["alpha", "beta"])


class Chaos(RuleBasedStateMachine):
    """Two fake clusters and a control plane that dies at any moment."""

    runs = Bundle("runs")
    make_world: Any
    module: ModuleType

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world: World = type(self).make_world(Path(self.folder.name), type(self).module)
        self.keys: dict[str, str] = {}
        self.ended: dict[str, RunState] = {}

    # --- people ---------------------------------------------------------------------------------

    @rule(target=runs, pinned=st.booleans(), sizes=st.sampled_from([[1], [4], [8], [2, 4, 8]]))
    def submit(self, *, pinned: bool, sizes: list[int]) -> str:
        key = f"key-{len(self.keys):06d}"
        size: dict[str, Any] = {"sizes": sizes} if len(sizes) > 1 else {"cards": sizes[0]}
        asked = self.world.submission(
            self.world.spec("one", **size, cluster="beta" if pinned else None, retries=2),
            self.world.spec("two", needs={"base": "one.out"}, retries=2),
            key=key,
            run=f"r{len(self.keys)}",
        )
        first, is_new = self.world.runs.submit(asked)
        again, is_new_again = self.world.runs.submit(asked)
        assert (is_new, is_new_again) == (True, False)
        assert first.id == again.id
        self.keys[first.id] = key
        return first.id

    @rule(run=runs)
    def cancel(self, run: str) -> None:
        self.world.runs.cancel(run)

    @rule(run=runs, from_stage=st.sampled_from([None, "one", "two"]))
    def resume(self, run: str, from_stage: str | None) -> None:
        before = self.world.runs.view(run).state
        try:
            self.world.runs.resume(run, RunResume(from_stage=from_stage))
        except ConflictError:
            assert not before.is_terminal or before is RunState.SUCCEEDED
        else:
            assert before.is_terminal
            self.ended.pop(run, None)

    # --- the control plane ----------------------------------------------------------------------

    @rule(times=st.integers(1, 6), each_s=st.sampled_from([0.25, 2.0, 20.0]))
    def tick(self, times: int, each_s: float) -> None:
        self.world.tick(times, each_s)

    @rule()
    def restart(self) -> None:
        self.world = self.world.restart()

    # --- the surroundings -----------------------------------------------------------------------

    @rule(name=CLUSTERS, lose=st.sampled_from(["request", "reply"]))
    def lose_next_call(self, name: str, lose: str) -> None:
        self.world.fleet.clusters[name].fake_jobs.lose = lose  # type: ignore[assignment]

    @rule(name=CLUSTERS, silent=st.booleans())
    def fall_silent(self, name: str, *, silent: bool) -> None:
        self.world.fleet.clusters[name].fake_jobs.silent = silent

    @rule(name=CLUSTERS)
    def restart_head(self, name: str) -> None:
        self.world.fleet.clusters[name].forget_all()

    @rule(is_back=st.booleans())
    def lose_a_node_of_two(self, *, is_back: bool) -> None:
        alpha = self.world.fleet.clusters["alpha"]
        alpha.regain_nodes()
        if not is_back:
            alpha.lose_node()

    @rule(name=CLUSTERS, pick=st.integers(0, 20), how=st.sampled_from(["work", "die", "linger"]))
    def move_a_job(self, name: str, pick: int, how: str) -> None:
        cluster = self.world.fleet.clusters[name]
        going = [job for job, state in cluster.job_states().items() if state == "RUNNING"]
        if not going:
            return
        job = going[pick % len(going)]
        if how == "work":
            cluster.succeed(job)
        elif how == "die":
            cluster.end(job, "FAILED", "killed")
        else:
            type(self).module.finish(cluster.entrypoint(job))

    # --- what must hold, always -----------------------------------------------------------------

    @invariant()
    def no_run_is_lost_and_a_key_is_one_run(self) -> None:
        page = self.world.runs.page(limit=500, before=None, sweep=None)
        assert sorted(r.id for r in page.runs) == sorted(self.keys)

    @invariant()
    def a_job_is_accepted_once(self) -> None:
        accepted = self.world.accepted()
        assert len(accepted) == len(set(accepted))

    @invariant()
    def only_the_newest_attempt_may_commit(self) -> None:
        for run in self.keys:
            for stage in self.world.runs.view(run).stages:
                open_ones = [a for a in stage.attempts if not a.state.is_terminal]
                assert len(open_ones) <= 1
                assert all(a.number == stage.attempts[-1].number for a in open_ones)
                numbers = [a.number for a in stage.attempts]
                assert numbers == sorted(set(numbers))

    @invariant()
    def ends_stay_ends(self) -> None:
        for run in self.keys:
            state = self.world.runs.view(run).state
            if run in self.ended:
                assert state is self.ended[run]
            elif state.is_terminal:
                self.ended[run] = state

    @invariant()
    def cards_are_never_given_twice(self) -> None:
        for room in self.world.reconciler.rooms():
            for number, node in enumerate(room.nodes):
                held = [cards for job in room.jobs for n, cards in job.nodes if n == number]
                assert node.cards == node.free + sum(held)

    def teardown(self) -> None:
        """Heal everything: all that is open must come to an end, and leave nothing behind."""
        world = self.world
        for cluster in world.fleet.clusters.values():
            cluster.fake_jobs.silent = False
            cluster.fake_jobs.lose = ""
            cluster.regain_nodes()
        for _ in range(60):
            world.tick(3, each_s=5.0)
            for cluster in world.fleet.clusters.values():
                for job, state in cluster.job_states().items():
                    if state == "RUNNING":
                        cluster.succeed(job)
        for run in self.keys:
            view = world.runs.view(run)
            assert view.state.is_terminal, view
            for stage in view.stages:
                assert stage.state.is_terminal or stage.state is StageState.WAITING
                self.check_sizes(run, stage)
                if stage.state is StageState.SUCCEEDED:
                    last = stage.attempts[-1].number
                    result = StageKeys(run, stage.name).attempt(last).result
                    assert world.store.find(result) is not None
        world.tick(30, each_s=5.0)
        for room in world.reconciler.rooms():
            assert room.jobs == ()
        world.database.close()
        self.folder.cleanup()

    def check_sizes(self, run: str, stage: StageView) -> None:
        """Every attempt had a size that was asked for, and was told of that one and no other."""
        asked = stage.cards_asked
        for attempt in stage.attempts:
            assert attempt.cards == attempt.layout.cards
            assert attempt.cards in ({2, 4, 8} if asked else {stage.cards})
            raw = self.world.store.find(StageKeys(run, stage.name).attempt(attempt.number).order)
            if raw is not None:
                order = AttemptOrder.model_validate_json(raw)
                assert (order.stage.cards, order.stage.layout) == (attempt.cards, attempt.layout)


def test_chaos(fake: ModuleType, world_maker: Any) -> None:
    class Here(Chaos):
        module = fake
        make_world = staticmethod(world_maker)

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=6,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.long
@pytest.mark.timeout(900)
def test_chaos_long(fake: ModuleType, world_maker: Any) -> None:
    class There(Chaos):
        module = fake
        make_world = staticmethod(world_maker)

    run_state_machine_as_test(
        There,
        settings=settings(
            max_examples=10,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
