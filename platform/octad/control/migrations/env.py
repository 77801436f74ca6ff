"""How Alembic reaches the database: over the connection that `migrate.py` hands it."""

from alembic import context

from octad.control.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
