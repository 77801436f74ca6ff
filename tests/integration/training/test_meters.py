"""What each step says of itself; a slow rank is named, and a rank that hangs ends the attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from octad.errors import StageError
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import Progress
from octad.storage import lineage
from octad.train.watchdog import hang_of

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = [pytest.mark.slow, pytest.mark.long]
LIMIT_S = 150
# One for each way in which a rank waits for others.
LAYOUTS = {
    "zero": Layout(dp_shard=2),
    "replicas": Layout(dp_replicate=2, dp_shard=1),
    "tensor": Layout(dp_shard=1, tp=2),
    "pipeline": Layout(dp_shard=1, pp=2),
}


def notes(lab: Lab, run: str) -> str:
    raw = lab.store.read_json(StageKeys(run, "pretrain").attempt(1).progress)
    return "\n".join(Progress.parse(raw or {}).notes)


def test_a_slow_rank_is_named_and_a_hanging_one_is_ended(lab: Lab) -> None:
    """In one group of processes, which hang at last: to start them is most of the time."""
    training: dict[str, Any] = {"steps": 20, "record_samples": False}
    slow = {name: lab.job(layout, run=name, training=training) for name, layout in LAYOUTS.items()}
    training = {"steps": 9, "checkpoint_every": 2, "step_timeout_s": 3.0}
    hanging = lab.job(LAYOUTS["zero"], run="hang", training=training)
    fault = {"rank": 1, "after": 3}
    calls = [("faults:slow", {"job": job.plain(), **fault}) for job in slow.values()]
    fault = {"rank": 1, "after": 4}
    group = lab.start([*calls, ("faults:hanging", {"job": hanging.plain(), **fault})], 2)
    try:
        codes = [process.wait(LIMIT_S) for process in group.processes]
    finally:
        group.kill()
    assert codes == [StageError.exit_code] * 2, group.log
    for name, job in slow.items():
        _check_named(lab, name, lab.steps(job))
    _check_ended(lab, (group.folder / "log").read_text())


def _check_named(lab: Lab, run: str, steps: dict[int, dict[str, float]]) -> None:
    assert "rank 1 on node 0" in notes(lab, run), run
    assert "rank 0" not in notes(lab, run), run
    last = steps[20]
    assert last["slowest_rank"] == 1
    assert last["slowest_ratio"] > 1.5
    assert last["stragglers"] == 1
    assert last["own_time_s/rank_1"] > 1.5 * last["own_time_s/rank_0"]
    assert 0.1 < last["comm_share"] < 1
    assert last["peak_memory_bytes"] > 50e6
    for metrics in steps.values():
        assert metrics["tokens_per_s_per_card"] == pytest.approx(metrics["tokens_per_s"] / 2)
        assert "mfu" not in metrics, "a processor that stands in for a card has no peak"


def _check_ended(lab: Lab, log: str) -> None:
    """All say where they stand; the driver names the one who is not waiting."""
    keys = StageKeys("hang", "pretrain").attempt(1)
    stacks = [lab.store.get(keys.stacks(rank)).decode() for rank in range(2)]
    assert "no step since step 4" in stacks[0]
    assert "it waits for other ranks" in stacks[0]
    assert "faulty" in stacks[1], "the stack shows where it hangs"
    assert stacks[1].partition("\n\n")[2] in log
    assert "no step since step 4" in notes(lab, "hang")
    error = hang_of(lab.store, keys)
    assert error is not None
    assert "rank 1: it is in its own work" in str(error)
    assert not error.is_final, "another attempt may do better"
    good = lineage.positions(lab.store, StageKeys("hang", "pretrain"))
    assert [position.step for position in good] == [2, 4]
