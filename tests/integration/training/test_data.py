"""Mixed datasets with documents kept apart: one order and one curve on every layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from octad.spec.layouts import Layout
from octad.spec.stages import Position

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
STEPS, STOP = 6, 3


@pytest.mark.long
def test_documents_and_mixes_are_the_same_on_every_layout_and_after_a_stop(lab: Lab) -> None:
    data: dict[str, Any] = {
        "datasets": {"code": lab.corpus, "prose": lab.dataset("prose", stride=3)},
        "training": {
            "steps": STEPS,
            "checkpoint_every": STOP,
            "mix": {"code": 0.25, "prose": 0.75},
            "packing": "documents",
        },
    }
    data_parallel, tensor_parallel = Layout(dp_shard=2), Layout(dp_shard=1, tp=2)
    whole = lab.job(data_parallel, run="whole", **data)
    split = lab.job(tensor_parallel, run="split", **data)
    stream = lab.job(data_parallel, run="stream", **data)
    stream = stream.model_copy(
        update={"training": stream.training.model_copy(update={"packing": "stream"})}
    )
    again = lab.job(
        tensor_parallel, run="whole", attempt=2, resume=Position(attempt=1, step=STOP), **data
    )
    lab.train([whole, split, stream, again], 2)

    curve = {step: metrics["loss"] for step, metrics in lab.steps(whole).items()}
    assert list(curve) == list(range(1, STEPS + 1))
    assert {s: m["loss"] for s, m in lab.steps(split).items()} == pytest.approx(curve, rel=1e-4)
    for step, metrics in lab.steps(again).items():
        assert step > STOP
        assert metrics["loss"] == pytest.approx(curve[step], rel=1e-4)
    assert lab.samples(split) == lab.samples(whole)
    assert lab.samples(again) == {s: i for s, i in lab.samples(whole).items() if s > STOP}
    # What follows the end of a document is not a target.
    counted = [lab.steps(job)[STEPS]["tokens"] for job in (whole, stream)]
    assert 0.9 * STEPS * 8 * 16 < counted[0] < counted[1] == STEPS * 8 * 16
