"""What a checkpoint costs: two ranks over gloo, 384 MB of fp32 state, a store on the local disk.

Three ratios, each side in turns in the same processes:

    blocked   seconds that `save` holds up the step loop / those of a synchronous save of the same
              state by torch's own `dcp.save` to files, and by ours. Goal: at most 0.10.
    durable   bytes per second from the call of `save` to the commit / those of a plain put of the
              same shards, both until the disk has them. Goal: at least 0.80.
    restore   seconds of `load` into another layout (cut along the other dimension) / those of
              torch's own `dcp.load` of the same files. Goal: at most 1.10. Verification of all
              digests is done once, by the driver before, and is shown beside.

    python tests/bench/checkpoints.py
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2
RUNS = 7
LOADS = 4
LAYERS, WIDTH = 8, 2048  # each layer: a weight and its two moments, 16 MiB each
LIMIT_S = 600


def main() -> int:
    """Start the ranks, and print what rank 0 has measured."""
    folder = Path(tempfile.mkdtemp(prefix="octad-bench-"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    try:
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=environment)
            for rank in range(RANKS)
        ]
        failed = [rank.wait(LIMIT_S) for rank in ranks]
        if any(failed):
            return 1
        _print(json.loads((folder / "measured.json").read_text()))
    finally:
        shutil.rmtree(folder)
    return 0


def _print(runs: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(seconds) for name, seconds in runs.items()}
    for name, seconds in runs.items():
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        print(f"{name:10} {middle[name]:.3f} s  ({spread}, {len(seconds)} runs)")
    print(f"blocked / dcp.save       {middle['blocked'] / middle['dcp save']:.3f}  (goal <= 0.10)")
    print(f"blocked / our whole save {middle['blocked'] / middle['save']:.3f}  (goal <= 0.10)")
    print(f"durable / plain put      {middle['put'] / middle['save']:.3f}  (goal >= 0.80)")
    print(f"load / dcp.load          {middle['load'] / middle['dcp load']:.3f}  (goal <= 1.10)")
    with_check = middle["load"] + middle["verify"]
    print(f"load and verification / dcp.load {with_check / middle['dcp load']:.3f}  (no goal)")


# --- one rank


def measure(rank: int, folder: Path) -> None:
    """Take all measures, in turns; rank 0 writes them down."""
    import torch.distributed as dist  # noqa: PLC0415  the parent needs no torch

    warnings.filterwarnings("ignore")
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    runs: dict[str, list[float]] = {}
    bench = _Bench(rank, folder)
    for number in range(RUNS + 1):
        for name, seconds in bench.turn(number).items():
            if number:  # the first one makes the buffers
                runs.setdefault(name, []).extend(seconds)
    if rank == 0:
        (folder / "measured.json").write_text(json.dumps(runs))
    dist.destroy_process_group()


class _Bench:
    def __init__(self, rank: int, folder: Path) -> None:
        from octad.spec.layouts import Layout  # noqa: PLC0415
        from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec  # noqa: PLC0415
        from octad.storage.objects import ObjectStore  # noqa: PLC0415
        from octad.train.checkpoint import Checkpointer  # noqa: PLC0415

        self.rank, self.folder = rank, folder
        layout = Layout(dp_shard=RANKS)
        stage = StageSpec(name="pretrain", kind="pretrain", cards=RANKS, layout=layout)
        self.spec = StoreSpec(url=(folder / "store").as_uri())
        self.store = ObjectStore(self.spec)
        self.order = AttemptOrder(run="run", attempt=1, stage=stage, inputs={}, store=self.spec)
        self.saver = Checkpointer(
            self.spec,
            self.order,
            content="full",
            model={},
            dtype="float32",
            layout=layout,
            keep=RUNS + 2,
        )
        self.saved, self.loaded = _state(cut=0), _state(cut=1)

    def turn(self, number: int) -> dict[str, list[float]]:
        """Seconds of each measure: loads some times, the two in turns, others once."""
        from torch.distributed.checkpoint.filesystem import (  # noqa: PLC0415
            FileSystemReader,
            FileSystemWriter,
        )
        from torch.distributed.checkpoint.state_dict_loader import (  # noqa: PLC0415
            load as load_by_torch,
        )
        from torch.distributed.checkpoint.state_dict_saver import (  # noqa: PLC0415
            save as save_by_torch,
        )

        from octad.storage import lineage  # noqa: PLC0415
        from octad.train.checkpoint import load  # noqa: PLC0415

        found: dict[str, list[float]] = {}
        blocked = self.saver.blocked_s
        step = 10 * (number + 1)

        def save() -> None:
            self.saver.save(step, self.saved, tokens=0, data=None)
            found["blocked"] = [self.saver.blocked_s - blocked]
            self.saver.finish()

        found["save"] = [_timed(save)]
        key = f"runs/run/stages/pretrain/attempts/000001/checkpoints/step-{step:010d}"
        shards = {meta.key: meta for meta in self.store.walk(f"{key}/")}
        own = next(name for name in shards if f"shard-{self.rank:05d}" in name)
        found["put"] = [self._plain_put(own)]
        torchs = FileSystemWriter(self.folder / "torchs", thread_count=1)
        found["dcp save"] = [_timed(lambda: save_by_torch(self.saved, storage_writer=torchs))]
        loads = {
            "load": lambda: load(self.spec, key, self.loaded),
            "dcp load": lambda: load_by_torch(
                self.loaded, storage_reader=FileSystemReader(self.store.local_path(key) or "")
            ),
        }
        for turn in range(LOADS):
            # Whoever reads what has just been written finds it in the caches for the other.
            for name in sorted(loads, reverse=(number + turn) % 2 == 0):
                found.setdefault(name, []).append(_timed(loads[name]))
        found["verify"] = [_timed(lambda: self.rank or lineage.verify(self.store, key))]
        return found

    def _plain_put(self, shard: str) -> float:
        """Seconds to put the bytes of a shard once more, from memory to disk."""
        data, key = self.store.get(shard), f"plain/{self.rank}"

        def put() -> None:
            self.store.put(key, data)
            path = self.store.local_path(key)
            assert path is not None
            with path.open("rb") as written:
                os.fsync(written.fileno())

        return _timed(put)


def _timed(act: Callable[[], Any]) -> float:
    """Seconds until all ranks are done."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.barrier()
    began = time.perf_counter()
    act()
    dist.barrier()
    return time.perf_counter() - began


def _state(cut: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (RANKS,))
    made = torch.Generator().manual_seed(cut)
    parts = ("model", "exp_avg", "exp_avg_sq")
    return {
        part: {
            f"blocks.{layer}.weight": distribute_tensor(
                torch.randn(WIDTH, WIDTH, generator=made), mesh, [Shard(cut)]
            )
            for layer in range(LAYERS)
        }
        for part in parts
    }


if __name__ == "__main__":
    if len(sys.argv) == 1:
        raise SystemExit(main())
    measure(int(sys.argv[1]), Path(sys.argv[2]))
