"""Clients that stay outside."""

import time
from dataclasses import replace

import sqlalchemy as sa

from tbmq.storage.entities import Blocked, BlockedKind, ChangeKind, check_blocked
from tbmq.storage.interfaces import MAX_BLOCKED, NotThere, StoreError
from tbmq.storage.sql.database import Database, Writing
from tbmq.storage.sql.schema import blocked, match_key

FIELDS = ("kind", "value", "is_regex", "reason", "expires_at", "id", "created_at")


class SqlBlocked:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Blocked]:
        query = sa.select(*(blocked.c[name] for name in FIELDS)).order_by(blocked.c.created_at, blocked.c.id)
        async with self._database.read() as connection:
            return [Blocked(BlockedKind(row[0]), *row[1:]) for row in await connection.execute(query)]

    async def put(self, item: Blocked) -> Blocked:
        item = check_blocked(item)
        key = match_key(item.kind, item.value, item.is_regex)
        async with self._database.write() as writing:
            await _remove_expired(writing)
            query = sa.select(blocked.c.id, blocked.c.created_at).where(blocked.c.match_key == key)
            present = (await writing.connection.execute(query)).one_or_none()
            if present:
                item = replace(item, id=present.id, created_at=present.created_at)
                await writing.connection.execute(sa.delete(blocked).where(blocked.c.id == present.id))
            count = (await writing.connection.execute(sa.select(sa.func.count()).select_from(blocked))).scalar_one()
            if count >= MAX_BLOCKED:
                raise StoreError(
                    f"{count:,} clients are blocked, more are not taken: block a network, or use a pattern"
                )
            row = {name: getattr(item, name) for name in FIELDS} | {"match_key": key}
            await writing.connection.execute(sa.insert(blocked).values(row))
            writing.changed(ChangeKind.BLOCKED, item.id)
        return item

    async def remove(self, id: str) -> None:
        async with self._database.write() as writing:
            done = await writing.connection.execute(sa.delete(blocked).where(blocked.c.id == id))
            if not done.rowcount:
                raise NotThere(f"nothing is blocked under the id {id!r}")
            writing.changed(ChangeKind.BLOCKED, id)


async def _remove_expired(writing: Writing) -> None:
    expired = blocked.c.expires_at <= time.time()
    for row in (await writing.connection.execute(sa.select(blocked.c.id).where(expired))).all():
        await writing.connection.execute(sa.delete(blocked).where(blocked.c.id == row.id))
        writing.changed(ChangeKind.BLOCKED, row.id)
