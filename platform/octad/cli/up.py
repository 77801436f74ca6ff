"""`octad up`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from octad.cli.bringup import bring_up
from octad.cli.fleet import fleet_table
from octad.cli.options import AsJson, Conf, Overrides
from octad.cli.output import emit
from octad.client.connect import connect
from octad.client.start import kept, prepare
from octad.errors import ConfigError
from octad.spec.home import Home


def command(
    overrides: Overrides = None,
    conf: Conf = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")
    ] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Bring up the control plane and its fleet.

    Overrides set up the control plane of this machine, and are kept:
    octad up fleet=existing fleet.clusters.main.address=http://head:8265
    """
    if overrides or conf is not None:
        if os.environ.get("OCTAD_URL"):
            raise ConfigError(
                "OCTAD_URL names a control plane elsewhere, set up where it runs",
                where="overrides",
                hint="unset OCTAD_URL, or leave the overrides out",
            )
        home = Home.of(os.environ)
        with kept(home):
            prepare(home, overrides or [], conf)
            connect()
    view = bring_up(connect(), timeout_s=timeout_s)
    if as_json:
        emit(view)
        return
    print(fleet_table(view))
    if view["tracker_url"]:
        print(f"\nMLflow  {view['tracker_url']}")
