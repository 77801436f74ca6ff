"""The tables of the control plane's database. All times are Unix milliseconds of its own clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from octad.spec.clusters import Quality
from octad.spec.runs import RunSpec
from octad.spec.stages import StageSpec
from octad.spec.states import AttemptState, RunState, StageState

# One numbering for SQLite, which counts only an INTEGER key by itself, and for Postgres.
_Serial = BigInteger().with_variant(Integer, "sqlite")


def _state(kind: type[Any]) -> Enum:
    return Enum(
        kind,
        native_enum=False,
        create_constraint=False,
        length=16,
        values_callable=lambda states: [state.value for state in states],
    )


class Base(DeclarativeBase):
    """Of all tables; constraints have names, so that a migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Run(Base):
    """One execution of a pipeline.

    `shipped_state` is the state the tracker was last told.
    """

    __tablename__ = "runs"

    seq: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(63), unique=True)
    title: Mapped[str] = mapped_column(Text)
    pipeline: Mapped[str] = mapped_column(String(63))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    package: Mapped[str] = mapped_column(String(64))
    sweep: Mapped[str] = mapped_column(Text, default="")
    idempotency_key: Mapped[str] = mapped_column(String(128), unique=True)
    body_digest: Mapped[str] = mapped_column(String(80))
    state: Mapped[RunState] = mapped_column(_state(RunState))
    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    ended_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    tracked_id: Mapped[str | None] = mapped_column(String(64), index=True)
    tracked_url: Mapped[str] = mapped_column(Text, default="")
    shipped_state: Mapped[str] = mapped_column(String(16), default="")
    is_shipped: Mapped[bool] = mapped_column(default=False, index=True)
    version: Mapped[int] = mapped_column(Integer)

    stages: Mapped[list[Stage]] = relationship(
        back_populates="run", order_by="Stage.position", lazy="selectin"
    )
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  SQLAlchemy's own form
    __table_args__ = (Index("ix_runs_state", "state"), Index("ix_runs_sweep", "sweep"))

    def parsed(self) -> RunSpec:
        """What was asked."""
        return RunSpec.parse(self.spec)


class Stage(Base):
    """One stage of a run.

    Attributes:
        spec: Its `StageSpec`.
        since: The attempt with which its present life begins (see `AttemptOrder.since`).
        failures, losses: Attempts of this life that failed, or were lost with their cluster.
        not_before_ms: When a failed stage may be tried again.
        result: `AttemptResult` of the attempt that succeeded.
        progress: Newest `Progress` of the newest attempt.
        shipped_step: The newest step whose metrics the tracker has.
        shipped_state: The state the tracker was last told.
    """

    __tablename__ = "stages"

    id: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    run_seq: Mapped[int] = mapped_column(ForeignKey("runs.seq"), index=True)
    position: Mapped[int]
    name: Mapped[str] = mapped_column(String(63))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[StageState] = mapped_column(_state(StageState))
    reason: Mapped[str] = mapped_column(Text, default="")
    since: Mapped[int] = mapped_column(default=1)
    failures: Mapped[int] = mapped_column(default=0)
    losses: Mapped[int] = mapped_column(default=0)
    not_before_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    ready_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    ended_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    progress: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    tracked_id: Mapped[str | None] = mapped_column(String(64), index=True)
    tracked_since: Mapped[int] = mapped_column(default=0)
    shipped_step: Mapped[int] = mapped_column(BigInteger, default=-1)
    shipped_state: Mapped[str] = mapped_column(String(16), default="")
    version: Mapped[int] = mapped_column(Integer)

    run: Mapped[Run] = relationship(back_populates="stages")
    attempts: Mapped[list[Attempt]] = relationship(
        back_populates="stage", order_by="Attempt.number", lazy="selectin"
    )
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012
    __table_args__ = (
        UniqueConstraint("run_seq", "name"),
        Index("ix_stages_state", "state"),
    )

    def parsed(self) -> StageSpec:
        """What is asked of it."""
        return StageSpec.parse(self.spec)

    # What is looked at again and again, without parsing it all.

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cards it may get, ascending; mostly one number."""
        return tuple(self.spec.get("sizes") or [self.spec["cards"]])

    @property
    def asks(self) -> dict[Quality, str]:
        """What its cards must be able to do, or be, and the setting that asks for it."""
        return dict(self.spec.get("asks") or {})

    @property
    def cluster(self) -> str | None:
        """The only cluster it may go to, or None for any."""
        return self.spec["cluster"] or None

    @property
    def needs(self) -> dict[str, str]:
        """Input name to `stage.artefact`."""
        return dict(self.spec["needs"])


class Attempt(Base):
    """One life of a stage on one cluster.

    Attributes:
        number: Its epoch.
        cards: How many it got; what its stage asks for may be a range.
        package: sha256 of the code it runs.
        since: As its stage's, when it was made.
        is_over: Its Ray job is known to hold no cards any more.
        is_log_kept: Its log lies in the store, or there is none to be had.
        is_settled: Both: nothing is left to do for it.
        next_segment: The first metric segment that the tracker has not got.
        sent_step: The last step that was sent to the tracker, or was about to be.
    """

    __tablename__ = "attempts"

    id: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    stage_id: Mapped[int] = mapped_column(ForeignKey("stages.id"), index=True)
    number: Mapped[int]
    state: Mapped[AttemptState] = mapped_column(_state(AttemptState))
    cluster: Mapped[str] = mapped_column(String(63))
    cards: Mapped[int]
    submission_id: Mapped[str] = mapped_column(String(160), unique=True)
    package: Mapped[str] = mapped_column(String(64))
    since: Mapped[int] = mapped_column(default=1)
    reason: Mapped[str] = mapped_column(Text, default="")
    intended_at_ms: Mapped[int] = mapped_column(BigInteger)
    submitted_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    started_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    first_step_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    ended_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    is_over: Mapped[bool] = mapped_column(default=False)
    is_log_kept: Mapped[bool] = mapped_column(default=False)
    is_settled: Mapped[bool] = mapped_column(default=False, index=True)
    next_segment: Mapped[int] = mapped_column(default=0)
    sent_step: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column(Integer)

    stage: Mapped[Stage] = relationship(back_populates="attempts")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012
    __table_args__ = (UniqueConstraint("stage_id", "number"),)


class ShippedCheckpoint(Base):
    """A committed checkpoint that the tracker knows."""

    __tablename__ = "shipped_checkpoints"

    stage_id: Mapped[int] = mapped_column(ForeignKey("stages.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    tracked_id: Mapped[str] = mapped_column(String(64))


class Event(Base):
    """One transition; of a run if `stage` is empty, of a stage if `attempt` is None."""

    __tablename__ = "events"

    seq: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    run: Mapped[str] = mapped_column(String(63), index=True)
    stage: Mapped[str] = mapped_column(String(63), default="")
    attempt: Mapped[int | None]
    before: Mapped[str] = mapped_column(String(16))
    after: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")


class WantedCluster(Base):
    """What a person last asked of a cluster: `up`, `down` (until done), or `as-found`."""

    __tablename__ = "wanted_clusters"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    wanted: Mapped[str] = mapped_column(String(16))


class RayJob(Base):
    """What Ray's Jobs API says of a run that came by it, and what only its clusters may see.

    Attributes:
        submission_id: Its client's name for it.
        body_digest: Of the whole request.
        told: What was asked, as it is told again: without values of environment variables.
        env: Environment variables of the program. They are nowhere else in octad.
        modules: sha256 of the packages that go onto Python's path.
        pip: As Ray takes it, or None.
        holds_cards: Whether the entrypoint itself holds the cards, or what it starts will.
        is_deleted: Ray's clients do not see it any more.
    """

    __tablename__ = "ray_jobs"

    submission_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    run_seq: Mapped[int] = mapped_column(ForeignKey("runs.seq"), unique=True)
    body_digest: Mapped[str] = mapped_column(String(64))
    told: Mapped[dict[str, Any]] = mapped_column(JSON)
    env: Mapped[dict[str, str]] = mapped_column(JSON)
    modules: Mapped[list[str]] = mapped_column(JSON)
    pip: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    holds_cards: Mapped[bool]
    is_deleted: Mapped[bool] = mapped_column(default=False)

    run: Mapped[Run] = relationship()


class RayPackage(Base):
    """A package that a client of Ray's Jobs API uploaded, and which blob it is."""

    __tablename__ = "ray_packages"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))


class Setting(Base):
    """A value the control plane keeps about itself."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
