"""Bringing the fleet up and waiting for it, for `up` and `demo`."""

from __future__ import annotations

import time

from octad.cli.output import clean, say
from octad.cli.views import Json
from octad.client.wire import Wire
from octad.errors import UnreachableError

_POLL_S = 0.3


def bring_up(wire: Wire, *, timeout_s: float = 300.0) -> Json:
    """Ask for the fleet to be up, wait until it is, and return it.

    Raises:
        UnreachableError: A cluster is not up in time, or could not be brought up.
    """
    view: Json = wire.json("POST", "/api/fleet/up")
    deadline = time.monotonic() + timeout_s
    seen: dict[str, str] = {}
    while True:
        _tell(view, seen)
        missing = [c for c in view["clusters"] if c["state"] != "up"]
        if not missing:
            return view
        if time.monotonic() > deadline:
            first = missing[0]
            raise UnreachableError(
                f"is {first['state']} after {timeout_s:.0f} s: {clean(first['reason'])}".rstrip(
                    ": "
                ),
                where=f"cluster {first['name']}",
                hint="see 'octad fleet' and 'octad doctor'",
            )
        time.sleep(_POLL_S)
        view = wire.json("GET", "/api/fleet")


def _tell(view: Json, seen: dict[str, str]) -> None:
    for cluster in view["clusters"]:
        reason = f"  {clean(cluster['reason'])}" if cluster["reason"] else ""
        cards = f"  {cluster['cards']} cards" if cluster["state"] == "up" else ""
        line = f"{cluster['name']:<12} {cluster['state']}{cards}{reason}"
        if seen.get(cluster["name"]) != line:
            seen[cluster["name"]] = line
            say(line)
