"""Every layout learns what one process learns, and goes on with what another one has left.

All layouts train the same tiny decoders, over gloo. Most take two micro-batches a step, where one
process takes the whole global batch at once. What is marked long are further products of the same
techniques.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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

STEPS, CUT, BATCH = 20, 7, 8
TOLERANCE = 1e-4
LIMIT_S = 1200
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # the first one waits for all
# GPT-2 with a vocabulary that no tp divides, LLaMA with one that tp splits and grouped queries.
GPT: dict[str, Any] = {"vocab": 61, "width": 32, "depth": 2, "heads": 4}
LLAMA: dict[str, Any] = {
    "vocab": 64,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "kv_heads": 2,
    "positions": "rotary",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "mlp_width": 24,
    "bias": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {**GPT, "tied": False},
    "gpt-tied": {**GPT, "tied": True},
    "llama": {**LLAMA, "tied": False},
    "llama-tied": {**LLAMA, "tied": True},
    "gpt-deep": {**GPT, "tied": False, "depth": 4},
    "llama-deep": {**LLAMA, "tied": True, "depth": 4},
}
INTERLEAVED, ZERO_BUBBLE = "interleaved_1f1b", "zero_bubble"


@dataclass(frozen=True)
class Case:
    """A layout, and the model that it trains."""

    layout: Layout
    shape: str
    micro_batch: int


def case(shape: str, *, micro_batches: int = 2, **axes: Any) -> Case:
    layout = Layout.parse({"dp_shard": 1, **axes})
    return Case(layout, shape, BATCH // layout.data_parallel // micro_batches)


CASES = {
    "one gpt": case("gpt", micro_batches=1),
    "one gpt-tied": case("gpt-tied", micro_batches=1),
    "one llama": case("llama", micro_batches=1),
    "one llama-tied": case("llama-tied", micro_batches=1),
    "one gpt-deep": case("gpt-deep", micro_batches=1),
    "one llama-deep": case("llama-deep", micro_batches=1),
    "ddp 2": case("gpt-tied", dp_replicate=2),
    "ddp 4": case("llama", dp_replicate=4),
    "zero1 2": case("gpt", dp_shard=2, zero=1),
    "zero2 2": case("llama-tied", dp_shard=2, zero=2),
    "zero2 4": case("gpt", dp_shard=4, zero=2),
    "zero3 2": case("llama", dp_shard=2, zero=3),
    "hsdp zero3": case("gpt", dp_replicate=2, dp_shard=2, zero=3),
    "tp 2": case("llama", tp=2, micro_batches=1),
    "tp 4": case("gpt", tp=4, micro_batches=1),
    "zero3 x tp": case("llama-tied", dp_shard=2, tp=2, zero=3),
    "hsdp x tp": case("llama", dp_replicate=2, dp_shard=2, tp=2, zero=2, micro_batches=1),
    "pp 2": case("gpt-tied", pp=2, micro_batches=4),
    "pp 4": case("llama-deep", pp=4, micro_batches=4),
    "interleaved": case("llama-deep", pp=2, pp_schedule=INTERLEAVED),
    "zero bubble": case("gpt-deep", pp=2, pp_schedule=ZERO_BUBBLE, micro_batches=4),
    "pp x tp": case("gpt-tied", pp=2, tp=2),
    "pp x zero2": case("llama-tied", pp=2, dp_shard=2, zero=2),
    "interleaved x zero3": case(
        "llama-deep", pp=2, pp_schedule=INTERLEAVED, dp_shard=2, zero=3, micro_batches=4
    ),
    "zero bubble x zero2": case(
        "llama-deep", pp=2, pp_schedule=ZERO_BUBBLE, dp_shard=2, zero=2, micro_batches=4
    ),
    "pp x zero3 x tp": case("llama-tied", pp=2, dp_shard=2, tp=2, zero=3),
}
# (A, B): trained on A, stopped after step 7, and gone on with on B.
PAIRS = [
    ("one llama", "one llama"),
    ("ddp 2", "ddp 2"),
    ("zero3 2", "zero3 2"),
    ("tp 2", "tp 2"),
    ("one llama", "zero3 2"),
    ("ddp 4", "one llama"),
    ("zero3 2", "tp 2"),
    ("tp 2", "ddp 4"),
    ("hsdp x tp", "zero3 2"),
    ("zero1 2", "zero2 4"),
    ("zero2 4", "zero1 2"),
    ("tp 4", "zero1 2"),
    ("hsdp zero3", "zero1 2"),
    ("zero bubble", "zero bubble"),
    ("pp 4", "one llama-deep"),
    ("pp 4", "zero bubble x zero2"),
    ("zero bubble x zero2", "interleaved"),
    ("pp x zero3 x tp", "zero2 2"),
    ("ddp 2", "pp x tp"),
]


# Those of one technique each, in two processes, are always looked at.
SHORT = {
    "one gpt",
    "one gpt-tied",
    "one llama",
    "one llama-tied",
    "ddp 2",
    "zero1 2",
    "zero3 2",
    "tp 2",
    "pp 2",
}


SHORT_PAIRS = [("zero3 2", "zero3 2"), ("one llama", "zero3 2"), ("zero3 2", "tp 2")]


def marked(*names: str, is_short: bool) -> Any:
    """A parameter of tests that train these."""
    return pytest.param(*names, marks=[] if is_short else [pytest.mark.long])


def job_of(lab: Lab, name: str) -> TrainingJob:
    case = CASES[name]
    training = {
        "optimizer": {"lr": 1e-2, "warmup_steps": 2, "eps": 1e-6},
        "steps": STEPS,
        "sequence": 16,
        "global_batch": BATCH,
        "checkpoint_every": CUT if name in {first for first, _ in PAIRS} else STEPS,
        "micro_batch": case.micro_batch,
        "keep_checkpoints": 99,
        "record_samples": False,
    }
    return lab.job(
        case.layout, run=name.replace(" ", "-"), model=SHAPES[case.shape], training=training
    )


def resumed(lab: Lab, first: str, then: str) -> TrainingJob:
    """`then`, from the checkpoint that `first` made after step 7."""
    job = job_of(lab, then)
    number = 2 + [b for a, b in PAIRS if a == first].index(then)
    order = job.order.model_copy(update={"run": first.replace(" ", "-"), "attempt": number})
    return job.model_copy(update={"order": order, "resume": Position(attempt=1, step=CUT)})


@pytest.fixture(scope="module")
def lab(lab: Lab, request: pytest.FixtureRequest) -> Lab:
    """After all is trained that the tests of this run look at."""
    asked = [
        {key: str(value) for key, value in item.callspec.params.items()}
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    pairs = [(each["first"], each["then"]) for each in asked if "first" in each]
    names = {name for pair in pairs for name in pair} | {e["name"] for e in asked if "name" in e}
    names |= {f"one {CASES[name].shape}" for name in names}
    plans: list[dict[int, list[TrainingJob]]] = [{}, {}]
    for name in sorted(names):
        plans[0].setdefault(CASES[name].layout.cards, []).append(job_of(lab, name))
    for first, then in pairs:
        plans[1].setdefault(CASES[then].layout.cards, []).append(resumed(lab, first, then))
    groups = [
        (size, [("octad.train.worker:train", job.plain()) for job in jobs])
        for plan in plans
        for size, jobs in sorted(plan.items())
    ]
    lab.run_groups(groups, LIMIT_S)
    return lab


def curve(lab: Lab, job: TrainingJob) -> list[float]:
    """Loss and norm of the gradient of every step."""
    steps = lab.steps(job)
    return [steps[step][key] for step in sorted(steps) for key in ("loss", "grad_norm")]


def weights(lab: Lab, job: TrainingJob) -> dict[str, torch.Tensor]:
    """Those of the last step, whole."""
    family, settings = family_of(job.training.model)
    state = dict(family.build(settings).state_dict())
    keys = StageKeys(job.order.run, job.order.stage.name).attempt(job.order.attempt)
    load(lab.store.spec, keys.checkpoint(STEPS), {"model": state})
    return state


@pytest.mark.parametrize("name", [marked(name, is_short=name in SHORT) for name in CASES])
def test_one_curve_and_the_same_weights(lab: Lab, name: str) -> None:
    job, alone = job_of(lab, name), job_of(lab, f"one {CASES[name].shape}")
    found, wanted = curve(lab, job), curve(lab, alone)
    assert len(found) == 2 * STEPS
    assert found == pytest.approx(wanted, rel=TOLERANCE)
    assert wanted[-2] < 0.6 * math.log(61), "it has learned nothing"
    whole = weights(lab, alone)
    for key, weight in weights(lab, job).items():
        torch.testing.assert_close(weight, whole[key], rtol=TOLERANCE, atol=TOLERANCE, msg=key)


@pytest.mark.parametrize(
    ("first", "then"), [marked(*pair, is_short=pair in SHORT_PAIRS) for pair in PAIRS]
)
def test_going_on_is_as_if_never_stopped(lab: Lab, first: str, then: str) -> None:
    job, whole = resumed(lab, first, then), job_of(lab, then)
    found, wanted = curve(lab, job), curve(lab, whole)[2 * CUT :]
    assert len(found) == 2 * (STEPS - CUT)
    if first != then:
        assert found == pytest.approx(wanted, rel=TOLERANCE)
        return
    assert found == wanted
    unbroken = weights(lab, whole)
    assert all(torch.equal(weight, unbroken[key]) for key, weight in weights(lab, job).items())
