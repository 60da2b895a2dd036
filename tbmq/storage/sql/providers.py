"""Authentication providers: five rows, made by the first migration, never added or removed."""

from collections.abc import Sequence

import sqlalchemy as sa

from tbmq.storage.entities import ChangeKind, InvalidEntity, Json, Provider, ProviderKind, check_provider_settings
from tbmq.storage.sql.database import Database
from tbmq.storage.sql.schema import providers

ALL = sa.select(providers).order_by(providers.c.position)


class SqlProviders:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Provider]:
        async with self._database.read() as connection:
            rows = await connection.execute(ALL)
            return [Provider(ProviderKind(row.kind), row.is_enabled, row.position, row.settings) for row in rows]

    async def set_enabled(self, kind: ProviderKind, is_enabled: bool) -> None:
        await self._set(kind, {"is_enabled": is_enabled})

    async def set_settings(self, kind: ProviderKind, settings: dict[str, Json]) -> None:
        check_provider_settings(settings)
        await self._set(kind, {"settings": settings})

    async def _set(self, kind: ProviderKind, values: dict[str, object]) -> None:
        async with self._database.write() as writing:
            await writing.connection.execute(sa.update(providers).where(providers.c.kind == kind).values(values))
            writing.changed(ChangeKind.PROVIDER, kind)

    async def order(self, kinds: Sequence[ProviderKind]) -> None:
        if len(set(kinds)) < len(kinds):
            raise InvalidEntity("each provider can be named once")
        async with self._database.write() as writing:
            present = [ProviderKind(row.kind) for row in await writing.connection.execute(ALL)]
            wanted = [*kinds, *(kind for kind in present if kind not in kinds)]
            for position, kind in enumerate(wanted):
                statement = sa.update(providers).where(providers.c.kind == kind).values(position=position)
                await writing.connection.execute(statement)
            writing.changed(ChangeKind.PROVIDER, "")
