"""One process of a training group, without Ray: rank.py RANK SIZE FOLDER

Meets the others through a file in FOLDER, calls each function named in `calls.json` there with its
config, and rank 0 leaves what they returned in `returned.json`.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def work(rank: int, size: int, folder: Path) -> None:
    faulthandler.enable()
    os.environ["LOCAL_RANK"], os.environ["NODE_RANK"] = str(rank), "0"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    returned = []
    for function, config in json.loads((folder / "calls.json").read_text()):
        module, _, name = function.partition(":")
        returned.append(getattr(importlib.import_module(module), name)(config))
    if rank == 0:
        (folder / "returned.json").write_text(json.dumps(returned))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
