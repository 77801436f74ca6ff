"""Every benchmark, each with its peer measured in the same run, as a ratio of medians.

Run: make bench            (about ten minutes on two cores)
     python tests/bench/run.py command_line     only one
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHES = ["command_line", "first_step", "checkpoints", "loader", "step", "scheduler"]


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; the number of those that failed."""
    unknown = set(names) - set(BENCHES)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are: {', '.join(BENCHES)}")
        return 2
    failed = 0
    for name in names or BENCHES:
        print(f"== {name}", flush=True)
        failed += subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
