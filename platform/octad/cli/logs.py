"""`octad logs RUN [STAGE]`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from octad.cli.follow import FOLLOW_PATIENCE_S, check_outcome, get_run
from octad.cli.options import AsJson, Follow, Run
from octad.cli.output import emit, harmless, last_of_bars, say
from octad.cli.views import TERMINAL, Json
from octad.client.connect import connect
from octad.client.logs import read_log
from octad.client.wire import Wire
from octad.errors import ConfigError, NotFoundError, UnreachableError

_POLL_S = 0.5
# How long after the end of a run its logs may still grow: they are kept in the store a moment later.
_LAST_LINES_S = 15.0


@dataclass(slots=True)
class Tail:
    """One attempt's log, as far as it has been shown.

    Attributes:
        offset: Of the next byte to ask for.
        is_complete: Nothing will be added any more.
    """

    stage: str
    attempt: int
    cluster: str
    offset: int = 0
    is_complete: bool = False
    _held: bytes = b""

    @property
    def next_offset(self) -> int:
        """Of the first byte that was not given yet: lines are given whole."""
        return self.offset - len(self._held)

    @property
    def place(self) -> str:
        """As `--after` takes it."""
        return f"{self.stage}/{self.attempt}/{self.next_offset}"

    def more(self, wire: Wire, run: str) -> tuple[str, bool]:
        """The next whole lines, and whether the control plane sent anything."""
        chunk = read_log(wire, run, self.stage, self.attempt, self.offset)
        has_moved = chunk.next_offset > self.offset
        self.offset = max(self.offset, chunk.next_offset)
        self.is_complete = chunk.is_complete and not has_moved
        data = self._held + chunk.data
        if self.is_complete:
            whole, self._held = data, b""
        else:
            whole, newline, self._held = data.rpartition(b"\n")
            whole += newline
        text = whole.decode(errors="replace")
        is_cut = self.is_complete and text and not text.endswith("\n")
        return (f"{text}\n" if is_cut else text), has_moved


class Reader:
    """All attempts of a run, in order, each from where it was left."""

    def __init__(self, wire: Wire, run: str, *, after: tuple[str, int, int] | None) -> None:
        self._wire = wire
        self._run = run
        self._after = after
        self._tails: dict[tuple[str, int], Tail] = {}
        self._shown: tuple[str, int] | None = None

    def update(self, view: Json, stage: str | None, attempt: int | None) -> list[Tail]:
        """The attempts of the run as it is now that were asked for."""
        found = []
        for held in view["stages"]:
            if stage in {None, held["name"]}:
                for item in held["attempts"]:
                    if attempt in {None, item["number"]}:
                        key = (held["name"], item["number"])
                        if key not in self._tails:
                            self._tails[key] = Tail(*key, item["cluster"])
                        found.append(self._tails[key])
        if self._after is not None and found:
            self._skip(found, self._after)
            self._after = None
        return found

    def show(self, tail: Tail) -> None:
        """Print all there is of one log now."""
        has_moved = True
        while has_moved and not tail.is_complete:
            text, has_moved = tail.more(self._wire, self._run)
            if text:
                key = (tail.stage, tail.attempt)
                if key != self._shown:
                    print(f"=== {tail.stage}, attempt {tail.attempt} on {tail.cluster}")
                    self._shown = key
                sys.stdout.write(_for_stream(text))
                sys.stdout.flush()

    @property
    def place(self) -> str:
        """Where another reader may go on."""
        tail = self._tails.get(self._shown) if self._shown else None
        return tail.place if tail else ""

    def _skip(self, tails: list[Tail], after: tuple[str, int, int]) -> None:
        for tail in tails:
            if (tail.stage, tail.attempt) == after[:2]:
                tail.offset = after[2]
                return
            tail.is_complete = True
        raise NotFoundError(
            f"{self._run} has no attempt {after[1]} of {after[0]}",
            where="--after",
            hint=f"it has {', '.join(f'{tail.stage}/{tail.attempt}' for tail in tails)}",
        )


def command(
    run: Run,
    stage: Annotated[
        str | None, typer.Argument(metavar="[STAGE]", help="Only this stage.", show_default=False)
    ] = None,
    follow_it: Follow = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, metavar="N", help="Only this attempt.")
    ] = None,
    after: Annotated[
        str, typer.Option("--after", metavar="STAGE/N/OFFSET", help="Go on where ctrl-C left off.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show the logs of every attempt of a run.

    With -f until the run ends; ctrl-C detaches only, and says how to go on without a line lost or
    repeated. On a terminal control characters are made harmless.
    """
    if as_json and follow_it:
        raise ConfigError("--json is one document and -f has no end", where="logs")
    wire = connect()
    view = get_run(wire, run)
    _check_stage(view, stage)
    reader = Reader(wire, view["id"], after=_parsed(after))
    if as_json:
        emit(_document(wire, view, reader.update(view, stage, attempt)))
        return
    if not follow_it:
        tails = reader.update(view, stage, attempt)
        for tail in tails:
            reader.show(tail)
        if not tails:
            say("no attempt has begun yet")
        return
    _follow(wire, view["id"], reader, stage, attempt)


def _follow(wire: Wire, run: str, reader: Reader, stage: str | None, attempt: int | None) -> None:
    wire.patience_s = max(wire.patience_s, FOLLOW_PATIENCE_S)
    again = f"octad logs {run} {stage or ''}".rstrip() + " -f"
    patience = _Patience()
    try:
        while True:
            view = get_run(wire, run)
            tails = reader.update(view, stage, attempt)
            patience.try_all(reader, tails)
            is_over = view["state"] in TERMINAL or _is_over(view, stage, attempt)
            if is_over and (all(tail.is_complete for tail in tails) or patience.is_over()):
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        say(f"octad: detached; the run goes on: {again}{_after(reader)}")
        raise typer.Exit(130) from None
    except UnreachableError as error:
        raise UnreachableError(
            f"{error.what}; the state of {run} is unknown",
            where=error.where,
            hint=f"go on with: {again}{_after(reader)}",
        ) from None
    if view["state"] in TERMINAL:
        check_outcome(view)


class _Patience:
    """How long to go on with logs that a cluster does not give."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._over_since: float | None = None

    def try_all(self, reader: Reader, tails: list[Tail]) -> None:
        """Show all there is; a cluster that does not answer for a while is waited for."""
        try:
            for tail in tails:
                reader.show(tail)
        except UnreachableError:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            if now - self._failing_since > FOLLOW_PATIENCE_S:
                raise
        else:
            self._failing_since = None

    def is_over(self) -> bool:
        """Whether the last lines have been waited for long enough after the end."""
        now = time.monotonic()
        self._over_since = self._over_since or now
        return now - self._over_since > _LAST_LINES_S


def _is_over(view: Json, stage: str | None, attempt: int | None) -> bool:
    """Whether what was asked for can give no more, though the run goes on."""
    if stage is None:
        return False
    held = next(s for s in view["stages"] if s["name"] == stage)
    if held["state"] in TERMINAL:
        return True
    return attempt is not None and any(
        a["number"] == attempt and a["ended_at_ms"] for a in held["attempts"]
    )


def _after(reader: Reader) -> str:
    return f" --after {reader.place}" if reader.place else ""


def _check_stage(view: Json, stage: str | None) -> None:
    names = [held["name"] for held in view["stages"]]
    if stage is not None and stage not in names:
        raise NotFoundError(
            f"{view['id']} has no stage {stage!r}", hint=f"it has {', '.join(names)}"
        )


def _parsed(after: str) -> tuple[str, int, int] | None:
    if not after:
        return None
    parts = after.split("/")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        raise ConfigError(f"{after!r} is not STAGE/ATTEMPT/OFFSET", where="--after")
    return parts[0], int(parts[1]), int(parts[2])


def _document(wire: Wire, view: Json, tails: list[Tail]) -> Json:
    attempts = []
    for tail in tails:
        text, has_moved = "", True
        while has_moved and not tail.is_complete:
            more, has_moved = tail.more(wire, view["id"])
            text += more
        attempts.append(
            {
                "stage": tail.stage,
                "attempt": tail.attempt,
                "cluster": tail.cluster,
                "text": text,
                "next_offset": tail.next_offset,
                "is_complete": tail.is_complete,
            }
        )
    return {"run": view["id"], "attempts": attempts}


def _for_stream(text: str) -> str:
    shown = last_of_bars(text)
    return harmless(shown) if sys.stdout.isatty() else shown
