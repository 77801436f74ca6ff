"""Small fleets and lines, for tests of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from octad.scheduler.decide import decide
from octad.scheduler.decisions import Decisions
from octad.scheduler.snapshot import Cluster, Job, Node, Snapshot, Team, Waiting
from octad.spec.clusters import CardSpec

A100 = CardSpec(kind="gpu", name="A100", abilities=("bf16",))
H100 = CardSpec(kind="gpu", name="H100", abilities=("bf16", "fp8"))
SIM = CardSpec(kind="sim", name="sim")
NOW_S = 10_000.0


def a_cluster(name: str, *nodes: int | Node, **changed: Any) -> Cluster:
    """A cluster that is up; a number is an unused node of so many cards."""
    made = tuple(
        node if isinstance(node, Node) else Node(f"{name}{i}", node, node)
        for i, node in enumerate(nodes)
    )
    plain: dict[str, Any] = {
        "state": "up",
        "card": A100,
        "capacity": sum(node.cards for node in made),
    }
    return Cluster(name=name, nodes=made, **(plain | changed))


def with_jobs(cluster: Cluster, *jobs: Job) -> Cluster:
    """The cluster with jobs on its nodes."""
    free = [node.free for node in cluster.nodes]
    teams = [node.team for node in cluster.nodes]
    for job in jobs:
        for number, cards in job.nodes:
            free[number] -= cards
            assert teams[number] in {None, job.team}
            teams[number] = job.team
    assert min(free) >= 0
    nodes = tuple(
        Node(node.id, node.cards, free[i], teams[i]) for i, node in enumerate(cluster.nodes)
    )
    return replace(cluster, nodes=nodes, jobs=(*cluster.jobs, *jobs))


def a_job(key: int, *nodes: tuple[int, int], team: str = "default", **changed: Any) -> Job:
    cards = sum(n for _, n in nodes)
    return Job(key=key, name=f"job-{key}", team=team, cards=cards, nodes=nodes, **changed)


def a_stage(key: int, *sizes: int, team: str = "default", **changed: Any) -> Waiting:
    plain: dict[str, Any] = {"queued_at_s": NOW_S - 1000 + key}
    return Waiting(key=key, team=team, sizes=sizes or (1,), **(plain | changed))


def run(
    clusters: list[Cluster], waiting: list[Waiting], *teams: Team, can_preempt: bool = False
) -> Decisions:
    snapshot = Snapshot(tuple(clusters), tuple(waiting), teams, can_preempt=can_preempt)
    return decide(snapshot, NOW_S)


# --- for hypothesis -------------------------------------------------------------------------------

TEAMS = ("blue", "green", "red")
SIZES = st.one_of(
    st.sampled_from([1, 2, 3, 4, 8, 16, 24]).map(lambda n: (n,)),
    st.sampled_from([(1, 2, 4), (2, 4, 8, 16), (4, 6), (8, 16)]),
)
_ENDS = st.one_of(st.none(), st.integers(-10, 500).map(lambda s: NOW_S + s))


@st.composite
def clusters(draw: st.DrawFn, name: str) -> Cluster:
    """Nodes of a few sizes, some of them used: by us, and by people who bypass us."""
    is_dedicated = draw(st.booleans())
    nodes, jobs = [], []
    owner = draw(st.sampled_from(TEAMS))
    for number in range(draw(st.integers(1, 4))):
        cards = draw(st.sampled_from([8, 8, 8, 4, 2]))
        team = owner if is_dedicated else draw(st.sampled_from(TEAMS))
        free = cards
        for _ in range(draw(st.integers(0, 3))):
            held = draw(st.integers(1, 8))
            if held <= free:
                free -= held
                job = a_job(
                    abs(hash((name, number, free))) + 10_000,
                    (number, held),
                    team=team,
                    ends_at_s=draw(_ENDS),
                    started_at_s=NOW_S - draw(st.integers(0, 1000)),
                    is_preemptible=draw(st.booleans()),
                    is_ending=draw(st.sampled_from([False, False, False, True])),
                    priority=draw(st.sampled_from(["low", "normal", "high"])),
                )
                jobs.append(job)
        is_ours = any(n == number for job in jobs for n, _ in job.nodes)
        free -= draw(st.integers(0, free)) if draw(st.integers(0, 5)) == 0 else 0
        nodes.append(Node(f"{name}{number}", cards, free, team if is_ours else None))
    return a_cluster(
        name,
        *nodes,
        card=draw(st.sampled_from([A100, H100])),
        isolation="dedicated" if is_dedicated else "shared",
        price_per_card_hour=draw(st.sampled_from([0.0, 1.0])),
        state=draw(st.sampled_from(["up", "up", "up", "down"])),
        jobs=tuple(jobs),
    )


@st.composite
def stages(draw: st.DrawFn, key: int) -> Waiting:
    return a_stage(
        key,
        *draw(SIZES),
        team=draw(st.sampled_from(TEAMS)),
        member=draw(st.sampled_from(["ann", "bob"])),
        queued_at_s=NOW_S - draw(st.integers(0, 1000)),
        estimate_s=draw(st.one_of(st.none(), st.integers(1, 1000).map(float))),
        priority=draw(st.sampled_from(["low", "normal", "high"])),
        cluster=draw(st.sampled_from([None, None, None, "one", "gone"])),
        asks=draw(st.sampled_from([(), (), (("fp8", "precision.kind"),)])),
        is_preemptible=draw(st.booleans()),
        is_fresh=draw(st.booleans()),
        spans_nodes=draw(st.sampled_from([True, True, False])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any fleet and any line."""
    names = ("one", "two", "three")[: draw(st.integers(1, 3))]
    teams = [
        Team(
            name,
            draw(st.sampled_from([0.5, 1.0, 2.0])),
            draw(st.sampled_from([None, 0, 8, 16])),
            draw(st.sampled_from([None, None, 8, 20])),
        )
        for name in TEAMS[: draw(st.integers(0, 3))]
    ]
    return Snapshot(
        tuple(draw(clusters(name)) for name in names),
        tuple(draw(stages(key)) for key in range(draw(st.integers(0, 10)))),
        tuple(teams),
        can_preempt=draw(st.booleans()),
    )
