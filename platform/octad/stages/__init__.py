"""Stage kinds, one file each, and the entry point of the jobs that run them."""

from __future__ import annotations

from collections.abc import Sequence


def main(kind: str, arguments: Sequence[str] | None = None) -> int:
    """Run one attempt of a stage of this kind; the exit code.

    Args:
        kind: A file of this folder.
        arguments: `--order URL ...` as a control plane gives them, or config overrides for a stage
            by hand; None takes the command line's.
    """
    # Laptops list the kinds here, and have no client of an object store.
    from octad.stages._entry import run_job  # noqa: PLC0415

    return run_job(kind, arguments)


__all__ = ["main"]
