"""What holds for every fleet and every line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.conftest import NOW_S, snapshots

from octad.scheduler.decide import decide
from octad.scheduler.decisions import Decisions, Reservation
from octad.scheduler.snapshot import RANKS, Cluster, Snapshot, Waiting

FOREVER = float("inf")
# A fleet and a line are large to draw; `test_the_same_with_many_more` draws more of them.
fewer = settings(max_examples=40, deadline=None)


def cluster_of(snapshot: Snapshot, name: str) -> Cluster:
    return next(c for c in snapshot.clusters if c.name == name)


def stage_of(snapshot: Snapshot, key: int) -> Waiting:
    return next(w for w in snapshot.waiting if w.key == key)


def held_by_us(cluster: Cluster, number: int) -> int:
    return sum(cards for job in cluster.jobs for n, cards in job.nodes if n == number)


@fewer
@given(snapshot=snapshots())
def test_every_stage_gets_one_answer_and_no_card_is_given_twice(snapshot: Snapshot) -> None:
    decided = decide(snapshot, NOW_S)
    answered = [s.key for s in decided.starts] + [w.key for w in decided.waits]
    assert sorted(answered) == sorted(w.key for w in snapshot.waiting)
    taken: Counter[tuple[str, int]] = Counter()
    for start in decided.starts:
        cluster, stage = cluster_of(snapshot, start.cluster), stage_of(snapshot, start.key)
        assert cluster.state == "up"
        assert stage.cluster in {None, cluster.name}
        assert not cluster.card.lacks(a for a, _ in stage.asks)
        # A gang is whole, on nodes that are as many as they are said to be.
        assert start.cards in stage.sizes
        assert sum(cards for _, cards in start.nodes) == start.cards
        numbers = [n for n, _ in start.nodes]
        assert len(set(numbers)) == len(numbers)
        for number, cards in start.nodes:
            assert cards > 0
            taken[start.cluster, number] += cards
        largest = max(node.cards for node in cluster.nodes)
        if len(numbers) > 1:
            assert stage.spans_nodes
            assert start.cards > largest
            # What needs whole nodes gets whole nodes.
            assert all(cluster.nodes[n].free == cluster.nodes[n].cards for n in numbers)
    for (name, number), cards in taken.items():
        assert cards <= cluster_of(snapshot, name).nodes[number].free


@fewer
@given(snapshot=snapshots())
def test_a_node_has_one_team_and_a_dedicated_cluster_too(snapshot: Snapshot) -> None:
    decided = decide(snapshot, NOW_S)
    on_node: dict[tuple[str, int], set[str]] = {}
    on_cluster: dict[str, set[str]] = {}
    for cluster in snapshot.clusters:
        for job in cluster.jobs:
            on_cluster.setdefault(cluster.name, set()).add(job.team)
            for number, _ in job.nodes:
                on_node.setdefault((cluster.name, number), set()).add(job.team)
    for start in decided.starts:
        team = stage_of(snapshot, start.key).team
        on_cluster.setdefault(start.cluster, set()).add(team)
        for number, _ in start.nodes:
            on_node.setdefault((start.cluster, number), set()).add(team)
    assert all(len(teams) == 1 for teams in on_node.values())
    for cluster in snapshot.clusters:
        if cluster.isolation == "dedicated":
            assert len(on_cluster.get(cluster.name, ())) <= 1


@fewer
@given(snapshot=snapshots(), random=st.randoms())
def test_the_same_facts_in_another_order_are_the_same_decision(
    snapshot: Snapshot, random: object
) -> None:
    assert decide(snapshot, NOW_S) == decide(snapshot, NOW_S)
    waiting = list(snapshot.waiting)
    random.shuffle(waiting)  # type: ignore[attr-defined]  # hypothesis's Random
    again = decide(replace(snapshot, waiting=tuple(waiting)), NOW_S)
    first = decide(snapshot, NOW_S)
    assert sorted(again.starts) == sorted(first.starts)
    assert sorted(again.reservations, key=str) == sorted(first.reservations, key=str)


def free_at(cluster: Cluster, decided: Decisions, snapshot: Snapshot, kept: Reservation) -> bool:
    """Whether all cards of a reservation are free when it begins, if all estimates hold."""
    assert kept.at_s is not None
    team = stage_of(snapshot, kept.key).team
    for number, cards in kept.nodes:
        free, teams = cluster.nodes[number].free, set()
        leaving = {p.key for p in decided.preempts}
        for job in cluster.jobs:
            on_node = sum(c for n, c in job.nodes if n == number)
            end_s = NOW_S if job.is_ending or job.key in leaving else job.ends_at_s
            end_s = FOREVER if end_s is None else end_s if job.is_ending else max(end_s, NOW_S)
            # What should have ended already counts as ending a second from now.
            if on_node and (end_s <= kept.at_s):
                free += on_node
            elif on_node:
                teams.add(job.team)
        for start in decided.starts:
            stage = stage_of(snapshot, start.key)
            on_node = sum(c for n, c in start.nodes if n == number)
            end_s = FOREVER if stage.estimate_s is None else NOW_S + stage.estimate_s
            if start.cluster == cluster.name and on_node and end_s > kept.at_s:
                free -= on_node
                teams.add(stage.team)
        if free < cards or teams - {team}:
            return False
    return True


@fewer
@given(snapshot=snapshots())
def test_no_reservation_is_delayed_by_what_starts_now(snapshot: Snapshot) -> None:
    decided = decide(snapshot, NOW_S)
    started = {s.key for s in decided.starts}
    kept_nodes: set[tuple[str, int]] = set()
    for kept in decided.reservations:
        assert kept.key not in started
        cluster = cluster_of(snapshot, kept.cluster)
        nodes = {(kept.cluster, number) for number, _ in kept.nodes}
        assert not nodes & kept_nodes
        kept_nodes |= nodes
        if kept.at_s is not None:
            assert free_at(cluster, decided, snapshot, kept)


@fewer
@given(snapshot=snapshots())
def test_quotas_and_limits_hold(snapshot: Snapshot) -> None:
    decided = decide(snapshot, NOW_S)
    jobs = {job.key: job for cluster in snapshot.clusters for job in cluster.jobs}
    held: Counter[str] = Counter()
    for job in jobs.values():
        held[job.team] += job.cards
    gained: Counter[str] = Counter()
    for start in decided.starts:
        gained[stage_of(snapshot, start.key).team] += start.cards
    lost: Counter[str] = Counter()
    for preempt in decided.preempts:
        job, by = jobs[preempt.key], stage_of(snapshot, preempt.by)
        assert snapshot.can_preempt
        assert job.is_preemptible
        assert not job.is_ending
        if job.team == by.team:
            assert RANKS[job.priority] < RANKS[by.priority]
        else:
            lost[job.team] += job.cards
    assert len({p.key for p in decided.preempts}) == len(decided.preempts)
    for team in snapshot.teams:
        if team.limit is not None and gained[team.name]:
            assert held[team.name] + gained[team.name] <= team.limit
        # Nobody is brought below what is its own.
        if lost[team.name]:
            own = team.quota or 0
            assert held[team.name] + gained[team.name] - lost[team.name] >= own


@fewer
@given(snapshot=snapshots())
def test_everything_that_waits_is_told_why_and_until_when(snapshot: Snapshot) -> None:
    for wait in decide(snapshot, NOW_S).waits:
        assert wait.reason
        assert (wait.starts_at_s is None) is bool(wait.unknown)
        assert wait.starts_at_s is None or wait.starts_at_s >= NOW_S
        assert "\n" not in wait.reason + wait.helps


@pytest.mark.long
@pytest.mark.parametrize(
    "test",
    [
        test_every_stage_gets_one_answer_and_no_card_is_given_twice,
        test_a_node_has_one_team_and_a_dedicated_cluster_too,
        test_no_reservation_is_delayed_by_what_starts_now,
        test_quotas_and_limits_hold,
    ],
)
def test_the_same_with_many_more(test: Any) -> None:
    again = given(snapshot=snapshots())(test.hypothesis.inner_test)
    settings(max_examples=120, deadline=None)(again)()
