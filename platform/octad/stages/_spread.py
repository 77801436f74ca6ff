"""Work spread over the cards of a stage as Ray tasks, or done in turn in one process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from octad.errors import OctadError, StageError
from octad.spec.clusters import CARD_RESOURCE
from octad.train.joining import join_ray

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]

_TASK_CPUS = 0.1
_TASK_RETRIES = 3


class Spread(Protocol):
    """Applies a module's function to pieces of work; the results come in the order of the work."""

    def __call__(
        self, function: Callable[[T], R], work: Sequence[T], progress: Progress
    ) -> list[R]:
        """`progress` is told how many pieces are done, of how many."""
        ...


def in_turn(function: Callable[[T], R], work: Sequence[T], progress: Progress) -> list[R]:
    """All in this process."""
    results = []
    for piece in work:
        results.append(function(piece))
        progress(len(results), len(work))
    return results


class OverRay:
    """Ray tasks, each on one card, no more of them at once than there are cards.

    A task whose process or node is lost is done again elsewhere; an error of ours comes out as
    it was raised.
    """

    def __init__(self, cards: int) -> None:
        self.cards = cards

    def __call__(
        self, function: Callable[[T], R], work: Sequence[T], progress: Progress
    ) -> list[R]:
        """Raises StageError if a piece of work is lost again and again."""
        import ray

        join_ray()
        remote = ray.remote(
            num_cpus=_TASK_CPUS,
            max_retries=_TASK_RETRIES,
            scheduling_strategy="SPREAD",
            **_one_card(),
        )(function)
        waiting = deque(enumerate(work))
        running: dict[Any, int] = {}
        results: dict[int, R] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.cards:
                    number, piece = waiting.popleft()
                    running[remote.remote(piece)] = number
                for done in ray.wait(list(running), num_returns=1)[0]:
                    results[running.pop(done)] = _result(done)
                    progress(len(results), len(work))
        finally:
            for reference in running:
                ray.cancel(reference)
        return [results[number] for number in range(len(work))]


def _one_card() -> dict[str, Any]:
    """What a task asks of Ray to have a card, by the resource that counts this cluster's cards."""
    resource = os.environ.get("OCTAD_CARD_RESOURCE", CARD_RESOURCE)
    return {"num_gpus": 1} if resource == "GPU" else {"resources": {resource: 1}}


def _result(reference: Any) -> Any:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OctadError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:300]
        raise StageError(f"a task was lost: {reason}") from None
