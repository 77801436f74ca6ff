"""The database: migrated at start, locked for a bounded time, and never silently wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.pool import QueuePool

from octad.control import database as module
from octad.control.database import Database, sqlite_url
from octad.control.migrate import migrate, newest_revision
from octad.control.tables import Base, Run, Setting
from octad.errors import ConflictError, StorageError, SurroundingsError


def opened(path: Path) -> Database:
    return Database(sqlite_url(path))


def test_migrations_make_the_tables_that_the_code_has(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.sqlite")
    migrate(database)
    migrate(database)
    there = inspect(database.engine)
    for table in Base.metadata.sorted_tables:
        columns = {column["name"] for column in there.get_columns(table.name)}
        assert columns == set(table.columns.keys()), table.name
        indexes = {index["name"] for index in there.get_indexes(table.name)}
        assert {i.name for i in table.indexes} <= indexes, table.name
    with database.engine.connect() as connection:
        version = connection.exec_driver_sql("select version_num from alembic_version").scalar()
    assert version == newest_revision()
    database.close()


def test_a_database_of_a_newer_octad_is_refused(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.sqlite")
    migrate(database)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    with pytest.raises(ConflictError, match="another version"):
        migrate(database)
    database.close()


def test_what_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    database = opened(path)
    with pytest.raises(StorageError, match="damaged"):
        migrate(database)
    assert path.read_bytes().startswith(b"not a database")
    database.close()


def test_a_locked_database_is_waited_for_and_then_said_to_be_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.05)
    database = opened(tmp_path / "a.sqlite")
    migrate(database)
    other = sqlite3.connect(tmp_path / "a.sqlite")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SurroundingsError, match="busy"), database.write() as session:
        session.add(Setting(name="a", value="b"))
    with database.read() as session:  # readers are not held up
        assert session.scalars(select(Run)).all() == []
    other.rollback()
    other.close()
    with database.write() as session:
        session.add(Setting(name="a", value="b"))
    database.close()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "日本 (1)" / "proj's 100%25?mode=ro#x"
    folder.mkdir(parents=True)
    database = opened(folder / "a.sqlite")
    migrate(database)
    assert (folder / "a.sqlite").exists()
    database.close()


def test_too_many_calls_at_once_find_it_busy(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.sqlite")
    pool = database.engine.pool
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.01
    held = [database.engine.connect() for _ in range(pool.size() + pool._max_overflow)]
    with pytest.raises(SurroundingsError, match="busy"), database.read() as session:
        session.scalars(select(Run)).all()
    for connection in held:
        connection.close()
    database.close()


def test_an_error_inside_a_write_changes_nothing(tmp_path: Path) -> None:
    database = opened(tmp_path / "a.sqlite")
    migrate(database)

    def fails_midway() -> None:
        with database.write() as session:
            session.add(Setting(name="a", value="b"))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_midway()
    with database.read() as session:
        assert session.get(Setting, "a") is None
    database.close()
