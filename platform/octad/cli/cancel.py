"""`octad cancel RUN`."""

from __future__ import annotations

from urllib.parse import quote

from octad.cli.options import AsJson, Run
from octad.cli.output import emit
from octad.client.connect import connect


def command(run: Run, as_json: AsJson = False) -> None:
    """Ask a run to end."""
    view = connect().json("POST", f"/api/runs/{quote(run, safe='')}/cancel")
    if as_json:
        emit(view)
    else:
        print(f"{view['id']} is {view['state']}")
