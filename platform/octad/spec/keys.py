"""Where things lie in the object store: keys relative to its URL (design: what an attempt reads
and writes).
"""

from __future__ import annotations

from dataclasses import dataclass


def blob_key(digest: str) -> str:
    """Content that a laptop uploaded; `digest` is the bare sha256 in hex."""
    return f"blobs/{digest}"


@dataclass(frozen=True, slots=True)
class StageKeys:
    """Keys of one stage of one run."""

    run: str
    stage: str

    @property
    def root(self) -> str:
        """The stage's folder, without a trailing slash."""
        return f"runs/{self.run}/stages/{self.stage}"

    @property
    def spec(self) -> str:
        """What is asked of the stage."""
        return f"{self.root}/spec.json"

    @property
    def epochs(self) -> str:
        """The folder of fences."""
        return f"{self.root}/epochs/"

    def epoch(self, attempt: int) -> str:
        """The fence of one attempt; the number is padded, so that listing sorts."""
        return f"{self.epochs}{attempt:06d}.json"

    def attempt(self, attempt: int) -> AttemptKeys:
        """Keys of one attempt."""
        return AttemptKeys(f"{self.root}/attempts/{attempt:06d}")


@dataclass(frozen=True, slots=True)
class AttemptKeys:
    """Keys of one attempt."""

    root: str

    @property
    def order(self) -> str:
        """The `AttemptOrder`."""
        return f"{self.root}/order.json"

    @property
    def progress(self) -> str:
        """The newest `Progress`."""
        return f"{self.root}/progress.json"

    @property
    def result(self) -> str:
        """The `AttemptResult`, if it succeeded."""
        return f"{self.root}/result.json"

    @property
    def error(self) -> str:
        """The `AttemptFailure`, if it could say why."""
        return f"{self.root}/error.json"

    @property
    def log(self) -> str:
        """The attempt's whole log, kept when it has ended."""
        return f"{self.root}/log.txt"

    @property
    def hangs(self) -> str:
        """The folder of what processes left that ended as a step hung."""
        return f"{self.root}/hangs/"

    def stacks(self, rank: int) -> str:
        """Where one of them stood: what happened, in a line, and the stacks of its threads."""
        return f"{self.hangs}rank-{rank:05d}.txt"

    @property
    def metrics(self) -> str:
        """The folder of closed metric segments."""
        return f"{self.root}/metrics/"

    def segment(self, number: int) -> str:
        """One closed metric segment, numbered from 0."""
        return f"{self.metrics}{number:08d}.jsonl"

    @property
    def checkpoints(self) -> str:
        """The folder of checkpoints."""
        return f"{self.root}/checkpoints/"

    def checkpoint(self, step: int) -> str:
        """The folder of one checkpoint, without a trailing slash."""
        return f"{self.checkpoints}step-{step:010d}"

    def manifest(self, step: int) -> str:
        """The manifest whose creation commits a checkpoint."""
        return f"{self.checkpoint(step)}/manifest.json"

    @property
    def artefacts(self) -> str:
        """The folder of everything else the attempt makes."""
        return f"{self.root}/artefacts/"
