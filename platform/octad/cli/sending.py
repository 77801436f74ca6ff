"""From overrides to a run that the control plane has: compose, pack, upload, submit."""

from __future__ import annotations

import getpass
import secrets
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from octad.cli.output import say
from octad.cli.views import Json
from octad.client.blobs import has_blob, put_blob
from octad.client.corpora import check_corpora, send_corpora
from octad.client.packages import build_package
from octad.client.weights import check_weights, send_weights
from octad.client.wire import Wire
from octad.compose import compose_run, quoted
from octad.spec.runs import RunSpec, RunSubmission

_TITLE_LENGTH = 200


def compose(
    overrides: Sequence[str], conf: Path | None = None, title: str | None = None, more: str = ""
) -> RunSpec:
    """The run that overrides describe, with a title.

    Args:
        overrides: As typed.
        conf: A folder of the user's own configs.
        title: What to call it; None takes the config's, and makes one if that has none.
        more: What tells this run from others of a sweep, for a title that is made.

    Raises:
        ConfigError: The run cannot be.
    """
    wanted = [*overrides, f"title={quoted(title)}"] if title is not None else overrides
    spec = compose_run(wanted, conf)
    if spec.config.get("title") is not None:
        return spec
    return spec.model_copy(update={"title": made_title(spec.pipeline, _user(), more)})


def check(spec: RunSpec) -> None:
    """Refuse what could not be sent; sends nothing.

    Raises:
        PackageError, DataError: The user's own code, texts or weights cannot be sent.
    """
    code = (spec.config.get("code") or {}).get("path")
    if code:
        build_package(Path(code))
    check_corpora(spec)
    check_weights(spec)


def made_title(pipeline: str, user: str, more: str = "") -> str:
    """A title from what is known; any user name will do, or none."""
    by = f" by {user}" if user else ""
    text = f"{pipeline}{by} {more}" if more else f"{pipeline}{by}"
    shown = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cs"})
    return unicodedata.normalize("NFC", shown)[:_TITLE_LENGTH].strip()


def send(wire: Wire, spec: RunSpec, *, run: str | None = None, sweep: str = "") -> Json:
    """Upload what the run needs, start it, and return it as the control plane has it.

    Raises:
        PackageError, DataError: What is to be sent cannot be.
        ConflictError: The id is taken.
    """
    code = (spec.config.get("code") or {}).get("path")
    package = send_package(wire, Path(code) if code else None)
    pinned = send_weights(send_corpora(spec, wire, say), wire, say)
    submission = RunSubmission(
        spec=pinned,
        package=package,
        run=run,
        idempotency_key=secrets.token_hex(16),
        sweep=sweep,
    )
    view: Json = wire.json("POST", "/api/runs", submission.plain())
    return view


def send_package(wire: Wire, code: Path | None) -> str:
    """Pack the code, give it to the store unless it has it, and return its digest.

    Raises:
        PackageError: It cannot be sent.
    """
    package = build_package(code)
    is_new = not has_blob(wire, package.digest)
    if is_new:
        put_blob(wire, package.digest, package.data)
    size = f"{len(package.data) / (1 << 20):.1f} MiB"
    say(f"code: {package.num_entries:,} files, {size}{'' if is_new else ', known already'}")
    return package.digest


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such name on this machine
        return ""
