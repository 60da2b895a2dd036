"""One database: connections, transactions, and what is said when they fail.

    read()    one connection; each statement sees what is committed when it starts
    write()   one transaction. It begins by taking the one lock of the database: for SQLite its write lock, for
              PostgreSQL the row of `change_state`. So all changes of all processes happen one after the other, they
              cannot deadlock, and a version is never seen before a smaller one. Entities change seldom; that is cheap.
              It ends by writing what was changed into the log, and waking those who watch.

Nothing of SQLAlchemy or of a driver comes out of here: errors become StoreUnavailable. Parameters are never part of
their texts.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tbmq.storage.entities import ChangeKind
from tbmq.storage.interfaces import MAX_CHANGES, StoreUnavailable
from tbmq.storage.sql.schema import change_state, changes

try:
    import asyncpg  # type: ignore[import-untyped]
except ModuleNotFoundError:  # it comes with tbmq[cluster]; SQLite needs nothing
    asyncpg = None

CHANNEL = "tbmq_changes"  # of PostgreSQL's NOTIFY; the payload is the version
TIMEOUT_S = 10.0  # for a lock, a statement, a free connection
CONNECT_TIMEOUT_S = 5.0
FILE_MODE, FOLDER_MODE = 0o600, 0o700


@dataclass(slots=True)
class Writing:
    """A transaction under way."""

    connection: AsyncConnection
    changes: list[tuple[ChangeKind, str]] = field(default_factory=list)

    def changed(self, kind: ChangeKind, key: str) -> None:
        self.changes.append((kind, key))


class Database:
    """`place` names it in messages, without its password."""

    def __init__(self, engine: AsyncEngine, place: str, *, file: Path | None = None, url: str = "") -> None:
        self.engine = engine
        self.place = place
        self.file = file  # of SQLite, None for PostgreSQL
        self.url = url  # of PostgreSQL, with its password

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        with self.told():
            async with self.engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Writing]:
        with self.told():
            async with self.begin() as connection:
                version: int = (
                    await connection.execute(sa.select(change_state.c.version).with_for_update())
                ).scalar_one()
                writing = Writing(connection)
                yield writing
                if writing.changes:
                    await self._log(connection, version, writing.changes)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write, and nothing else; SQLite's has its lock already."""
        async with self.engine.connect() as connection:
            await connection.execution_options(is_writing=True)
            async with connection.begin():
                yield connection

    async def _log(self, connection: AsyncConnection, version: int, items: list[tuple[ChangeKind, str]]) -> None:
        rows = [{"version": version + n, "kind": kind, "key": key} for n, (kind, key) in enumerate(items, 1)]
        version += len(rows)
        await connection.execute(sa.insert(changes), rows)
        await connection.execute(sa.delete(changes).where(changes.c.version <= version - MAX_CHANGES))
        await connection.execute(sa.update(change_state).values(version=version))
        if self.file is None:  # sent when the transaction commits; SQLite's watchers look at the file
            await connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(version))))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turns what a driver raises into words of ours. The first line will do: the rest are statements and hints."""
        try:
            yield
        except UNAVAILABLE as error:
            cause = getattr(error, "orig", None) or error
            reason = (str(cause) or type(cause).__name__).splitlines()[0]
            raise StoreUnavailable(f"{self.place} does not work: {reason}") from error

    async def close(self) -> None:
        await self.engine.dispose()


def sqlite_database(file: Path) -> Database:
    """Makes the file when it is missing, for this user alone. Its -wal and -shm get the same mode from SQLite."""
    try:
        file.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, FILE_MODE))
        if file.stat().st_mode & 0o077:
            file.chmod(FILE_MODE)
    except OSError as error:
        raise StoreUnavailable(f"cannot open {file}: {error.strerror}; see data_dir") from None
    url = sa.URL.create("sqlite+aiosqlite", database=str(file))
    engine = create_async_engine(url, hide_parameters=True, connect_args={"timeout": TIMEOUT_S})

    # Transactions are ours: the driver's own would begin too late, take the lock too late, and leave out DDL.
    @event.listens_for(engine.sync_engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("is_writing"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return Database(engine, f"the SQLite file {file}", file=file)


def postgresql_database(url: str) -> Database:
    """The url goes to asyncpg as it is, so that all its options work, such as ?sslmode=verify-full."""
    shown = make_url(url)
    place = f"PostgreSQL at {shown.host or 'localhost'}:{shown.port or 5432}/{shown.database or ''}"

    if asyncpg is None:
        raise StoreUnavailable(f"{place} needs the package asyncpg: pip install 'tbmq[cluster]'")
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect_postgresql(url),
        hide_parameters=True,
        pool_pre_ping=True,  # a connection that was cut while nobody used it costs nobody an error
        pool_timeout=TIMEOUT_S,
    )
    return Database(engine, place, url=url)


async def connect_postgresql(url: str) -> Any:
    return await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S, command_timeout=TIMEOUT_S)


UNAVAILABLE: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, OSError, TimeoutError)
if asyncpg:
    UNAVAILABLE += (asyncpg.PostgresError, asyncpg.InterfaceError)
