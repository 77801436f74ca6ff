"""`octad`: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from octad import __version__
from octad.cli.output import clean, make_safe
from octad.errors import ConfigError, OctadError, StorageError

# Each is a module of this package; its `command` is imported only when it is needed.
COMMANDS = {
    "demo": "Bring up a fleet on this machine and run the quickstart pipeline over it.",
    "up": "Bring up the control plane and its fleet.",
    "down": "End the fleet, the tracker and the control plane of this machine.",
    "submit": "Compose a run, check it, and send it.",
    "runs": "List runs, newest first.",
    "run": "Show one run with its stages and attempts.",
    "logs": "Show the logs of every attempt of a run.",
    "cancel": "Ask a run to end.",
    "resume": "Go on with a run that failed or was cancelled, under its id.",
    "queue": "Show what waits, why, until when, and what would help.",
    "simulate": "Run recorded work through the scheduler, beside simple policies.",
    "fleet": "Show clusters, nodes and cards.",
    "doctor": "Check this machine and the control plane.",
    "ui": "Open the tracker's page.",
    "server": "Run the control plane in the foreground.",
}
# Those whose module cannot have their name: it would hide one of the standard library.
_MODULES = {"queue": "queued"}
_BROKEN_PIPE = 141  # as a shell reports SIGPIPE
_HELP = """Turns rented eight-card nodes into one training service.

'octad demo' shows the whole idea on this machine; 'octad COMMAND --help' explains a command.
OCTAD_URL and OCTAD_TOKEN (or OCTAD_TOKEN_FILE) name a control plane elsewhere, OCTAD_HOME the private
folder of the one here."""


def main() -> int:
    """The exit code of `octad` with this process's arguments."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  for all our life
    make_safe(sys.stdout)
    make_safe(sys.stderr)
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """The exit code of `octad ARGUMENTS`; see `octad.errors` for what each means."""
    wants_json = "--json" in arguments
    try:
        _check_encoding(arguments)
        code = typer.main.get_command(build(_wanted(arguments))).main(
            list(arguments), prog_name="octad", standalone_mode=False
        )
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (BrokenPipeError, SystemExit):  # who reads our output has seen enough; typer exits then
        _give_up_stdout()
        return _BROKEN_PIPE
    except Exception as error:
        known = _known(error)
        if known is None:
            raise  # a bug: with its traceback
        _show(known, wants_json=wants_json)
        return known.exit_code
    return code if isinstance(code, int) else 0


def build(wanted: set[str]) -> typer.Typer:
    """The application, with the wanted commands imported and the others by name only."""
    app = typer.Typer(
        name="octad",
        help=_HELP,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, summary in COMMANDS.items():
        function: Callable[..., Any] = _unused
        if name in wanted:
            function = importlib.import_module(f"octad.cli.{_MODULES.get(name, name)}").command
        app.command(name, short_help=summary)(function)
    return app


def _wanted(arguments: Sequence[str]) -> set[str]:
    if "_OCTAD_COMPLETE" in os.environ:
        return set(COMMANDS)
    return {next((a for a in arguments if not a.startswith("-")), "")} & set(COMMANDS)


def _check_encoding(arguments: Sequence[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(argument).decode(errors="backslashreplace")
            raise ConfigError(f"the argument {shown} is not UTF-8") from None


def _give_up_stdout() -> None:
    """Let go of what cannot be written, so that the interpreter does not try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"octad {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _unused() -> None:
    """Stands for a command that was not asked for."""


def _known(error: Exception) -> OctadError | None:
    """What somebody can mend; None for a bug of ours."""
    if isinstance(error, OctadError):
        return error
    if isinstance(error, OSError):
        _give_up_stdout()
        return StorageError(error.strerror or str(error), where=str(error.filename or ""))
    return _usage(error)


def _usage(error: Exception) -> OctadError | None:
    """A mistake in the command line itself."""
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "octad"
    what = str(message()).rstrip(".")
    return ConfigError(what[:1].lower() + what[1:], hint=f"see '{path} --help'")


def _show(error: OctadError, *, wants_json: bool) -> None:
    if wants_json:
        print(json.dumps({"error": error.to_wire()}), file=sys.stderr)
    else:
        print(f"octad: {clean(str(error))}", file=sys.stderr)
