"""Every test here runs over SQLite and over a real PostgreSQL: a `place` is one empty database of either."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tbmq.config import Config
from tbmq.storage.sql import SqlEntityStore, open_entities
from tests.services.postgres import Postgres


@dataclass
class Place:
    config: Config
    postgres: Postgres | None  # None: SQLite
    folder: Path

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SqlEntityStore]:
        store = await open_entities(self.config)
        try:
            yield store
        finally:
            await store.close()

    @property
    def url(self) -> str:
        return self.config.database.url.get_secret_value()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    url = server.new_database() if server else ""
    config = Config(data_dir=tmp_path / "data", database={"url": url})
    return Place(config, server, tmp_path)


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An `async def` test on a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run
