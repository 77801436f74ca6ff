"""A run as asked for, and everything the control plane says about runs: the wire types."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from octad.spec.artefacts import Artefact
from octad.spec.frozen import Spec
from octad.spec.layouts import Layout, check_cards
from octad.spec.names import Name, Title
from octad.spec.sizes import CardRange
from octad.spec.stages import Progress, StageSpec
from octad.spec.states import AttemptState, RunState, StageState


class RunSpec(Spec):
    """A pipeline, resolved and frozen: every attempt sees the same values.

    Attributes:
        pipeline: The pipeline's name.
        title: What a person calls this run; need not be unique.
        stages: In an order in which each comes after what it needs.
        seed: For weights and data order.
        config: The whole composed config, for people and for MLflow.
    """

    pipeline: Name
    title: Title
    stages: tuple[StageSpec, ...] = Field(min_length=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    config: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("two stages have one name")
        for position, stage in enumerate(self.stages):
            _check_sizes(stage)
            for need in stage.needs.values():
                if need.partition(".")[0] not in names[:position]:
                    raise ValueError(f"{stage.name} needs {need!r}: no stage before it makes that")
        return self


def _check_sizes(stage: StageSpec) -> None:
    """Every size that an attempt may get can be, whoever composed the run."""
    where = f"{stage.name}.cards"
    check_cards(stage.cards, where=where)
    if stage.cards_asked is None and not stage.sizes:
        return
    possible = stage.cards_asked.sizes(where) if stage.cards_asked else ()
    wanted = tuple(sorted({*stage.sizes} & {*possible}))
    if not wanted or wanted != stage.sizes or stage.cards != stage.sizes[-1]:
        raise ValueError(f"{where}: {stage.sizes} are not sizes of the range that is asked for")
    for size in stage.sizes:
        stage.sized(size)


class RunSubmission(Spec):
    """What `POST /api/runs` takes.

    Attributes:
        spec: The run.
        package: sha256 in hex of the code package, uploaded before as a blob.
        run: An id of the sender's choice, or None to have one made.
        idempotency_key: The same key with the same body is the same run.
        sweep: Groups the runs of one `-m`.
    """

    spec: RunSpec
    package: str = Field(pattern=r"^[0-9a-f]{64}$")
    run: Name | None = None
    idempotency_key: str = Field(min_length=8, max_length=128)
    sweep: str = ""


class RunResume(Spec):
    """What `POST /api/runs/{run}/resume` takes.

    Attributes:
        from_stage: Do this stage and all that need it again, even if they succeeded; None goes on
            with what failed or was cancelled.
        package: sha256 of a newer code package; None keeps the run's.
    """

    from_stage: Name | None = None
    package: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class AttemptView(Spec):
    """One attempt, with the cards it got. Times are Unix milliseconds by the control plane's clock."""

    number: int
    state: AttemptState
    cluster: str
    cards: int
    layout: Layout
    submission_id: str
    package: str
    intended_at_ms: int
    submitted_at_ms: int | None = None
    started_at_ms: int | None = None
    first_step_at_ms: int | None = None
    ended_at_ms: int | None = None
    reason: str = ""


class StageView(Spec):
    """One stage of a run.

    Attributes:
        cards, layout: Of the newest attempt; before the first, the most that it can use.
        cards_asked: The range it may get, where that is not one number.
    """

    name: str
    kind: str
    state: StageState
    reason: str = ""
    cluster: str | None = None
    cards: int
    layout: Layout
    cards_asked: CardRange | None = None
    needs: dict[str, str] = Field(default_factory=dict)
    attempts: tuple[AttemptView, ...] = ()
    artefacts: tuple[Artefact, ...] = ()
    metrics: dict[str, float] = Field(default_factory=dict)
    progress: Progress | None = None
    mlflow_run_id: str | None = None
    ready_at_ms: int | None = None
    ended_at_ms: int | None = None


class RunSummary(Spec):
    """One line of `octad runs`."""

    id: str
    title: str
    pipeline: str
    state: RunState
    stage: str = ""
    sweep: str = ""
    created_at_ms: int
    ended_at_ms: int | None = None


class RunView(RunSummary):
    """One run with its stages."""

    seed: int = 0
    stages: tuple[StageView, ...] = ()
    mlflow_run_id: str | None = None
    mlflow_url: str = ""
    config: dict[str, Any] = Field(default_factory=dict)


class RunPage(Spec):
    """A page of runs, newest first; `next_before` is the cursor of the next page, or None."""

    runs: tuple[RunSummary, ...]
    next_before: str | None = None


class Check(Spec):
    """One line of `octad doctor`."""

    name: str
    is_ok: bool
    detail: str
    hint: str = ""


class DoctorView(Spec):
    """All checks."""

    checks: tuple[Check, ...]


class ServerView(Spec):
    """What `GET /api/health` says, without a token; `api` is the version of the wire types."""

    version: str
    api: int
