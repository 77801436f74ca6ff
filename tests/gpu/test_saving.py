"""Checkpoints of what lies on a card."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.train import states
from octad.train.checkpoint import Checkpointer, load
from octad.train.parallelise import Model

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def whole(model: Model) -> dict[str, torch.Tensor]:
    """Weights, in host memory."""
    named = model.whole.named_parameters()
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu() for name, p in named
    }


def test_saving_copies_before_training_goes_on(loop: ModuleType, tmp_path: Path) -> None:
    """What the card changes right after `save` has returned is not in the checkpoint."""
    model = {
        "kind": "decoder",
        "vocab": 64,
        "width": 64,
        "depth": 2,
        "heads": 2,
        "context": 32,
        "tied": False,
    }
    settings: dict[str, Any] = {
        "model": model,
        "optimizer": {"lr": 1e-3, "warmup_steps": 0},
        "precision": {"kind": "bf16"},
        "steps": 3,
        "sequence": 32,
        "global_batch": 4,
    }
    trained = loop.train(settings, "cuda")
    layout = Layout(dp_shard=1)
    order = AttemptOrder(
        run="gpu",
        attempt=1,
        stage=StageSpec(name="pretrain", kind="pretrain", cards=1, layout=layout),
        inputs={},
        store=StoreSpec(url=tmp_path.as_uri()),
        seed=0,
    )
    wanted = {name: weight.clone() for name, weight in whole(trained.model).items()}
    checkpointer = Checkpointer(
        order.store, order, content="full", model=model, dtype="float32", layout=layout
    )
    state = states.full(trained.model, trained.optimizers, adapter=False)
    checkpointer.save(3, state, tokens=1, data=None)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.zero_()
    position = checkpointer.finish()
    assert position is not None
    found = states.full(trained.model, trained.optimizers, adapter=False)
    load(order.store, StageKeys("gpu", "pretrain").attempt(1).checkpoint(position.step), found)
    states.restore(trained.model, trained.optimizers, found, adapter=False)
    for name, weight in whole(trained.model).items():
        assert torch.equal(weight, wanted[name])
