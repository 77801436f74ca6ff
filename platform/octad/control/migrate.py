"""Bring the database to the tables of this version, at start."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from octad.control.database import Database, translated
from octad.errors import ConflictError

FOLDER = Path(__file__).parent / "migrations"


def migrate(database: Database) -> None:
    """Run the steps that are missing; a database that is at the newest one is left alone.

    Raises:
        ConflictError: A newer octad wrote it.
        StorageError: It is damaged, full or read-only.
    """
    config = _config()
    with translated(database.url), database.engine.connect() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise ConflictError(
                f"the database was written by another version of octad: {error}",
                where=database.url,
                hint="run the newest octad that was used here",
            ) from None
        connection.commit()


def newest_revision() -> str:
    """The revision of this version's tables."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    return config
