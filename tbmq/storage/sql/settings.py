"""Small values by key."""

import sqlalchemy as sa

from tbmq.storage.entities import ChangeKind, Json, check_json, check_name
from tbmq.storage.interfaces import NotThere
from tbmq.storage.sql.database import Database
from tbmq.storage.sql.schema import settings


class SqlSettings:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, Json]:
        async with self._database.read() as connection:
            rows = await connection.execute(sa.select(settings.c.key, settings.c.value).order_by(settings.c.key))
            return {row.key: row.value for row in rows}

    async def get(self, key: str, default: Json = None) -> Json:
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(settings.c.value).where(settings.c.key == key))).one_or_none()
            return default if row is None else row.value

    async def put(self, key: str, value: Json) -> None:
        check_name("the key of a setting", key)
        check_json(f"the setting {key}", value)
        async with self._database.write() as writing:
            await writing.connection.execute(sa.delete(settings).where(settings.c.key == key))
            await writing.connection.execute(sa.insert(settings).values(key=key, value=value))
            writing.changed(ChangeKind.SETTING, key)

    async def remove(self, key: str) -> None:
        async with self._database.write() as writing:
            done = await writing.connection.execute(sa.delete(settings).where(settings.c.key == key))
            if not done.rowcount:
                raise NotThere(f"there is no setting {key!r}")
            writing.changed(ChangeKind.SETTING, key)
