"""Stopping, going on at another size, and handing weights to the next stage."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest
from safetensors.numpy import load_file

from octad.errors import CheckpointError, StageError
from octad.spec.artefacts import Artefact
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import Position
from octad.stages._pretrained_settings import Settings as Folders
from octad.storage import lineage
from octad.storage.artefacts import publish_folder
from octad.train.pretrained import take_in
from octad.train.settings import EvaluationJob, Weights

if TYPE_CHECKING:
    from tests.integration.training.conftest import Lab

pytestmark = pytest.mark.slow
STEPS = 12
ONE, TWO = Layout(dp_shard=1), Layout(dp_shard=2)
FOUR = Layout(dp_shard=2, tp=2)
LIMIT_S = 90


def losses(lab: Lab, *jobs: Any) -> list[float]:
    """The loss of every step; a step done again counts as its last attempt has it."""
    steps = {step: m["loss"] for job in jobs for step, m in lab.steps(job).items()}
    return [steps[step] for step in sorted(steps)]


def base_of(lab: Lab, run: str, stage: str = "pretrain") -> Position:
    found = lineage.newest_good(lab.store, StageKeys(run, stage))
    assert found is not None
    return found[1].position


def test_killed_and_gone_on_at_other_sizes_is_as_if_never_stopped(lab: Lab) -> None:
    # A constant rate, as the second attempt is given fewer steps and a schedule would follow them.
    optimizer = {"lr": 1e-2, "warmup_steps": 2, "schedule": "constant"}
    training = {"steps": STEPS, "checkpoint_every": 2, "optimizer": optimizer}
    whole = lab.job(ONE, run="whole", training=training)
    lab.train([whole], 1)

    first = lab.job(TWO, run="cut", training=training)
    group = lab.start([("octad.train.worker:train", first.plain())], 2)
    try:
        manifest = StageKeys("cut", "pretrain").attempt(1).manifest(2)
        deadline = time.monotonic() + LIMIT_S
        while lab.store.size(manifest) is None:
            assert time.monotonic() < deadline, group.log
            time.sleep(0.01)
        os.kill(group.processes[1].pid, signal.SIGKILL)
    finally:
        group.kill()

    base = base_of(lab, "cut")
    assert 2 <= base.step < STEPS
    second = lab.job(ONE, run="cut", attempt=2, training={**training, "steps": 8}, resume=base)
    if base.step < 8:
        lab.train([second], 1)
    base = base_of(lab, "cut")
    third = lab.job(TWO, run="cut", attempt=3, training=training, resume=base)
    (result,) = lab.train([third], 2)

    used: dict[int, list[int]] = {}
    for job in (first, second, third):
        for step, indices in lab.samples(job).items():
            assert used.setdefault(step, indices) == indices, f"step {step} saw other samples"
    assert used == lab.samples(whole)
    assert losses(lab, second, third)[-4:] == pytest.approx(losses(lab, whole)[-4:], abs=1e-4)
    final = Artefact.parse(result["artefacts"][0])
    assert lineage.verify(lab.store, lab.store.key(final.uri), final.digest).position.step == STEPS


@pytest.mark.long
def test_killed_and_gone_on_from_the_nodes_is_as_if_never_stopped(lab: Lab, tmp_path: Path) -> None:
    """There is nothing in the store yet; the restart has another size."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    training = {
        "steps": STEPS,
        "node_checkpoint_every": 2,
        "node_checkpoint_folder": str(shelf),
        "step_timeout_s": LIMIT_S,
    }
    first = lab.job(TWO, run="near", training=training)
    group = lab.start([("octad.train.worker:train", first.plain())], 2)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not list(shelf.glob("*/step-*/manifest.json")):
            assert time.monotonic() < deadline, group.log
            time.sleep(0.01)
        os.kill(group.processes[1].pid, signal.SIGKILL)
    finally:
        group.kill()
    assert lineage.positions(lab.store, StageKeys("near", "pretrain")) == []

    second = lab.job(ONE, run="near", attempt=2, training=training)
    whole = lab.job(ONE, run="whole", training={"steps": STEPS})
    result, _ = lab.train([second, whole], 1)
    # Those that were not taken again were carried over from the first attempt.
    assert list(lab.steps(second)) == list(range(1, STEPS + 1))
    assert min(lab.samples(second)) > 2
    assert losses(lab, second) == pytest.approx(losses(lab, whole), rel=1e-4)
    final = Artefact.parse(result["artefacts"][0])
    assert lineage.verify(lab.store, lab.store.key(final.uri), final.digest).position.step == STEPS
    assert list(shelf.iterdir()) == []


def test_a_stage_that_was_done_only_publishes(lab: Lab) -> None:
    job = lab.job(ONE, run="done")
    again = lab.job(ONE, run="done", attempt=2, resume=Position(attempt=1, step=5))
    first, second = lab.train([job, again], 1)
    assert first == second
    assert set(first["metrics"]) == {"loss", "tokens", "tokens_per_s"}
    assert not lab.steps(again)


def test_a_loss_that_is_not_finite_stops_before_anything_is_committed(lab: Lab) -> None:
    training = {"checkpoint_every": 1, "optimizer": {"lr": 1e30, "warmup_steps": 0}}
    job = lab.job(ONE, run="nan", training=training)
    group = lab.start([("octad.train.worker:train", job.plain())], 1)
    try:
        assert group.processes[0].wait(LIMIT_S) != 0
    finally:
        group.kill()
    assert StageError.__name__ in group.log
    assert "lower optimizer.lr" in group.log
    good = lineage.positions(lab.store, StageKeys("nan", "pretrain"))
    *sound, diverged = lab.steps(job).items()
    assert [p.step for p in good] == [step for step, _ in sound]
    assert all(math.isfinite(metrics["loss"]) for _, metrics in sound)
    assert not all(math.isfinite(float(value)) for value in diverged[1].values())
    last = lineage.newest_good(lab.store, StageKeys("nan", "pretrain"))
    assert last is not None
    assert last[1].position == good[-1]


@pytest.mark.long
def test_other_data_under_a_checkpoint_is_refused(lab: Lab) -> None:
    other = lab.dataset("other", stride=3)
    job = lab.job(ONE, run="data", training={"steps": 2})
    lab.train([job], 1)
    base = Position(attempt=1, step=2)
    again = lab.job(ONE, run="data", attempt=2, resume=base, datasets={"corpus": other})
    with pytest.raises(AssertionError, match=f"{CheckpointError.__name__}.*other data"):
        lab.train([again], 1)


@pytest.mark.long
def test_another_seed_or_base_under_a_checkpoint_is_refused(lab: Lab) -> None:
    bases = [lab.job(ONE, run=name, training={"steps": 2}) for name in ("one", "two")]
    made = lab.train(bases, 1)
    one, two = (Artefact.parse(result["artefacts"][0]) for result in made)
    tune: dict[str, Any] = {
        "stage": "finetune",
        "adapter": {"kind": "lora", "rank": 2},
        "training": {"steps": 2},
    }
    first = lab.job(ONE, run="tune", start=one, **tune)
    base = Position(attempt=1, step=2)
    lab.train([first], 1)
    again = lab.job(ONE, run="tune", attempt=2, resume=base, start=one, **tune)
    seeded = again.model_copy(update={"order": again.order.model_copy(update={"seed": 6})})
    with pytest.raises(AssertionError, match=f"{CheckpointError.__name__}.*seed 5, not 6"):
        lab.train([seeded], 1)
    with pytest.raises(AssertionError, match=f"{CheckpointError.__name__}.*other weights"):
        lab.train([again.model_copy(update={"start": two})], 1)
    lab.train([again], 1)


@pytest.mark.long
def test_weights_pass_from_four_cards_to_two_to_one(lab: Lab) -> None:
    """Pretrain on four, tune adapters on two, compare on one, as the quickstart does."""
    tokenizer = lab.folder / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    words = publish_folder(lab.store, "data/tokenizer", "tokenizer", "tokenizer", tokenizer)
    tuning = lab.dataset("tuning", stride=11)
    pretrain = lab.job(FOUR, run="chain", training={"steps": 30}, tokenizer=words)
    (made,) = lab.train([pretrain], 4)
    checkpoint, weights = (Artefact.parse(raw) for raw in made["artefacts"])

    lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["query", "value", "up", "down"]}
    options = {"steps": 20, "optimizer": {"lr": 3e-2, "weight_decay": 0.0, "warmup_steps": 2}}
    tune: dict[str, Any] = {
        "stage": "finetune",
        "datasets": {"tuning": tuning},
        "start": checkpoint,
        "adapter": lora,
    }
    early = lab.job(TWO, run="chain", training={**options, "checkpoint_every": 10}, **tune)
    (tuned,) = lab.train([early], 2)
    adapter = Artefact.parse(tuned["artefacts"][0])
    again = lab.job(
        ONE,
        run="chain",
        attempt=2,
        training=options,
        resume=Position(attempt=1, step=10),
        **tune,
    )
    evaluation = EvaluationJob(
        order=lab.order(ONE, run="chain", stage="validate"),
        weights=(
            Weights(name="base", checkpoint=checkpoint),
            Weights(name="tuned", checkpoint=checkpoint, adapter=adapter),
        ),
        datasets={"corpus": lab.corpus, "tuning": tuning},
        sequence=16,
        batch=4,
        max_samples=19,
        prompt_tokens=4,
        sample_tokens=6,
        prompt_from="tuning",
    )
    split = evaluation.model_copy(update={"order": lab.order(TWO, run="chain", stage="validate")})
    calls = [
        ("octad.train.worker:train", again.plain()),
        ("octad.train.evaluate:evaluate", evaluation.plain()),
    ]
    _, found = lab.run(calls, 1)
    (halves,) = lab.run([("octad.train.evaluate:evaluate", split.plain())], 2)

    assert adapter.type == "adapter"
    manifest = lineage.verify(lab.store, lab.store.key(adapter.uri), adapter.digest)
    assert manifest.base == checkpoint
    index = lab.store.get(f"{lab.store.key(adapter.uri)}/.metadata")
    assert b"query.lora_a" in index
    assert b"query.weight" not in index
    assert losses(lab, early)[10:] == pytest.approx(losses(lab, again), abs=1e-4)
    assert found["tokens"] == {"corpus": 19 * 16, "tuning": 19 * 16}
    assert found["losses"]["base"]["corpus"] < 3.0
    assert found["losses"]["tuned"]["tuning"] < 0.9 * found["losses"]["base"]["tuning"]
    for name in ("base", "tuned"):
        assert halves["losses"][name] == pytest.approx(found["losses"][name], abs=1e-5)
        assert halves["samples"][name] == found["samples"][name]
        assert len(found["samples"][name]) == 6

    folder = Path(urlparse(weights.uri).path)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert tensors["transformer.wte.weight"].shape == (config["vocab_size"], config["n_embd"])
    assert tensors["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)
    assert (folder / "tokenizer.json").read_text() == "{}"


@pytest.mark.long
def test_weights_and_adapters_from_elsewhere_are_gone_on_with_on_any_layout(lab: Lab) -> None:
    """What one lab exported, another takes in as a stranger's: base weights, then an adapter."""
    tokenizer = lab.folder / "tokenizer"
    tokenizer.mkdir()
    vocab = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}
    (tokenizer / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": vocab}))
    words = publish_folder(lab.store, "data/tokenizer", "tokenizer", "tokenizer", tokenizer)
    options = {"steps": 3, "optimizer": {"lr": 3e-2, "weight_decay": 0.0, "warmup_steps": 0}}
    first = lab.job(ONE, run="theirs", training=options, tokenizer=words)
    (made,) = lab.train([first], 1)
    checkpoint, weights = (Artefact.parse(raw) for raw in made["artefacts"])
    lora: dict[str, Any] = {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["query", "up"]}
    tune: dict[str, Any] = {"stage": "finetune", "training": options, "adapter": lora}
    tuned = lab.job(ONE, run="theirs", start=checkpoint, tokenizer=words, **tune)
    (made,) = lab.train([tuned], 1)
    adapter, peft = (Artefact.parse(raw) for raw in made["artefacts"])

    folders = Folders.parse({"weights": {"url": weights.uri}, "adapter": {"url": peft.uri}})
    order = lab.order(ONE, run="ours", stage="pretrained")
    found, _, notes = take_in(order, folders.weights, folders.adapter)
    taken = {artefact.name: artefact for artefact in found}
    assert notes == ()

    def following(layout: Layout, run: str, base: Artefact, own: Artefact | None) -> Any:
        return lab.job(layout, run=run, start=base, tuned=own, **tune)

    def whole(layout: Layout, run: str, base: Artefact) -> Any:
        return lab.job(layout, run=run, start=base, training=options)

    wanted = [
        following(ONE, "wanted", checkpoint, adapter),
        whole(ONE, "wanted", checkpoint),
        following(ONE, "fresh", checkpoint, None),
    ]
    ours = {
        layout.cards: [
            following(layout, f"ours-{layout.cards}", taken["checkpoint"], taken["adapter"]),
            whole(layout, f"ours-{layout.cards}", taken["checkpoint"]),
        ]
        for layout in (FOUR,)
    }
    lab.train(wanted, 1)
    for cards, jobs in ours.items():
        lab.train(jobs, cards)
        for job, alone in zip(jobs, wanted, strict=False):
            assert losses(lab, job) == pytest.approx(losses(lab, alone), rel=1e-4)
    assert losses(lab, wanted[0])[0] < losses(lab, wanted[2])[0] - 1e-3
