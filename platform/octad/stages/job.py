"""Anything of the user's own: a program that finds its inputs and outputs by environment variables.

| variable | what it holds |
|---|---|
| `OCTAD_INPUT_<NAME>` | a local folder or file; only to be read |
| `OCTAD_OUTPUT_<NAME>` | an empty folder to fill |
| `OCTAD_METRICS` | a file to append lines to such as `{"step": 1, "loss": 2.5}` |
| `OCTAD_SCRATCH` | a folder that is gone afterwards |
| `OCTAD_RUN`, `OCTAD_STAGE`, `OCTAD_ATTEMPT`, `OCTAD_CARDS` | what their names say |

`NAME` is the declared name in capitals, `-` written as `_`. The program starts in the code folder
that was sent along. `entrypoint` is a list of arguments that no shell ever sees; `shell` is a text
for `bash -o pipefail -c`: one of them. When the program has ended, so have all processes that it
started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from octad.errors import ConfigError
from octad.spec.artefacts import Port
from octad.spec.layouts import CARDS_PER_NODE
from octad.spec.stages import StageSpec
from octad.stages._job_settings import Settings, variable

if TYPE_CHECKING:
    from octad.stages._program import Program

ENVIRONMENT_LIMIT_BYTES = 64 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PORT_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE)_KEY)(_|$)"
)

__all__ = ["Settings", "build", "check", "gives", "takes"]


def takes(settings: Settings) -> Mapping[str, Port]:
    """What the settings declare."""
    return {name: Port(type=kind) for name, kind in settings.inputs.items()}


def gives(settings: Settings) -> Mapping[str, Port]:
    """What the settings declare."""
    return {name: Port(type=kind) for name, kind in settings.outputs.items()}


def check(spec: StageSpec, settings: Settings) -> None:
    """Refuse what cannot be started.

    Raises:
        ConfigError: More than one node, an environment that is too large or not one, or names
            that would become the same variable.
    """
    if spec.cards > CARDS_PER_NODE:
        raise ConfigError(
            f"a job stage runs on one node, which has {CARDS_PER_NODE} cards, not {spec.cards}",
            where=f"{spec.name}.cards",
        )
    _check_env(settings.env, f"{spec.name}.env")
    size = sum(len(word.encode()) + 1 for word in settings.command)
    _check_size(size, f"{spec.name}.{'shell' if settings.shell else 'entrypoint'}")
    for side, ports in (("inputs", settings.inputs), ("outputs", settings.outputs)):
        _check_names(ports, f"{spec.name}.{side}")


def build(settings: Settings) -> Program:
    """The stage."""
    # Laptops load this module, and have no client of an object store.
    from octad.stages._program import Program  # noqa: PLC0415

    return Program(settings)


def _check_env(env: Mapping[str, str | int], where: str) -> None:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not the name of a variable",
                where=where,
                hint="use letters, digits and '_', not beginning with a digit",
            )
        if name.startswith("OCTAD_"):
            raise ConfigError(f"{name} is set by octad", where=f"{where}.{name}")
        if _SECRET.search(name.upper()) and str(value):
            raise ConfigError(
                "looks like a secret, and settings are kept with the run for all to see",
                where=f"{where}.{name}",
                hint="put it in a file on the nodes and pass the file's path",
            )
    _check_size(sum(len(f"{k}={v}".encode()) + 1 for k, v in env.items()), where)


def _check_size(size: int, where: str) -> None:
    if size > ENVIRONMENT_LIMIT_BYTES:
        raise ConfigError(
            f"takes {size:,} bytes, the limit is {ENVIRONMENT_LIMIT_BYTES:,}",
            where=where,
            hint="put it in a file of your code folder",
        )


def _check_names(ports: Mapping[str, str], where: str) -> None:
    variables: dict[str, str] = {}
    for name in ports:
        if not _PORT_NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a name for an artefact",
                where=where,
                hint="use a-z, 0-9, '-' and '_', beginning with a letter",
            )
        twin = variables.setdefault(variable("", name), name)
        if twin != name:
            raise ConfigError(f"{twin!r} and {name!r} become one variable", where=where)
