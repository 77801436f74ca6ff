"""How long `octad --help` and `octad runs` take, against `ray --help`.

Whole processes, in turns, so that a busy machine slows all alike. Goal: at most half of the peer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 9
BIN = Path(sys.executable).parent
PEER = ["ray", "--help"]
OURS = [["octad", "--help"], ["octad", "runs"]]


def seconds(command: list[str], env: dict[str, str]) -> float:
    """Wall time of one process."""
    began = time.perf_counter()
    subprocess.run(
        [BIN / command[0], *command[1:]], env=env, check=True, stdout=subprocess.DEVNULL, timeout=60
    )
    return time.perf_counter() - began


def main() -> None:
    """Print medians and ratios."""
    with tempfile.TemporaryDirectory(prefix="octad-bench-") as home:
        env = {**os.environ, "OCTAD_HOME": home}
        commands = [PEER, *OURS]
        try:
            for command in commands:  # the first `octad runs` starts the control plane
                seconds(command, env)
            times = [[seconds(command, env) for command in commands] for _ in range(RUNS)]
        finally:
            subprocess.run([BIN / "octad", "down"], env=env, check=True, stdout=subprocess.DEVNULL)
    peer, *ours = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{' '.join(PEER)}: {peer:.3f} s (median of {RUNS})")
    for command, median in zip(OURS, ours, strict=True):
        print(f"{' '.join(command)}: {median:.3f} s, ratio {median / peer:.2f} (goal 0.50)")


if __name__ == "__main__":
    main()
