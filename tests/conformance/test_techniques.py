"""Precision, memory and speed on several layouts: the curve of plain fp32, to the format's own
tolerance, or to the last bit.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import Position
from octad.train.checkpoint import load
from octad.train.settings import TrainingJob, family_of

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
STEPS, CUT = 7, 4
LIMIT_S = 300
MODEL = {
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "positions": "rotary",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "mlp_width": 64,
    "bias": False,
}
LAYOUTS = {
    "one": Layout(dp_shard=1),
    "ddp": Layout(dp_replicate=2, dp_shard=1),
    "zero1": Layout(dp_shard=2, zero=1),
    "zero3": Layout(dp_shard=2, zero=3),
    "tp": Layout(dp_shard=1, tp=2),
}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"kind": "bf16"},
    "fp16": {"kind": "fp16"},
    "fp8": {"kind": "fp8", "emulate": True},
}
# Of the loss after some steps: several roundings of 2^-8, 2^-11 and 2^-4 add up.
TOLERANCES = {"bf16": 1e-2, "fp16": 3e-3, "fp8": 4e-2}
SHORT = {("bf16", "zero3"), ("fp16", "ddp")}
FORMAT_LAYOUTS = {
    "bf16": ["one", "ddp", "zero1", "zero3"],
    "fp16": ["one", "ddp", "zero3"],
    "fp8": ["one", "zero3"],
}
SAME_BITS: dict[tuple[str, str], dict[str, Any]] = {
    ("one", "deterministic"): {"deterministic": True},
    ("zero3", "full"): {"activation_checkpointing": "full"},
    ("zero3", "selective"): {"activation_checkpointing": "selective"},
    ("zero3", "offload"): {"cpu_offload": True},
}
# The scale begins far too high: some steps are skipped, and one more after each growth.
OVERFLOWS = {"kind": "fp16", "initial_scale": 2.0**18, "growth_steps": 2}
OVERFLOW_LAYOUTS = ["one", "zero1", "tp"]
HOPELESS = {"kind": "fp16", "initial_scale": 2.0**100}
# In processes of their own: compilers start threads, which no fork survives.
STARTED = {"compiled", "fp8"}
LONG = pytest.mark.long


def job_of(lab: Lab, layout: str, name: str, **training: Any) -> TrainingJob:
    run = f"{layout}-{name}".replace(" ", "-")
    settings = {"micro_batch": 2, "steps": STEPS, "record_samples": False, **training}
    return lab.job(LAYOUTS[layout], run=run, model=MODEL, training=settings)


@pytest.fixture(scope="module")
def jobs(lab: Lab, request: pytest.FixtureRequest) -> dict[tuple[str, str], TrainingJob]:
    """By layout and name, after all are trained that the tests of this run look at."""
    asked: set[tuple[str, str]] = set()
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path:
            asked |= looked_at(item)
    made = planned(lab, asked)
    groups: dict[tuple[int, bool], list[TrainingJob]] = {}
    for (_, name), job in made.items():
        key = job.order.stage.layout.cards, name in STARTED
        groups.setdefault(key, []).append(job)
    for (size, is_started), group in groups.items():
        calls = [("octad.train.worker:train", job.plain()) for job in group]
        if not is_started:
            lab.run(calls, size, LIMIT_S)
            continue
        started = lab.start(calls, size)
        try:
            started.returned(LIMIT_S)
        finally:
            started.kill()
    return made


def planned(lab: Lab, asked: set[tuple[str, str]]) -> dict[tuple[str, str], TrainingJob]:
    """Those of the jobs below that are asked for, in an order in which they can be trained."""
    made: dict[tuple[str, str], TrainingJob] = {}

    def plan(layout: str, name: str, **training: Any) -> None:
        if (layout, name) in asked:
            made[layout, name] = job_of(lab, layout, name, **training)

    for layout in ("one", "zero3"):
        plan(layout, "fp32")
    for kind, layouts in FORMAT_LAYOUTS.items():
        for layout in layouts:
            plan(layout, kind, precision=FORMATS[kind])
    for (layout, name), training in SAME_BITS.items():
        plan(layout, name, **training)
    for layout in OVERFLOW_LAYOUTS:
        plan(layout, "overflows", precision=OVERFLOWS, checkpoint_every=CUT)
    plan("zero3", "hopeless", precision=HOPELESS, steps=3)
    plan("one", "hopeless", precision=HOPELESS, steps=2)
    plan("zero3", "compiled", compile=True, precision=FORMATS["bf16"])
    plan("tp", "selective", activation_checkpointing="selective")
    plan("tp", "compiled", compile=True, activation_checkpointing="selective")
    if ("zero1", "resumed") in asked:
        resumed = made["zero1", "overflows"]
        order = resumed.order.model_copy(update={"attempt": 2})
        resume = Position(attempt=1, step=CUT)
        made["zero1", "resumed"] = resumed.model_copy(update={"order": order, "resume": resume})
    return made


def looked_at(item: pytest.Function) -> set[tuple[str, str]]:
    """The jobs whose curves or weights a test compares."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    layout: str = params.get("layout", "")
    match item.originalname:
        case "test_a_format_learns_what_fp32_learns":
            return {("one", "fp32"), (layout, params["kind"])}
        case "test_memory_is_saved_without_changing_a_bit":
            return {(layout, "fp32"), (layout, params["name"])}
        case "test_split_and_compiled_blocks_compute_the_same":
            return {(layout, params["name"]), params["peer"]}
        case "test_steps_that_overflow_are_skipped_by_all":
            return {(layout, "overflows")}
        case "test_the_scale_goes_on_with_the_checkpoint":
            return {("zero1", "overflows"), ("zero1", "resumed")}
        case _:
            return {("zero3", "hopeless"), ("one", "hopeless")}


def curve(lab: Lab, job: TrainingJob, *keys: str) -> list[float]:
    steps = lab.steps(job)
    return [steps[step][key] for step in sorted(steps) for key in keys]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if (kind, layout) in SHORT else [LONG])
        for kind in FORMATS
        for layout in FORMAT_LAYOUTS[kind]
    ],
)
def test_a_format_learns_what_fp32_learns(
    lab: Lab, jobs: dict[tuple[str, str], TrainingJob], kind: str, layout: str
) -> None:
    wanted = curve(lab, jobs["one", "fp32"], "loss")
    found = curve(lab, jobs[layout, kind], "loss")
    assert found == pytest.approx(wanted, rel=TOLERANCES[kind])
    assert found != pytest.approx(wanted, rel=1e-5), "nothing was rounded"
    assert wanted[-1] < 0.7 * wanted[0]
    if kind == "fp16":
        assert curve(lab, jobs[layout, kind], "skipped_steps")[-1] == 0


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        pytest.param(layout, name, marks=[] if name == "full" else [LONG])
        for layout, name in SAME_BITS
    ],
)
def test_memory_is_saved_without_changing_a_bit(
    lab: Lab, jobs: dict[tuple[str, str], TrainingJob], layout: str, name: str
) -> None:
    keys = ("loss", "grad_norm")
    assert curve(lab, jobs[layout, name], *keys) == curve(lab, jobs[layout, "fp32"], *keys)


@LONG
@pytest.mark.parametrize(
    ("layout", "name", "peer"),
    [
        ("tp", "selective", ("one", "fp32")),
        ("tp", "compiled", ("one", "fp32")),
        ("zero3", "compiled", ("zero3", "bf16")),
    ],
)
def test_split_and_compiled_blocks_compute_the_same(
    lab: Lab, jobs: dict[tuple[str, str], TrainingJob], layout: str, name: str, peer: Any
) -> None:
    found = curve(lab, jobs[layout, name], "loss")
    assert found == pytest.approx(curve(lab, jobs[peer], "loss"), rel=1e-4)


@LONG
@pytest.mark.parametrize("layout", OVERFLOW_LAYOUTS)
def test_steps_that_overflow_are_skipped_by_all(
    lab: Lab, jobs: dict[tuple[str, str], TrainingJob], layout: str
) -> None:
    """A rank that did not skip would have other weights: what it hands to the others would show."""
    steps = lab.steps(jobs[layout, "overflows"])
    skipped = [0.0, *(steps[step]["skipped_steps"] for step in sorted(steps))]
    was_skipped = [after > before for before, after in itertools.pairwise(skipped)]
    assert True in was_skipped
    assert False in was_skipped
    assert ["grad_norm" not in steps[step] for step in sorted(steps)] == was_skipped
    learned = [steps[step]["loss"] for step in sorted(steps)]
    assert learned[-1] < 0.85 * learned[0]


@LONG
def test_the_scale_goes_on_with_the_checkpoint(
    lab: Lab, jobs: dict[tuple[str, str], TrainingJob]
) -> None:
    keys = ("loss", "loss_scale", "skipped_steps")
    whole = curve(lab, jobs["zero1", "overflows"], *keys)
    found = curve(lab, jobs["zero1", "resumed"], *keys)
    assert found == whole[len(keys) * CUT :]


@LONG
def test_a_skipped_step_changes_nothing(lab: Lab, jobs: dict[tuple[str, str], TrainingJob]) -> None:
    """All steps overflow: after three on two cards, and two on one, the weights are those that both
    began with.
    """
    states = []
    for layout, steps in (("zero3", 3), ("one", 2)):
        job = jobs[layout, "hopeless"]
        recorded = lab.steps(job)
        assert recorded[steps]["skipped_steps"] == steps
        assert "grad_norm" not in recorded[steps]
        family, settings = family_of(job.training.model)
        state = dict(family.build(settings).state_dict())
        keys = StageKeys(job.order.run, job.order.stage.name).attempt(1)
        load(lab.store.spec, keys.checkpoint(steps), {"model": state})
        states.append(state)
    assert all(torch.equal(weight, states[1][name]) for name, weight in states[0].items())
