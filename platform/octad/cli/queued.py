"""`octad queue`."""

from __future__ import annotations

from octad.cli.options import AsJson
from octad.cli.output import emit, moment, say, table
from octad.client.connect import connect


def command(as_json: AsJson = False) -> None:
    """Show what waits, why, until when, and what would help."""
    view = connect().json("GET", "/api/queue")
    if as_json:
        emit(view)
        return
    if not view["stages"]:
        say("nothing waits for cards")
        return
    rows = [
        [
            place,
            f"{stage['run']}/{stage['stage']}",
            stage["cards"],
            stage["team"],
            moment(stage["queued_at_ms"]),
            moment(stage["starts_at_ms"]) or f"unknown: {stage['unknown']}",
            stage["reason"],
            stage["helps"],
        ]
        for place, stage in enumerate(view["stages"], 1)
    ]
    header = ("", "stage", "cards", "team", "queued", "may start", "why", "what would help")
    print(table(header, rows))
