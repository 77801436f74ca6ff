"""`octad server`."""

from __future__ import annotations

import os

from octad.cli.options import Conf, Overrides
from octad.client.start import command as command_line
from octad.client.start import environment, prepare
from octad.spec.home import Home


def command(overrides: Overrides = None, conf: Conf = None) -> None:
    """Run the control plane in the foreground.

    Overrides set it up, and are kept; its private folder is OCTAD_HOME.
    """
    home = Home.of(os.environ)
    prepare(home, overrides or [], conf)
    line = command_line(home)
    os.execve(line[0], line, environment())  # noqa: S606 - our own interpreter and module
