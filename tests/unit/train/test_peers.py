"""What is said of slow ranks, and how often: with the exchange left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from octad.train.peers import Peers, Window

RANKS: Any = SimpleNamespace(world_size=3, pp_rank=0)


class Others:
    """All ranks' own seconds, as each exchange brings them."""

    own_s: tuple[float, ...] = (0.1, 0.1, 0.1)

    def all_gather_object(self, found: list[Any], own: Any) -> None:
        found[:] = [(str(rank // 2), f"host-{rank // 2}", 0) for rank in range(len(found))]

    def all_gather(self, parts: list[torch.Tensor], own: torch.Tensor) -> None:
        for part, own_s in zip(parts, self.own_s, strict=True):
            part.copy_(own)
            part[0] = own_s


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    made = Others()
    monkeypatch.setattr(dist, "all_gather_object", made.all_gather_object)
    monkeypatch.setattr(dist, "all_gather", made.all_gather)
    return made


def exchange(peers: Peers, step: int, *, is_judged: bool = True) -> dict[str, float]:
    window = Window(own_s=0.1, comm_share=0.25, peak_memory_bytes=1e9, cost_s=0.01)
    return peers.exchange(step, window, is_judged=is_judged)[0]


def test_a_note_comes_when_a_rank_becomes_slow_and_when_it_is_well(others: Others) -> None:
    notes: list[str] = []
    peers = Peers(RANKS, notes.append)
    for step, slow in ((8, False), (14, True), (20, True), (26, True), (32, False), (38, False)):
        others.own_s = (0.1, 0.1, 0.24 if slow else 0.1)
        metrics = exchange(peers, step)
        assert metrics["stragglers"] == (step in {20, 26})
    told, well = notes
    assert told == (
        "rank 2 on node 1 (host-1) is slow: its own work takes 0.24 s of a step, 2.4 times the "
        "0.1 s of the others, seen at step 20"
    )
    assert well == f"{told}; well again at step 32"


def test_metrics_are_those_of_all_ranks(others: Others) -> None:
    others.own_s = (0.1, 0.3, 0.1)
    assert exchange(Peers(RANKS), 8) == pytest.approx(
        {
            "peak_memory_bytes": 1e9,
            "comm_share": 0.25,
            "own_time_s/rank_0": 0.1,
            "own_time_s/rank_1": 0.3,
            "own_time_s/rank_2": 0.1,
            "slowest_rank": 1,
            "slowest_ratio": 3.0,
            "stragglers": 0,
        }
    )


def test_where_a_rank_could_not_measure_nobody_is_compared(others: Others) -> None:
    others.own_s = (0.1, float("nan"), 0.1)
    assert exchange(Peers(RANKS), 8) == {"peak_memory_bytes": 1e9}


def test_a_window_too_short_to_judge_judges_nobody(others: Others) -> None:
    others.own_s = (0.1, 0.9, 0.1)
    peers = Peers(RANKS)
    for step in (2, 3, 4):
        assert "stragglers" not in exchange(peers, step, is_judged=False)
