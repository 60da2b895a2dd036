"""Brings a database to the schema that this program knows. Many processes may start at once; one does it, others wait.

All of it is one transaction under a lock, so a program that is killed on the way leaves the old schema behind.
"""

from pathlib import Path

import sqlalchemy as sa

from tbmq.storage.interfaces import SchemaTooNew
from tbmq.storage.sql.database import Database
from tbmq.storage.sql.schema import REVISION

FOLDER = Path(__file__).parent / "migrations"
LOCK = 0x7462_6D71  # "tbmq": the number of PostgreSQL's advisory lock
VERSION_TABLE = sa.table("alembic_version", sa.column("version_num", sa.Text))


async def migrate(database: Database) -> None:
    """SchemaTooNew when a newer program has been here. Does not write when there is nothing to do."""
    with database.told():
        async with database.engine.connect() as connection:
            if await connection.run_sync(_revision) == REVISION:
                return
        async with database.begin() as connection:
            if database.file is None:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            await connection.run_sync(_upgrade, database.place)


def _revision(connection: sa.Connection) -> str | None:
    """None: no tables yet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE.name):
        return None
    revision: str | None = connection.execute(sa.select(VERSION_TABLE.c.version_num)).scalar()
    return revision


def _upgrade(connection: sa.Connection, place: str) -> None:
    from alembic import command  # here: needed once in the life of a database, and slow to import
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    revision = _revision(connection)  # again: another process may have been faster
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaTooNew(
            f"{place} has schema {revision}, and this program knows only up to {REVISION}: a newer tbmq has been here. "
            "Start that one, or choose another database (database.url, data_dir)."
        )
    if revision != REVISION:
        command.upgrade(config, "head")
