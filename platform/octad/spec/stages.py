"""One stage as asked for, one attempt at it, and what an attempt says back."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from octad.spec.artefacts import Artefact
from octad.spec.clusters import Quality
from octad.spec.frozen import Spec
from octad.spec.layouts import Layout
from octad.spec.names import Name
from octad.spec.sizes import CardRange


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ValueError("must hold no password: credentials come from the environment")
    return url


def _as_word(value: object) -> object:
    """`true` and `3` as a person types them for a client that reads words."""
    return str(value).lower() if isinstance(value, bool | int) else value


StageKind = str
# Of places: they are shown to everybody, in messages and lists of processes too.
Url = Annotated[str, AfterValidator(_without_password)]
Phase = Literal["starting", "loading", "working", "saving", "done"]


class StageSpec(Spec):
    """One step of a pipeline, resolved.

    Attributes:
        name: Unique in its pipeline.
        kind: A file of `octad.stages`.
        cards: How many cards it gets. Where a range is asked for: in an order, what the attempt
            got; else the most that it can use.
        layout: How it uses them; every axis a number.
        cards_asked: The range, as asked for; None where it is one number.
        sizes: Of a range, the numbers of cards that layout and kind can use, ascending. Found where
            the run is composed, so that who places it needs to know neither.
        asks: What its cards must be able to do, or be, and the setting that asks for it.
        cluster: Only this cluster, or None for any.
        needs: Input name to `stage.artefact`.
        retries: How often a failed attempt is followed by another.
        settings: The kind's own settings, already validated by the kind.
    """

    name: Name
    kind: StageKind
    cards: int
    layout: Layout
    cards_asked: CardRange | None = None
    sizes: tuple[int, ...] = ()
    asks: dict[Quality, str] = Field(default_factory=dict)
    cluster: Name | None = None
    needs: dict[str, str] = Field(default_factory=dict)
    retries: int = Field(default=3, ge=0, le=100)
    settings: dict[str, Any] = Field(default_factory=dict)

    def sized(self, cards: int) -> Self:
        """This stage on so many cards: `dp_shard` takes what the other axes leave.

        Raises:
            ConfigError: The other axes do not divide them.
        """
        if cards == self.cards:
            return self
        layout = self.layout.model_copy(update={"dp_shard": "fill"})
        resolved = layout.resolved(cards, where=f"{self.name}.layout")
        return self.model_copy(update={"cards": cards, "layout": resolved})

    def as_asked(self) -> dict[str, Any]:
        """Plain data for people: a range of sizes as it was asked for, and nothing that follows."""
        found = {"cards_asked", "sizes", "asks"}
        plain = {key: value for key, value in self.plain().items() if key not in found}
        if self.cards_asked is not None:
            plain["cards"] = self.cards_asked.plain()
        if len(self.sizes) > 1:
            plain["layout"]["dp_shard"] = "fill"
        return plain


class StoreSpec(Spec):
    """Where objects lie.

    Attributes:
        url: `file:///...` or `s3://bucket/prefix`.
        options: What the store client needs besides (endpoint, region); never a secret.
            Credentials come from the environment of the process.
    """

    url: Url
    options: dict[str, Annotated[str, BeforeValidator(_as_word)]] = Field(default_factory=dict)


class TrackerSpec(Spec):
    """Where runs are tracked, for a job that ships for itself; None in a job of a control plane."""

    kind: Name
    url: Url = ""


class AttemptOrder(Spec):
    """All that one attempt needs to know: `attempts/<n>/order.json` in the store.

    Attributes:
        run: The run's id.
        attempt: Number of this life of the stage, from 1; its epoch.
        stage: What is asked.
        inputs: The artefacts behind `stage.needs`, and for a re-started stage nothing more.
        store: Where everything lies.
        seed: The run's seed.
        cluster: Where it was placed.
        since: Checkpoints and epochs of attempts before this one do not count: the stage was
            asked to start anew (`resume --from`). A first attempt of such a life has no base.
        tracker: Set when the job must ship its own metrics.
    """

    run: Name
    attempt: int = Field(ge=1)
    stage: StageSpec
    inputs: dict[str, Artefact]
    store: StoreSpec
    seed: int = 0
    cluster: str = ""
    since: int = Field(default=1, ge=1)
    tracker: TrackerSpec | None = None


class Position(Spec):
    """A committed checkpoint of a stage: which attempt wrote it, and at which step."""

    attempt: int
    step: int


class Epoch(Spec):
    """`epochs/<n>.json`: the fence of attempt n, and the checkpoint it starts from."""

    attempt: int
    base: Position | None = None


class Progress(Spec):
    """`attempts/<n>/progress.json`, rewritten a few times a minute.

    Attributes:
        phase: What the attempt is doing.
        step, total: Steps done and to do; 0 where the kind has none.
        metrics: The newest step metrics.
        notes: Things a person should know: bad bytes skipped, a checkpoint passed over.
        first_step_at_ms: Unix time at which the first step of this attempt ended.
        updated_at_ms: Unix time of writing, by the writer's clock.
    """

    phase: Phase
    step: int = 0
    total: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    first_step_at_ms: int | None = None
    updated_at_ms: int = 0


class MetricPoint(Spec):
    """One line of `attempts/<n>/metrics/<k>.jsonl`. Values may be inf or nan, written as strings.

    Attributes:
        step: The step that ended.
        time_ms: Unix time at which it ended.
        metrics: Name to value.
    """

    step: int
    time_ms: int
    metrics: dict[str, float | Literal["inf", "-inf", "nan"]]


class AttemptResult(Spec):
    """`attempts/<n>/result.json`, made once with create-if-absent: the attempt succeeded."""

    attempt: int
    artefacts: tuple[Artefact, ...]
    metrics: dict[str, float] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class AttemptFailure(Spec):
    """`attempts/<n>/error.json`: why the attempt itself says it failed.

    Attributes:
        is_final: Another attempt would fail the same way (a user's mistake).
        error: `OctadError.to_wire()`, or kind "Exception" for a bug.
    """

    attempt: int
    is_final: bool
    error: dict[str, str]
