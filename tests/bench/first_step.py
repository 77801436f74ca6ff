"""From placed to the first training step, and from the end of a stage to the next one's start.

Peer of the first: a bare Ray job with a minimal Ray Train script and as many workers, on the same
cluster, in turns. It is timed from its submission; ours from the commit of the attempt, with
everything between: order, code package, epoch, mesh, data, tracking. Goal: ratio at most 1.10.
Goal of the second: at most 1 s; it has no peer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import httpx

from octad.clusters import local
from octad.spec.home import Home
from octad.spec.server import ServerSpec

RUNS = 5
WORKERS = 4
BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
UP = ["up", "fleet=single", "tracker=none"]
SUBMIT = [
    "submit",
    "pipeline=pretrain",
    f"pretrain.cards={WORKERS}",
    "pretrain.steps=2",
    "pretrain.optimizer.warmup_steps=0",
    "--follow",
]
LIMIT_S = 300


def octad(home: str, *arguments: str) -> str:
    """The standard output of one command."""
    done = subprocess.run(
        [BIN / "octad", *arguments],
        env={**os.environ, "OCTAD_HOME": home},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
    )
    return done.stdout


def ours(home: str) -> tuple[float, float]:
    """Seconds from placed to first step, and from the end of preprocess to the next submission."""
    run = octad(home, *SUBMIT).split()[-1]
    stages = {s["name"]: s for s in json.loads(octad(home, "run", run, "--json"))["stages"]}
    attempt = stages["pretrain"]["attempts"][0]
    result = Path(home) / "store" / "runs" / run / "stages" / "preprocess" / "attempts"
    (ended,) = result.glob("*/result.json")
    return (
        (attempt["first_step_at_ms"] - attempt["intended_at_ms"]) / 1000,
        attempt["submitted_at_ms"] / 1000 - ended.stat().st_mtime,
    )


def bare(cluster: dict[str, Any], token: str, ray_address: str) -> float:
    """Seconds from the submission of a bare Ray job to its first step."""
    file = Path(tempfile.mkdtemp(prefix="octad-bench-")) / "first-step"
    headers = {"Authorization": f"Bearer {token}"}
    job = {
        "entrypoint": f"{sys.executable} {HERE / 'bare_train.py'} {WORKERS} {file}",
        "submission_id": f"bare-{uuid.uuid4().hex[:8]}",
        "runtime_env": {"env_vars": {"RAY_ADDRESS": ray_address}},
    }
    with httpx.Client(base_url=cluster["address"], headers=headers, trust_env=False) as client:
        began = time.time()
        client.post("/api/jobs/", json=job, timeout=60).raise_for_status()
        state = "PENDING"
        while state in {"PENDING", "RUNNING"}:
            time.sleep(0.5)
            state = client.get(f"/api/jobs/{job['submission_id']}").json()["status"]
    if state != "SUCCEEDED":
        raise SystemExit(f"the bare job ended {state}")
    return float(file.read_text()) - began


def main() -> None:
    """Print medians and ratios."""
    with tempfile.TemporaryDirectory(prefix="octad-bench-") as home:
        try:
            octad(home, *UP)
            (cluster,) = json.loads(octad(home, "fleet", "--json"))["clusters"]
            private = Home(Path(home))
            spec = ServerSpec.parse(json.loads(private.config.read_text())).fleet.clusters[0]
            ray_address = local.build(spec, private.cluster(spec.name)).job_env["RAY_ADDRESS"]
            token = (private.cluster(spec.name) / "ray-token").read_text().strip()
            pairs = []
            for number in range(RUNS + 1):  # the first of each warms caches and is left out
                pair = (ours(home), bare(cluster, token, ray_address))
                print(f"{number}: placed to first step {pair[0][0]:.1f} s, bare {pair[1]:.1f} s")
                pairs.append(pair)
        finally:
            octad(home, "down")
    measured = pairs[1:]
    first = statistics.median(own[0] for own, _ in measured)
    peer = statistics.median(bare_s for _, bare_s in measured)
    handover = statistics.median(own[1] for own, _ in measured)
    print(f"placed to first step, {WORKERS} workers, medians of {RUNS}: {first:.2f} s")
    print(f"bare Ray Train job: {peer:.2f} s, ratio {first / peer:.2f} (goal 1.10)")
    print(f"end of a stage to the next submission: {handover:.3f} s (goal 1 s)")


if __name__ == "__main__":
    main()
