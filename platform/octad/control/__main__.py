"""`python -m octad.control --home DIR`: be the control plane of a home."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from octad.control.server import serve
from octad.errors import OctadError
from octad.spec.home import Home


def main() -> int:
    """Serve until told to end; the exit code is the error's class."""
    parser = argparse.ArgumentParser(prog="python -m octad.control", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="its private folder")
    home = Home(parser.parse_args().home.absolute())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        serve(home)
    except OctadError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Calls to clusters that do not answer may still be waiting; nothing is lost by leaving them.
    os._exit(code)
