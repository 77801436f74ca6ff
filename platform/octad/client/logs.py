"""Logs of attempts, by byte offset, so that a reader can go on where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from octad.client.wire import Wire


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of an attempt's log.

    Attributes:
        data: The bytes from the offset asked for.
        next_offset: Where the next piece begins.
        is_complete: Nothing will be added any more.
    """

    data: bytes
    next_offset: int
    is_complete: bool


def read_log(wire: Wire, run: str, stage: str, attempt: int, offset: int = 0) -> LogChunk:
    """The log of one attempt, from a byte offset.

    Raises:
        NotFoundError: There is no such run, stage or attempt.
        UnreachableError: The control plane does not answer.
    """
    path = f"/api/runs/{quote(run, safe='')}/stages/{quote(stage, safe='')}/attempts/{attempt}/log"
    answer = wire.send("GET", f"{path}?offset={offset}")
    following = int(answer.headers.get("x-octad-next-offset", offset + len(answer.body)))
    is_complete = answer.headers.get("x-octad-complete", "false") == "true"
    return LogChunk(answer.body, following, is_complete)
