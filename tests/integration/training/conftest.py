"""Training groups of real processes over gloo, and small datasets to train on."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octad.data.shards import DatasetFile, Shard, ShardWriter, split_files
from octad.spec.artefacts import Artefact
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import AttemptOrder, StageSpec, StoreSpec
from octad.storage.artefacts import publish_folder, stored_file
from octad.storage.objects import ObjectStore
from octad.train.settings import Training, TrainingJob

RANK = Path(__file__).with_name("rank.py")
LIMIT_S = 120
VOCAB = 61  # odd, so that no tp divides it
MODEL = {
    "kind": "decoder",
    "vocab": VOCAB,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "context": 16,
    "tied": False,
}

TRAIN = "octad.train.worker:train"
Calls = Sequence[tuple[str, dict[str, Any]]]


class Group:
    """The processes of one group, and what they leave behind."""

    def __init__(self, calls: Calls, size: int, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "calls.json").write_text(json.dumps(calls))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("wb") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, RANK, str(rank), str(size), folder],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(size)
            ]

    @property
    def log(self) -> str:
        """The end of what they have printed."""
        return (self.folder / "log").read_text()[-6000:]

    def returned(self, limit_s: float = LIMIT_S) -> list[Any]:
        """What rank 0 returned, when all have ended well."""
        deadline = time.monotonic() + limit_s
        for process in self.processes:
            assert process.wait(max(0.1, deadline - time.monotonic())) == 0, self.log
        found: list[Any] = json.loads((self.folder / "returned.json").read_text())
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


class Nursery:
    """The process that groups are forked from."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, RANK.with_name("groups.py")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.end)

    def ended(self, folder: Path, limit_s: float) -> str:
        """Run the group of a folder; empty if it ended well."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        if select.select([self.process.stdout], [], [], limit_s)[0]:
            line = self.process.stdout.readline()
            return line.rstrip("\n") if line else "the nursery is dead"
        self.end()
        nursery.cache_clear()
        return f"still running after {limit_s} s"

    def end(self) -> None:
        """With all that it has forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@cache
def nursery() -> Nursery:
    return Nursery()


class Lab:
    """A store, a dataset, and groups of processes that train on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ObjectStore(StoreSpec(url=(folder / "store").as_uri()))
        self.corpus = self.dataset("corpus", stride=7)

    def dataset(self, name: str, *, stride: int, tokens: int = 16 * 97) -> Artefact:
        """A dataset whose next token is mostly the last one plus `stride`."""
        folder = self.folder / name
        folder.mkdir()
        rng = np.random.default_rng(stride)
        splits = {}
        for split, length in (("train", tokens + 1), ("heldout", 16 * 21 + 1)):
            steps = np.where(rng.random(length) < 0.9, stride, rng.integers(0, VOCAB, length))
            path = folder / f"{split}-00000.arrow"
            with ShardWriter(path, VOCAB) as writer:
                writer.add((np.cumsum(steps) % VOCAB).tolist())
            file = stored_file(path.name, path)
            shard = Shard(
                path=file.path,
                tokens=length,
                documents=1,
                text_bytes=length,
                size=file.size,
                digest=file.digest,
            )
            splits[split] = split_files((shard,))
        made = DatasetFile(
            vocab=VOCAB, end_of_text=0, tokenizer=f"sha256:{'0' * 64}", splits=splits
        )
        (folder / "dataset.json").write_text(made.model_dump_json())
        return publish_folder(self.store, f"data/{name}", name, "dataset", folder)

    def order(self, layout: Layout, *, run: str, stage: str, attempt: int = 1) -> AttemptOrder:
        """One attempt at a stage."""
        cards = layout.cards
        return AttemptOrder(
            run=run,
            attempt=attempt,
            stage=StageSpec(name=stage, kind=stage, cards=cards, layout=layout),
            inputs={},
            store=self.store.spec,
            seed=5,
        )

    def job(
        self,
        layout: Layout,
        *,
        run: str,
        stage: str = "pretrain",
        attempt: int = 1,
        model: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        **more: Any,
    ) -> TrainingJob:
        """A job of a few tiny steps."""
        settings = {
            "model": {**MODEL, **(model or {})},
            "optimizer": {"lr": 1e-2, "warmup_steps": 2},
            "steps": 5,
            "sequence": 16,
            "global_batch": 8,
            "checkpoint_every": 100,
            "record_samples": True,
            **(training or {}),
        }
        return TrainingJob(
            order=self.order(layout, run=run, stage=stage, attempt=attempt),
            training=Training.parse(settings),
            **{"datasets": {"corpus": self.corpus}, **more},
        )

    def start(self, calls: Calls, size: int) -> Group:
        """Processes that make these calls one after the other."""
        return Group(calls, size, self.folder / uuid.uuid4().hex)

    def run(self, calls: Calls, size: int, limit_s: float = LIMIT_S) -> list[Any]:
        """The same, to the end, and quicker: what rank 0 returned."""
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        (folder / "size").write_text(str(size))
        (folder / "calls.json").write_text(json.dumps(calls))
        how = nursery().ended(folder, limit_s)
        assert not how, f"{how}\n{(folder / 'log').read_text()[-6000:]}"
        found: list[Any] = json.loads((folder / "returned.json").read_text())
        return found

    def train(self, jobs: Sequence[TrainingJob], size: int) -> list[Any]:
        """Train one job after the other in one group of processes."""
        return self.run([(TRAIN, job.plain()) for job in jobs], size)

    def run_groups(self, groups: Sequence[tuple[int, Calls]], limit_s: float) -> None:
        """Groups of these sizes one after the other."""
        for size, calls in groups:
            self.run(calls, size, limit_s)

    def steps(self, job: TrainingJob) -> dict[int, dict[str, float]]:
        """What the attempt recorded, by step."""
        points = [
            json.loads(line)
            for meta in self.store.walk(_keys(job).metrics)
            for line in self.store.get(meta.key).splitlines()
        ]
        return {point["step"]: point["metrics"] for point in points}

    def samples(self, job: TrainingJob) -> dict[int, list[int]]:
        """The sample indices of each global batch that the attempt used, in order of ranks."""
        found: dict[int, list[int]] = {}
        for meta in self.store.walk(f"{_keys(job).root}/samples/"):
            line = json.loads(self.store.get(meta.key))
            found.setdefault(line["step"], []).extend(line["indices"])
        return found


def _keys(job: TrainingJob) -> AttemptKeys:
    return StageKeys(job.order.run, job.order.stage.name).attempt(job.order.attempt)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
