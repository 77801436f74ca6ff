"""No tracker: metrics stay in the store, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Sequence

from octad.ports.trackers import Outcome
from octad.spec.stages import MetricPoint


class NoTracker:
    """Fills `octad.ports.trackers.Tracker`, and keeps nothing."""

    def ensure_run(
        self,
        run: str,
        title: str,
        tags: dict[str, str],
        config: dict[str, object],
    ) -> str:
        """No id."""
        return ""

    def ensure_stage(
        self,
        parent: str,
        stage: str,
        tags: dict[str, str],
        params: dict[str, str],
    ) -> str:
        """No id."""
        return ""

    def log_points(self, tracked: str, points: Sequence[MetricPoint]) -> None:
        """Nothing."""

    def log_final(self, tracked: str, metrics: dict[str, float]) -> None:
        """Nothing."""

    def log_checkpoint(self, tracked: str, name: str, tags: dict[str, str]) -> str:
        """No id."""
        return ""

    def set_outcome(self, tracked: str, outcome: Outcome) -> None:
        """Nothing."""

    def page_url(self, tracked: str) -> str:
        """No page."""
        return ""


def build(url: str) -> NoTracker:
    """The tracker that keeps nothing."""
    return NoTracker()
