"""One stage whose attempts get other numbers of cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octad.spec.layouts import Layout
from octad.spec.sizes import CardRange
from octad.spec.stages import Position, StageSpec

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
TRAIN = "octad.train.worker:train"
LIMIT_S = 180
STEPS, EVERY = 12, 4
TRAINING = {"steps": STEPS, "checkpoint_every": EVERY}
STAGE = StageSpec(
    name="pretrain",
    kind="pretrain",
    cards=4,
    layout=Layout(dp_shard=4),
    cards_asked=CardRange(min=1, max=4),
    sizes=(1, 2, 4),
)


@pytest.mark.long
def test_attempts_on_four_two_and_one_card_learn_as_one_does(lab: Lab) -> None:
    """Each attempt goes on from a checkpoint in the midst of the one before. What that one did
    after it does not count, so it may as well have been stopped there.
    """
    attempts = [
        lab.job(
            STAGE.sized(cards).layout,
            run="sized",
            attempt=number,
            training=TRAINING,
            resume=Position(attempt=number - 1, step=(number - 1) * EVERY) if number > 1 else None,
        )
        for number, cards in enumerate((4, 2, 1), start=1)
    ]
    whole = lab.job(Layout(dp_shard=1), run="whole", training=TRAINING)
    first, second, third = attempts
    groups = [(4, [first]), (2, [second]), (1, [third, whole])]
    lab.run_groups([(n, [(TRAIN, job.plain()) for job in jobs]) for n, jobs in groups], LIMIT_S)

    counted: dict[int, dict[str, float]] = {}
    samples: dict[int, list[int]] = {}
    for number, job in enumerate(attempts):
        mine = range(number * EVERY + 1, (number + 1) * EVERY + 1)
        steps = lab.steps(job)
        assert sorted(steps) == list(range(mine.start, STEPS + 1))
        counted |= {step: steps[step] for step in mine}
        used = lab.samples(job)
        samples |= {step: used[step] for step in mine}
    unbroken = lab.steps(whole)
    assert samples == lab.samples(whole)
    indices = [index for batch in samples.values() for index in batch]
    assert len(indices) == len(set(indices)) == STEPS * 8
    for step in range(1, STEPS + 1):
        assert counted[step]["lr"] == unbroken[step]["lr"]
        for metric in ("loss", "grad_norm"):
            assert counted[step][metric] == pytest.approx(unbroken[step][metric], rel=1e-4), step
    assert len({metrics["lr"] for metrics in counted.values()}) > STEPS // 2
