"""Joining the Ray cluster from a job's driver."""

from __future__ import annotations

import os
import signal
import threading

from octad.errors import UnreachableError


def join_ray() -> None:
    """Join the cluster that `RAY_ADDRESS` names, where that is not done yet.

    Ray puts its own answer to SIGTERM in place; the driver's is put back.

    Raises:
        UnreachableError: None answers.
    """
    import ray  # noqa: PLC0415  stage modules read this one on laptops without Ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=True)
    except ConnectionError as error:
        raise UnreachableError(
            f"no Ray cluster answers: {' '.join(str(error).split())[:200]}",
            where=address,
            hint="run this as a Ray job, or set RAY_ADDRESS",
        ) from None
    if on_sigterm is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)
