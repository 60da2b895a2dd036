"""The log of changes, and how those who watch are told.

    SQLite       `PRAGMA data_version`, five times a second, on a connection kept for that: a look into shared memory
    PostgreSQL   LISTEN on a connection kept for that; NOTIFY is part of the transaction that made the change

Either only wakes: what has changed is always read from the log, from the version that was told last. So a wake-up that
is lost, doubled or early does no harm, and after a lost connection nothing is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import aiosqlite
import sqlalchemy as sa

from tbmq.storage.entities import Change, ChangeKind, Changes
from tbmq.storage.interfaces import MAX_CHANGES, StoreUnavailable
from tbmq.storage.sql.database import CHANNEL, CONNECT_TIMEOUT_S, Database, connect_postgresql
from tbmq.storage.sql.schema import change_state, changes

POLL_S = 0.2
SILENCE_S = 5.0  # PostgreSQL: so long nothing heard, then a question: a line can be dead without a word
RETRY_S = (0.1, 5.0)  # first and longest pause after a failure

log = logging.getLogger(__name__)


class SqlChanges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def version(self) -> int:
        async with self._database.read() as connection:
            version: int = (await connection.execute(sa.select(change_state.c.version))).scalar_one()
            return version

    async def changes_since(self, version: int) -> Changes:
        """One statement, so that version and rows are of one moment."""
        query = (
            sa.select(change_state.c.version, changes.c.version, changes.c.kind, changes.c.key)
            .select_from(change_state.outerjoin(changes, changes.c.version > version))
            .order_by(changes.c.version)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        current: int = rows[0][0]
        if not current - MAX_CHANGES <= version <= current:
            return Changes(current, (), is_complete=False)
        items = tuple(Change(row[1], ChangeKind(row[2]), row[3]) for row in rows if row[1] is not None)
        return Changes(current, items, is_complete=True)

    async def watch(self, callback: Callable[[Changes], None], since: int) -> None:
        pause_s = RETRY_S[0]
        while True:
            try:
                async with aclosing(self._wake_ups()) as wake_ups:
                    async for _ in wake_ups:
                        changes = await self.changes_since(since)
                        pause_s = RETRY_S[0]
                        since = changes.version
                        if changes.items or not changes.is_complete:
                            callback(changes)
            except StoreUnavailable as error:
                log.warning("changes are not seen at the moment: %s; next try in %.1f s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])

    async def _wake_ups(self) -> AsyncGenerator[None]:
        """Yields whenever there may be something new; at once at the beginning. StoreUnavailable when it cannot."""
        with self._database.told():
            wake_ups = self._sqlite_wake_ups() if self._database.file else self._postgresql_wake_ups()
            async with aclosing(wake_ups):
                async for _ in wake_ups:
                    yield

    async def _sqlite_wake_ups(self) -> AsyncGenerator[None]:
        # The number changes with every commit of another connection, and this one never commits anything.
        async with aiosqlite.connect(str(self._database.file)) as connection:
            seen = None
            while True:
                async with connection.execute("PRAGMA data_version") as cursor:
                    row = await cursor.fetchone()
                if row != seen:
                    seen = row
                    yield
                await asyncio.sleep(POLL_S)

    async def _postgresql_wake_ups(self) -> AsyncGenerator[None]:
        connection = await connect_postgresql(self._database.url)
        try:
            woken = asyncio.Event()
            connection.add_termination_listener(lambda *_: woken.set())
            await connection.add_listener(CHANNEL, lambda *_: woken.set())
            while True:
                woken.clear()
                yield
                try:
                    async with asyncio.timeout(SILENCE_S):  # wait_for of Python 3.11 can lose a cancellation here
                        await woken.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=CONNECT_TIMEOUT_S)
                if connection.is_closed():
                    raise ConnectionResetError("the connection was closed")
        finally:
            connection.terminate()  # no farewell: it may be dead, and there is nothing to lose
