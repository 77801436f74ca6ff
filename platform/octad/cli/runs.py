"""`octad runs`."""

from __future__ import annotations

from typing import Annotated

import typer

from octad.cli.options import AsJson
from octad.cli.output import duration, emit, moment, say, table
from octad.client.connect import connect


def command(
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many.")] = 20,
    before: Annotated[
        str | None, typer.Option("--before", metavar="CURSOR", help="Go on from an earlier page.")
    ] = None,
    sweep: Annotated[str, typer.Option("--sweep", metavar="ID", help="Only those of one -m.")] = "",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    wire = connect()
    query = {"limit": limit, "before": before, "sweep": sweep}
    page = wire.json("GET", "/api/runs", query=query)
    if as_json:
        emit(page)
        return
    if not page["runs"]:
        say("no runs yet; 'octad demo' makes the first")
        return
    now_ms = wire.now_ms()
    rows = [
        [
            run["id"],
            run["state"],
            run["stage"],
            moment(run["created_at_ms"]),
            duration((run["ended_at_ms"] or now_ms) - run["created_at_ms"]),
            run["sweep"],
            run["title"],
        ]
        for run in page["runs"]
    ]
    print(table(("run", "state", "stage", "begun", "took", "sweep", "title"), rows))
    if page["next_before"]:
        say(f"older ones: octad runs --before {page['next_before']}")
