"""`octad demo`."""

from __future__ import annotations

from octad.cli.bringup import bring_up
from octad.cli.options import AsJson, Conf, Overrides
from octad.cli.output import say
from octad.cli.sending import compose, send
from octad.cli.submit import followed
from octad.client.connect import connect


def command(overrides: Overrides = None, conf: Conf = None, as_json: AsJson = False) -> None:
    """Bring up a fleet on this machine and run the quickstart pipeline over it.

    Prints where each stage ran, what validation found, and the tracker's address. ctrl-C detaches only;
    'octad down' ends what this started.
    """
    spec = compose(["pipeline=quickstart", *(overrides or [])], conf)
    wire = connect()
    bring_up(wire)
    view = send(wire, spec)
    say(f"submitted {view['id']}")
    followed(wire, view["id"], as_json=as_json)
