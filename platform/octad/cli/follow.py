"""Watch a run until it ends. Leaving off, by ctrl-C or a lost connection, changes nothing for the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

import typer

from octad.cli.live import Live
from octad.cli.output import clean, say
from octad.cli.views import TERMINAL, Json, cards, rates, steps, where
from octad.client.wire import Wire
from octad.errors import OctadError, StageError, UnreachableError

FOLLOW_PATIENCE_S = 60.0
_POLL_S = 0.5
_PROGRESS_S = 10.0


class Reporter(Protocol):
    """Shows a run as it goes."""

    def __enter__(self) -> Reporter:
        """Begin."""
        ...

    def __exit__(self, *error: object) -> None:
        """End; what was shown stays."""

    def show(self, run: Json, now_ms: int) -> None:
        """Show how the run stands now."""


def get_run(wire: Wire, run: str) -> Json:
    """A run as plain JSON, by any of its ids."""
    found: Json = wire.json("GET", f"/api/runs/{quote(run, safe='')}")
    return found


def follow(wire: Wire, run: str) -> Json:
    """Show a run until it ends, and return it as it ended.

    Raises:
        UnreachableError: The control plane does not answer any more; the run's state is unknown.
        typer.Exit: 130, after ctrl-C.
    """
    wire.patience_s = max(wire.patience_s, FOLLOW_PATIENCE_S)
    reporter: Reporter = Live() if _is_terminal() else Lines()
    try:
        with reporter:
            return _until_ended(wire, run, reporter.show)
    except KeyboardInterrupt:
        say(f"octad: detached; the run goes on: octad run {run} -f")
        raise typer.Exit(130) from None
    except UnreachableError as error:
        raise UnreachableError(
            f"{error.what}; the state of {run} is unknown",
            where=error.where,
            hint=f"the run goes on without it; look again with: octad run {run} -f",
        ) from None


def check_outcome(run: Json) -> None:
    """Nothing, if a run succeeded.

    Raises:
        StageError: It did not; names the stage and why.
    """
    if run["state"] == "succeeded":
        return
    bad = [s for s in run["stages"] if s["state"] in {"failed", "cancelled"}]
    stage = bad[0]["name"] if bad else ""
    reason = clean(_reason(bad[0])) if bad else ""
    what = f"{stage} {bad[0]['state']}" if bad else f"the run is {run['state']}"
    raise StageError(
        f"{what}: {reason}" if reason else what,
        where=run["id"],
        hint=f"octad logs {run['id']} {stage}".rstrip() + f"; octad resume {run['id']}",
    )


def _reason(stage: Json) -> str:
    attempts = stage["attempts"]
    return str(stage["reason"] or (attempts[-1]["reason"] if attempts else ""))


def _until_ended(wire: Wire, run: str, show: Callable[[Json, int], None]) -> Json:
    while True:
        found = get_run(wire, run)
        show(found, wire.now_ms())
        if found["state"] in TERMINAL:
            return found
        time.sleep(_POLL_S)


def _is_terminal() -> bool:
    return sys.stderr.isatty()


class Lines:
    """Plain lines on stderr: one for each change of a stage, and one about every ten seconds."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._progress: dict[str, tuple[float, str]] = {}
        self._notes: set[tuple[str, str]] = set()

    def __enter__(self) -> Lines:
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def show(self, run: Json, now_ms: int) -> None:
        """Print what has changed."""
        del now_ms
        for stage in run["stages"]:
            self._changes(stage)
            self._notes_of(stage)
            if stage["state"] == "running":
                self._steps(stage)

    def _changes(self, stage: Json) -> None:
        name = stage["name"]
        now = (stage["state"], stage["reason"], len(stage["attempts"]))
        if self._seen.get(name) == now or (name not in self._seen and now[0] == "waiting"):
            return
        self._seen[name] = now
        place = ""
        if stage["attempts"] and stage["state"] in {"starting", "running"}:
            place = f"  attempt {now[2]} on {where(stage)}, {cards(stage['cards'])}"
        reason = f"  {clean(stage['reason'])}" if stage["reason"] else ""
        say(f"{self._prefix}{name:<12} {stage['state']}{place}{reason}")

    def _steps(self, stage: Json) -> None:
        name = stage["name"]
        text = "  ".join(part for part in (steps(stage), rates(stage)) if part)
        at, before = self._progress.get(name, (-_PROGRESS_S, ""))
        now = time.monotonic()
        if text and text != before and now - at >= _PROGRESS_S:
            self._progress[name] = (now, text)
            step = "step " if "/" in text else ""
            say(f"{self._prefix}{name:<12} {step}{text}")

    def _notes_of(self, stage: Json) -> None:
        for note in (stage["progress"] or {}).get("notes", ()):
            if (stage["name"], note) not in self._notes:
                self._notes.add((stage["name"], note))
                say(f"{self._prefix}{stage['name']:<12} note: {clean(note)}")


def follow_many(wire: Wire, runs: list[str]) -> dict[str, Json]:
    """Show several runs as lines until all have ended; each as it ended.

    Raises:
        OctadError: See `follow`.
    """
    wire.patience_s = max(wire.patience_s, FOLLOW_PATIENCE_S)
    reporters = {run: Lines(f"{run}  ") for run in runs}
    ended: dict[str, Json] = {}
    try:
        while len(ended) < len(runs):
            for run in runs:
                if run not in ended:
                    found = get_run(wire, run)
                    reporters[run].show(found, wire.now_ms())
                    if found["state"] in TERMINAL:
                        ended[run] = found
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        say("octad: detached; the runs go on: octad runs")
        raise typer.Exit(130) from None
    except OctadError as error:
        raise type(error)(
            error.what, where=error.where, hint="the runs go on: octad runs"
        ) from None
    return ended
