"""Runs recorded work again under a policy, event by event, and measures what came of it.

Time stands still while a policy decides; what it starts, runs for as long as the trace says. A task
that is asked to make room is back in the line at once, and `RESUME_S` of its work is done again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from octad.scheduler.measures import Meter, Result
from octad.scheduler.place import Cards
from octad.scheduler.traces import Machine, Task, Trace

RESUME_S = 120.0


class Begin(NamedTuple):
    """A task starts on some nodes of a cluster."""

    key: int
    cluster: int
    nodes: Cards


@dataclass(slots=True, eq=False)
class Running:
    """A task on its cards."""

    task: Task
    cluster: int
    nodes: Cards
    started_s: float
    ends_s: float


@dataclass(slots=True, eq=False)
class Group:
    """A cluster: its nodes and what is free on each."""

    name: str
    sizes: list[int]
    free: list[int]


@dataclass(slots=True, eq=False)
class State:
    """All that a policy may look at.

    Attributes:
        queue: What waits, by key, in the order of coming.
        left_s: What is still to be done of tasks that made room.
        news: Nodes that have changed since a policy looked last; it may clear this.
    """

    groups: list[Group]
    now_s: float = 0.0
    queue: dict[int, Task] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)
    left_s: dict[int, float] = field(default_factory=dict)
    news: set[tuple[int, int]] = field(default_factory=set)
    num_free: int = 0

    def estimate_s(self, task: Task) -> float | None:
        """How long a task is believed to run from now."""
        if task.estimate_s is None:
            return None
        return task.estimate_s * self.left_s.get(task.key, task.runs_s) / task.runs_s


class Policy(Protocol):
    """Says what starts now, and what makes room.

    Attributes:
        can_preempt: Whether anything ever makes room.
    """

    can_preempt: bool

    def __call__(self, state: State) -> tuple[Sequence[Begin], Sequence[int]]:
        """What starts, and the keys of what makes room."""


def groups_of(machines: Iterable[Machine]) -> list[Group]:
    """One cluster for each model."""
    groups: dict[str, Group] = {}
    for machine in machines:
        group = groups.setdefault(machine.model, Group(machine.model or "unnamed", [], []))
        group.sizes.append(machine.cards)
        group.free.append(machine.cards)
    return list(groups.values())


def simulate(
    trace: Trace, policy: Policy, *, on_progress: Callable[[int], None] | None = None
) -> Result:
    """Run a trace to its end.

    Args:
        trace: Work and machines.
        policy: Who decides.
        on_progress: Told now and then how many tasks have ended.
    """
    return _Run(trace, policy, on_progress).result()


class _Run:
    def __init__(
        self, trace: Trace, policy: Policy, on_progress: Callable[[int], None] | None
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.on_progress = on_progress
        self.state = State(groups_of(trace.machines), num_free=trace.cards)
        self.arrivals = sorted(trace.tasks, key=lambda t: (t.arrives_s, t.key), reverse=True)
        self.ends: list[tuple[float, int, Running]] = []
        last_s = self.arrivals[0].arrives_s
        self.meter = Meter(trace, self.arrivals[-1].arrives_s, last_s)
        self.meter.sizes(machine.cards for machine in trace.machines)

    def result(self) -> Result:
        num_ended = 0
        while self.arrivals or self.ends:
            now_s = self._next_s()
            self.meter.pass_to(now_s, len(self.state.queue))
            self.state.now_s = now_s
            has_news = self._arrive(now_s)
            ended = self._end(now_s)
            num_ended += ended
            if self.on_progress is not None and ended and not num_ended % 100:
                self.on_progress(num_ended)
            has_room = self.state.num_free > 0 or self.policy.can_preempt
            if self.state.queue and (ended or (has_news and has_room)):
                while self._act():
                    pass
        assert not self.state.queue, "a policy left tasks waiting for ever"
        return self.meter.result()

    def _next_s(self) -> float:
        soon = [self.arrivals[-1].arrives_s] if self.arrivals else []
        return min([*soon, self.ends[0][0]] if self.ends else soon)

    def _arrive(self, now_s: float) -> bool:
        has_news = False
        while self.arrivals and self.arrivals[-1].arrives_s <= now_s:
            task = self.arrivals.pop()
            self.state.queue[task.key] = task
            has_news = True
        return has_news

    def _end(self, now_s: float) -> int:
        ended = 0
        while self.ends and self.ends[0][0] <= now_s:
            running = heapq.heappop(self.ends)[2]
            if self.state.running.get(running.task.key) is running:
                self._free(running)
                self.meter.ended(running.task, now_s)
                ended += 1
        return ended

    def _act(self) -> bool:
        """Do what the policy says; whether something made room, so that it has more to say."""
        state = self.state
        begins, preempted = self.policy(state)
        for key in preempted:
            running = state.running[key]
            self._free(running)
            done_s = state.now_s - running.started_s
            before_s = state.left_s.get(key, running.task.runs_s)
            left_s = min(before_s, before_s - done_s + RESUME_S)
            self.meter.redone(running.task, left_s - (before_s - done_s))
            state.left_s[key] = left_s
            state.queue[key] = running.task
        for begin in begins:
            self._begin(begin)
        return bool(preempted)

    def _begin(self, begin: Begin) -> None:
        state = self.state
        task = state.queue.pop(begin.key)
        runs_s = state.left_s.get(task.key, task.runs_s)
        running = Running(task, begin.cluster, begin.nodes, state.now_s, state.now_s + runs_s)
        self._change(running, -1)
        state.running[task.key] = running
        heapq.heappush(self.ends, (running.ends_s, task.key, running))

    def _free(self, running: Running) -> None:
        del self.state.running[running.task.key]
        self._change(running, 1)

    def _change(self, running: Running, sign: int) -> None:
        group = self.state.groups[running.cluster]
        for number, cards in running.nodes:
            before = group.free[number]
            after = group.free[number] = before + sign * cards
            assert 0 <= after <= group.sizes[number], "a policy gave a card twice"
            self.meter.moved(group.sizes[number], before, after)
            self.state.news.add((running.cluster, number))
            self.state.num_free += sign * cards
        self.meter.held(running.task.team, -sign * running.task.cards)
