"""Opens the entity store of a configuration.

A store has connections, and with SQLite threads: open it in the process that uses it, after any fork, on its loop.
"""

from __future__ import annotations

from tbmq.config import Config
from tbmq.storage.interfaces import (
    BlockedStore,
    ChangeLog,
    CredentialsLookup,
    CredentialsStore,
    FailureLog,
    ProviderStore,
    SettingsStore,
    UserStore,
)
from tbmq.storage.sql.blocked import SqlBlocked
from tbmq.storage.sql.changes import SqlChanges
from tbmq.storage.sql.credentials import SqlCredentials
from tbmq.storage.sql.database import Database, postgresql_database, sqlite_database
from tbmq.storage.sql.failures import SqlFailures
from tbmq.storage.sql.migrate import migrate
from tbmq.storage.sql.providers import SqlProviders
from tbmq.storage.sql.settings import SqlSettings
from tbmq.storage.sql.users import SqlUsers

FILE = "entities.db"


class SqlEntityStore:
    """EntityStore; see `tbmq.storage.interfaces`."""

    def __init__(self, database: Database) -> None:
        credentials = SqlCredentials(database)
        self._database = database
        self.place = database.place  # for messages, without a password
        self.users: UserStore = SqlUsers(database)
        self.credentials: CredentialsStore = credentials
        self.lookup: CredentialsLookup = credentials
        self.providers: ProviderStore = SqlProviders(database)
        self.blocked: BlockedStore = SqlBlocked(database)
        self.failures: FailureLog = SqlFailures(database)
        self.settings: SettingsStore = SqlSettings(database)
        self.changes: ChangeLog = SqlChanges(database)

    async def close(self) -> None:
        await self._database.close()


async def open_entities(config: Config) -> SqlEntityStore:
    """Makes or upgrades the tables when needed. StoreUnavailable, SchemaTooNew."""
    url = config.database.url.get_secret_value()
    database = postgresql_database(url) if url else sqlite_database(config.data_dir / FILE)
    try:
        await migrate(database)
    except BaseException:
        await database.close()
        raise
    return SqlEntityStore(database)
