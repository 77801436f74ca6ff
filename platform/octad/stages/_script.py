"""One process of the user's own, its output passed on, and nothing of it left at the end."""

from __future__ import annotations

import collections
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from octad.errors import ConfigError
from octad.stages import _guard

_TAIL_BYTES = 4000
_TAIL_LINES = 12
_DRAIN_S = 5.0


class Script:
    """A process to be, the leader of its own session. Whatever happens, `close` it.

    Args:
        command: Its arguments; no shell sees them.
        environment: All of it.
        grace_s: How long it may take to end when asked.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], grace_s: float
    ) -> None:
        self._command = list(command)
        self._mark = secrets.token_hex(16)
        self._environment = {**environment, _guard.VARIABLE: self._mark}
        self._grace_s = grace_s
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_bytes = 0
        self._guarding: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None

    def run(self) -> int:
        """Start it and wait for its end; its exit code, negative for a signal.

        Raises:
            ConfigError: It cannot be started.
        """
        self._guarding = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", _guard.__file__, self._mark, str(self._grace_s)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603  to run it is what this is for
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{self._command[0]!r} cannot be run: {error.strerror}", where="entrypoint"
            ) from None
        self._pump = threading.Thread(target=self._pass_on, name="output", daemon=True)
        self._pump.start()
        return self._process.wait()

    def terminate(self) -> None:
        """Ask it to end, all of it, and wait for as long as it may take."""
        if self._process is None:
            _guard.end_marked(self._mark, self._grace_s)
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._grace_s)

    def close(self) -> bool:
        """End everything that it started. True if nothing is left."""
        is_alone = _guard.end_marked(self._mark)
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._pump is not None:
            self._pump.join(_DRAIN_S)
        if self._guarding is not None:
            with suppress(BrokenPipeError):
                self._guarding.communicate(_guard.ALL_IS_WELL, timeout=_DRAIN_S)
        return is_alone

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        text = b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def _pass_on(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as source:
            target = sys.stdout.fileno()
            while chunk := os.read(source.fileno(), 65536):
                with suppress(OSError):  # a log that takes no more must not stop the program
                    _write_all(target, chunk)
                self._tail.append(chunk)
                self._tail_bytes += len(chunk)
                while self._tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
                    self._tail_bytes -= len(self._tail.popleft())


def check_line_ends(command: Sequence[str]) -> None:
    """Refuse a script that no shell of a node can run.

    Raises:
        ConfigError: A file that the command names has Windows line ends; names the line.
    """
    for word in command:
        path = Path(word)
        start = b""
        with suppress(OSError):  # what cannot be read is for the program to complain of
            if len(word) <= 1024 and path.is_file():
                with path.open("rb") as opened:
                    start = opened.read(1 << 16)
        is_script = path.suffix in {".sh", ".bash"} or start.startswith(b"#!")
        place = start.find(b"\r\n")
        if is_script and place >= 0:
            line = start.count(b"\n", 0, place) + 1
            raise ConfigError(
                "Windows line ends (CR LF): no shell on a node can run it",
                where=f"{word}:{line}",
                hint=f"save it with LF, for example with: sed -i 's/\\r$//' {path.name}",
            )


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
