"""Our training on one GPU against a loop written by hand (`gpu_plain.py`), in tokens/s and MFU.

    python tests/bench/gpu.py                        needs a GPU, not Ray; ends with 2 without one
    python tests/bench/gpu.py --device cpu --tiny    the same code on a CPU: the figures say nothing

A decoder of 124 M parameters (GPT-2 small) and one of 1.2 B (LLaMA 3.2's 1B shape) in bf16, with and
without `torch.compile`. Both sides see the same samples, in turns; medians of several runs each.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from octad.train.cards import peak_flops
from octad.train.settings import Training, family_of

# Beside this file, which is not in a package.
gpu_loop, gpu_plain = map(importlib.import_module, ("gpu_loop", "gpu_plain"))

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"
RUNS, STEPS, WARM_UP = 5, 30, 10
LR = 3e-4
# Vocabularies of GPT-2 (to the next multiple of 64, as nanoGPT has it) and of LLaMA 3.
CASES = {
    "gpt2_124m": {"vocab": 50304, "sequence": 1024, "global_batch": 16},
    "llama_1b": {"vocab": 128256, "sequence": 2048, "global_batch": 4},
}
TINY = {"width": 64, "depth": 2, "heads": 4, "mlp_width": 128, "context": 32, "vocab": 61}


def settings_of(name: str, *, compiled: bool, tiny: bool) -> dict[str, Any]:
    """Of a training stage."""
    case = CASES[name]
    model = {**yaml.safe_load((CONF / f"{name}.yaml").read_text()), "vocab": case["vocab"]}
    if tiny:
        model |= {**TINY, "kv_heads": 2 if model["kv_heads"] else None}
    return {
        "model": model,
        "optimizer": {"lr": LR, "warmup_steps": 0, "schedule": "constant"},
        "precision": {"kind": "bf16"},
        "compile": compiled,
        "sequence": 32 if tiny else case["sequence"],
        "global_batch": 2 if tiny else case["global_batch"],
        "steps": 4 if tiny else STEPS,
    }


def ours(settings: dict[str, Any], device: str, warm_up: int) -> tuple[float, list[float]]:
    """Tokens per second, and losses."""
    trained = gpu_loop.train(settings, device, warm_up=warm_up)
    return trained.tokens_per_s, [step["loss"] for step in trained.steps]


def by_hand(settings: dict[str, Any], device: str, warm_up: int) -> tuple[float, list[float]]:
    """The same of the peer."""
    training = Training.parse(settings)
    _, sizes = family_of(training.model)
    return gpu_plain.train(
        sizes,
        gpu_loop.samples_of(training, sizes.vocab),
        device=device,
        steps=training.steps,
        warm_up=warm_up,
        lr=LR,
        compiled=training.compile,
    )


def measured(name: str, device: str, *, compiled: bool, tiny: bool) -> str:
    """One line of the table."""
    settings = settings_of(name, compiled=compiled, tiny=tiny)
    warm_up, runs = (1, 1) if tiny else (WARM_UP, RUNS)
    rates: dict[Any, list[float]] = {ours: [], by_hand: []}
    memory: dict[Any, float] = {}
    for _ in range(runs):
        for side, found in rates.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            rate, losses = side(settings, device, warm_up)
            assert math.isfinite(losses[-1])
            found.append(rate)
            if device == "cuda":
                memory[side] = torch.cuda.max_memory_allocated() / 2**30
            # Both do not fit at once.
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    own, peer = (statistics.median(rates[side]) for side in (ours, by_hand))
    line = (
        f"{name}, {'compiled' if compiled else 'not compiled'}: {own:.0f} tokens/s"
        f"{mfu_of(settings, own, device)}, by hand {peer:.0f}{mfu_of(settings, peer, device)}, "
        f"ratio {own / peer:.3f}"
    )
    return f"{line}; {memory[ours]:.1f} and {memory[by_hand]:.1f} GiB" if memory else line


def mfu_of(settings: dict[str, Any], rate: float, device: str) -> str:
    """By the convention of `octad.train.meters`, where the card's peak is known."""
    peak = peak_flops(torch.cuda.get_device_name()) if device == "cuda" else None
    if peak is None:
        return ""
    family, sizes = family_of(settings["model"])
    flops = family.flops_per_token(sizes, settings["sequence"])
    return f" (MFU {100 * rate * flops / peak:.1f} %)"


def main(arguments: list[str]) -> int:
    """Print device, date, rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--eager", action="store_true", help="only what is not compiled")
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: bench-gpu measures nothing; --device cpu --tiny tries its code")
        return 2
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu, no figure counts"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {name}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory(prefix="octad-bench-") as folder:
        gpu_loop.join_alone(asked.device, Path(folder))
        for case in CASES:
            for compiled in (False,) if asked.eager else (False, True):
                print(measured(case, asked.device, compiled=compiled, tiny=asked.tiny), flush=True)
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
