"""What stages have in common that wait for the same thing: where they may go, and what they hear."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octad.scheduler.board import Board
from octad.scheduler.place import Place
from octad.scheduler.snapshot import Cluster, Waiting
from octad.spec.clusters import QUALITIES, Quality
from octad.spec.layouts import CARDS_PER_NODE

_MOST_SHOWN = 3


@dataclass(slots=True, eq=False)
class Choice:
    """Where stages may go that ask for the same cards, whosever they are.

    Attributes:
        able: Clusters that could ever run them.
        cannot: Which others cannot, and why, in words.
        board: Those that are up.
        anywhere: The same without the cluster that they name; None where they name none.
    """

    allowed: list[Cluster]
    able: list[Cluster]
    cannot: str
    board: Board
    anywhere: Choice | None = None


@dataclass(slots=True, eq=False)
class Shape:
    """Stages of one team that ask for the same.

    Attributes:
        is_blocked: Nothing that is free, and not kept, is enough. It stays so for this decision.
        num_waiting: How many of them have not had their turn.
        reason, helps: What they hear, once it is known.
    """

    example: Waiting
    choice: Choice
    board: Board
    is_blocked: bool = False
    num_waiting: int = 0
    reason: str = ""
    helps: str = ""
    is_told: bool = False


class Shapes:
    """All of them.

    Args:
        places: The fleet.
        stages: Everything that waits.

    Attributes:
        boards_of: By place: the boards it is on.
        num_open: By team: its shapes that are neither blocked nor done with.
    """

    def __init__(self, places: Sequence[Place], stages: Iterable[Waiting]) -> None:
        self.boards_of: list[list[Board]] = [[] for _ in places]
        self.num_open: dict[str, int] = {}
        self._places = places
        self._by_name = {place.spec.name: place for place in places}
        self._boards: dict[tuple[int, ...], Board] = {}
        self._choices: dict[tuple[object, ...], Choice] = {}
        self._of_stage: dict[int, Shape] = {}
        self._largest: dict[tuple[str, int], int] = {}
        shapes: dict[tuple[object, ...], Shape] = {}
        for stage in stages:
            key = (stage.team, stage.sizes, stage.cluster, stage.asks, stage.spans_nodes)
            shape = shapes.get(key)
            if shape is None:
                choice = self._choice(stage, stage.cluster)
                shape = shapes[key] = Shape(stage, choice, choice.board)
                self.num_open[stage.team] = self.num_open.get(stage.team, 0) + 1
            shape.num_waiting += 1
            self._of_stage[stage.key] = shape

    def of(self, stage: Waiting) -> Shape:
        """A stage's."""
        return self._of_stage[stage.key]

    def tell(self, shape: Shape) -> None:
        """Find the words for stages of a shape."""
        shape.reason = _why(shape)
        shape.helps = self._helps(shape)
        shape.is_told = True

    def _choice(self, stage: Waiting, cluster: str | None) -> Choice:
        key = (stage.sizes[0], cluster, stage.asks, stage.spans_nodes)
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = self._new_choice(stage, cluster)
        return found

    def _new_choice(self, stage: Waiting, cluster: str | None) -> Choice:
        allowed = self._places
        anywhere = None
        if cluster is not None:
            allowed = [self._by_name[cluster]] if cluster in self._by_name else []
            anywhere = self._choice(stage, None)
        asked = tuple(a for a, _ in stage.asks)
        lacking = {p.spec.card.name for p in allowed if p.spec.card.lacks(asked)} if asked else ()
        able = [
            p
            for p in allowed
            if p.spec.card.name not in lacking
            and (p.spec.capacity is None or p.spec.capacity >= stage.sizes[0])
        ]
        up = [
            p.index
            for p in able
            if p.spec.state == "up" and (stage.spans_nodes or p.max_node >= stage.sizes[0])
        ]
        cannot = _unable([p.spec for p in allowed if p.spec.card.name in lacking], stage.asks)
        return Choice(
            [p.spec for p in allowed], [p.spec for p in able], cannot, self._board(up), anywhere
        )

    def _board(self, indices: Iterable[int]) -> Board:
        key = tuple(indices)
        found = self._boards.get(key)
        if found is None:
            found = self._boards[key] = Board.of([self._places[i] for i in key])
            for index in key:
                self.boards_of[index].append(found)
        return found

    def _helps(self, shape: Shape) -> str:
        """What would let a stage start sooner, in words; empty if nothing is known to."""
        stage, board = shape.example, shape.board
        told = []
        smaller = self._largest_now(stage, board)
        if 0 < smaller < stage.sizes[0]:
            told.append(f"with {smaller} {'card' if smaller == 1 else 'cards'} it could start now")
        anywhere = shape.choice.anywhere
        if anywhere is not None:
            found = anywhere.board.fit(stage.team, stage.sizes[0], spans=stage.spans_nodes)
            if found is not None:
                told.append(
                    f"if it may leave {stage.cluster}, it could start now on {found[0].spec.name}"
                )
        down = [c.name for c in shape.choice.able if c.state == "down"]
        if down:
            told.append(f"`octad up` starts {', '.join(down[:_MOST_SHOWN])}")
        if not told and board.places:
            nodes = -(-stage.sizes[0] // CARDS_PER_NODE)
            told.append("one more node" if nodes == 1 else f"up to {nodes} more nodes")
        return "; ".join(told)

    def _largest_now(self, stage: Waiting, board: Board) -> int:
        """The largest size that a team could start on a board now."""
        key = (stage.team, id(board))
        found = self._largest.get(key)
        if found is None:
            most = sum(p.num_free for p in board.places)
            sizes = (*range(1, CARDS_PER_NODE), *range(CARDS_PER_NODE, most + 1, CARDS_PER_NODE))
            low, high = 0, sum(n <= most for n in sizes)
            while low < high:  # what fits on fewer cards fits, but for gaps in odd nodes
                middle = (low + high) // 2
                if board.fit(stage.team, sizes[middle], spans=stage.spans_nodes):
                    low = middle + 1
                else:
                    high = middle
            found = self._largest[key] = sizes[low - 1] if low else 0
        return found


# --- words ----------------------------------------------------------------------------------------


def wanted(stage: Waiting) -> str:
    """What a stage asks for, in words."""
    least = "at least " if len(stage.sizes) > 1 else ""
    cards = stage.sizes[0]
    return f"needs {least}{cards} {'card' if cards == 1 else 'cards'}"


def _unable(clusters: Iterable[Cluster], asks: Iterable[tuple[Quality, str]]) -> str:
    """Which clusters have cards that cannot do what is asked, in words; empty if all can."""
    settings = dict(asks)
    told = []
    for cluster in clusters:
        lacking = [f"{QUALITIES[a]} ({settings[a]})" for a in cluster.card.lacks(settings)]
        told.append(f"{cluster.name}'s {cluster.card.name} cards cannot {' or '.join(lacking)}")
    more = [f"nor can those of {len(told) - _MOST_SHOWN} more"] if len(told) > _MOST_SHOWN else []
    return "; ".join(told[:_MOST_SHOWN] + more)


def _why(shape: Shape) -> str:
    """Why a stage waits, in words."""
    stage, choice, board = shape.example, shape.choice, shape.board
    left_out = f"; {choice.cannot}" if choice.cannot else ""
    if not choice.able:
        return _never(stage, choice)
    if not any(c.state == "up" for c in choice.able):
        said = "; ".join(
            f"{c.name} is {c.state}" + (f" ({c.reason})" if c.reason else "")
            for c in choice.able[:_MOST_SHOWN]
        )
        hint = "; start it with `octad up`" if all(c.state == "down" for c in choice.able) else ""
        return f"{wanted(stage)}; {said}{hint}{left_out}"
    if not board.places:
        return f"{wanted(stage)} on one node; no node that is up has that many{left_out}"
    spans = stage.spans_nodes
    if board.fit(stage.team, stage.sizes[0], spans=spans) or board.fit_before(
        stage.team, stage.sizes[0], None, spans=spans
    ):
        return f"{wanted(stage)}; a stage that came before is first in line"
    shown = heapq.nsmallest(_MOST_SHOWN, board.places, key=lambda p: (-p.num_free, p.index))
    said = "; ".join(_free_on(p, stage) for p in sorted(shown, key=lambda p: p.index))
    more = len(board.places) - len(shown)
    also = f"; {more} more clusters have no more" if more else ""
    return f"{wanted(stage)}; {said}{also}{left_out}"


def _never(stage: Waiting, choice: Choice) -> str:
    if stage.cluster is None:
        which = " that could be used" if choice.cannot else ""
        left_out = f"; {choice.cannot}" if choice.cannot else ""
        return f"{wanted(stage)}; no cluster of the fleet{which} has that many{left_out}"
    if not choice.allowed:
        return f"cluster {stage.cluster} is not in the fleet any more"
    return choice.cannot or f"{wanted(stage)}; cluster {stage.cluster} has fewer"


def _free_on(place: Place, stage: Waiting) -> str:
    """What is free on a cluster, who has the others, and why what is free is not enough."""
    if not place.admits(stage.team):
        return f"{place.spec.name} takes one team at a time, and is {place.owner}'s now"
    held = f", the others held by {place.holders()}" if place.spec.jobs else ""
    scattered = ""
    if place.num_free >= stage.sizes[0]:
        kind = "one node" if stage.sizes[0] <= place.max_node else "whole nodes"
        is_ours = {*place.teams} <= {None, stage.team}
        scattered = f" but not on {kind}" + ("" if is_ours else " that its team may use")
    return f"{place.spec.name} has {place.num_free} free{scattered}{held}"
