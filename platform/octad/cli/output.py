"""What commands print, and how it stays harmless on any terminal."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

# CSI and OSC sequences, then every other control character but line feed and tab; last, the marks
# that turn the direction of writing.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BAR = re.compile(r"[^\n]*\r(?=[^\r\n])")


def make_safe(stream: TextIO) -> None:
    """Have a stream write `?` for what its encoding cannot express, instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def clean(text: str) -> str:
    """Text from elsewhere as one line without control characters."""
    return " ".join(harmless(text).split())


def harmless(text: str) -> str:
    """Text that no terminal obeys: escapes are dropped, other control characters shown in hex."""
    without = _ESCAPES.sub("", text)
    return _CONTROLS.sub(lambda m: f"\\x{ord(m[0]):02x}", without)


def last_of_bars(text: str) -> str:
    """Text with each line as a terminal would leave it: what a carriage return let go is gone."""
    return _BAR.sub("", text.replace("\r\n", "\n")).replace("\r", "")


def say(text: str) -> None:
    """A line of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def emit(document: Any) -> None:
    """The one JSON document of a `--json` command, on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=not _is_unicode(sys.stdout)))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns, two blanks apart; empty columns are left out."""
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    kept = [i for i in range(len(header)) if any(row[i] for row in cells)]
    widths = {i: max(len(row[i]) for row in [list(header), *cells]) for i in kept}
    lines = [
        "  ".join(row[i].ljust(widths[i]) for i in kept).rstrip() for row in [list(header), *cells]
    ]
    return "\n".join(lines)


def duration(milliseconds: float | None) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`; never negative, because clocks may differ."""
    if milliseconds is None:
        return ""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def moment(milliseconds: int | None) -> str:
    """A time in this machine's zone."""
    if milliseconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def number(value: float | str) -> str:
    """A metric for people."""
    if isinstance(value, str):
        return value  # inf and nan travel as text
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
