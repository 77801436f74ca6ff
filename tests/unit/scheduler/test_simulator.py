"""Recorded work run again: what the policies do with it, and what is measured."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.unit.scheduler.conftest import a_cluster, with_jobs

from octad.scheduler.decide import decide
from octad.scheduler.measures import Waits
from octad.scheduler.policies import Octad, policies
from octad.scheduler.simulator import simulate
from octad.scheduler.snapshot import Job, Snapshot, Team, Waiting
from octad.scheduler.traces import GENERATORS, Machine, Task, Trace, make_trace


def a_trace(*tasks: tuple[float, float, int], nodes: int = 1, spans: bool = False) -> Trace:
    return Trace(
        tuple(
            Task(key, arrives_s, runs_s, cards, spans_nodes=spans)
            for key, (arrives_s, runs_s, cards) in enumerate(tasks)
        ),
        tuple(Machine(f"n{i}", 8, "A100") for i in range(nodes)),
    )


def test_what_is_measured_is_what_happened() -> None:
    trace = a_trace((0, 100, 8), (10, 100, 4), (50, 100, 4), (100, 1, 1))
    result = simulate(trace, policies(trace, (), 0)["fifo-best-fit"])
    # The second and the third start at 100, the last when both are done.
    assert result.waits == Waits(60.0, 50, 100, 100, 100)
    assert result.utilisation == 1.0
    assert result.fragmentation == 0.0
    assert result.card_s == {"default": 800.0}
    trace = a_trace((0, 100, 6), (50, 10, 8), (100, 1, 1))
    result = simulate(trace, policies(trace, (), 0)["fifo-best-fit"])
    # Two of eight cards are free, and of three tasks two cannot use them.
    assert result.utilisation == pytest.approx(6 / 8)
    assert result.fragmentation == pytest.approx(2 / 3)
    assert result.partly_used == 1.0


def test_every_policy_ends_every_task_and_gives_no_card_twice() -> None:
    for name in sorted(GENERATORS):
        trace = make_trace(name, 1)
        some = Trace(trace.tasks[:150], trace.machines).with_estimates("rough", 1)
        for policy in policies(some, (), 1).values():
            assert len(simulate(some, policy).all_waits) == 150


def test_the_same_seed_is_the_same_work_and_the_same_result() -> None:
    trace = make_trace("mixed", 3)
    assert trace == make_trace("mixed", 3)
    assert trace != make_trace("mixed", 4)
    some = Trace(trace.tasks[:100], trace.machines).with_estimates("exact", 0)
    first, again = (simulate(some, Octad(some)) for _ in range(2))
    assert first == again


def test_what_made_room_is_done_in_the_end() -> None:
    machines = (Machine("n0", 8, "A100"),)
    tasks = (Task(0, 0, 1000, 8, "blue"), Task(1, 100, 50, 8, "green"))
    trace = Trace(tasks, machines)
    teams = (Team("blue", quota=0), Team("green", quota=8))
    patient = simulate(trace, Octad(trace, teams))
    assert patient.waits.max_s == 900
    result = simulate(trace, Octad(trace, teams, can_preempt=True))
    # Green begins at once; blue goes on after it, and does some of its work again.
    assert result.waits.p50_s < 1
    assert result.redone_card_s == 8 * 100
    assert len(result.all_waits) == 2


def test_a_gang_is_not_starved_by_a_stream_of_small_stages() -> None:
    tasks = [Task(n, n * 10.0, 300.0, 1, spans_nodes=True) for n in range(600)]
    gang = Task(1000, 605.0, 600.0, 16, spans_nodes=True)
    machines = tuple(Machine(f"n{i}", 8, "A100") for i in range(4))
    ordered = tuple(sorted([*tasks, gang], key=lambda t: t.arrives_s))
    for estimates in ("exact", "none"):
        trace = Trace(ordered, machines).with_estimates(estimates, 0)
        result = simulate(trace, Octad(trace))
        assert result.gang_waits is not None
        # One after another, what runs when it comes ends, and nothing takes its place.
        assert result.gang_waits.max_s < 3600, estimates


@dataclass
class Endless:
    """Teams that always have more to do, on six nodes of two cards; every member's job takes a while."""

    teams: tuple[Team, ...]
    running: dict[int, tuple[Job, float]] = field(default_factory=dict)
    card_s: Counter[str] = field(default_factory=Counter)

    def run(self, until_s: float) -> None:
        key, now_s, ends = 0, 0.0, [0.0]
        while ends:
            now_s = heapq.heappop(ends)
            if now_s >= until_s:
                break
            self.running = {k: v for k, v in self.running.items() if v[1] > now_s}
            waiting = []
            for team in self.teams:
                for length_s in (311.0, 733.0, 1201.0):
                    key += 1
                    waiting.append(
                        Waiting(key, team.name, (1 + key % 2,), now_s, estimate_s=length_s)
                    )
            for start in self.decide(waiting, now_s):
                stage = next(w for w in waiting if w.key == start[0])
                assert stage.estimate_s is not None
                end_s = now_s + stage.estimate_s
                job = Job(stage.key, "j", stage.team, start[1], start[2], ends_at_s=end_s)
                self.running[stage.key] = (job, end_s)
                self.card_s[stage.team] += int(start[1] * (min(end_s, until_s) - now_s))
                heapq.heappush(ends, end_s)

    def decide(
        self, waiting: list[Waiting], now_s: float
    ) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
        jobs = [job for job, _ in self.running.values()]
        cluster = with_jobs(a_cluster("alpha", *[2] * 6), *jobs)
        decided = decide(Snapshot((cluster,), tuple(waiting), self.teams), now_s)
        return [(s.key, s.cards, s.nodes) for s in decided.starts]


def test_two_teams_with_endless_work_share_as_their_weights_over_a_day() -> None:
    world = Endless((Team("blue", 2.0), Team("green", 1.0)))
    world.run(86_400)
    assert world.card_s["blue"] / world.card_s["green"] == pytest.approx(2.0, rel=0.03)
