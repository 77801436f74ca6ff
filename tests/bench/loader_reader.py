"""One of the loaders that `loader.py` compares: python loader_reader.py NAME FOLDER SEQUENCE

Prints "ready", then for every line that it reads the tokens/s of a turn. Its batches are int64
tensors; it needs no octad unless it is ours.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

BATCH, TURN_S = 32, 0.7


def octad(folder: Path, sequence: int) -> Iterator[Any]:
    """Ours, as the training loop takes it."""
    from octad.data.loader import Loader  # noqa: PLC0415
    from octad.data.sampler import Order  # noqa: PLC0415
    from octad.data.shards import TokenDataset  # noqa: PLC0415

    dataset = TokenDataset(folder, "train", sequence)
    with Loader(dataset, Order(len(dataset), 0), global_batch=BATCH) as loader:
        for batch in loader:
            yield torch.as_tensor(batch.tokens).long()


def copy(folder: Path, sequence: int) -> Iterator[Any]:
    """As many stored bytes as a batch has, copied by numpy from one place after the other."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    out = np.empty(BATCH * (sequence + 1), np.uint16)
    while True:
        for start in range(0, len(tokens) - out.size, out.size):
            np.copyto(out, tokens[start : start + out.size])
            yield out


class Samples(torch.utils.data.Dataset[Any]):
    """Samples of a plain file of tokens."""

    def __init__(self, path: Path, sequence: int) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")
        self.sequence = sequence

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index: int) -> Any:
        start = index * self.sequence
        return torch.from_numpy(self.tokens[start : start + self.sequence + 1].astype(np.int64))


def dataloader(folder: Path, sequence: int, num_workers: int) -> Iterator[Any]:
    """torch's DataLoader over a memmap."""
    dataset = Samples(folder / "tokens.bin", sequence)
    loader: Any = torch.utils.data.DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    while True:
        yield from loader


def datasets(folder: Path, sequence: int) -> Iterator[Any]:
    """HF `datasets`: an Arrow table of one sample a row, memory-mapped, taken by batches."""
    import datasets as hf  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    samples = Samples(folder / "tokens.bin", sequence)
    rows = np.stack([samples.tokens[i * sequence :][: sequence + 1] for i in range(len(samples))])
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), sequence + 1)
    hf.disable_progress_bars()
    hf.Dataset(pa.table({"tokens": column})).save_to_disk(str(folder / "hf"))
    dataset = hf.load_from_disk(str(folder / "hf")).with_format("numpy")
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(dataset))
        for start in range(0, len(order) - BATCH, BATCH):
            taken = dataset[order[start : start + BATCH]]["tokens"]
            yield torch.from_numpy(taken.astype(np.int64))


def streaming(folder: Path, sequence: int, num_workers: int) -> Iterator[Any]:
    """`mosaicml-streaming` over local MDS shards."""
    # It imports torchvision for pictures, which is rarely there for the torch that is.
    names = {"datasets": "VisionDataset", "transforms.functional": "to_tensor"}
    for name, wanted in names.items():
        stub: Any = types.ModuleType(f"torchvision.{name}")
        setattr(stub, wanted, type(wanted, (), {}))
        sys.modules[stub.__name__] = stub
    from streaming import MDSWriter, StreamingDataset  # noqa: PLC0415

    samples = Samples(folder / "tokens.bin", sequence)
    out = folder / f"mds-{num_workers}"
    with MDSWriter(out=str(out), columns={"tokens": f"ndarray:uint16:{sequence + 1}"}) as writer:
        for index in range(len(samples)):
            start = index * sequence
            writer.write({"tokens": np.array(samples.tokens[start : start + sequence + 1])})

    class Converted(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))

    dataset = Converted(local=str(out), shuffle=True, batch_size=BATCH)
    loader: Any = torch.utils.data.DataLoader(dataset, BATCH, num_workers=num_workers)
    while True:
        yield from loader


def batches(name: str, folder: Path, sequence: int) -> Iterator[Any]:
    """The batches of a loader by its name, perhaps with a number of workers."""
    kind, _, workers = name.partition("-")
    found: Callable[..., Iterator[Any]] = globals()[kind]
    return found(folder, sequence, *([int(workers)] if workers else []))


def main() -> None:
    """Read on command."""
    name, folder, sequence = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)  # threads for a batch this small only wait for each other
    source = batches(name, folder, sequence)
    end = time.perf_counter() + 2 * TURN_S  # to touch all pages
    while time.perf_counter() < end:
        next(source)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        num_batches = 0
        while time.perf_counter() - began < TURN_S:
            for _ in range(16):
                next(source)
            num_batches += 16
        rate = num_batches * BATCH * (sequence + 1) / (time.perf_counter() - began)
        print(rate, flush=True)


if __name__ == "__main__":
    main()
