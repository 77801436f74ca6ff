"""What a simulation is judged by.

*Fragmentation* is that of FGD (Weng et al., USENIX ATC 2023, section 3.2), with whole cards: the
expected share of free cards that a task, drawn from the trace, cannot use, because its node has
fewer of them than the task needs. *Fairness* is Jain's index (DEC-TR-301, 1984) of the card-seconds
of teams: 1 where all got the same, 1/n where one got everything. Both, and utilisation, are taken
over the time from the first arrival to the last.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octad.scheduler.traces import Task, Trace


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds for which tasks waited."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, waits: Sequence[float]) -> Waits:
        """Of all tasks, by the nearest rank."""
        ordered = sorted(waits)

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        return cls(statistics.fmean(ordered), at(0.5), at(0.95), at(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a trace under a policy.

    Attributes:
        waits: From arrival to start, and again after making room.
        gang_waits: Of tasks of more than one card; None if there are none.
        slowdown: Mean of (wait + run) / run, runs of less than a minute counted as one.
        utilisation: Share of the cards that is used, mean over time.
        fragmentation: See above; 0 where nothing is ever free.
        partly_used: Share of the free cards that lies on partly used nodes.
        card_s: Card-seconds of each team, from the first arrival to the last.
        jain: Of these.
        redone_card_s: Work that was done twice, because it made room.
        timeline: (time, cards in use, tasks waiting), at most a few hundred points.
        all_waits: Of each task, sorted.
    """

    waits: Waits
    gang_waits: Waits | None
    slowdown: float
    utilisation: float
    fragmentation: float
    partly_used: float
    card_s: dict[str, float]
    jain: float
    redone_card_s: float
    timeline: tuple[tuple[float, int, int], ...]
    all_waits: tuple[float, ...]

    def plain(self) -> dict[str, Any]:
        """Plain data, without what is for plots only."""
        found = asdict(self)
        return {k: v for k, v in found.items() if k not in {"timeline", "all_waits"}}


class Meter:
    """Watches a simulation.

    Args:
        trace: Its tasks say what a free card is good for.
        begins_s, ends_s: The time over which means are taken.
    """

    def __init__(self, trace: Trace, begins_s: float, ends_s: float) -> None:
        self.begins_s, self.ends_s = begins_s, ends_s
        self.now_s = begins_s
        self.num_tasks = len(trace.tasks)
        self.largest = max(machine.cards for machine in trace.machines)
        sizes = Counter(min(task.cards, self.largest) for task in trace.tasks)
        self.too_large = [
            sum(n for size, n in sizes.items() if size > free) / self.num_tasks
            for free in range(self.largest + 1)
        ]
        self.cards = trace.cards
        self.free = self.unusable = self.partly = 0.0
        self.free_s = self.unusable_s = self.partly_s = 0.0
        self.teams: dict[str, int] = {task.team: 0 for task in trace.tasks}
        self.card_s: dict[str, float] = dict.fromkeys(self.teams, 0.0)
        self.waits: list[float] = []
        self.gang_waits: list[float] = []
        self.slowdowns: list[float] = []
        self.extra_s: dict[int, float] = {}
        self.redone_card_s = 0.0
        self.num_waiting = 0
        self.timeline: list[tuple[float, int, int]] = []

    def sizes(self, nodes: Iterable[int]) -> None:
        """All nodes are free: so many cards on each."""
        for cards in nodes:
            self.free += cards
            self.unusable += cards * self.too_large[cards]

    def pass_to(self, now_s: float, num_waiting: int = 0) -> None:
        """Time goes on; until then nothing has changed."""
        until_s = min(now_s, self.ends_s)
        if until_s > self.now_s:
            passed_s = until_s - self.now_s
            self.free_s += self.free * passed_s
            self.unusable_s += self.unusable * passed_s
            self.partly_s += self.partly * passed_s
            for team, cards in self.teams.items():
                self.card_s[team] += cards * passed_s
            self.now_s = until_s
        self.timeline.append((now_s, self.cards - int(self.free), num_waiting))

    def moved(self, size: int, before: int, after: int) -> None:
        """A node has other cards free than before."""
        self.free += after - before
        self.unusable += after * self.too_large[after] - before * self.too_large[before]
        self.partly += (after if after < size else 0) - (before if before < size else 0)

    def held(self, team: str, cards: int) -> None:
        """A team holds more cards, or fewer."""
        self.teams[team] += cards

    def redone(self, task: Task, seconds: float) -> None:
        """Some of a task's work is done again."""
        self.extra_s[task.key] = self.extra_s.get(task.key, 0.0) + seconds
        self.redone_card_s += seconds * task.cards

    def ended(self, task: Task, now_s: float) -> None:
        """A task is done."""
        ran_s = task.runs_s + self.extra_s.get(task.key, 0.0)
        wait_s = max(0.0, now_s - task.arrives_s - ran_s)
        self.waits.append(wait_s)
        if task.cards > 1:
            self.gang_waits.append(wait_s)
        self.slowdowns.append(1 + wait_s / max(task.runs_s, 60.0))

    def result(self) -> Result:
        """All of it."""
        span_s = max(self.ends_s - self.begins_s, 1e-9)
        shares = list(self.card_s.values())
        squares = sum(share * share for share in shares)
        step = max(1, len(self.timeline) // 400)
        return Result(
            waits=Waits.of(self.waits),
            gang_waits=Waits.of(self.gang_waits) if self.gang_waits else None,
            slowdown=statistics.fmean(self.slowdowns),
            utilisation=1 - self.free_s / (self.cards * span_s),
            fragmentation=self.unusable_s / self.free_s if self.free_s else 0.0,
            partly_used=self.partly_s / self.free_s if self.free_s else 0.0,
            card_s=self.card_s,
            jain=sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0,
            redone_card_s=self.redone_card_s,
            timeline=tuple(self.timeline[::step]),
            all_waits=tuple(sorted(self.waits)),
        )
