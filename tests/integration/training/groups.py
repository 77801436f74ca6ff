"""Training groups one after the other, without Ray.

Forks the processes of each group from this one, which has imported all that they need: it takes
seconds for each process that is started anew. Each line of input is the folder of a group, which
holds `size` and what `rank.py` wants, and gets `log`; each line of output is how the group ended.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

# What others import when it is first used, and what jobs ask for by name.
NEEDED = (
    "pandas",
    "torch._dynamo",
    "torch.nn.attention.bias",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization",
    "octad.models.decoder.family",
    "octad.models.decoder.network",
    "octad.models.decoder.sharding",
    "octad.train.worker",
    "octad.train.evaluate",
    "rank",
)
*_, rank = map(importlib.import_module, NEEDED)


def forked(number: int, size: int, folder: Path) -> int:
    """One process of a group; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    try:
        rank.work(number, size, folder)
        status = 0
    except BaseException:  # noqa: BLE001  the process ends here, whatever it was
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ended(folder: Path) -> str:
    """Run a group to its end; empty if that was a good one."""
    size = int((folder / "size").read_text())
    left = {forked(number, size, folder) for number in range(size)}
    found = ""
    while left:
        process, status = os.wait()
        left.discard(process)
        if status and not found:
            found = f"a process ended with {os.waitstatus_to_exitcode(status)}"
            for other in left:
                os.kill(other, 9)
    return found


def main() -> None:
    for line in sys.stdin:
        print(ended(Path(line.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
