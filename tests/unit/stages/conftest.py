"""A store, orders in it, and drivers as a cluster would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from octad.spec.artefacts import Artefact
from octad.spec.keys import AttemptKeys, StageKeys
from octad.spec.layouts import Layout
from octad.spec.stages import (
    AttemptFailure,
    AttemptOrder,
    AttemptResult,
    Progress,
    StageSpec,
    StoreSpec,
)
from octad.storage.objects import ObjectStore

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0


def until(condition: Callable[[], Any]) -> None:
    """Wait, with a deadline, until something is so."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@dataclass
class Bench:
    """Where the tests of this folder start drivers.

    Attributes:
        folder: What the drivers have as their working directory.
    """

    store: ObjectStore
    folder: Path
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def order(
        self,
        settings: dict[str, Any],
        *,
        attempt: int = 1,
        inputs: dict[str, Artefact] | None = None,
        kind: str = "job",
    ) -> AttemptOrder:
        """Write an order for a stage called `own`."""
        stage = StageSpec(
            name="own", kind=kind, cards=1, layout=Layout(dp_shard=1), settings=settings
        )
        made = AttemptOrder(
            run="run", attempt=attempt, stage=stage, inputs=inputs or {}, store=self.store.spec
        )
        self.store.put(self.keys(attempt).order, made.model_dump_json().encode())
        return made

    def keys(self, attempt: int = 1) -> AttemptKeys:
        return StageKeys("run", "own").attempt(attempt)

    def start(
        self, attempt: int = 1, *, kind: str = "job", stdout: IO[bytes] | int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start the driver of an ordered attempt."""
        command = [sys.executable, str(ROOT / "jobs" / f"{kind}.py")]
        command += ["--order", self.store.url(self.keys(attempt).order)]
        command += ["--store", self.store.spec.url, "--store-options", "{}"]
        driver = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.drivers.append(driver)
        return driver

    def run(self, settings: dict[str, Any], **more: Any) -> tuple[int, str]:
        """Order and run one attempt; its exit code and log."""
        self.order(settings, **more)
        driver = self.start(more.get("attempt", 1))
        log, _ = driver.communicate(timeout=LIMIT_S)
        return driver.returncode, log.decode()

    def result(self, attempt: int = 1) -> AttemptResult:
        return AttemptResult.parse(json.loads(self.store.get(self.keys(attempt).result)))

    def failure(self, attempt: int = 1) -> AttemptFailure:
        return AttemptFailure.parse(json.loads(self.store.get(self.keys(attempt).error)))

    def progress(self, attempt: int = 1) -> Progress:
        return Progress.parse(
            self.store.read_json(self.keys(attempt).progress) or {"phase": "starting"}
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "code"
    folder.mkdir()
    made = Bench(ObjectStore(StoreSpec(url=(tmp_path / "store").as_uri())), folder)
    yield made
    for driver in made.drivers:
        driver.kill()
        driver.communicate()
