"""A run on a terminal: a table that redraws itself."""

from __future__ import annotations

from typing import Any

from octad.cli.output import clean, duration, number
from octad.cli.views import TERMINAL, Json, elapsed_ms, size, steps, where

_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "starting": "cyan",
    "recovering": "yellow",
    "failed": "red",
    "cancelled": "magenta",
}


class Live:
    """The live view; on stderr, so that stdout stays for results."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._live = RichLive(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Live:
        """Begin."""
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End; the last state stays on the screen."""
        self._live.stop()

    def show(self, run: Json, now_ms: int) -> None:
        """Redraw."""
        self._live.update(render(run, now_ms), refresh=True)


def render(run: Json, now_ms: int) -> Any:
    """The table of a run, for rich."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    took = duration((run["ended_at_ms"] or now_ms) - run["created_at_ms"])
    view = Table(
        title=Text(f"{run['id']}  {clean(run['title'])}  {run['state']}  {took}"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    columns = ("stage", "state", "", "step", "loss", "tokens/s", "cluster", "cards", "try", "time")
    for column in columns:
        view.add_column(column, no_wrap=True)
    view.add_column("reason", overflow="fold")
    for stage in run["stages"]:
        state = stage["state"]
        progress = stage["progress"] or {}
        metrics = progress.get("metrics", {})
        total = progress.get("total", 0)
        done = total if state == "succeeded" else progress.get("step", 0)
        bar = ProgressBar(total, done, width=16) if total and state != "waiting" else Text("")
        view.add_row(
            Text(stage["name"]),
            Text(state, style=_STYLES.get(state, "dim")),
            bar,
            Text(steps(stage)),
            Text(number(metrics["loss"]) if "loss" in metrics else ""),
            Text(number(metrics["tokens_per_s"]) if "tokens_per_s" in metrics else ""),
            Text(where(stage)),
            Text(size(stage)),
            Text(str(len(stage["attempts"]) or "")),
            Text(duration(elapsed_ms(stage, now_ms))),
            Text(clean(_reason(stage)), style="dim"),
        )
    return view


def _reason(stage: Json) -> str:
    if stage["reason"] or not stage["progress"] or stage["state"] in TERMINAL:
        return str(stage["reason"])
    notes = stage["progress"].get("notes", ())
    return str(notes[-1]) if notes else ""
