"""Our training step against a loop written by hand (`step_plain.py`), in tokens/s.

Ours is the worker as it trains, with its loader, meters, recorder and watchdog. Both train the same
network on the same layout, in the same processes over gloo, one thread each, in turns of a few
steps, so that a busy machine slows both alike. The first turns are left out. Goal: at least 0.98 of
the peer's tokens/s.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from octad.data.shards import TokenDataset
from octad.spec.artefacts import Artefact
from octad.spec.layouts import Layout

HERE = Path(__file__).parent
TURNS, WARM_UP, STEPS = 13, 2, 3  # turns of each, of which the first warm up; steps of one turn
SAMPLES_EACH = 4  # of one step, per process
SEQUENCE = 128
NUM_SAMPLES = 512
LR = 1e-3
LIMIT_S = 1800
MODEL = {
    "kind": "decoder",
    "vocab": 4096,
    "width": 256,
    "depth": 6,
    "heads": 4,
    "context": SEQUENCE,
    "tied": True,
}
LAYOUTS = {
    "1 process": (Layout(dp_shard=1), "none"),
    "2 processes, DDP": (Layout(dp_replicate=2, dp_shard=1), "ddp"),
    "4 processes, DDP": (Layout(dp_replicate=4, dp_shard=1), "ddp"),
    "4 processes, FSDP2": (Layout(dp_shard=4, zero=2), "fsdp2"),
}


def laboratory(folder: Path) -> Any:
    """The groups of processes of the integration tests."""
    source = HERE.parent / "integration" / "training" / "conftest.py"
    spec = spec_from_file_location("training_lab", source)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lab(folder)


def measured(
    lab: Any, name: str, dataset: Artefact, samples: Path
) -> tuple[list[float], list[float]]:
    """Tokens/s of each turn: ours, and the peer's."""
    layout, wrap = LAYOUTS[name]
    batch = SAMPLES_EACH * layout.cards
    job = lab.job(
        layout,
        run=f"{wrap}-{layout.cards}",
        model=MODEL,
        training={
            "optimizer": {"lr": LR, "warmup_steps": 2},
            "steps": (TURNS + 1) * STEPS,
            "sequence": SEQUENCE,
            "global_batch": batch,
            "record_samples": False,
        },
        datasets={"corpus": dataset},
    )
    config = {
        "job": job.plain(),
        "model": MODEL,
        "wrap": wrap,
        "samples": str(samples),
        "global_batch": batch,
        "turn": STEPS,
        "lr": LR,
    }
    (took,) = lab.run([("step_plain:turns", config)], layout.cards, limit_s=LIMIT_S)
    tokens = batch * SEQUENCE * STEPS
    ours, by_hand = (
        [tokens / taken_s for taken_s in took[who][WARM_UP:]] for who in ("ours", "by_hand")
    )
    return ours, by_hand


def main() -> None:
    """Print medians and ratios."""
    paths = (str(HERE), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with tempfile.TemporaryDirectory(prefix="octad-bench-") as folder:
        lab = laboratory(Path(folder))
        dataset = lab.dataset("tokens", stride=7, tokens=NUM_SAMPLES * SEQUENCE)
        held = TokenDataset(Path(folder) / "tokens", "train", SEQUENCE)
        samples = Path(folder) / "samples.npy"
        np.save(samples, held.tokens(np.arange(NUM_SAMPLES)))
        for name in LAYOUTS:
            ours, by_hand = measured(lab, name, dataset, samples)
            ratio = statistics.median(own / peer for own, peer in zip(ours, by_hand, strict=True))
            print(
                f"{name}: {statistics.median(ours):.0f} tokens/s, by hand "
                f"{statistics.median(by_hand):.0f}, ratio of turns {ratio:.3f} (goal 0.98); "
                f"medians of {len(ours)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
