"""Every error octad raises on purpose.

OctadError
├── UserError                  the person asking can mend it
│   ├── ConfigError        2   a key, type, value, or pipeline that does not fit
│   ├── NotFoundError      3   no such run, stage, object, cluster
│   ├── ConflictError      4   it exists already, or its state forbids this
│   ├── AccessError        5   no token, or a wrong one
│   ├── DataError          6   a corpus that is empty or cannot be read
│   ├── CheckpointError    7   damaged, incomplete, or made by something else
│   ├── CapacityError      8   asks for more than the fleet can ever give
│   └── PackageError       9   the code to be sent is too large or unfit
├── SurroundingsError          a machine, a network or a disk fails; nothing is lost, try again
│   ├── UnreachableError  10   a cluster, a control plane or a tracker does not answer
│   ├── StorageError      11   a store or disk is full, read-only, or broken
│   └── PortError         12   a port is in use
└── OutcomeError               the work itself ended badly
    ├── StageError        20   a stage or run failed
    └── FencedError       21   a newer attempt of this stage exists

An exit code of 1 is a bug in octad, and comes with a traceback. 130 is ctrl-C.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class OctadError(Exception):
    """An error with one clear line: what is wrong, where, and what to do.

    Attributes:
        what: The fact, in one sentence without a full stop.
        where: The place: a config path, a file, an address. May be empty.
        hint: What to do about it. May be empty.
        is_final: Trying the same again would end the same. It does not travel.
    """

    is_final: bool = False
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.hint)

    def to_wire(self) -> dict[str, str]:
        """The error as it travels in a JSON body or an `error.json`."""
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, str]) -> OctadError:
        """The error that `to_wire` described; an unknown kind becomes an `OctadError`."""
        found = _by_name(OctadError).get(wire.get("kind", ""), OctadError)
        return found(
            wire.get("what", "unknown error"),
            where=wire.get("where", ""),
            hint=wire.get("hint", ""),
        )

    def at(self, where: str) -> Self:
        """The same error, placed: `where` is put in front of what it names already."""
        joined = f"{where}.{self.where}" if self.where else where
        return type(self)(self.what, where=joined, hint=self.hint)


def _rebuild(kind: type[OctadError], what: str, where: str, hint: str) -> OctadError:
    return kind(what, where=where, hint=hint)


def _by_name(root: type[OctadError]) -> dict[str, type[OctadError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_by_name(child))
    return found


class UserError(OctadError):
    """The person asking can mend it. Never retried."""

    is_final = True
    exit_code = 2
    http_status = 422


class ConfigError(UserError):
    """A key, type or value that cannot be, or a pipeline that does not fit together."""


class NotFoundError(UserError):
    """What was named does not exist."""

    exit_code = 3
    http_status = 404


class ConflictError(UserError):
    """It exists already, or its state forbids what was asked."""

    exit_code = 4
    http_status = 409


class AccessError(UserError):
    """No token was sent, or it is not good here."""

    exit_code = 5
    http_status = 401


class DataError(UserError):
    """A corpus or shard is empty, missing or unreadable."""

    exit_code = 6


class CheckpointError(UserError):
    """A checkpoint is damaged, incomplete, or does not belong to what asks for it."""

    exit_code = 7


class CapacityError(UserError):
    """More is asked than the fleet could ever give."""

    exit_code = 8


class PackageError(UserError):
    """The code package is too large, or holds something that cannot run."""

    exit_code = 9
    http_status = 413


class SurroundingsError(OctadError):
    """A machine, network or disk fails. What was committed stays; trying again is right."""

    exit_code = 10
    http_status = 503


class UnreachableError(SurroundingsError):
    """It does not answer. That is not proof that it is dead."""


class StorageError(SurroundingsError):
    """An object store or disk is full, read-only or broken."""

    exit_code = 11
    http_status = 507


class PortError(SurroundingsError):
    """A port that is needed is in use."""

    exit_code = 12


class OutcomeError(OctadError):
    """The work itself ended badly."""

    exit_code = 20
    http_status = 409


class StageError(OutcomeError):
    """A stage failed, and its run with it."""


class FencedError(OutcomeError):
    """A newer attempt of the same stage exists: this one must stop and change nothing."""

    exit_code = 21
