"""The peer of `first_step`: a minimal Ray Train script, as Ray's own guide has it.

Started by `first_step.py` as a Ray job: python bare_train.py WORKERS FILE
Writes the Unix time at which the first step ended to FILE.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config: dict[str, Any]) -> None:
    """One step of a linear model under DDP."""
    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(torch.nn.Linear(128, 128))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 128)).square().mean().backward()
    optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["file"]).write_text(str(time.time()))


if __name__ == "__main__":
    workers, file = int(sys.argv[1]), sys.argv[2]
    TorchTrainer(
        loop,
        train_loop_config={"file": file},
        scaling_config=ScalingConfig(
            num_workers=workers, resources_per_worker={"card": 1, "CPU": 0.1}
        ),
        run_config=RunConfig(storage_path=tempfile.mkdtemp(prefix="bare-")),
    ).fit()
