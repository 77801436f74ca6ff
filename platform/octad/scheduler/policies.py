"""Policies for the simulator: octad's own decision, and simple ones to compare it with.

The simple ones take no notice of teams. `fifo-*` starts nothing before what came earlier; the word
after it says how a node is chosen among those with enough free cards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from octad.scheduler.decide import decide
from octad.scheduler.place import FOREVER, Cards
from octad.scheduler.simulator import Begin, Policy, Running, State
from octad.scheduler.snapshot import Cluster, Job, Node, Snapshot, Team, Waiting
from octad.scheduler.traces import Task, Trace
from octad.spec.clusters import CardSpec

Choose = Callable[[list[tuple[int, int, int]]], tuple[int, int, int]]
"""One of (free cards, cluster, node), all of which have enough."""


class Octad:
    """`decide`, as the control plane calls it.

    Args:
        trace: Its machines.
        teams: With their weights and quotas.
        can_preempt: Whether work makes room for a team's own share; all of it can.
    """

    def __init__(
        self, trace: Trace, teams: Sequence[Team] = (), *, can_preempt: bool = False
    ) -> None:
        self._teams = tuple(teams)
        self.can_preempt = can_preempt
        self._clusters: list[Cluster] = []
        self._nodes: list[list[Node]] = []
        self._jobs: list[dict[int, Job]] = []
        self._waiting: dict[int, Waiting] = {}
        self._on_node: dict[tuple[int, int], dict[int, str]] = {}

    def __call__(self, state: State) -> tuple[Sequence[Begin], Sequence[int]]:
        """What starts now, and what makes room."""
        self._catch_up(state)
        clusters = tuple(
            Cluster(
                g.name, "up", CardSpec(kind="gpu", name=g.name), tuple(nodes), tuple(jobs.values())
            )
            for g, nodes, jobs in zip(state.groups, self._nodes, self._jobs, strict=True)
        )
        waiting = tuple(self._stage(task, state) for task in state.queue.values())
        snapshot = Snapshot(clusters, waiting, self._teams, can_preempt=self.can_preempt)
        decided = decide(snapshot, state.now_s)
        index = {g.name: i for i, g in enumerate(state.groups)}
        begins = [Begin(s.key, index[s.cluster], s.nodes) for s in decided.starts]
        return begins, [p.key for p in decided.preempts]

    def _catch_up(self, state: State) -> None:
        """Make anew what has changed since the last time."""
        if not self._nodes:
            for group in state.groups:
                self._nodes.append([Node(str(n), c, c) for n, c in enumerate(group.sizes)])
                self._jobs.append({})
        touched = {cluster for cluster, _ in state.news}
        for cluster in touched:
            self._jobs[cluster] = {}
        on_node: dict[tuple[int, int], str] = {}
        for running in state.running.values():
            for number, _ in running.nodes:
                on_node[running.cluster, number] = running.task.team
            if running.cluster in touched:
                self._jobs[running.cluster][running.task.key] = self._job(running)
        for cluster, number in state.news:
            group = state.groups[cluster]
            self._nodes[cluster][number] = Node(
                str(number), group.sizes[number], group.free[number], on_node.get((cluster, number))
            )
        state.news.clear()

    def _job(self, running: Running) -> Job:
        task = running.task
        known = task.estimate_s
        return Job(
            task.key,
            str(task.key),
            task.team,
            task.cards,
            running.nodes,
            started_at_s=running.started_s,
            ends_at_s=None if known is None else running.started_s + known,
            is_preemptible=self.can_preempt,
        )

    def _stage(self, task: Task, state: State) -> Waiting:
        found = self._waiting.get(task.key)
        if found is None or task.key in state.left_s:
            found = self._waiting[task.key] = Waiting(
                task.key,
                task.team,
                (task.cards,),
                task.arrives_s,
                estimate_s=state.estimate_s(task),
                spans_nodes=task.spans_nodes,
            )
        return found


# --- simple ones ----------------------------------------------------------------------------------


def _best(open_: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    return min(open_)


def _first(open_: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    return open_[0]


def _worst(open_: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    return max(open_, key=lambda node: (node[0], -node[1], -node[2]))


@dataclass
class Free:
    """What is free while a policy decides."""

    state: State
    free: list[list[int]] = field(init=False)
    nodes: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [list(group.free) for group in self.state.groups]
        self.nodes = [(c, n) for c, free in enumerate(self.free) for n in range(len(free))]

    def fit(self, task: Task, choose: Choose) -> tuple[int, Cards] | None:
        """Nodes for a task; None if there are none."""
        if task.spans_nodes:
            wide = [c for c, g in enumerate(self.state.groups) if max(g.sizes) < task.cards]
            for cluster in wide:
                found = self._whole(cluster, task.cards)
                if found is not None:
                    return cluster, found
        free, cards = self.free, task.cards
        open_ = [(free[c][n], c, n) for c, n in self.nodes if free[c][n] >= cards]
        if not open_:
            return None
        _, cluster, number = choose(open_)
        return cluster, ((number, cards),)

    def _whole(self, cluster: int, cards: int) -> Cards | None:
        sizes = self.state.groups[cluster].sizes
        unused = [n for n, free in enumerate(self.free[cluster]) if free == sizes[n]]
        taken: list[tuple[int, int]] = []
        for number in unused:
            taken.append((number, min(cards, sizes[number])))
            cards -= taken[-1][1]
            if not cards:
                return tuple(taken)
        return None

    def take(self, cluster: int, nodes: Cards) -> None:
        """Give cards away."""
        for number, cards in nodes:
            self.free[cluster][number] -= cards


class Simple:
    """A policy that is one function of what there is."""

    can_preempt = False

    def __init__(self, begins: Callable[[State], list[Begin]]) -> None:
        self._begins = begins

    def __call__(self, state: State) -> tuple[Sequence[Begin], Sequence[int]]:
        """What starts now."""
        return self._begins(state), ()


def _fifo(choose: Choose) -> Policy:
    return Simple(lambda state: _in_order(state, state.queue.values(), choose, skips=False))


def _in_order(state: State, tasks: Iterable[Task], choose: Choose, *, skips: bool) -> list[Begin]:
    free, begins, blocked = Free(state), list[Begin](), set[tuple[int, bool]]()
    for task in tasks:
        kind = (task.cards, task.spans_nodes)
        found = None if kind in blocked else free.fit(task, choose)
        if found is None:
            if not skips:
                break
            blocked.add(kind)
            continue
        free.take(*found)
        begins.append(Begin(task.key, *found))
    return begins


def _shortest_first(state: State) -> list[Begin]:
    """Whatever is believed to be shorter goes first, and what does not fit is passed over."""
    ordered = sorted(
        state.queue.values(),
        key=lambda t: (FOREVER if t.estimate_s is None else t.estimate_s, t.arrives_s, t.key),
    )
    return _in_order(state, ordered, _best, skips=True)


def _easy(state: State) -> list[Begin]:
    """EASY back-fill (Lifka, 1995): only the first in line has a reservation; what comes later may
    start if that is not delayed.
    """
    free, begins = Free(state), list[Begin]()
    started: list[tuple[int, Cards, float]] = []
    kept: tuple[float, int, dict[int, int]] | None = None
    for task in state.queue.values():
        length_s = FOREVER if task.estimate_s is None else task.estimate_s
        if kept is None:
            found = free.fit(task, _best)
            if found is None:
                kept = _shadow(state, free, task, started)
                continue
        else:
            found = _beside(free, task, kept, state.now_s + length_s)
            if found is None:
                continue
            if found[0] == kept[1] and state.now_s + length_s > kept[0]:
                for number, cards in found[1]:
                    if number in kept[2]:
                        kept[2][number] -= cards
        free.take(*found)
        started.append((*found, state.now_s + length_s))
        begins.append(Begin(task.key, *found))
    return begins


def _shadow(
    state: State, free: Free, task: Task, started: list[tuple[int, Cards, float]]
) -> tuple[float, int, dict[int, int]]:
    """When and where the first in line fits: (time, cluster, node to cards to spare there)."""
    ends = [(_believed_end(r, state.now_s), r.cluster, r.nodes) for r in state.running.values()] + [
        (end_s, cluster, nodes) for cluster, nodes, end_s in started
    ]
    later = Free(state)
    later.free = [list(cards) for cards in free.free]
    for end_s, cluster, nodes in sorted(ends):
        for number, cards in nodes:
            later.free[cluster][number] += cards
        found = later.fit(task, _best)
        if found is not None:
            where, needed = found
            return end_s, where, {n: later.free[where][n] - cards for n, cards in needed}
    return FOREVER, -1, {}


def _believed_end(running: Running, now_s: float) -> float:
    known = running.task.estimate_s
    return FOREVER if known is None else max(running.started_s + known, now_s + 1)


def _beside(
    free: Free, task: Task, kept: tuple[float, int, dict[int, int]], ends_s: float
) -> tuple[int, Cards] | None:
    at_s, cluster, spare = kept
    if ends_s <= at_s:
        return free.fit(task, _best)
    hidden = {n: free.free[cluster][n] for n in spare} if cluster >= 0 else {}
    for number, cards in hidden.items():
        free.free[cluster][number] = min(cards, max(0, spare[number]))
    try:
        return free.fit(task, _best)
    finally:
        for number, cards in hidden.items():
            free.free[cluster][number] = cards


def policies(trace: Trace, teams: Sequence[Team], seed: int) -> dict[str, Policy]:
    """All of them by name; octad's first."""
    rng = random.Random(seed)  # noqa: S311  no secret
    return {
        "octad": Octad(trace, teams),
        "fifo-best-fit": _fifo(_best),
        "fifo-first-fit": _fifo(_first),
        "fifo-worst-fit": _fifo(_worst),
        "fifo-random": _fifo(rng.choice),
        "shortest-first": Simple(_shortest_first),
        "easy-backfill": Simple(_easy),
    }
