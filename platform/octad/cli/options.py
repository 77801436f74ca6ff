"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Conf = Annotated[
    Path | None,
    typer.Option("--conf", metavar="DIR", help="A folder of your own configs, looked into first."),
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Watch until it ends.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="key=value or group=option.", show_default=False),
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Any id of the run.", show_default=False)]
