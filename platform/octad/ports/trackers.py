"""What a file of `octad.trackers` fills.

def build(url: str) -> Tracker
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from octad.spec.stages import MetricPoint

Outcome = Literal["FINISHED", "FAILED", "KILLED", "RUNNING"]


class Tracker(Protocol):
    """Where runs are compared. Every call is idempotent and may raise UnreachableError."""

    def ensure_run(
        self, run: str, title: str, tags: dict[str, str], config: dict[str, object]
    ) -> str:
        """The tracker's id of a run, made if needed; `config` is kept whole as an artifact."""
        ...

    def ensure_stage(
        self, parent: str, stage: str, tags: dict[str, str], params: dict[str, str]
    ) -> str:
        """The tracker's id of a stage's run under `parent`, made if needed."""
        ...

    def log_points(self, tracked: str, points: Sequence[MetricPoint]) -> None:
        """Add step metrics; the same point twice is one point."""

    def log_final(self, tracked: str, metrics: dict[str, float]) -> None:
        """Set final metrics; the same ones twice are one."""

    def log_checkpoint(self, tracked: str, name: str, tags: dict[str, str]) -> str:
        """Record a committed checkpoint that lies elsewhere; its id."""
        ...

    def set_outcome(self, tracked: str, outcome: Outcome) -> None:
        """Say how a run or stage stands."""

    def page_url(self, tracked: str) -> str:
        """Where a person looks at it."""
        ...
