"""Who is next, what goes where, and what those who wait are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.scheduler.conftest import (
    A100,
    H100,
    NOW_S,
    a_cluster,
    a_job,
    a_stage,
    run,
    with_jobs,
)

from octad.scheduler.decisions import Decisions, Preempt, Start
from octad.scheduler.snapshot import Cluster, Node, Team, Waiting
from octad.spec.clusters import Ability


def where(decided: Decisions) -> dict[int, tuple[str, int]]:
    return {s.key: (s.cluster, s.cards) for s in decided.starts}


def reasons(decided: Decisions) -> dict[int, str]:
    return {w.key: w.reason for w in decided.waits}


# --- where ----------------------------------------------------------------------------------------


def test_a_pinned_stage_goes_where_it_is_pinned_and_others_where_most_is_free() -> None:
    fleet = [a_cluster("alpha", 8), a_cluster("beta", 8, 8)]
    decided = run(fleet, [a_stage(1, 8, cluster="alpha"), a_stage(2, 4)])
    assert where(decided) == {1: ("alpha", 8), 2: ("beta", 4)}
    assert where(run([a_cluster("alpha", 8, 8), a_cluster("beta", 8)], [a_stage(2, 4)])) == {
        2: ("alpha", 4)
    }


def test_small_stages_fill_up_nodes_that_are_used_and_large_ones_get_whole_nodes() -> None:
    alpha = with_jobs(a_cluster("alpha", 8, 8, 8), a_job(9, (1, 5)))
    decided = run([alpha], [a_stage(1, 2), a_stage(2, 1), a_stage(3, 16)])
    assert sorted(decided.starts) == [
        Start(1, "alpha", 2, ((1, 2),)),
        Start(2, "alpha", 1, ((1, 1),)),
        Start(3, "alpha", 16, ((0, 8), (2, 8))),
    ]


def test_of_two_clusters_the_cheaper_and_before_that_the_one_that_holds_the_inputs() -> None:
    fleet = [
        a_cluster("dear", 8, price_per_card_hour=2.0),
        a_cluster("cheap", 8, price_per_card_hour=1.0),
    ]
    decided = run(fleet, [a_stage(1, 2), a_stage(2, 2, inputs_on=("dear",))])
    assert where(decided) == {1: ("cheap", 2), 2: ("dear", 2)}


def test_a_node_is_one_teams_at_a_time_and_a_dedicated_cluster_too() -> None:
    shared = with_jobs(a_cluster("alpha", 8), a_job(9, (0, 1), team="blue"))
    assert where(run([shared], [a_stage(2, 1, team="blue")])) == {2: ("alpha", 1)}
    decided = run([shared], [a_stage(1, 2, team="green"), a_stage(2, 1, team="blue")])
    # It keeps the node: otherwise blue could hold it for ever, a card after the other.
    assert where(decided) == {}
    assert "not on one node that its team may use" in reasons(decided)[1]
    dedicated = replace(
        with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 1), team="blue")), isolation="dedicated"
    )
    assert where(run([dedicated], [a_stage(2, 16, team="blue")])) == {}
    assert where(run([dedicated], [a_stage(2, 8, team="blue")])) == {2: ("alpha", 8)}
    decided = run([dedicated], [a_stage(1, 1, team="green")])
    assert where(decided) == {}
    assert "takes one team at a time, and is blue's now" in reasons(decided)[1]


def test_cards_that_others_took_behind_our_back_are_left_to_them() -> None:
    alpha = a_cluster("alpha", Node("n0", 8, 3))
    decided = run([alpha], [a_stage(1, 4), a_stage(2, 3)])
    assert where(decided) == {}
    assert where(run([alpha], [a_stage(2, 3)])) == {2: ("alpha", 3)}


# --- ranges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "cards"), [(8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, None), (0, None)]
)
def test_a_range_takes_the_largest_size_that_is_free_now(free: int, cards: int | None) -> None:
    decided = run([a_cluster("alpha", Node("n0", 8, free))], [a_stage(1, 2, 4, 8)])
    assert where(decided) == ({} if cards is None else {1: ("alpha", cards)})
    if cards is None:
        assert reasons(decided)[1] == f"needs at least 2 cards; alpha has {free} free"


def test_a_range_goes_where_it_gets_most_and_the_next_in_line_gets_what_is_left() -> None:
    fleet = [a_cluster("alpha", Node("n0", 8, 5)), a_cluster("beta", 8)]
    decided = run(fleet, [a_stage(1, 2, 4, 8), a_stage(2, 2, 4, 8), a_stage(3, 1)])
    assert where(decided) == {1: ("beta", 8), 2: ("alpha", 4), 3: ("alpha", 1)}


def test_a_range_that_was_just_queued_waits_for_cards_that_are_being_freed() -> None:
    alpha = with_jobs(a_cluster("alpha", 8), a_job(9, (0, 4), is_ending=True))
    fresh = a_stage(1, 2, 4, 8, is_fresh=True)
    decided = run(
        [alpha, a_cluster("beta", Node("n0", 8, 2))], [fresh, a_stage(2, 1, cluster="alpha")]
    )
    assert where(decided) == {}
    assert reasons(decided)[1] == "could have 4 cards now; waits a moment for 8"
    assert "first in line" in reasons(decided)[2]
    assert where(run([alpha], [replace(fresh, is_fresh=False)])) == {1: ("alpha", 4)}
    # What is coming would not be more than it can use; and one number is as many as it is.
    assert where(run([alpha], [replace(fresh, sizes=(2, 4))])) == {1: ("alpha", 4)}
    assert where(run([alpha], [replace(fresh, sizes=(4,))])) == {1: ("alpha", 4)}


# --- who ------------------------------------------------------------------------------------------


def test_the_team_that_holds_least_for_its_weight_goes_first() -> None:
    alpha = with_jobs(
        a_cluster("alpha", 8, 8, 8),
        a_job(8, (0, 8), team="blue"),
        a_job(9, (1, 6), team="green"),
    )
    waiting = [a_stage(1, 8, team="blue"), a_stage(2, 8, team="green")]
    assert where(run([alpha], waiting)) == {2: ("alpha", 8)}
    assert where(run([alpha], waiting, Team("blue", 2.0), Team("green"))) == {1: ("alpha", 8)}
    # Whoever has not got what is its own goes before those that borrow.
    quotas = (Team("blue", 2.0, 0), Team("green", 0.1, 14))
    assert where(run([alpha], waiting, *quotas)) == {2: ("alpha", 8)}


def test_the_share_is_that_of_the_card_a_team_holds_most_of() -> None:
    """Four of eight H100 weigh more than six of sixteen A100."""
    fleet = [
        with_jobs(a_cluster("a", 8, 8, card=A100), a_job(8, (0, 6), team="blue")),
        with_jobs(a_cluster("h", 8, card=H100), a_job(9, (0, 4), team="green")),
    ]
    waiting = [a_stage(1, 8, team="green"), a_stage(2, 8, team="blue")]
    assert where(run(fleet, waiting)) == {2: ("a", 8)}


def test_inside_a_team_class_then_member_then_age() -> None:
    alpha = with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 4), member="ann"))
    waiting = [
        a_stage(1, 8, member="ann"),
        a_stage(2, 8, member="bob"),
        a_stage(3, 8, member="bob"),
    ]
    assert where(run([alpha], waiting)) == {2: ("alpha", 8)}
    urgent = [*waiting, a_stage(4, 8, member="ann", priority="high")]
    assert where(run([alpha], urgent)) == {4: ("alpha", 8)}


def test_of_work_of_known_length_the_short_goes_first_and_the_long_one_day() -> None:
    alpha = a_cluster("alpha", 1)
    long = a_stage(1, estimate_s=36_000.0, queued_at_s=NOW_S - 100)
    short = a_stage(2, estimate_s=60.0, queued_at_s=NOW_S)
    assert where(run([alpha], [long, short])) == {2: ("alpha", 1)}
    patient = replace(long, queued_at_s=NOW_S - 400_000)
    assert where(run([alpha], [patient, short])) == {1: ("alpha", 1)}


def test_a_team_gets_no_more_than_its_limit() -> None:
    alpha = with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 6), team="blue"))
    decided = run(
        [alpha],
        [a_stage(1, 4, 8, team="blue"), a_stage(2, 1, team="blue")],
        Team("blue", limit=7),
    )
    assert where(decided) == {2: ("alpha", 1)}
    assert reasons(decided)[1] == (
        "needs at least 4 cards; team blue holds 6 of the 7 it may have at most"
    )


# --- gangs ----------------------------------------------------------------------------------------


def busy(*ends: float | None) -> Cluster:
    """Nodes of eight, each with a job of four that ends so many seconds from now."""
    return with_jobs(
        a_cluster("alpha", *[8 for _ in ends]),
        *(
            a_job(90 + n, (n, 4), ends_at_s=None if s is None else NOW_S + s)
            for n, s in enumerate(ends)
        ),
    )


def test_a_gang_keeps_the_nodes_that_are_free_first_and_others_fill_the_gaps() -> None:
    alpha = busy(60, 80, 900)
    gang = a_stage(1, 16, priority="high")
    # Done before the gang begins: beside it or in its way, whichever is the tighter.
    early = [a_stage(n, 4, estimate_s=50.0) for n in (2, 3, 4)]
    decided = run([alpha], [gang, *early])
    (kept,) = [r for r in decided.reservations if r.key == 1]
    assert (kept.at_s, kept.nodes) == (NOW_S + 80, ((0, 8), (1, 8)))
    assert set(where(decided)) == {2, 3, 4}
    # Not done by then, or nobody knows: only beside it.
    for estimate_s in (500.0, None):
        late = [a_stage(n, 4, estimate_s=estimate_s) for n in (2, 3)]
        decided = run([alpha], [gang, *late])
        assert [s.nodes for s in decided.starts] == [((2, 4),)]
        waits = {w.key: w for w in decided.waits}
        assert waits[1].starts_at_s == NOW_S + 80
        assert "first in line" in waits[3].reason


def test_a_gang_whose_time_nobody_knows_keeps_the_nodes_that_are_emptiest() -> None:
    decided = run([busy(None, None, None)], [a_stage(1, 16), a_stage(2, 4), a_stage(3, 4)])
    (kept,) = [r for r in decided.reservations if r.key == 1]
    assert (kept.at_s, kept.nodes) == (None, ((0, 8), (1, 8)))
    assert where(decided) == {2: ("alpha", 4)}
    wait = next(w for w in decided.waits if w.key == 1)
    assert (wait.starts_at_s, wait.unknown) == (None, "nobody can tell when job-90 ends")


def test_what_a_team_borrowed_is_taken_back_and_no_more() -> None:
    alpha = with_jobs(
        a_cluster("alpha", 8, 8, 8),
        a_job(90, (0, 8), team="blue", is_preemptible=True, started_at_s=NOW_S - 900),
        a_job(91, (1, 8), team="blue", is_preemptible=True, started_at_s=NOW_S - 100),
        a_job(92, (2, 8), team="blue", started_at_s=NOW_S - 10),
    )
    teams = (Team("blue", quota=8), Team("green", quota=16))
    waiting = [a_stage(1, 8, team="green")]
    decided = run([alpha], waiting, *teams, can_preempt=True)
    # The one that loses least, of those that can go on later.
    assert decided.preempts == (Preempt(91, 1, "makes room for work of team green"),)
    assert reasons(decided)[1] == "needs 8 cards; job-91 makes room for it"
    assert run([alpha], waiting, *teams).preempts == ()
    assert run([alpha], waiting, Team("blue", quota=24), teams[1], can_preempt=True).preempts == ()
    assert run([alpha], waiting, teams[0], can_preempt=True).preempts == ()
    # It was asked already: nobody else is.
    asked = replace(
        alpha, jobs=(alpha.jobs[0], replace(alpha.jobs[1], is_ending=True), alpha.jobs[2])
    )
    assert run([asked], waiting, *teams, can_preempt=True).preempts == ()


def test_a_higher_class_takes_from_lower_ones_of_its_own_team() -> None:
    alpha = with_jobs(
        a_cluster("alpha", 8),
        a_job(90, (0, 4), is_preemptible=True, priority="low"),
        a_job(91, (0, 4), is_preemptible=True, priority="high"),
    )
    decided = run([alpha], [a_stage(1, 2, priority="high")], can_preempt=True)
    assert [p.key for p in decided.preempts] == [90]
    assert run([alpha], [a_stage(1, 2, priority="low")], can_preempt=True).preempts == ()


# --- words ----------------------------------------------------------------------------------------

FP8: tuple[tuple[Ability, str], ...] = (("bf16", "precision.kind"), ("fp8", "precision.kind"))


@pytest.mark.parametrize(
    ("fleet", "stage", "words"),
    [
        ([a_cluster("alpha", 8, state="down")], a_stage(1), "octad up"),
        ([a_cluster("alpha", 8, state="unreachable", reason="no route")], a_stage(1), "no route"),
        ([a_cluster("alpha", 8)], a_stage(1, 16, cluster="alpha"), "has fewer"),
        ([a_cluster("alpha", 8)], a_stage(1, 16), "no cluster of the fleet has that many"),
        ([a_cluster("alpha", 8)], a_stage(1, 10, 16), "needs at least 10 cards; no cluster"),
        ([a_cluster("alpha", 8)], a_stage(1, cluster="gone"), "not in the fleet any more"),
        (
            [a_cluster("alpha", 8, 8), a_cluster("beta", Node("n", 8, 2), card=H100)],
            a_stage(1, 4, asks=FP8),
            (
                "needs 4 cards; beta has 2 free; alpha's A100 cards cannot compute in fp8 "
                "(precision.kind)"
            ),
        ),
        (
            [a_cluster("alpha", 8)],
            a_stage(1, cluster="alpha", asks=FP8),
            "alpha's A100 cards cannot compute in fp8 (precision.kind)",
        ),
        (
            [a_cluster("alpha", 8), a_cluster("beta", 8, card=H100)],
            a_stage(1, 16, asks=FP8),
            "needs 16 cards; no cluster of the fleet that could be used has",
        ),
        (
            [a_cluster("alpha", Node("n0", 8, 3), Node("n1", 8, 3))],
            a_stage(1, 4),
            "alpha has 6 free but not on one node",
        ),
        (
            [with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 8)))],
            a_stage(1, 16),
            "needs 16 cards; alpha has 8 free, the others held by job-9",
        ),
    ],
)
def test_everything_that_waits_is_told_why(
    fleet: list[Cluster], stage: Waiting, words: str
) -> None:
    (wait,) = run(fleet, [stage]).waits
    assert words in wait.reason


def test_what_would_help_is_said() -> None:
    fleet = [
        with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 8), ends_at_s=NOW_S + 50)),
        a_cluster("beta", 8, 8),
        a_cluster("gamma", 8, 8, 8, 8, state="down"),
    ]
    (wait,) = run(fleet, [a_stage(1, 16, cluster="alpha")]).waits
    assert wait.helps == (
        "with 8 cards it could start now; if it may leave alpha, it could start now on beta"
    )
    assert wait.starts_at_s == NOW_S + 50
    (wait,) = run(fleet, [a_stage(1, 32)]).waits
    assert "`octad up` starts gamma" in wait.helps


def test_those_behind_are_told_when_what_is_ahead_will_be_done() -> None:
    alpha = with_jobs(a_cluster("alpha", 8), a_job(9, (0, 8), ends_at_s=NOW_S + 100))
    waiting = [a_stage(n, 8, estimate_s=1000.0) for n in range(3)]
    waits = {w.key: w.starts_at_s for w in run([alpha], waiting).waits}
    assert waits == {0: NOW_S + 100, 1: NOW_S + 1100, 2: NOW_S + 2100}


def test_a_dedicated_cluster_that_a_team_waits_for_is_not_taken_by_another_meanwhile() -> None:
    alpha = replace(
        with_jobs(a_cluster("alpha", 8, 8), a_job(9, (0, 4), team="red", ends_at_s=NOW_S + 100)),
        isolation="dedicated",
    )
    late = a_stage(2, 1, team="red", estimate_s=500.0)
    early = a_stage(3, 1, team="red", estimate_s=50.0)
    decided = run([alpha], [a_stage(1, 1, team="blue"), late, early])
    assert [(r.key, r.at_s) for r in decided.reservations] == [(1, NOW_S + 100)]
    assert where(decided) == {3: ("alpha", 1)}
