"""The keys of a stage of kind `job`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from octad.spec.artefacts import ArtefactType
from octad.spec.frozen import Spec

_TRY_AGAIN = 75  # EX_TEMPFAIL
_MOST_SECONDS = 24 * 3600.0


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no program can be given")
    return text


Text = Annotated[str, AfterValidator(_no_nul)]


class Settings(Spec):
    """What to run.

    Attributes:
        entrypoint: Program and arguments, handed over unchanged.
        shell: A text for bash instead.
        env: Further environment variables. They are kept with the run: no secrets.
        inputs: Name to type of what the program takes.
        outputs: Name to type of what it makes.
        grace_s: Seconds between SIGTERM and SIGKILL when the stage is stopped.
        retry_on: Exit codes after which another attempt is made. One that is ended by a signal
            (out of memory, lost node) always is; any other code is final.
    """

    entrypoint: tuple[Text | int, ...] = ()
    shell: Text = ""
    env: dict[str, Text | int] = Field(default_factory=dict)
    inputs: dict[str, ArtefactType] = Field(default_factory=dict)
    outputs: dict[str, ArtefactType] = Field(default_factory=dict)
    grace_s: float = Field(default=30.0, ge=0, le=_MOST_SECONDS)
    retry_on: tuple[int, ...] = (_TRY_AGAIN,)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.entrypoint) == bool(self.shell.strip()):
            raise ValueError("give one of entrypoint (a list of arguments) and shell (a text)")
        if self.entrypoint and not str(self.entrypoint[0]).strip():
            raise ValueError("the first word of entrypoint is empty: it names the program")
        if "\r\n" in self.shell:
            line = self.shell[: self.shell.index("\r\n")].count("\n") + 1
            raise ValueError(f"line {line} of shell ends in CR LF, which bash does not understand")
        return self

    @property
    def command(self) -> list[str]:
        """The arguments of the process."""
        if self.shell:
            return ["bash", "-o", "pipefail", "-c", self.shell]
        return [str(word) for word in self.entrypoint]


def variable(side: str, name: str) -> str:
    """The environment variable of an input or output."""
    return f"OCTAD_{side}_{name.upper().replace('-', '_')}"
