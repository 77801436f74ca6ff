"""`octad run RUN`."""

from __future__ import annotations

from octad.cli.follow import check_outcome, follow, get_run
from octad.cli.options import AsJson, Follow, Run
from octad.cli.output import emit
from octad.cli.views import full, summary
from octad.client.connect import connect


def command(run: Run, follow_it: Follow = False, as_json: AsJson = False) -> None:
    """Show one run with its stages and attempts.

    With -f the exit code tells how it went: 0 well, 20 badly, 10 connection lost.
    """
    wire = connect()
    view = get_run(wire, run)
    if follow_it:
        view = follow(wire, view["id"])
    if as_json:
        emit(view)
    elif follow_it:
        print(summary(view, wire.now_ms()))
    else:
        print(full(view, wire.now_ms()))
    if follow_it:
        check_outcome(view)
