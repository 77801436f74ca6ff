"""The same seed learns the same on every layout, in the same order of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octad.spec.layouts import Layout

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
LAYOUTS = {
    1: [Layout(dp_shard=1)],
    2: [
        Layout(dp_shard=2),
        Layout(dp_shard=1, tp=2),
        Layout(dp_replicate=2, dp_shard=1),
    ],
    4: [Layout(dp_shard=2, tp=2), Layout(dp_replicate=2, dp_shard=2)],
}
# An odd vocabulary, and fewer key than query heads, in both shapes that the decoder has.
SHAPES = {
    "gpt": {},
    "llama": {
        "positions": "rotary",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "mlp_width": 22,
        "heads": 4,
        "kv_heads": 2,
        "bias": False,
        "tied": True,
    },
}
TOLERANCE = 1e-4


def test_one_loss_curve_and_one_order_on_every_layout(lab: Lab) -> None:
    curves: dict[str, list[list[float]]] = {shape: [] for shape in SHAPES}
    orders = []
    for size, layouts in LAYOUTS.items():
        jobs = [
            lab.job(layout, run=f"{shape}-{size}-{number}", model=model)
            for shape, model in SHAPES.items()
            for number, layout in enumerate(layouts)
        ]
        lab.train(jobs, size)
        for job in jobs:
            steps = lab.steps(job)
            assert sorted(steps) == [1, 2, 3, 4, 5]
            shape = job.order.run.partition("-")[0]
            curves[shape].append([steps[n][key] for n in steps for key in ("loss", "grad_norm")])
            orders.append(lab.samples(job))
    for found in curves.values():
        assert len(found) == 6
        for curve in found[1:]:
            assert curve == pytest.approx(found[0], abs=TOLERANCE)
    assert all(order == orders[0] for order in orders)
    assert len({index for batch in orders[0].values() for index in batch}) == 5 * 8


def test_accumulating_micro_batches_changes_nothing(lab: Lab) -> None:
    jobs = [
        lab.job(Layout(dp_shard=2), run=f"micro-{size}", training={"micro_batch": size})
        for size in (1, 2, 4)
    ]
    lab.train(jobs, 2)
    curves = [[step["loss"] for step in lab.steps(job).values()] for job in jobs]
    assert curves[0] == pytest.approx(curves[1], abs=TOLERANCE)
    assert curves[0] == pytest.approx(curves[2], abs=TOLERANCE)
