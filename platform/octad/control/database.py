"""The control plane's database: SQLite in WAL mode now, written so that Postgres fits too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from octad.errors import OctadError, StorageError, SurroundingsError

BUSY_TIMEOUT_S = 5.0
_WRITES = "octad_writes"


class Database:
    """Sessions on one database.

    A write takes the write lock at its first statement, so that what it reads cannot be changed
    by another before it commits. Neither kind of session may be held across a network call.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        connect: dict[str, Any] = {}
        if url.startswith("sqlite"):
            connect = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
        self.engine = create_engine(url, connect_args=connect)
        if url.startswith("sqlite"):
            _prepare_sqlite(self.engine)
        self._writer = self.engine.execution_options(**{_WRITES: True})

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that changes nothing."""
        with translated(self.url), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits at its end, or changes nothing if an error leaves it."""
        with (
            translated(self.url),
            Session(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def sqlite_url(path: Path) -> str:
    """The URL of a database in a file, whatever characters its path holds."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        # Transactions are opened below, by hand: the driver would open them too late.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        is_write = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn what the database says into our own errors."""
    try:
        yield
    except PoolTimeoutError as error:
        raise _busy(url) from error
    except OperationalError as error:
        raise failure(error, url) from error
    except DatabaseError as error:
        if isinstance(error.orig, sqlite3.DatabaseError) and _is_damaged(str(error.orig)):
            raise failure(error, url) from error
        raise


def failure(error: DatabaseError, url: str) -> OctadError:
    """The error that a person should see."""
    text = str(error.orig)
    if "locked" in text or "busy" in text:
        return _busy(url)
    if "full" in text:
        return StorageError("the database's disk is full", where=url, hint="free space")
    if "readonly" in text:
        return StorageError("the database is read-only", where=url, hint="check owner and mode")
    if _is_damaged(text):
        return StorageError(
            f"the database is damaged: {text}",
            where=url,
            hint="move it away and restore a backup; runs and checkpoints in the store are safe",
        )
    return StorageError(f"the database failed: {text}", where=url)


def _busy(url: str) -> OctadError:
    return SurroundingsError(
        "the database is busy", where=url, hint="try again; is a backup or another program at it?"
    )


def _is_damaged(text: str) -> bool:
    return "malformed" in text or "not a database" in text
