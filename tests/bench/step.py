"""Our training step against a loop written by hand (`step_plain.py`), in tokens/s.

Ours is the worker as it trains, with its loader, meters, recorder and watchdog. Both train the same
network on the same layout in turns, in one group of processes over gloo, one thread each. Of each
run the first steps are left out. Goal: at least 0.98 of the peer's tokens/s.
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
RUNS, STEPS, WARM_UP = 5, 12, 3
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
    """Tokens/s of each run: ours, and the peer's."""
    layout, wrap = LAYOUTS[name]
    batch = SAMPLES_EACH * layout.cards
    calls, jobs = [], []
    for number in range(RUNS):
        job = lab.job(
            layout,
            run=f"{name.replace(',', '').replace(' ', '-').lower()}-{number}",
            model=MODEL,
            training={
                "optimizer": {"lr": LR, "warmup_steps": 2},
                "steps": STEPS,
                "sequence": SEQUENCE,
                "global_batch": batch,
                "record_samples": False,
            },
            datasets={"corpus": dataset},
        )
        plain = {
            "model": MODEL,
            "wrap": wrap,
            "samples": str(samples),
            "global_batch": batch,
            "steps": STEPS,
            "lr": LR,
        }
        jobs.append(job)
        calls += [("octad.train.worker:train", job.plain()), ("step_plain:run", plain)]
    returned = lab.run(calls, layout.cards, limit_s=LIMIT_S)
    tokens = batch * SEQUENCE
    ours = [[step["step_time_s"] for _, step in sorted(lab.steps(job).items())] for job in jobs]
    return rates(ours, tokens), rates(returned[1::2], tokens)


def rates(runs: list[list[float]], tokens: int) -> list[float]:
    """Tokens/s of each run."""
    return [tokens * (STEPS - WARM_UP) / sum(took[WARM_UP:]) for took in runs]


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
            ours, plain = measured(lab, name, dataset, samples)
            own, peer = statistics.median(ours), statistics.median(plain)
            print(
                f"{name}: {own:.0f} tokens/s, by hand {peer:.0f} (medians of {RUNS}), "
                f"ratio {own / peer:.3f} (goal 0.98)",
                flush=True,
            )


if __name__ == "__main__":
    main()
