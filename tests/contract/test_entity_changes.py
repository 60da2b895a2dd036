"""Changes: their versions, who is told and how fast, and what happens when many write or the database goes away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import stat
import time
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from tbmq.config import Config
from tbmq.storage.entities import BasicProof, Changes, Credentials, Failure, ProviderKind, User
from tbmq.storage.interfaces import BULK, MAX_CHANGES, SchemaTooNew, StoreUnavailable
from tbmq.storage.sql import SqlEntityStore, open_entities
from tests.contract.conftest import on_a_loop

SOON_S = 0.5
TIMEOUT_S = 20.0
processes = multiprocessing.get_context("spawn")


class Watcher:
    """What a watch has told, with the time of each call."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Changes]] = []
        self._news = asyncio.Event()

    def __call__(self, changes: Changes) -> None:
        self.told.append((time.monotonic(), changes))
        self._news.set()

    @property
    def versions(self) -> list[int]:
        return [item.version for _, changes in self.told for item in changes.items]

    async def until(self, version: int) -> float:
        """When this version was told."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.told or self.told[-1][1].version < version:
                self._news.clear()
                await self._news.wait()
        return next(at for at, changes in self.told if changes.version >= version)


@contextlib.asynccontextmanager
async def watching(store: SqlEntityStore, since: int | None = None) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    start = await store.changes.version() if since is None else since
    task = asyncio.create_task(store.changes.watch(watcher, start))
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- the log


@on_a_loop
async def test_every_change_gets_the_next_version(place):
    async with place.open() as store:
        await store.users.add(User("u", "h"))
        item = Credentials("n", BasicProof("c"))
        await store.credentials.add([item])
        await store.providers.set_enabled(ProviderKind.JWT, True)
        await store.settings.put("k", 1)
        await store.users.remove("u")
        changes = await store.changes.changes_since(0)
        assert changes.is_complete
        assert [(one.version, one.kind, one.key) for one in changes.items] == [
            (1, "user", "u"),
            (2, "credentials", item.id),
            (3, "provider", "jwt"),
            (4, "setting", "k"),
            (5, "user", "u"),
        ]
        assert [one.version for one in (await store.changes.changes_since(3)).items] == [4, 5]
        assert await store.changes.changes_since(5) == Changes(5, (), True)


@on_a_loop
async def test_reader_is_told_to_read_anew_when_the_log_does_not_reach_back(place, monkeypatch):
    for module in ("database", "changes"):
        monkeypatch.setattr(f"tbmq.storage.sql.{module}.MAX_CHANGES", 3)
    async with place.open() as store:
        for n in range(5):
            await store.settings.put("k", n)
        assert await store.changes.changes_since(1) == Changes(5, (), is_complete=False)
        assert [one.version for one in (await store.changes.changes_since(2)).items] == [3, 4, 5]
        # from a store that has gone further, of which this is an old backup
        assert await store.changes.changes_since(6) == Changes(5, (), is_complete=False)


@on_a_loop
async def test_log_stays_bounded(place):
    assert BULK < MAX_CHANGES
    async with place.open() as store:
        for n in range(MAX_CHANGES // BULK + 1):
            await store.credentials.add([Credentials(f"{n}-{m}", BasicProof(f"{n}-{m}")) for m in range(BULK)])
        version = await store.changes.version()
        assert version == MAX_CHANGES + BULK
        async with store._database.read() as connection:
            counted = await connection.execute(sa.text("SELECT count(*), min(version) FROM changes"))
            assert tuple(counted.one()) == (MAX_CHANGES, BULK + 1)


@on_a_loop
async def test_many_credentials_at_once_are_one_change(place):
    async with place.open() as store:
        await store.credentials.add([Credentials(f"{n}", BasicProof(f"{n}")) for n in range(BULK + 1)])
        assert [(one.kind, one.key) for one in (await store.changes.changes_since(0)).items] == [("credentials", "")]


# --- watching


def add_users(config: Config, prefix: str, count: int) -> None:
    """In a process of its own; ends with an error when anything fails."""

    async def run() -> None:
        store = await open_entities(config)
        for n in range(count):
            await store.users.add(User(f"{prefix}{n}", "hash"))
        await store.close()

    asyncio.run(run())


@on_a_loop
async def test_watcher_is_told_soon_by_another_store(place):
    async with place.open() as store, place.open() as other, watching(store) as watcher:
        for n in range(1, 6):
            await other.settings.put("k", n)
            committed = time.monotonic()
            assert await watcher.until(n) - committed < SOON_S
        assert watcher.versions == [1, 2, 3, 4, 5]


@on_a_loop
async def test_watcher_is_told_of_changes_of_its_own_store(place):
    async with place.open() as store, watching(store) as watcher:
        await store.settings.put("k", 1)
        committed = time.monotonic()
        assert await watcher.until(1) - committed < SOON_S


@on_a_loop
async def test_watcher_is_told_what_came_before_it_began(place):
    async with place.open() as store:
        for n in range(3):
            await store.settings.put("k", n)
        async with watching(store, since=1) as watcher:
            await watcher.until(3)
            assert watcher.versions == [2, 3]


@on_a_loop
async def test_watcher_is_not_called_for_failures(place):
    async with place.open() as store, watching(store) as watcher:
        await store.failures.record([Failure("c", None, "", "x", 1.0)])
        await store.settings.put("k", 1)
        await watcher.until(1)
        assert len(watcher.told) == 1


@on_a_loop
async def test_watch_ends_with_what_its_callback_raises(place):
    def refuse(_: Changes) -> None:
        raise ZeroDivisionError

    async with place.open() as store:
        await store.settings.put("k", 1)
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(TIMEOUT_S):
                await store.changes.watch(refuse, 0)


# --- many processes


@on_a_loop
async def test_all_changes_are_told_in_order_when_two_processes_write(place):
    count = 60
    async with place.open() as store, watching(store) as watcher:
        writers = [processes.Process(target=add_users, args=(place.config, prefix, count)) for prefix in "ab"]
        for writer in writers:
            writer.start()
        for writer in writers:
            await asyncio.to_thread(writer.join, 60)
        assert [writer.exitcode for writer in writers] == [0, 0]
        await watcher.until(2 * count)
        assert watcher.versions == list(range(1, 2 * count + 1))
        assert {user.name for user in await store.users.all()} == {f"{p}{n}" for p in "ab" for n in range(count)}


@on_a_loop
async def test_nothing_is_lost_when_many_tasks_write(place):
    async with place.open() as store, place.open() as other:
        stores = [store, other]
        await asyncio.gather(*(stores[n % 2].users.add(User(f"u{n}", "h")) for n in range(40)))
        assert len(await store.users.all()) == 40
        assert await store.changes.version() == 40


@on_a_loop
async def test_tables_are_made_once_when_many_open_at_once(place):
    stores = await asyncio.gather(*(open_entities(place.config) for _ in range(8)))
    assert [len(await store.providers.all()) for store in stores] == [len(ProviderKind)] * 8
    for store in stores:
        await store.close()


def test_tables_are_made_once_when_many_processes_start_at_once(place):
    starters = [processes.Process(target=add_users, args=(place.config, prefix, 1)) for prefix in "abcd"]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
    assert [starter.exitcode for starter in starters] == [0] * 4
    names = asyncio.run(_names_of_users(place))
    assert names == ["a0", "b0", "c0", "d0"]


async def _names_of_users(place):
    async with place.open() as store:
        assert len(await store.providers.all()) == len(ProviderKind)
        return [user.name for user in await store.users.all()]


# --- the schema


@on_a_loop
async def test_newer_schema_is_refused_and_left_alone(place):
    async with place.open() as store:
        async with store._database.begin() as connection:
            await connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(SchemaTooNew, match="has schema 9999, and this program knows only up to 0001"):
            await open_entities(place.config)
        async with store._database.begin() as connection:
            await connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    async with place.open() as store:
        assert await store.users.all() == []


@on_a_loop
async def test_migrations_make_the_tables_of_the_schema(place):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from tbmq.storage.sql.schema import metadata

    def differences(connection: sa.Connection) -> list:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)

    async with place.open() as store, store._database.read() as connection:
        assert await connection.run_sync(differences) == []


@on_a_loop
async def test_nothing_of_a_migration_is_left_when_it_fails(place, monkeypatch):
    """The second half of a migration fails: the first half must be gone."""
    from alembic import op

    create_table = op.create_table

    def fail_late(name: str, *columns: object) -> object:
        if name == "change_state":
            raise OSError("the disk is full")
        return create_table(name, *columns)

    monkeypatch.setattr(op, "create_table", fail_late)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await open_entities(place.config)
    monkeypatch.undo()
    async with place.open() as store:
        assert len(await store.providers.all()) == len(ProviderKind)


def test_revision_of_the_schema_is_the_last_migration():
    from alembic.config import Config as AlembicConfig
    from alembic.script import ScriptDirectory

    from tbmq.storage.sql.migrate import FOLDER
    from tbmq.storage.sql.schema import REVISION

    config = AlembicConfig()
    config.set_main_option("script_location", str(FOLDER))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]


# --- look-ups are by index


LOOK_UPS = {
    "basic": lambda store: store.lookup.find_basic("c", "u"),
    "x509": lambda store: store.lookup.find_x509(["a", "b"]),
    "scram": lambda store: store.lookup.find_scram("u", "SCRAM-SHA-256"),
    "name": lambda store: store.credentials.find("n"),
    "id": lambda store: store.credentials.get("i"),
    "page": lambda store: store.credentials.page("n", 10),
}


@pytest.mark.parametrize("look_up", LOOK_UPS)
@on_a_loop
async def test_look_ups_use_an_index(place, look_up):
    """The statements are caught on their way to the database, and the database is asked how it would run them."""
    async with place.open() as store:
        await store.credentials.add([Credentials(f"{n}", BasicProof(f"{n}")) for n in range(2_000)])
        if place.postgres:
            async with store._database.begin() as connection:
                await connection.execute(sa.text("ANALYZE credentials"))
        caught = []
        engine = store._database.engine.sync_engine
        sa.event.listen(engine, "before_cursor_execute", lambda *call: caught.append((call[2], call[3])))
        await LOOK_UPS[look_up](store)
        assert caught
        explain = "EXPLAIN " if place.postgres else "EXPLAIN QUERY PLAN "
        async with store._database.read() as connection:
            for statement, parameters in caught.copy():
                plan = str((await connection.exec_driver_sql(explain + statement, parameters)).all())
                assert "Index" in plan or "USING INDEX" in plan
                assert "Seq Scan" not in plan


# --- when the database goes away


@pytest.fixture
def server():
    """A PostgreSQL of its own, which may be stopped."""
    from tests.services.postgres import Postgres

    with Postgres() as postgres:
        yield postgres


@on_a_loop
async def test_store_and_watcher_recover_when_connections_are_cut(postgres, caplog):
    url = await asyncio.to_thread(postgres.new_database)
    config = Config(database={"url": url})
    store, other = await open_entities(config), await open_entities(config)
    try:
        async with watching(store) as watcher:
            await other.settings.put("k", 1)
            await watcher.until(1)
            with caplog.at_level(logging.WARNING):
                assert await asyncio.to_thread(postgres.cut_connections, url) >= 3
                await other.settings.put("k", 2)  # the first use after the cut: it is noticed before, not by an error
                await watcher.until(2)
            await other.settings.put("k", 3)
            committed = time.monotonic()
            assert await watcher.until(3) - committed < SOON_S
            assert watcher.versions == [1, 2, 3]
            assert await store.settings.get("k") == 3
        assert "changes are not seen at the moment" in caplog.text
        assert url not in caplog.text
    finally:
        await store.close()
        await other.close()


@on_a_loop
async def test_outage_is_told_in_words_and_ends_when_the_server_is_back(server):
    url = await asyncio.to_thread(server.new_database)
    store = await open_entities(Config(database={"url": url}))
    try:
        async with watching(store) as watcher:
            await store.settings.put("k", 1)
            await watcher.until(1)
            await asyncio.to_thread(server.stop)
            with pytest.raises(StoreUnavailable, match="PostgreSQL at 127.0.0.1:"):
                await store.settings.get("k")
            with pytest.raises(StoreUnavailable) as refused:
                await store.settings.put("k", 2)
            assert url.split(":")[2].split("@")[0] not in str(refused.value)
            await asyncio.to_thread(server.start)
            await store.settings.put("k", 3)
            await watcher.until(2)
            assert watcher.versions == [1, 2]
    finally:
        await store.close()


@on_a_loop
async def test_wrong_password_is_told_without_it(postgres):
    url = f"postgresql://postgres:hunter2@127.0.0.1:{postgres.port}/postgres"
    with pytest.raises(StoreUnavailable, match="password authentication failed") as refused:
        await open_entities(Config(database={"url": url}))
    assert "hunter2" not in str(refused.value)


# --- the SQLite file


@on_a_loop
async def test_file_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        store = await open_entities(Config(data_dir=tmp_path / "new" / "data"))
        await store.users.add(User("u", "h"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new/data").iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert modes == {"entities.db": 0o600, "entities.db-wal": 0o600, "entities.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "new/data").stat().st_mode) == 0o700


@on_a_loop
async def test_file_that_others_could_read_is_closed_to_them(tmp_path):
    (tmp_path / "entities.db").touch(mode=0o644)
    store = await open_entities(Config(data_dir=tmp_path))
    await store.close()
    assert stat.S_IMODE((tmp_path / "entities.db").stat().st_mode) == 0o600


@on_a_loop
async def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    (tmp_path / "entities.db").write_bytes(b"not a database, but somebody's text\n" * 100)
    with pytest.raises(StoreUnavailable, match="file is not a database"):
        await open_entities(Config(data_dir=tmp_path))
    assert (tmp_path / "entities.db").read_bytes().startswith(b"not a database")


@on_a_loop
async def test_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="see data_dir"):
        await open_entities(Config(data_dir=tmp_path / "file" / "data"))
