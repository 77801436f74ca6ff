"""Tokens/s of our loader, against a torch DataLoader over a memmap, HF `datasets` and
`mosaicml-streaming` on the same tokens: same sample size and batch, random order, warm page cache.

Every one is a process that gives int64 batches as a training loop takes them; they run in turns.
Beside it stands the share of the memory bandwidth, as numpy copies the stored bytes in one go.

    OCTAD_BENCH_PEERS=/path/to/python python tests/bench/loader.py

names an interpreter that has torch, `datasets` and `mosaicml-streaming`, which do not go with our
pins: python -m venv peers && peers/bin/pip install torch datasets mosaicml-streaming
Goal: at least twice the best of them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from octad.data.shards import DatasetFile, Shard, ShardWriter, split_files

RUNS = 7
SEQUENCE, NUM_SAMPLES, NUM_SHARDS = 1024, 32 * 1024, 8
VOCAB = 50_257
READER = Path(__file__).with_name("loader_reader.py")
PEERS = ["dataloader-0", "dataloader-2", "datasets", "streaming-0", "streaming-2"]
NEEDED = {"datasets": "datasets", "streaming-0": "streaming", "streaming-2": "streaming"}


class Reader:
    """A process that reads on command.

    Attributes:
        name: Which loader.
        rates: Tokens/s of every turn.
    """

    def __init__(self, python: str, name: str, folder: Path) -> None:
        self.name = name
        self.rates: list[float] = []
        self._process = subprocess.Popen(
            [python, READER, name, folder, str(SEQUENCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def turn(self) -> None:
        """Read for a while."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        self.rates.append(float(self._answer()))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"{self.name} has died"
        return line


def write(folder: Path) -> None:
    """The tokens as our shards, and as one plain file."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, NUM_SAMPLES * SEQUENCE + 1, np.uint16)
    tokens.tofile(folder / "tokens.bin")
    shards = []
    for number, part in enumerate(np.array_split(tokens, NUM_SHARDS)):
        path = folder / f"train-{number:05d}.arrow"
        with ShardWriter(path, VOCAB) as writer:
            writer.add(part)
        shards.append(
            Shard(
                path=path.name,
                tokens=part.size,
                documents=1,
                text_bytes=part.size,
                size=path.stat().st_size,
                digest=f"sha256:{'0' * 64}",
            )
        )
    made = DatasetFile(
        vocab=VOCAB, end_of_text=0, tokenizer="x", splits={"train": split_files(tuple(shards))}
    )
    (folder / "dataset.json").write_text(made.model_dump_json())


def has(python: str, module: str) -> bool:
    """Whether an interpreter has a package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def main() -> None:
    """Print medians and ratios."""
    peers = os.environ.get("OCTAD_BENCH_PEERS", sys.executable)
    with tempfile.TemporaryDirectory(prefix="octad-bench-") as name:
        folder = Path(name)
        write(folder)
        readers = [Reader(sys.executable, "octad", folder), Reader(sys.executable, "copy", folder)]
        for peer in PEERS:
            if has(peers, NEEDED.get(peer, "torch")):
                readers.append(Reader(peers, peer, folder))
            else:
                print(f"{peer}: left out, {peers} has no {NEEDED[peer]}: see OCTAD_BENCH_PEERS")
        for _ in range(RUNS):
            for reader in readers:
                reader.turn()
        for reader in readers:
            reader.end()
    rates = {reader.name: statistics.median(reader.rates) for reader in readers}
    ours, copied = rates.pop("octad"), rates.pop("copy")
    print(f"octad: {ours / 1e6:.0f} M tokens/s (median of {RUNS})")
    print(f"share of a plain copy of the stored bytes ({copied / 1e6:.0f} M): {ours / copied:.2f}")
    for peer, rate in rates.items():
        print(f"{peer}: {rate / 1e6:.1f} M tokens/s, ratio {ours / rate:.1f}")
    best = max(rates, key=lambda peer: rates[peer])
    print(f"best peer {best}: ratio {ours / rates[best]:.2f} (goal 2.00)")


if __name__ == "__main__":
    main()
