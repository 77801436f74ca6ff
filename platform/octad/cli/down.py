"""`octad down`."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Annotated

import typer

from octad.cli.options import AsJson
from octad.cli.output import clean, emit, say
from octad.cli.views import Json
from octad.client.connect import connect
from octad.client.endpoint import answering, read_token
from octad.client.wire import Wire
from octad.errors import ConfigError, UnreachableError
from octad.spec.home import Home

_POLL_S = 0.2
# Kinds of clusters that were there before octad, and stay.
_NOT_OURS = frozenset({"existing"})


def command(
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")
    ] = 120.0,
    as_json: AsJson = False,
) -> None:
    """End the fleet, the tracker and the control plane of this machine.

    Runs that go on lose their attempts, and go on from their last checkpoints after 'octad up'.
    """
    if os.environ.get("OCTAD_URL"):
        raise ConfigError(
            "OCTAD_URL names a control plane elsewhere; this ends what runs here",
            where="OCTAD_URL",
            hint="unset it first",
        )
    home = Home.of(os.environ)
    if not home.config.exists():
        say("nothing runs here")
        if as_json:
            emit({"clusters": []})
        return
    wire = connect()  # started if it was killed: only it knows what it left behind
    deadline = time.monotonic() + timeout_s
    view = _end_fleet(wire, deadline)
    if not as_json:
        for cluster in view["clusters"]:
            reason = f"  {clean(cluster['reason'])}" if cluster["reason"] else ""
            state = "left as it is" if cluster["kind"] in _NOT_OURS else cluster["state"]
            print(f"{cluster['name']}  {state}{reason}")
    _end_control_plane(wire, home, deadline)
    if as_json:
        emit(view)
    else:
        print("control plane  down")
    left = _left(view)
    if left:
        raise UnreachableError(f"not ended: {', '.join(left)}", hint="see 'octad doctor'")


def _end_fleet(wire: Wire, deadline: float) -> Json:
    view: Json = wire.json("POST", "/api/fleet/down")
    while _left(view) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        view = wire.json("GET", "/api/fleet")
    return view


def _left(view: Json) -> list[str]:
    """Clusters that have not ended yet."""
    return [
        c["name"] for c in view["clusters"] if c["state"] != "down" and c["kind"] not in _NOT_OURS
    ]


def _end_control_plane(wire: Wire, home: Home, deadline: float) -> None:
    with contextlib.suppress(UnreachableError):  # it may leave before it answers
        Wire(wire.address, patience_s=0).json("POST", "/api/shutdown", {"fleet": True})
    token = read_token(home)
    while time.monotonic() < deadline:
        if answering(home, token) is None and not home.endpoint.exists():
            return
        time.sleep(_POLL_S)
    raise UnreachableError("the control plane does not end", where=wire.address.url)
