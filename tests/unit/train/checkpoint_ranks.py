"""The ranks of a small training, started by test_checkpoint_ranks.py: forked, so that torch is
imported once.

python checkpoint_ranks.py SCENARIO STORE FOLDER
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from octad.errors import StorageError
from octad.spec.keys import StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.storage.objects import ObjectStore
from octad.train.checkpoint import Checkpointer, load
from octad.train.node_tier import NodeTier

STEP = 3
NUM_DEATHS = 20
NUM_TENSORS = 5  # of 4 MiB when something is to be killed: more than one part of an upload
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
WHOLE = StateDictOptions(flatten_optimizer_state_dict=True, full_state_dict=True, cpu_offload=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(10, 22)
        self.norm = nn.LayerNorm(22)
        self.down = nn.Linear(22, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.up(x)
        return self.down(torch.relu(hidden))


def order(store: StoreSpec, layout: Layout, attempt: int = 1) -> AttemptOrder:
    stage = StageSpec(name="pretrain", kind="pretrain", cards=1, layout=layout)
    return AttemptOrder(run="run", attempt=attempt, stage=stage, inputs={}, store=store)


def spread(layout: Layout) -> tuple[nn.Module, torch.optim.Optimizer]:
    assert layout.dp_shard != "fill"
    mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp_shard", "tp"))
    torch.manual_seed(0)
    model = Net()
    if layout.tp > 1:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp_shard"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model, options=FLAT),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=FLAT),
    }


def whole_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(model, options=WHOLE),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=WHOLE),
    }


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def save(store: StoreSpec, target: Path, layout: Layout) -> None:
    """Train, save, change everything, and write down what was saved."""
    model, optimizer = spread(layout)
    train(model, optimizer, STEP)
    saver = Checkpointer(
        store, order(store, layout), content="full", model={}, dtype="float32", layout=layout
    )
    whole = copy.deepcopy(whole_of(model, optimizer))
    saver.save(STEP, state_of(model, optimizer), tokens=12, data=None)
    train(model, optimizer, 1)
    saver.finish()
    if dist.get_rank() == 0:
        torch.save(whole, target)


def read(store: StoreSpec, target: Path, layout: Layout) -> None:
    """Load into another layout, and write down what came."""
    model, optimizer = spread(layout)
    train(model, optimizer, 1)
    state = state_of(model, optimizer)
    load(store, StageKeys("run", "pretrain").attempt(1).checkpoint(STEP), state)
    set_model_state_dict(model, state["model"], options=FLAT)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=FLAT)
    whole = whole_of(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(whole, target)


def one_rank_fails(store: StoreSpec, target: Path, layout: Layout) -> None:
    """The store refuses the shard of the last rank, once."""
    model, optimizer = spread(layout)
    saver = Checkpointer(
        store, order(store, layout), content="full", model={}, dtype="float32", layout=layout
    )
    put = ObjectStore.put_chunks

    def fails(self: ObjectStore, key: str, chunks: Any, **how: Any) -> None:
        if dist.get_rank() == dist.get_world_size() - 1 and "0000000001/" in key:
            raise StorageError("no space left", where=key)
        put(self, key, chunks, **how)

    ObjectStore.put_chunks = fails  # type: ignore[method-assign]
    for step in (1, 2):
        saver.save(step, state_of(model, optimizer), tokens=0, data=None)
    position = saver.finish()
    assert position is not None
    assert position.step == 2
    assert len(saver.failures) == 1
    target.with_name(f"{target.name}-{dist.get_rank()}").write_text(saver.failures[0])


def killed(moment: str) -> None:
    """Arrange for this process to be killed at one moment of the second save."""
    real_put, real_create = ObjectStore.put_chunks, ObjectStore.create

    def die_if(key: str, now: str) -> None:
        if "step-0000000020" in key and now == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def put_chunks(self: ObjectStore, key: str, chunks: Any, **how: Any) -> None:
        def dying() -> Any:
            for number, chunk in enumerate(chunks):
                yield chunk
                if number == NUM_TENSORS - 2:
                    die_if(key, "in a shard")

        die_if(key, "before the shard")
        real_put(self, key, dying(), **how)
        die_if(key, "after the shard")

    def create(self: ObjectStore, key: str, data: bytes) -> bool:
        name = key.rpartition("/")[2]
        die_if(key, f"before {name}")
        made = real_create(self, key, data)
        die_if(key, f"after {name}")
        return made

    ObjectStore.put_chunks = put_chunks  # type: ignore[method-assign]
    ObjectStore.create = create  # type: ignore[method-assign]


def die_while_saving(store: StoreSpec, target: Path, layout: Layout) -> None:
    """In a fork for each moment, so that torch is imported once."""
    for number, moment in enumerate(MOMENTS):
        child = os.fork()
        if child == 0:
            meeting = target.with_name(f"meeting-{number}")
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
            killed(moment)
            own = StoreSpec(url=f"{store.url}/{number}")
            saver = Checkpointer(
                own, order(own, layout), content="full", model={}, dtype="f", layout=layout
            )
            for step in (10, 20, 30):
                tensors = {str(i): torch.full((1 << 20,), float(step)) for i in range(NUM_TENSORS)}
                saver.save(step, {"model": tensors}, tokens=0, data=None)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (moment, status)


def die_at_random(store: StoreSpec, target: Path, layout: Layout) -> None:
    """Saves to both tiers, each time killed at another write of a file, or renaming of one."""
    random.seed(0)
    for number in range(NUM_DEATHS):
        child = os.fork()
        if child == 0:
            meeting = target.with_name(f"random-{number}")
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
            own = StoreSpec(url=f"{store.url}/random-{number}")
            tier = NodeTier(target.with_name(f"node-{number}"), order(own, layout))
            saver = Checkpointer(
                own,
                order(own, layout),
                content="full",
                model={},
                dtype="f",
                layout=layout,
                node=tier,
            )
            _die_after(random.randrange(5, 60))
            for step in range(1, 100):
                state = {"model": {"w": torch.full((1 << 18,), float(step))}}
                saver.save(step, state, tokens=0, data=None, tier="store" if step % 3 else "node")
            os._exit(1)
        random.random()
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (number, status)


def _die_after(num_writes: int) -> None:
    left = itertools.count(num_writes, -1)

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(left) <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    os.write = dying(os.write)
    for method in ("put", "create", "delete"):
        setattr(ObjectStore, method, dying(getattr(ObjectStore, method)))
    Path.replace = dying(Path.replace)  # type: ignore[method-assign]


def two_nodes(store: StoreSpec, target: Path, layout: Layout) -> None:
    """Each rank is a node of its own; attempts come one after the other."""
    rank = dist.get_rank()
    root = target.with_name(f"disk-{rank}")
    root.mkdir()
    model, optimizer = spread(layout)
    train(model, optimizer, STEP)
    whole = copy.deepcopy(whole_of(model, optimizer))

    def lived(attempt: int, *, root: Path = root, is_saved: bool = True) -> dict[str, Any] | None:
        """One attempt: what it found on the nodes; it saves the model as it is."""
        mine = order(store, layout, attempt)
        tier = NodeTier(root, mine)
        found = tier.resume(None, lambda: state_of(model, optimizer))
        if is_saved:
            saver = Checkpointer(
                store, mine, content="full", model={}, dtype="float32", layout=layout, node=tier
            )
            saver.save(attempt, state_of(model, optimizer), tokens=0, data=None, tier="node")
            saver.finish()
        dist.barrier()
        tier.close()
        return found[1] if found is not None else None

    assert lived(1) is None
    train(model, optimizer, 1)
    state = lived(2, is_saved=False)
    assert state is not None
    set_model_state_dict(model, state["model"], options=FLAT)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=FLAT)
    came = whole_of(model, optimizer)
    if rank == 0:
        torch.save((whole, came), target)
    # Of nodes that have changed places, neither has what its rank wants.
    assert lived(3, root=target.with_name(f"disk-{1 - rank}"), is_saved=False) is None
    assert lived(4, is_saved=False) is not None
    # One node was killed before it could make its manifest; on one, a byte has changed.
    for attempt, name in ((5, "manifest.json"), (7, "shard-00000-*")):
        lived(attempt)
        if rank == 1:
            (damaged,) = root.glob(f"*/step-*/{name}")
            raw = bytearray(damaged.read_bytes())
            raw[-1] ^= 1
            damaged.unlink()
            if name != "manifest.json":
                damaged.write_bytes(raw)
        dist.barrier()
        assert lived(attempt + 1, is_saved=False) is None


MOMENTS = (
    "before the shard",
    "in a shard",
    "after the shard",
    "before .metadata",
    "after .metadata",
    "before manifest.json",
    "after manifest.json",
)
SCENARIOS: dict[str, tuple[Callable[[StoreSpec, Path, Layout], None], Layout]] = {
    "save-4": (save, Layout(dp_shard=2, tp=2)),
    "read-2": (read, Layout(dp_shard=2)),
    "read-1": (read, Layout(dp_shard=1)),
    "fail-2": (one_rank_fails, Layout(dp_shard=2)),
    "nodes-2": (two_nodes, Layout(dp_shard=2)),
    "random-0": (die_at_random, Layout(dp_shard=1)),
    "die-0": (die_while_saving, Layout(dp_shard=1)),
}


def rank_of(scenario: str, store: StoreSpec, folder: Path, rank: int, size: int) -> None:
    """One rank of a scenario, from its meeting with the others to its end."""
    run, layout = SCENARIOS[scenario]
    meeting = folder / f"meeting-{scenario}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    run(store, folder / scenario, layout)
    dist.destroy_process_group()


def main(scenario: str, url: str, folder: Path) -> int:
    """How many ranks did not end well."""
    torch.set_num_threads(1)
    store = StoreSpec(url=url)
    size = int(scenario.rpartition("-")[2])
    if size == 0:
        run, layout = SCENARIOS[scenario]
        run(store, folder / scenario, layout)
    for rank in range(size):
        if os.fork() == 0:
            status = 1
            try:
                rank_of(scenario, store, folder, rank, size)
                status = 0
            except BaseException:  # noqa: BLE001  the process ends here, whatever it was
                traceback.print_exc()
            os._exit(status)
    return sum(os.wait()[1] != 0 for _ in range(size))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
