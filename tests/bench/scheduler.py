"""One decision of the scheduler on a large fleet: 100 clusters of 100 nodes of 8 cards, and 10,000
stages in the queue, of four teams, pinned and not, of all sizes, some with ranges; nine tenths of
the cards are taken.

Goal: at most 100 ms. Only `decide` is timed; the snapshot is made before.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

from octad.scheduler.decide import decide
from octad.scheduler.snapshot import Cluster, Job, Node, Snapshot, Team, Waiting
from octad.spec.clusters import CardSpec

RUNS = 9
GOAL_MS = 100
NUM_CLUSTERS, NUM_NODES, NUM_STAGES = 100, 100, 10_000
NOW_S = 1_000_000.0
TEAMS = (Team("vision", 2.0, 30_000), Team("text", 1.0, 20_000), Team("lab"), Team("guests", 0.5))
CARDS = (
    CardSpec(kind="gpu", name="A100", abilities=("bf16", "fp16", "cp")),
    CardSpec(kind="gpu", name="H100", abilities=("bf16", "fp16", "fp8", "cp")),
)
SIZES = ((1,), (1,), (2,), (4,), (8,), (8,), (16,), (32,), (64,), (2, 4, 8), (8, 16, 24, 32))


def a_cluster(number: int, taken: float, rng: random.Random) -> Cluster:
    """A cluster with a share of its cards taken, by jobs of 1 to 8 cards."""
    nodes, jobs = list[Node](), list[Job]()
    for n in range(NUM_NODES):
        team = rng.choice(TEAMS).name
        free = 8
        while free and rng.random() < taken:
            cards = min(free, rng.choice((1, 2, 4, 8, 8)))
            free -= cards
            key = 1_000_000 + number * NUM_NODES * 8 + len(jobs)
            ends_s = NOW_S + rng.uniform(60, 86_400) if rng.random() < 0.8 else None
            jobs.append(
                Job(key, f"job-{key}", team, cards, ((n, cards),), f"m{key % 5}", ends_at_s=ends_s)
            )
        nodes.append(Node(f"n{n}", 8, free, team if free < 8 else None))
    return Cluster(
        f"c{number:03}",
        "up",
        CARDS[number % 2],
        tuple(nodes),
        tuple(jobs),
        capacity=NUM_NODES * 8,
        price_per_card_hour=(1.5, 2.0)[number % 2],
    )


def a_snapshot(taken: float = 0.9, seed: int = 0) -> Snapshot:
    """A large fleet with a long queue."""
    rng = random.Random(seed)
    waiting = [
        Waiting(
            key,
            rng.choice(TEAMS).name,
            rng.choice(SIZES),
            NOW_S - rng.uniform(0, 86_400),
            member=f"m{rng.randrange(5)}",
            priority=rng.choice(("low", "normal", "normal", "high")),
            estimate_s=rng.uniform(60, 40_000) if rng.random() < 0.8 else None,
            cluster=f"c{rng.randrange(NUM_CLUSTERS):03}" if rng.random() < 0.05 else None,
            asks=(("fp8", "precision.kind"),) if rng.random() < 0.2 else (),
        )
        for key in range(NUM_STAGES)
    ]
    clusters = [a_cluster(n, taken, rng) for n in range(NUM_CLUSTERS)]
    return Snapshot(tuple(clusters), tuple(waiting), TEAMS)


def timed_ms(snapshot: Snapshot) -> float:
    """One decision."""
    gc.collect()
    begun = time.perf_counter()
    decide(snapshot, NOW_S)
    return (time.perf_counter() - begun) * 1000


def main() -> None:
    """Print the medians."""
    for name, taken in (("nine tenths taken", 0.9), ("all taken", 1.0), ("empty", 0.0)):
        snapshot = a_snapshot(taken)
        decided = decide(snapshot, NOW_S)
        median = statistics.median(timed_ms(snapshot) for _ in range(RUNS))
        print(
            f"{name}: {median:.0f} ms (median of {RUNS}, goal {GOAL_MS}); {len(decided.starts)} "
            f"start, {len(decided.waits)} wait, {len(decided.reservations)} reservations"
        )


if __name__ == "__main__":
    main()
