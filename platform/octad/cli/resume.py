"""`octad resume RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from octad.cli.options import AsJson, Follow, Run
from octad.cli.output import emit, say
from octad.cli.sending import send_package
from octad.cli.submit import followed
from octad.client.connect import connect
from octad.spec.runs import RunResume


def command(
    run: Run,
    stage: Annotated[
        str | None,
        typer.Option("--from", metavar="STAGE", help="Do this stage and what needs it again."),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option("--code", metavar="PATH", help="Send newer code; '.' for this folder."),
    ] = None,
    follow_it: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that failed or was cancelled, under its id."""
    wire = connect()
    package = send_package(wire, code) if code is not None else None
    wanted = RunResume.parse({"from_stage": stage, "package": package}, where="resume")
    path = f"/api/runs/{quote(run, safe='')}/resume"
    view = wire.json("POST", path, wanted.plain(), is_repeatable=False)
    if follow_it:
        say(f"resumed {view['id']}")
        followed(wire, view["id"], as_json=as_json)
    elif as_json:
        emit(view)
    else:
        print(view["id"])
