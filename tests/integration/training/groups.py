"""Training groups one after the other, without Ray: groups.py FOLDER

Forks the processes of each group from this one, which has imported all that they need: it takes
seconds for each process that is started anew. FOLDER holds a folder for each group, in order of
their names, with `size` and what `rank.py` wants.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

# pyarrow and DDP import the first two when they are first used.
NEEDED = ("pandas", "torch._dynamo", "octad.train.worker", "rank")
*_, rank = map(importlib.import_module, NEEDED)


def forked(number: int, size: int, folder: Path) -> int:
    """One process of a group; its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        rank.work(number, size, folder)
        status = 0
    except BaseException:  # noqa: BLE001  the process ends here, whatever it was
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        size = int((folder / "size").read_text())
        left = {forked(number, size, folder) for number in range(size)}
        while left:
            ended, status = os.wait()
            left.discard(ended)
            if status:
                for process in left:
                    os.kill(process, 9)
                raise SystemExit(f"a process of group {folder.name} ended with {status}")


if __name__ == "__main__":
    main()
