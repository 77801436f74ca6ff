"""Recorded work, to be run again by the simulator: from files as Alibaba published them, or made.

The form of cluster-trace-gpu-v2023 ("openb"): one row a task, and one a node. Times are seconds.
What octad makes of it:

- A card is given whole: a task that asked for a part of one (`gpu_milli` below 1000) gets one card.
- Tasks without cards are left out, and so are those that never ran (`scheduled_time` is empty):
  nobody knows for how long they would have.
- A task lies on one node, as it did there. Nodes of one model are one cluster.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from octad.errors import ConfigError, DataError
from octad.spec.layouts import CARDS_PER_NODE

_TASK_COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
_NODE_COLUMNS = ("sn", "gpu", "model")
_MOST_CARDS = 1024


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of recorded work.

    Attributes:
        arrives_s: When it was asked for.
        runs_s: How long it holds its cards.
        estimate_s: What is believed beforehand; None where nothing is.
    """

    key: int
    arrives_s: float
    runs_s: float
    cards: int
    team: str = "default"
    estimate_s: float | None = None
    spans_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """A node, and the model of its cards."""

    name: str
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Work and the machines for it.

    Attributes:
        left_out: How many rows are not used, and why.
    """

    tasks: tuple[Task, ...]
    machines: tuple[Machine, ...]
    left_out: tuple[tuple[str, int], ...] = ()

    @property
    def cards(self) -> int:
        """All there are."""
        return sum(machine.cards for machine in self.machines)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        arrivals = [task.arrives_s for task in self.tasks]
        return max(arrivals) - min(arrivals)

    @property
    def load(self) -> float:
        """Card-seconds that are asked for, of those there are while work arrives; above 1 not all
        can be done in that time.
        """
        asked = sum(task.cards * task.runs_s for task in self.tasks)
        return asked / (self.cards * self.span_s) if self.span_s else math.inf

    def with_machines(self, number: int) -> Trace:
        """On fewer machines, with the mix kept: every so manieth of those sorted by kind.

        Raises:
            ConfigError: There are not so many.
        """
        if not 1 <= number <= len(self.machines):
            raise ConfigError(
                f"{number} nodes are asked for, and the trace has {len(self.machines)}",
                where="--machines",
                hint=f"use 1 to {len(self.machines)}",
            )
        ordered = sorted(self.machines, key=lambda m: (m.model, m.cards, m.name))
        step = len(ordered) / number
        kept = tuple(ordered[int((i + 0.5) * step)] for i in range(number))
        return replace(self, machines=kept).fitting()

    def with_load(self, load: float) -> Trace:
        """With arrivals closer together, or further apart, so that the load is as asked for; how
        long each task runs stays.

        Raises:
            ConfigError: No positive number, or all tasks arrive at once.
        """
        if not (math.isfinite(load) and load > 0):
            raise ConfigError(f"must be a positive number, not {load}", where="--load")
        if not self.span_s:
            raise ConfigError("all tasks arrive at once", where="--load")
        factor = self.load / load
        first_s = min(task.arrives_s for task in self.tasks)
        moved = [replace(t, arrives_s=(t.arrives_s - first_s) * factor) for t in self.tasks]
        return replace(self, tasks=tuple(moved))

    def with_estimates(self, kind: str, seed: int) -> Trace:
        """With what is believed beforehand: `exact`, `rough` (wrong by a factor whose logarithm is
        normal, with the deviation of a factor of two), or `none`.

        Raises:
            ConfigError: Another kind.
        """
        if kind not in {"exact", "rough", "none"}:
            raise ConfigError(f"must be exact, rough or none, not {kind!r}", where="--estimates")
        rng = random.Random(seed)  # noqa: S311  no secret
        believed: list[Task] = []
        for task in self.tasks:
            factor = rng.lognormvariate(0, math.log(2)) if kind == "rough" else 1.0
            estimate_s = None if kind == "none" else task.runs_s * factor
            believed.append(replace(task, estimate_s=estimate_s))
        return replace(self, tasks=tuple(believed))

    def fitting(self) -> Trace:
        """Without the tasks that no machine could hold."""
        largest = max(machine.cards for machine in self.machines)
        kept = tuple(t for t in self.tasks if t.spans_nodes or t.cards <= largest)
        too_large = len(self.tasks) - len(kept)
        more = (("larger than any node", too_large),) if too_large else ()
        if not kept:
            raise ConfigError("no task fits on any of these nodes", where="--machines")
        return replace(self, tasks=kept, left_out=self.left_out + more)


# --- files ----------------------------------------------------------------------------------------


def read_trace(tasks: bytes, machines: bytes, names: tuple[str, str]) -> Trace:
    """A trace out of the content of its two files.

    Args:
        tasks: The one as it lies on disk.
        machines: The other.
        names: Of the two, for messages.

    Raises:
        DataError: Names file, line and column, and what is wrong there.
    """
    found: list[Task] = []
    unused: dict[str, int] = {}
    for line, row in _rows(tasks, names[0], _TASK_COLUMNS):
        where = f"{names[0]} line {line}"
        cards = _whole(row, "num_gpu", where, most=_MOST_CARDS)
        _whole(row, "gpu_milli", where, most=1000)
        arrives_s = _number(row, "creation_time", where)
        ends_s = _number(row, "deletion_time", where)
        if not cards or not row["scheduled_time"]:
            reason = "never ran" if cards else "no cards"
            unused[reason] = unused.get(reason, 0) + 1
            continue
        begins_s = _number(row, "scheduled_time", where)
        if not arrives_s <= begins_s <= ends_s:
            raise DataError(
                "creation_time, scheduled_time and deletion_time must come in this order, not "
                f"{arrives_s:g}, {begins_s:g}, {ends_s:g}",
                where=where,
            )
        team = row.get("team") or "default"
        found.append(Task(len(found), arrives_s, max(ends_s - begins_s, 1.0), cards, team))
    nodes = [
        Machine(
            row["sn"], _whole(row, "gpu", f"{names[1]} line {line}", most=_MOST_CARDS), row["model"]
        )
        for line, row in _rows(machines, names[1], _NODE_COLUMNS)
    ]
    nodes = [node for node in nodes if node.cards]
    if not found:
        raise DataError("no task that ran on a card", where=names[0])
    if not nodes:
        raise DataError("no node with cards", where=names[1])
    trace = Trace(tuple(found), tuple(nodes), tuple(sorted(unused.items())))
    return trace.fitting()


def _rows(data: bytes, name: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8: byte {data[error.start]:#04x} at {error.start}", where=name
        ) from None
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        header = reader.fieldnames or []
        if not header:
            raise DataError("the file is empty", where=name)
        missing = [column for column in columns if column not in header]
        if missing:
            raise DataError(
                f"no column {', '.join(missing)}", where=name, hint=f"it has {', '.join(header)}"
            )
        for row in reader:
            if None in row or None in row.values():
                raise DataError(
                    f"another number of values than the header's {len(header)}",
                    where=f"{name} line {reader.line_num}",
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"not CSV: {error}", where=f"{name} after line {reader.line_num}") from None


def _number(row: dict[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        raise DataError(
            f"{column} must be a number, not {row[column][:40]!r}", where=where
        ) from None
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{column} must be a number from 0 up, not {row[column]}", where=where)
    return value


def _whole(row: dict[str, str], column: str, where: str, *, most: int) -> int:
    value = _number(row, column, where)
    if value != int(value) or value > most:
        raise DataError(
            f"{column} must be a whole number up to {most}, not {row[column]}", where=where
        )
    return int(value)


# --- made -----------------------------------------------------------------------------------------


def _mixed(rng: random.Random) -> Trace:
    """A day of a team of many small stages and a team of few large ones, on eight nodes each of
    two kinds: Poisson arrivals, lengths log-normal with a median of ten minutes, load 0.9.
    """
    machines = tuple(
        Machine(f"{model}-{n}", CARDS_PER_NODE, model)
        for model in ("A100", "H100")
        for n in range(8)
    )
    tasks: list[Task] = []
    arrives_s = 0.0
    for key in range(2000):
        arrives_s += rng.expovariate(1.0)
        is_small = rng.random() < 0.7
        cards = rng.choice((1, 1, 1, 2, 4)) if is_small else rng.choice((4, 8, 8, 16, 32))
        runs_s = min(rng.lognormvariate(math.log(600), 1.2), 86_400.0)
        team = "small" if is_small else "large"
        tasks.append(Task(key, arrives_s, max(runs_s, 1.0), cards, team, spans_nodes=True))
    return Trace(tuple(tasks), machines).with_load(0.9)


def _gangs(rng: random.Random) -> Trace:
    """A stream of one-card stages that alone would fill four nodes to nine tenths, and a gang of
    two nodes every two hours.
    """
    machines = tuple(Machine(f"n{n}", CARDS_PER_NODE, "A100") for n in range(4))
    tasks, arrives_s = list[Task](), 0.0
    while arrives_s < 86_400:
        arrives_s += rng.expovariate(32 * 0.9 / 600)
        tasks.append(Task(len(tasks), arrives_s, rng.expovariate(1 / 600) + 1, 1, "small"))
    for hour in range(1, 24, 2):
        tasks.append(Task(len(tasks), hour * 3600.0, 1800.0, 16, "large", spans_nodes=True))
    return Trace(tuple(sorted(tasks, key=lambda t: t.arrives_s)), machines)


GENERATORS: dict[str, Callable[[random.Random], Trace]] = {"gangs": _gangs, "mixed": _mixed}


def make_trace(name: str, seed: int) -> Trace:
    """The work that a generator makes of a seed.

    Raises:
        ConfigError: No generator has this name.
    """
    if name not in GENERATORS:
        raise ConfigError(
            f"no generator is called {name!r}",
            where="--generate",
            hint=f"there are: {', '.join(sorted(GENERATORS))}",
        )
    return GENERATORS[name](random.Random(seed))  # noqa: S311
