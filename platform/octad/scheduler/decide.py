"""`decide(snapshot, now_s)`: the one decision of the control plane and of the simulator. Pure.

Stages are looked at in the order of `line`. What fits is started. What does not keeps a
reservation, if it is the first of its team that waits for such cards: nodes, and the earliest time
at which they are enough. What comes after it may use those nodes only for work that ends before, or
of which they have cards to spare. Work whose end nobody knows never does, and where the time is not
known nobody does: a reservation is not delayed, whatever the estimates of others are.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterator
from contextlib import contextmanager

from octad.scheduler import reserve
from octad.scheduler.board import Board
from octad.scheduler.decisions import Decisions, Preempt, Reservation, Start, Wait
from octad.scheduler.line import Line
from octad.scheduler.outlook import Outlook
from octad.scheduler.place import FOREVER, Cards, Place
from octad.scheduler.preempt import Preemption
from octad.scheduler.shapes import Shape, Shapes, wanted
from octad.scheduler.snapshot import Snapshot, Waiting

# How many reservations there are at most; how many stages of a team are tried for gaps before them;
# and how many are told when they may start.
MOST_RESERVATIONS = 16
MOST_TRIES = 100
MOST_OUTLOOKS = 500


def decide(snapshot: Snapshot, now_s: float) -> Decisions:
    """Decide for everything that waits.

    Args:
        snapshot: All there is to know.
        now_s: The time, by the clock of the snapshot.
    """
    with _uncollected():
        return _Round(snapshot, now_s).run()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave cycles for later: nearly all that a decision makes lives until its end, so that looking
    through it all again and again finds nothing, and takes a third of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Round:
    """One decision while it is made."""

    def __init__(self, snapshot: Snapshot, now_s: float) -> None:
        self.snapshot = snapshot
        self.now_s = now_s
        self.places = [Place.of(i, c) for i, c in enumerate(snapshot.clusters)]
        self.by_name = {p.spec.name: p for p in self.places}
        self.line = Line(snapshot, now_s)
        self.shapes = Shapes(self.places, snapshot.waiting)
        self.preemption = Preemption(self.line, now_s)
        self.starts: list[Start] = []
        self.preempts: list[Preempt] = []
        self.reservations: list[Reservation] = []
        self.waiters: dict[str, list[Waiting]] = {}
        self.said: dict[int, str] = {}
        self.helped: dict[int, str] = {}
        self.reserved_s: dict[int, float | None] = {}
        self.tries: dict[str, int] = {}
        self.latest_s = -FOREVER
        self.has_spare = False
        self.reserved_shapes: set[tuple[str, int]] = set()

    def run(self) -> Decisions:
        num_open = self.shapes.num_open
        while (stage := self.line.pick()) is not None:
            shape = self.shapes.of(stage)
            was_open = not shape.is_blocked
            shape.num_waiting -= 1
            # Most of a long queue waits for the same, and there is no gap for it either.
            if (not was_open and self._is_hopeless(stage)) or not self._start(stage, shape):
                self.waiters.setdefault(stage.team, []).append(stage)
            if was_open and (shape.is_blocked or not shape.num_waiting):
                num_open[stage.team] -= 1
            if not num_open[stage.team] and self._is_done_with(stage.team):
                self.waiters.setdefault(stage.team, []).extend(self.line.rest(stage.team))
        return Decisions(
            tuple(self.starts), self._waits(), tuple(self.preempts), tuple(self.reservations)
        )

    def _is_hopeless(self, stage: Waiting) -> bool:
        """Whether a stage, whose like does not fit, will not find a gap either."""
        if self.snapshot.can_preempt:
            return False
        if self.tries.get(stage.team, 0) >= MOST_TRIES:
            return True
        length_s = FOREVER if stage.estimate_s is None else stage.estimate_s
        return not self.has_spare and self.now_s + length_s > self.latest_s

    def _is_done_with(self, team: str) -> bool:
        return not self.reservations or self.tries.get(team, 0) >= MOST_TRIES

    # --- starting -----------------------------------------------------------------------------

    def _start(self, stage: Waiting, shape: Shape) -> bool:
        """Start a stage; whether that could be."""
        sizes = self._allowed(stage)
        if not sizes:
            self.said[stage.key] = self._over_limit(stage)
            return False
        if not shape.is_blocked:
            for cards in sizes:
                found = self._fit(stage, shape.board, cards)
                if found is not None:
                    return self._take_unless_more_comes(stage, shape, cards, found)
            shape.is_blocked = len(sizes) == len(stage.sizes)
        return self._fill_gap(stage, shape, sizes) or self._make_wait(stage, shape)

    def _allowed(self, stage: Waiting) -> tuple[int, ...]:
        """Its sizes within its team's limit, the largest first."""
        account = self.line.account(stage.team)
        limit = account.team.limit
        if limit is None:
            return stage.sizes[::-1]
        return tuple(n for n in stage.sizes[::-1] if account.num_held + n <= limit)

    def _over_limit(self, stage: Waiting) -> str:
        account = self.line.account(stage.team)
        return (
            f"{wanted(stage)}; team {stage.team} holds {account.num_held} of the "
            f"{account.team.limit} it may have at most"
        )

    def _fit(self, stage: Waiting, board: Board, cards: int) -> tuple[Place, Cards] | None:
        for name in stage.inputs_on:
            place = self.by_name.get(name)
            if place is not None and place in board.places:
                nodes = place.fit(stage.team, cards, spans=stage.spans_nodes)
                if nodes is not None:
                    return place, nodes
        return board.fit(stage.team, cards, spans=stage.spans_nodes)

    def _fill_gap(self, stage: Waiting, shape: Shape, sizes: tuple[int, ...]) -> bool:
        """Start a stage on nodes that are kept for another, where that does not delay it."""
        tries = self.tries.get(stage.team, 0)
        if tries >= MOST_TRIES or not self.reservations or self._is_hopeless(stage):
            return False
        self.tries[stage.team] = tries + 1
        until_s = FOREVER if stage.estimate_s is None else self.now_s + stage.estimate_s
        for cards in sizes:
            found = shape.board.fit_before(stage.team, cards, until_s, spans=stage.spans_nodes)
            if found is not None:
                self._take(stage, *found, cards)
                return True
        return False

    def _take_unless_more_comes(
        self, stage: Waiting, shape: Shape, cards: int, found: tuple[Place, Cards]
    ) -> bool:
        """Of a range, a moment's patience may give more: cards whose jobs have just ended."""
        if stage.is_fresh and cards < stage.sizes[-1]:
            larger = [n for n in self._allowed(stage) if n > cards]
            for more in larger:
                plan = self._soon(stage, shape, more)
                if plan is not None:
                    self._keep(stage, plan)
                    self.said[stage.key] = (
                        f"could have {cards} cards now; waits a moment for {more}"
                    )
                    return False
        self._take(stage, *found, cards)
        return True

    def _soon(self, stage: Waiting, shape: Shape, cards: int) -> reserve.Plan | None:
        places = [p for p in shape.board.places if any(j.is_ending for j in p.spec.jobs)]
        plan = reserve.earliest(stage, places, self.now_s, cards)
        return plan if plan is not None and plan.at_s <= self.now_s else None

    def _take(self, stage: Waiting, place: Place, nodes: Cards, cards: int) -> None:
        end_s = FOREVER if stage.estimate_s is None else self.now_s + stage.estimate_s
        place.take(stage.team, nodes, end_s)
        for board in self.shapes.boards_of[place.index]:
            board.note(place, stage.team, nodes)
        self.line.charge(stage, place.spec.card.name, cards)
        self.starts.append(Start(stage.key, place.spec.name, cards, nodes))

    # --- waiting ------------------------------------------------------------------------------

    def _make_wait(self, stage: Waiting, shape: Shape) -> bool:
        """Keep nodes for a stage that does not fit, where it is the first of its kind."""
        kind = (stage.team, id(shape.board))
        is_first = kind not in self.reserved_shapes
        if not shape.board.places or len(self.reservations) >= MOST_RESERVATIONS:
            return False
        if is_first and (stage.sizes[0] > 1 or any(p.num_free for p in shape.board.places)):
            self.reserved_shapes.add(kind)
            plan = self._plan(stage, shape)
            if plan is not None:
                self._keep(stage, plan)
        elif self.snapshot.can_preempt:
            plan = self._make_room(stage, shape)
            if plan is not None:
                self._keep(stage, plan)
        return False

    def _plan(self, stage: Waiting, shape: Shape) -> reserve.Plan | None:
        plan = reserve.earliest(stage, shape.board.places, self.now_s, stage.sizes[0])
        if self.snapshot.can_preempt and (plan is None or plan.at_s > self.now_s):
            return self._make_room(stage, shape) or plan
        return plan

    def _make_room(self, stage: Waiting, shape: Shape) -> reserve.Plan | None:
        victims = self.preemption.find(stage, shape.board.places)
        if victims is None:
            return None
        names = ", ".join(sorted(job.name for job in victims.jobs)[:3])
        self.said[stage.key] = f"{wanted(stage)}; {names} makes room for it"
        self.preempts += [
            Preempt(job.key, stage.key, f"makes room for work of team {stage.team}")
            for job in victims.jobs
        ]
        return reserve.Plan(self.now_s, victims.place, victims.nodes)

    def _keep(self, stage: Waiting, plan: reserve.Plan) -> None:
        place = plan.place
        if not place.holds:
            for board in self.shapes.boards_of[place.index]:
                board.held.append(place)
        place.keep(reserve.holds(stage, plan, self.now_s))
        self.latest_s = max(self.latest_s, place.latest_s)
        self.has_spare |= place.has_spare
        at_s = None if plan.at_s == FOREVER else plan.at_s
        self.reserved_s[stage.key] = at_s
        now = place.usable(stage.team, [number for number, _ in plan.nodes])
        if 0 < now < stage.sizes[0]:
            self.helped[stage.key] = (
                f"with {now} {'card' if now == 1 else 'cards'} it could start now"
            )
        self.reservations.append(Reservation(stage.key, place.spec.name, at_s, plan.nodes))

    # --- what those hear that wait ------------------------------------------------------------

    def _waits(self) -> tuple[Wait, ...]:
        outlook = Outlook(self.now_s)
        waits: list[Wait] = []
        ordered = self._in_order()
        for stage in ordered[:MOST_OUTLOOKS]:
            shape = self._told(stage)
            starts_s, unknown = outlook.of(stage, shape.board)
            kept_s = self.reserved_s.get(stage.key)
            if kept_s is not None:
                starts_s, unknown = kept_s, ""
            waits.append(self._wait(stage, shape, starts_s, unknown))
        unknown = f"more than {MOST_OUTLOOKS} stages are ahead of it"
        rest = ordered[MOST_OUTLOOKS:]
        waits += [self._wait(stage, self._told(stage), None, unknown) for stage in rest]
        return tuple(waits)

    def _told(self, stage: Waiting) -> Shape:
        shape = self.shapes.of(stage)
        if not shape.is_told:
            self.shapes.tell(shape)
        return shape

    def _wait(self, stage: Waiting, shape: Shape, starts_s: float | None, unknown: str) -> Wait:
        key = stage.key
        reason, helps = shape.reason, shape.helps
        if key in self.said:
            reason = self.said[key]
        if key in self.helped:
            helps = "; ".join(filter(None, (self.helped[key], helps)))
        return Wait(key, reason, starts_s, unknown, helps)

    def _in_order(self) -> list[Waiting]:
        """Those that wait, as they would have their turns if each got what it waits for."""
        accounts = [self.line.account(team) for team in self.waiters]
        if len(accounts) < 2:
            return [stage for stages in self.waiters.values() for stage in stages]
        queues = {a.team.name: iter(self.waiters[a.team.name]) for a in accounts}
        given = {a.team.name: a.num_held for a in accounts}
        weights = {a.team.name: a.team.weight for a in accounts}
        heap = [(n / weights[team], team) for team, n in given.items()]
        heapq.heapify(heap)
        ordered: list[Waiting] = []
        while heap and len(ordered) < MOST_OUTLOOKS:
            _, team = heap[0]
            stage = next(queues[team], None)
            if stage is None:
                heapq.heappop(heap)
                continue
            ordered.append(stage)
            given[team] += stage.sizes[0]
            heapq.heapreplace(heap, (given[team] / weights[team], team))
        for queue in queues.values():
            ordered.extend(queue)
        return ordered
