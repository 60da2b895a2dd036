"""Logins refused lately, one row for each client id."""

from collections.abc import Sequence

import sqlalchemy as sa

from tbmq.storage.entities import MAX_NAME_CHARS, Failure
from tbmq.storage.interfaces import MAX_FAILURES
from tbmq.storage.sql.database import Database
from tbmq.storage.sql.schema import failures

CHUNK = 500  # client ids in one statement
COLUMNS = [failures.c[name] for name in ("client_id", "username", "ip", "reason", "at")]


class SqlFailures:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, items: Sequence[Failure]) -> None:
        rows = {_cut(item.client_id): _row(item) for item in items}  # the last one of each client id
        if not rows:
            return
        ids = sorted(rows)
        newest = (
            sa.select(failures.c.client_id).order_by(failures.c.at.desc(), failures.c.client_id).limit(MAX_FAILURES)
        )
        async with self._database.write() as writing:
            for start in range(0, len(ids), CHUNK):
                chunk = ids[start : start + CHUNK]
                await writing.connection.execute(sa.delete(failures).where(failures.c.client_id.in_(chunk)))
                await writing.connection.execute(sa.insert(failures), [rows[client_id] for client_id in chunk])
            count = (await writing.connection.execute(sa.select(sa.func.count()).select_from(failures))).scalar_one()
            if count > MAX_FAILURES:
                await writing.connection.execute(sa.delete(failures).where(failures.c.client_id.not_in(newest)))

    async def recent(self, limit: int = 100) -> list[Failure]:
        query = sa.select(*COLUMNS).order_by(failures.c.at.desc(), failures.c.client_id).limit(limit)
        async with self._database.read() as connection:
            return [Failure(*row) for row in await connection.execute(query)]

    async def clear(self) -> None:
        async with self._database.write() as writing:
            await writing.connection.execute(sa.delete(failures))


def _row(failure: Failure) -> dict[str, object]:
    return {
        "client_id": _cut(failure.client_id),
        "username": None if failure.username is None else _cut(failure.username),
        "ip": _cut(failure.ip),
        "reason": _cut(failure.reason),
        "at": failure.at,
    }


def _cut(text: str) -> str:
    """At most so long that it can be indexed; without the characters that no database takes."""
    return text[:MAX_NAME_CHARS].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
