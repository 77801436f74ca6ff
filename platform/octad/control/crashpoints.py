"""Places at which a test ends the control plane as a power cut would."""

from __future__ import annotations

import os
import signal

POINTS = (
    "submit.before_row",
    "submit.after_row",
    "dispatch.before_intent",
    "dispatch.after_intent",
    "dispatch.after_order",
    "dispatch.after_remote_accept",
    "dispatch.after_record",
    "success.before_record",
    "success.after_record",
    "cancel.after_mark",
    "cancel.after_remote_stop",
)
VARIABLE = "OCTAD_CRASH_AT"


def crashpoint(name: str) -> None:
    """Die here, if `OCTAD_CRASH_AT` names this place."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
