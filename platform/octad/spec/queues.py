"""What waits for cards, as people see it."""

from __future__ import annotations

from octad.spec.frozen import Spec
from octad.spec.names import Name


class QueuedStage(Spec):
    """A stage that waits for cards. Times are Unix milliseconds by the control plane's clock.

    Attributes:
        cards: The least it can use.
        starts_at_ms: When it is likely to start, if nothing more comes; None where that cannot be
            known.
        unknown: Why it cannot be known; empty where it is.
        reason: Why it waits.
        helps: What would let it start sooner; may be empty.
    """

    run: Name
    stage: Name
    cards: int
    team: str
    priority: str
    queued_at_ms: int
    starts_at_ms: int | None = None
    unknown: str = ""
    reason: str = ""
    helps: str = ""


class QueueView(Spec):
    """All of them, in the order in which they will have their turns."""

    stages: tuple[QueuedStage, ...]
