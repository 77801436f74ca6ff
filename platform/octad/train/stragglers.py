"""Which ranks are much slower than the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

_RATIO = 1.5
_RATIO_OF_UNLIKE = 3.0  # of ranks that hold other parts of the model, which are other work
# Below this nobody would look for the reason, and the operating system alone can cause it.
_LEAST_EXCESS_S = 0.005


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank whose own work takes much longer than its peers'.

    Attributes:
        own_s: Seconds of a step that are its own work.
        usual_s: The median of its peers'.
        has_peers: There are others with the same work; if not, all others count as peers.
    """

    rank: int
    own_s: float
    usual_s: float
    has_peers: bool

    @property
    def ratio(self) -> float:
        """How many times as long as its peers it takes."""
        return self.own_s / self.usual_s if self.usual_s > 0 else float("inf")


@dataclass(slots=True)
class Stragglers:
    """A rank is named when it has been slow in two windows in a row, and until a window in which
    it is not. Jitter, a checkpoint or a collection of garbage fill no two windows.

    Attributes:
        pp_ranks: Of each rank, its place in the pipeline. Ranks are compared with those of the
            same place, as those of others have other work; a rank alone there, with all.
        named: Who is slow now, by rank.
    """

    pp_ranks: Sequence[int]
    named: dict[int, Slow] = field(default_factory=dict)
    _suspected: frozenset[int] = frozenset()

    def judge(self, own_s: Sequence[float]) -> Slow:
        """Take one window in: seconds of a step that each rank's own work took. The slowest."""
        found = [self._compared(rank, own_s) for rank in range(len(own_s))]
        slow = {each.rank: each for each in found if _is_slow(each)}
        self.named = {rank: slow[rank] for rank in sorted(slow) if rank in self._suspected}
        self._suspected = frozenset(slow)
        return max(found, key=lambda each: each.ratio)

    def _compared(self, rank: int, own_s: Sequence[float]) -> Slow:
        others = [other for other in range(len(own_s)) if other != rank]
        peers = [other for other in others if self.pp_ranks[other] == self.pp_ranks[rank]]
        compared = [own_s[other] for other in peers or others]
        usual_s = median(compared) if compared else own_s[rank]
        return Slow(rank, own_s[rank], usual_s, has_peers=bool(peers))


def _is_slow(each: Slow) -> bool:
    least = _RATIO if each.has_peers else _RATIO_OF_UNLIKE
    return each.ratio >= least and each.own_s - each.usual_s >= _LEAST_EXCESS_S
