"""Adapters learn on every layout what they learn in one process, and are exported alike."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest
import torch
from safetensors.torch import load_file

from octad.spec.artefacts import Artefact
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import Position
from octad.storage import lineage
from octad.storage.artefacts import publish_folder
from octad.train.settings import TrainingJob

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
STEPS, CUT = 8, 5
TOLERANCE = 1e-4
LIMIT_S = 300
TRAIN = "octad.train.worker:train"
SIZES: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "context": 24}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {**SIZES, "tied": False},
    "llama": {
        **SIZES,
        "kv_heads": 2,
        "positions": "rotary",
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "mlp_width": 24,
        "bias": False,
        "tied": True,
    },
}
LORA: dict[str, Any] = {"kind": "lora", "rank": 3, "alpha": 6.0}
PREFIX: dict[str, Any] = {"kind": "prefix", "num_virtual_tokens": 5}
DOCUMENTS = {"packing": "documents"}
# Shape, adapter, and what else is set.
TUNINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt-lora": ("gpt", {**LORA, "targets": ["query", "key", "value", "out", "up", "down"]}, {}),
    "llama-lora": ("llama", {**LORA, "targets": ["query", "value", "gate", "down"]}, DOCUMENTS),
    "gpt-prefix": ("gpt", PREFIX, DOCUMENTS),
    "llama-prefix": ("llama", PREFIX, {}),
    "llama-prefix-documents": ("llama", PREFIX, DOCUMENTS),
}
LAYOUTS: dict[str, Layout] = {
    "one": Layout(dp_shard=1),
    "ddp": Layout(dp_replicate=2, dp_shard=1),
    "shard": Layout(dp_shard=2),
    "tp": Layout(dp_shard=1, tp=2),
    "pp": Layout(dp_shard=1, pp=2),
    "shard-tp": Layout(dp_shard=2, tp=2),
}


def keys_of(job: TrainingJob) -> AttemptKeys:
    return StageKeys(job.order.run, job.order.stage.name).attempt(job.order.attempt)


def words(lab: Lab) -> Artefact:
    folder = lab.folder / "tokenizer"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    return publish_folder(lab.store, "data/tokenizer", "tokenizer", "tokenizer", folder)


@cache
def other_data(lab: Lab) -> Artefact:
    """What the base has not learned."""
    return lab.dataset("tuning", stride=11)


def base_of(lab: Lab, shape: str, layout: str = "one") -> TrainingJob:
    return lab.job(
        LAYOUTS[layout],
        run=f"{shape}-{layout}",
        model=SHAPES[shape],
        # Of biases that do nothing, Adam would make steps from rounding errors.
        training={"steps": STEPS, "optimizer": {"lr": 1e-2, "warmup_steps": 2, "eps": 1e-6}},
        tokenizer=words(lab),
    )


def tuned(lab: Lab, name: str, layout: str, **more: Any) -> TrainingJob:
    shape, adapter, training = TUNINGS[name]
    start = lineage.artefact_of(
        lab.store, base_of(lab, shape).order, Position(attempt=1, step=STEPS)
    )
    return lab.job(
        LAYOUTS[layout],
        run=f"{name}-{layout}",
        stage="finetune",
        model=SHAPES[shape],
        training={
            "steps": STEPS,
            "optimizer": {"lr": 3e-2, "warmup_steps": 2, "weight_decay": 0.0, "eps": 1e-6},
            "checkpoint_every": CUT,
            **training,
        },
        datasets={"tuning": other_data(lab)},
        start=start,
        adapter=adapter,
        tokenizer=words(lab),
        **more,
    )


def resumed(lab: Lab, name: str) -> TrainingJob:
    """The run on `shard-tp`, from its step `CUT`, in one process."""
    job = tuned(lab, name, "one", attempt=2, resume=Position(attempt=1, step=CUT))
    order = job.order.model_copy(update={"run": f"{name}-shard-tp"})
    return job.model_copy(update={"order": order})


# On every layout; the others on those that cut up the adapter itself.
WHOLE = {"llama-lora", "llama-prefix"}
# Always looked at: each kind, on each axis.
SHORT = {
    ("llama-lora", "shard"),
    ("gpt-lora", "tp"),
    ("llama-prefix", "ddp"),
    ("llama-prefix", "pp"),
}


@pytest.fixture(scope="module")
def lab(lab: Lab, request: pytest.FixtureRequest) -> Lab:
    """After all is trained that the tests of this run look at."""
    tunings: set[tuple[str, str]] = set()
    gone_on: set[str] = set()
    bases = {(shape, "one") for shape in SHAPES}
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.path != request.path:
            continue
        params: dict[str, Any] = item.callspec.params
        if "shape" in params:
            bases.add((params["shape"], params["layout"]))
            continue
        tunings |= {
            (params["name"], layout) for layout in ("one", params.get("layout", "shard-tp"))
        }
        gone_on |= set() if "layout" in params else {params["name"]}

    def run(jobs: list[TrainingJob]) -> None:
        by_size: dict[int, list[TrainingJob]] = {}
        for job in jobs:
            by_size.setdefault(job.order.stage.cards, []).append(job)
        groups = [
            (size, [(TRAIN, job.plain()) for job in same]) for size, same in sorted(by_size.items())
        ]
        lab.run_groups(groups, LIMIT_S)

    run([base_of(lab, *base) for base in sorted(bases)])
    run([tuned(lab, *tuning) for tuning in sorted(tunings)])
    run([resumed(lab, name) for name in sorted(gone_on)])
    return lab


def curve(lab: Lab, job: TrainingJob) -> list[float]:
    steps = lab.steps(job)
    return [steps[step][key] for step in sorted(steps) for key in ("loss", "grad_norm")]


def exported(lab: Lab, job: TrainingJob, file: str) -> dict[str, torch.Tensor]:
    folder = Path(urlparse(lab.store.url(keys_of(job).artefacts)).path)
    return load_file(folder / file)


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=[] if (name, layout) in SHORT else [pytest.mark.long])
        for name in TUNINGS
        for layout in LAYOUTS
        if layout != "one" and (name in WHOLE or layout in {"tp", "pp"})
    ],
)
def test_one_curve_and_the_same_adapter(lab: Lab, name: str, layout: str) -> None:
    job, alone = tuned(lab, name, layout), tuned(lab, name, "one")
    wanted = curve(lab, alone)
    assert len(wanted) == 2 * STEPS
    assert min(wanted[1::2]) > 0
    if "lora" in name:
        assert wanted[-2] < wanted[0]
    assert curve(lab, job) == pytest.approx(wanted, rel=TOLERANCE)
    file = "peft/adapter_model.safetensors"
    whole = exported(lab, alone, file)
    found = exported(lab, job, file)
    assert found.keys() == whole.keys()
    for key, weight in found.items():
        torch.testing.assert_close(weight, whole[key], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_an_adapter_goes_on_at_another_size(lab: Lab, name: str) -> None:
    wanted = curve(lab, tuned(lab, name, "one"))[2 * CUT :]
    assert curve(lab, resumed(lab, name)) == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("layout", ["pp", "shard-tp"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_layout_exports_the_same_weights(lab: Lab, shape: str, layout: str) -> None:
    """With a vocabulary that tp does not divide."""
    file = "weights/model.safetensors"
    whole = exported(lab, base_of(lab, shape), file)
    found = exported(lab, base_of(lab, shape, layout), file)
    assert found.keys() == whole.keys()
    for key, weight in found.items():
        torch.testing.assert_close(weight, whole[key], rtol=TOLERANCE, atol=TOLERANCE)
