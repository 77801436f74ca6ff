"""Jobs and packages of Ray's own clients."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward."""
    op.create_table(
        "ray_packages",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_ray_packages")),
    )
    op.create_table(
        "ray_jobs",
        sa.Column("submission_id", sa.String(length=100), nullable=False),
        sa.Column("run_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("told", sa.JSON(), nullable=False),
        sa.Column("env", sa.JSON(), nullable=False),
        sa.Column("modules", sa.JSON(), nullable=False),
        sa.Column("pip", sa.JSON(), nullable=True),
        sa.Column("holds_cards", sa.Boolean(), nullable=False),
        sa.Column("is_deleted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_seq"], ["runs.seq"], name=op.f("fk_ray_jobs_run_seq_runs")),
        sa.PrimaryKeyConstraint("submission_id", name=op.f("pk_ray_jobs")),
        sa.UniqueConstraint("run_seq", name=op.f("uq_ray_jobs_run_seq")),
    )


def downgrade() -> None:
    """Back."""
    op.drop_table("ray_jobs")
    op.drop_table("ray_packages")
