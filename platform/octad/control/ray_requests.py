"""What a client of Ray's Jobs API may ask for, and what octad makes of it. Pure.

The fields are those of Ray's own `JobSubmitRequest`. What cannot be honoured is refused by its name.
Values of environment variables are in no message.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from octad.errors import ConfigError
from octad.spec.clusters import CARD_RESOURCE, CardKind, Quality
from octad.spec.frozen import Spec, nearest
from octad.spec.layouts import CARDS_PER_NODE, Layout, check_cards
from octad.spec.names import checked_name, checked_title
from octad.spec.runs import RunSpec
from octad.spec.stages import StageSpec

PIPELINE, STAGE, KIND = "ray-job", "job", "job"
PACKAGE = re.compile(r"gcs://(_ray_pkg_[0-9a-f]{16,64}\.zip)")
MOST_TEXT_BYTES = 64 * 1024
MOST_MODULES = 32
REDACTED = "<redacted>"
_SUBMISSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
# What a resource of Ray's says about the cards: their kind, or nothing.
_RESOURCES: dict[str, CardKind | None] = {
    "GPU": "gpu",
    "NPU": "npu",
    "sim": "sim",
    CARD_RESOURCE: None,
}
_OURS = "octad."
_RUNTIME_ENV = ("env_vars", "excludes", "pip", "py_modules", "working_dir")
# `excludes` has been obeyed by the client, which packed the folder; the other is its own version.
_SETTLED = frozenset({"excludes", "_ray_commit"})
_TITLE_LENGTH = 100


class JobSubmission(Spec):
    """The body of `POST /api/jobs/`, as Ray's clients send it."""

    entrypoint: str
    submission_id: str | None = None
    job_id: str | None = None
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: dict[str, float] = Field(default_factory=dict)
    entrypoint_label_selector: dict[str, str] = Field(default_factory=dict)


class _OurMetadata(Spec):
    """The keys `octad.*` of the metadata: texts, as all metadata are."""

    cards: str | None = Field(default=None, pattern=r"^[0-9]{1,6}$")
    cluster: str | None = None
    title: str | None = None
    retries: str | None = Field(default=None, pattern=r"^[0-9]{1,3}$")


class _Pip(Spec):
    packages: tuple[str, ...]
    pip_check: bool = False
    pip_version: str | None = None
    pip_install_options: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Cards:
    """How many cards a job gets.

    Attributes:
        number: Of cards.
        kind: Only cards of this kind, or None for any.
        asked_by: The field that says so; empty if none does.
        are_held: By the entrypoint itself, as Ray does it; else they are for what it starts.
    """

    number: int
    kind: CardKind | None
    asked_by: str
    are_held: bool


@dataclass(frozen=True, slots=True)
class AskedJob:
    """A submission that can be.

    Attributes:
        submission_id: The client's name for it, or None to have one made.
        spec: The run that it becomes.
        holds_cards: Whether the entrypoint itself holds the cards.
        env: Environment variables of the program.
        working_dir: The package that the program starts in, or None.
        py_modules: Packages for Python's path.
        pip: As Ray takes it, or None.
        told: What was asked, as it may be told again.
        digest: Of all of it.
    """

    submission_id: str | None
    spec: RunSpec
    holds_cards: bool
    env: dict[str, str]
    working_dir: str | None
    py_modules: tuple[str, ...]
    pip: dict[str, Any] | None
    told: dict[str, Any]
    digest: str


def read_job(raw: Mapping[str, Any]) -> AskedJob:
    """What a body asks for.

    Raises:
        ConfigError: A key is unknown, of a wrong type, cannot be, or cannot be honoured.
    """
    asked = JobSubmission.parse({key: value for key, value in raw.items() if value is not None})
    _check_entrypoint(asked.entrypoint)
    _check_unsupported(asked)
    _check_size(asked.metadata, "metadata")
    ours = _our_metadata(asked.metadata)
    cards = _cards(asked, ours)
    env, told_env = _runtime_env(asked.runtime_env)
    told = asked.plain()
    told["runtime_env"] = told_env
    pip = told_env.get("pip")
    return AskedJob(
        submission_id=_submission_id(asked),
        spec=_run(asked, ours, cards, told_env, sorted(env)),
        holds_cards=cards.are_held,
        env=env,
        working_dir=_package(told_env, "working_dir"),
        py_modules=tuple(_packages(told_env)),
        pip=pip,
        told=told,
        digest=hashlib.sha256(json.dumps(asked.plain(), sort_keys=True).encode()).hexdigest(),
    )


def slug(submission_id: str) -> str:
    """A name for a run that resembles a client's id."""
    return re.sub(r"[^a-z0-9-]+", "-", submission_id.lower()).strip("-") or PIPELINE


# --- fields -------------------------------------------------------------------------------------


def _check_entrypoint(text: str) -> None:
    if not text.strip():
        raise ConfigError("is empty: say what to run", where="entrypoint")
    if "\0" in text:
        raise ConfigError(
            "holds a NUL character, which no program can be given", where="entrypoint"
        )
    if "\r\n" in text:
        raise ConfigError("ends a line in CR LF, which no shell understands", where="entrypoint")
    if len(text.encode()) > MOST_TEXT_BYTES:
        raise ConfigError(
            f"has more than {MOST_TEXT_BYTES:,} bytes",
            where="entrypoint",
            hint="put it in a file of the working_dir",
        )


def _check_unsupported(asked: JobSubmission) -> None:
    for key in ("entrypoint_num_cpus", "entrypoint_memory", "entrypoint_label_selector"):
        if getattr(asked, key):
            raise ConfigError(
                "octad gives whole cards, and with each its part of the node",
                where=key,
                hint="leave it out, and say how many cards: entrypoint_num_gpus",
            )


def _check_size(texts: Mapping[str, str], where: str) -> None:
    if sum(len(key.encode()) + len(value.encode()) for key, value in texts.items()) > (
        MOST_TEXT_BYTES
    ):
        raise ConfigError(f"has more than {MOST_TEXT_BYTES:,} bytes", where=where)


def _submission_id(asked: JobSubmission) -> str | None:
    given = asked.submission_id or asked.job_id
    if given is None:
        return None
    if not _SUBMISSION_ID.fullmatch(given) or ".." in given:
        raise ConfigError(
            f"{given[:120]!r} cannot be the id of a job",
            where="submission_id",
            hint="use 1 to 100 of a-z, A-Z, 0-9, '_', '-' and single '.', "
            "starting with a letter or digit",
        )
    return given


def _our_metadata(metadata: Mapping[str, str]) -> _OurMetadata:
    raw = {k.removeprefix(_OURS): v for k, v in metadata.items() if k.startswith(_OURS)}
    ours = _OurMetadata.parse(raw, where="metadata.octad")
    try:
        if ours.cluster is not None:
            checked_name(ours.cluster)
    except ValueError as error:
        raise ConfigError(str(error), where="metadata.octad.cluster") from None
    if ours.retries is not None and int(ours.retries) > 100:
        raise ConfigError("the most is 100", where="metadata.octad.retries")
    return ours


# --- cards --------------------------------------------------------------------------------------


def _cards(asked: JobSubmission, ours: _OurMetadata) -> Cards:
    given: list[Cards] = []
    if asked.entrypoint_num_gpus is not None:
        where = "entrypoint_num_gpus"
        given.append(Cards(_held(asked.entrypoint_num_gpus, where), "gpu", where, are_held=True))
    for name, number in asked.entrypoint_resources.items():
        where = f"entrypoint_resources.{name[:80]}"
        if name not in _RESOURCES:
            raise ConfigError(
                "no card is counted by this resource", where=where, hint=nearest(name, _RESOURCES)
            )
        given.append(Cards(_held(number, where), _RESOURCES[name], where, are_held=True))
    if ours.cards is not None:
        where = "metadata.octad.cards"
        given.append(Cards(check_cards(int(ours.cards), where), None, where, are_held=False))
    if len(given) > 1:
        raise ConfigError(
            f"cards are asked for by {given[0].asked_by} too",
            where=given[1].asked_by,
            hint="say it once",
        )
    return given[0] if given else Cards(1, None, "", are_held=True)


def _held(number: float, where: str) -> int:
    """A number of cards that one process can hold."""
    if number != int(number):
        raise ConfigError(f"cards are given whole, not {number:g} of one", where=where)
    if not 1 <= number <= CARDS_PER_NODE:
        raise ConfigError(
            f"an entrypoint runs on one node, and holds 1 to {CARDS_PER_NODE} cards, not {number:g}",
            where=where,
            hint="for a program that starts workers on several nodes: metadata octad.cards",
        )
    return int(number)


def _run(
    asked: JobSubmission,
    ours: _OurMetadata,
    cards: Cards,
    told_env: Mapping[str, Any],
    variables: list[str],
) -> RunSpec:
    asks: dict[Quality, str] = {cards.kind: cards.asked_by} if cards.kind else {}
    stage = StageSpec(
        name=STAGE,
        kind=KIND,
        cards=cards.number,
        layout=Layout().resolved(cards.number),
        asks=asks,
        cluster=ours.cluster,
        # As Ray has it, a job runs once; losing a cluster is no failure of the job.
        retries=int(ours.retries or 0),
        settings={"shell": asked.entrypoint, "grace_s": 30.0},
    )
    config = {
        "entrypoint": asked.entrypoint,
        "cards": cards.number,
        "env_vars": variables,
        **{key: told_env[key] for key in ("working_dir", "py_modules") if key in told_env},
    }
    return RunSpec(
        pipeline=PIPELINE, title=_title(asked, ours), stages=(stage,), seed=0, config=config
    )


def _title(asked: JobSubmission, ours: _OurMetadata) -> str:
    if ours.title is not None:
        try:
            return checked_title(ours.title)
        except ValueError as error:
            raise ConfigError(str(error), where="metadata.octad.title") from None
    text = " ".join((asked.metadata.get("job_name") or asked.entrypoint).split())
    shown = "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cs"}).strip()
    return checked_title(shown[:_TITLE_LENGTH] or "a job of Ray's")


# --- runtime_env --------------------------------------------------------------------------------


def _runtime_env(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The environment variables, and everything as it may be told again."""
    for key in given:
        if key not in {*_RUNTIME_ENV, *_SETTLED}:
            raise ConfigError(
                "octad cannot do this for a job",
                where=f"runtime_env.{key[:80]}",
                hint=nearest(key, _RUNTIME_ENV),
            )
    told = {k: value for k, value in given.items() if k not in _SETTLED and value is not None}
    env = _variables(told.get("env_vars", {}))
    if "env_vars" in told:
        told["env_vars"] = dict.fromkeys(env, REDACTED)
    if "pip" in told:
        told["pip"] = _pip(told["pip"])
    modules = told.get("py_modules", [])
    if not isinstance(modules, list) or len(modules) > MOST_MODULES:
        raise ConfigError(
            f"must be a list of at most {MOST_MODULES} packages", where="runtime_env.py_modules"
        )
    _package(told, "working_dir")
    _packages(told)
    return env, told


def _variables(given: object) -> dict[str, str]:
    where = "runtime_env.env_vars"
    if not isinstance(given, dict):
        raise ConfigError("must be an object of texts", where=where)
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"{name[:80]!r} is not the name of a variable", where=where)
        if name.startswith("OCTAD_") or name == "RAY_ADDRESS":
            raise ConfigError("is set by octad", where=f"{where}.{name[:80]}")
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError("must be a text without NUL", where=f"{where}.{name[:80]}")
    _check_size(given, where)
    return dict(given)


def _pip(given: object) -> dict[str, Any]:
    raw = {"packages": given} if isinstance(given, list) else given
    if not isinstance(raw, dict):
        raise ConfigError("must be a list of packages", where="runtime_env.pip")
    pip = _Pip.parse({k: v for k, v in raw.items() if v is not None}, where="runtime_env.pip")
    return pip.model_dump(mode="json", exclude_none=True)


def _package(told: Mapping[str, Any], key: str) -> str | None:
    return None if key not in told else _package_name(told[key], f"runtime_env.{key}")


def _packages(told: Mapping[str, Any]) -> list[str]:
    where = "runtime_env.py_modules"
    return [
        _package_name(uri, f"{where}.{place}")
        for place, uri in enumerate(told.get("py_modules", []))
    ]


def _package_name(uri: object, where: str) -> str:
    match = PACKAGE.fullmatch(uri) if isinstance(uri, str) else None
    if match is None:
        # The rest of an address may hold a password.
        scheme = _SCHEME.match(uri) if isinstance(uri, str) else None
        what = f"an address of {scheme[0]!r}" if scheme else "this"
        raise ConfigError(
            f"{what} is not fetched by octad",
            where=where,
            hint="name a folder or a .zip on your machine: the client uploads it",
        )
    return match[1]
