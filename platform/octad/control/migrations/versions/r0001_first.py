"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "events",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.String(length=63), nullable=False),
        sa.Column("stage", sa.String(length=63), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("before", sa.String(length=16), nullable=False),
        sa.Column("after", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_run"), ["run"], unique=False)

    op.create_table(
        "runs",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("pipeline", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("package", sa.String(length=64), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=False),
        sa.Column("body_digest", sa.String(length=80), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "queued",
                "running",
                "succeeded",
                "failed",
                "cancelled",
                name="runstate",
                native_enum=False,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("tracked_id", sa.String(length=64), nullable=True),
        sa.Column("tracked_url", sa.Text(), nullable=False),
        sa.Column("shipped_state", sa.String(length=16), nullable=False),
        sa.Column("is_shipped", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_runs_idempotency_key")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_is_shipped"), ["is_shipped"], unique=False)
        batch_op.create_index("ix_runs_state", ["state"], unique=False)
        batch_op.create_index("ix_runs_sweep", ["sweep"], unique=False)
        batch_op.create_index(batch_op.f("ix_runs_tracked_id"), ["tracked_id"], unique=False)

    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )
    op.create_table(
        "wanted_clusters",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("wanted", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_wanted_clusters")),
    )
    op.create_table(
        "stages",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "waiting",
                "queued",
                "starting",
                "running",
                "recovering",
                "succeeded",
                "failed",
                "cancelled",
                name="stagestate",
                native_enum=False,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("not_before_ms", sa.BigInteger(), nullable=False),
        sa.Column("ready_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("tracked_id", sa.String(length=64), nullable=True),
        sa.Column("tracked_since", sa.Integer(), nullable=False),
        sa.Column("shipped_step", sa.BigInteger(), nullable=False),
        sa.Column("shipped_state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_seq"], ["runs.seq"], name=op.f("fk_stages_run_seq_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stages")),
        sa.UniqueConstraint("run_seq", "name", name=op.f("uq_stages_run_seq")),
    )
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_stages_run_seq"), ["run_seq"], unique=False)
        batch_op.create_index("ix_stages_state", ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_stages_tracked_id"), ["tracked_id"], unique=False)

    op.create_table(
        "attempts",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("stage_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "intended",
                "submitted",
                "running",
                "succeeded",
                "failed",
                "lost",
                "cancelled",
                name="attemptstate",
                native_enum=False,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("cluster", sa.String(length=63), nullable=False),
        sa.Column("cards", sa.Integer(), nullable=False),
        sa.Column("submission_id", sa.String(length=160), nullable=False),
        sa.Column("package", sa.String(length=64), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("intended_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("first_step_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("is_over", sa.Boolean(), nullable=False),
        sa.Column("is_log_kept", sa.Boolean(), nullable=False),
        sa.Column("is_settled", sa.Boolean(), nullable=False),
        sa.Column("next_segment", sa.Integer(), nullable=False),
        sa.Column("sent_step", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stage_id"], ["stages.id"], name=op.f("fk_attempts_stage_id_stages")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("stage_id", "number", name=op.f("uq_attempts_stage_id")),
        sa.UniqueConstraint("submission_id", name=op.f("uq_attempts_submission_id")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_is_settled"), ["is_settled"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempts_stage_id"), ["stage_id"], unique=False)

    op.create_table(
        "shipped_checkpoints",
        sa.Column("stage_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("tracked_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["stage_id"], ["stages.id"], name=op.f("fk_shipped_checkpoints_stage_id_stages")
        ),
        sa.PrimaryKeyConstraint("stage_id", "attempt", "step", name=op.f("pk_shipped_checkpoints")),
    )


def downgrade() -> None:
    """Back."""
    op.drop_table("shipped_checkpoints")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempts_stage_id"))
        batch_op.drop_index(batch_op.f("ix_attempts_is_settled"))

    op.drop_table("attempts")
    with op.batch_alter_table("stages", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_stages_tracked_id"))
        batch_op.drop_index("ix_stages_state")
        batch_op.drop_index(batch_op.f("ix_stages_run_seq"))

    op.drop_table("stages")
    op.drop_table("wanted_clusters")
    op.drop_table("settings")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_runs_tracked_id"))
        batch_op.drop_index("ix_runs_sweep")
        batch_op.drop_index("ix_runs_state")
        batch_op.drop_index(batch_op.f("ix_runs_is_shipped"))

    op.drop_table("runs")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_run"))

    op.drop_table("events")
