"""`octad ui`."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from octad.cli.follow import get_run
from octad.cli.options import AsJson
from octad.cli.output import emit
from octad.client.connect import connect
from octad.errors import NotFoundError


def command(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Open this run.", show_default=False)
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the address and open nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Open the tracker's page."""
    wire = connect()
    if run is not None:
        url = str(get_run(wire, run)["mlflow_url"])
    else:
        url = str(wire.json("GET", "/api/fleet")["tracker_url"])
    if not url:
        raise NotFoundError(
            "there is no tracker page yet", hint="'octad up' starts one, unless tracker=none"
        )
    if as_json:
        emit({"url": url})
        return
    print(url, flush=True)
    if not only_print:
        webbrowser.open(url)
