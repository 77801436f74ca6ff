"""Rates, shares and MFU of a step, and when ranks tell each other of theirs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octad.train import meters as module
from octad.train.meters import StepMeter
from octad.train.peers import Window

CARDS = 4


class Clocks:
    """Both what the time is and what a step spent in collectives; a test says both."""

    now_s = 100.0
    held_s: float | None = 0.5
    cost_s = 0.0
    sampled: list[bool]

    def __init__(self) -> None:
        self.sampled = []

    def perf_counter(self) -> float:
        return self.now_s

    def start(self, *, is_sampled: bool) -> None:
        self.sampled.append(is_sampled)
        self.now_s += self.cost_s if is_sampled else 0.0

    def stop(self) -> float | None:
        return self.held_s

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class Peers:
    """Three others who say the same, at steps that are kept."""

    def __init__(self, *_: object) -> None:
        self.told: dict[int, tuple[Window, bool]] = {}

    def exchange(
        self, step: int, window: Window, *, is_judged: bool
    ) -> tuple[dict[str, float], float]:
        self.told[step] = window, is_judged
        return {"peak_memory_bytes": window.peak_memory_bytes}, window.cost_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "clock_of", lambda _: made)
    monkeypatch.setattr(module, "Peers", Peers)
    return made


def meter(flops: float = 6e9) -> StepMeter:
    ranks: Any = SimpleNamespace(world_size=CARDS, device=torch.device("cpu"))
    return StepMeter(ranks, flops_per_token=flops)


def told(made: StepMeter) -> dict[int, tuple[Window, bool]]:
    peers: Any = made._peers
    kept: dict[int, tuple[Window, bool]] = peers.told
    return kept


def run(made: StepMeter, clocks: Clocks, steps: int, seconds: float = 2.0) -> list[dict[str, Any]]:
    found = []
    with made:
        for step in range(1, steps + 1):
            clocks.now_s += seconds
            found.append(
                made.stop(
                    step, tokens=8000, waited_s=0.1, blocked_s=0.25 * step, is_last=step == steps
                )
            )
    return found


def test_rates_and_shares_of_a_step(clocks: Clocks) -> None:
    first, second, *_ = run(meter(), clocks, 3)
    assert first["step_time_s"] == pytest.approx(2.0)
    assert first["tokens_per_s"] == pytest.approx(4000)
    assert first["tokens_per_s_per_card"] == pytest.approx(1000)
    assert first["data_wait_share"] == pytest.approx(0.05)
    assert [first["checkpoint_blocked_s"], second["checkpoint_blocked_s"]] == [0.25, 0.25]
    assert "mfu" not in first


def test_mfu_is_the_models_flops_over_the_peak_of_all_cards(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_peak_flops", lambda _: 10e12)
    first, *_ = run(meter(flops=6e9), clocks, 2)
    assert first["mfu"] == pytest.approx(4000 * 6e9 / (CARDS * 10e12))


def test_ranks_tell_each_other_now_and_then_and_are_judged_on_whole_windows(
    clocks: Clocks,
) -> None:
    made = meter()
    found = run(made, clocks, 16)
    windows = told(made)
    assert list(windows) == [2, 8, 14, 16]
    assert [is_judged for _, is_judged in windows.values()] == [False, True, True, False]
    for window, _ in windows.values():
        assert window.own_s == pytest.approx(1.5)
        assert window.comm_share == pytest.approx(0.25)
        assert window.peak_memory_bytes > 10e6
    with_memory = [n for n, step in enumerate(found, start=1) if "peak_memory_bytes" in step]
    assert with_memory == [2, 8, 14, 16]


def test_a_pause_within_a_window_does_not_count(clocks: Clocks) -> None:
    made = meter()
    with made:
        for step in range(1, 9):
            clocks.now_s += 60.0 if step == 5 else 2.0
            made.stop(step, tokens=1, waited_s=0, blocked_s=0, is_last=step == 8)
    assert told(made)[8][0].own_s == pytest.approx(1.5)


def test_sampling_takes_at_most_a_hundredth_of_the_time(clocks: Clocks) -> None:
    sampled = {}
    for cost_s in (0.001, 0.1, 0.3):  # a window takes 12 s
        clocks.cost_s, clocks.sampled = cost_s, []
        run(meter(), clocks, 40)
        sampled[cost_s] = [n for n, is_one in enumerate(clocks.sampled, start=1) if is_one]
    assert sampled == {
        0.001: [2, 8, 14, 20, 26, 32, 38],
        0.1: [2, 8, 14, 20, 26, 32, 38],
        0.3: [2, 20, 38],
    }


def test_what_was_not_measured_is_not_a_number(clocks: Clocks) -> None:
    clocks.held_s = None
    made = meter()
    run(made, clocks, 2)
    window, is_judged = told(made)[2]
    assert math.isnan(window.own_s)
    assert math.isnan(window.comm_share)
    assert not is_judged
