"""For tests of providers: a loop for each test, a real entity store, a watch on the loop's lag."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from tbmq.config import Config
from tbmq.storage.entities import Credentials, Proof
from tbmq.storage.interfaces import StoreUnavailable
from tbmq.storage.sql import SqlEntityStore, open_entities


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test to its end."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        uvloop.run(asyncio.wait_for(test(*arguments, **named), 60))

    return run


@contextlib.asynccontextmanager
async def entity_store(folder: Path, *proofs: Proof) -> AsyncIterator[tuple[SqlEntityStore, list[Credentials]]]:
    """A store on disk with credentials for these proofs, named c0, c1, ..."""
    store = await open_entities(Config(data_dir=folder))
    try:
        credentials = [Credentials(f"c{place}", proof) for place, proof in enumerate(proofs)]
        await store.credentials.add(credentials)
        yield store, credentials
    finally:
        await store.close()


class LostStore:
    """A look-up whose database has gone."""

    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
        raise StoreUnavailable("the database is gone")

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]:
        raise StoreUnavailable("the database is gone")


@contextlib.asynccontextmanager
async def loop_lags(every_s: float = 0.002) -> AsyncIterator[list[float]]:
    """How late the loop called a timer, in seconds, again and again while the body runs."""
    lags: list[float] = []
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            due = loop.time() + every_s
            await asyncio.sleep(every_s)
            lags.append(loop.time() - due)

    task = asyncio.create_task(watch())
    try:
        yield lags
    finally:
        task.cancel()
        await asyncio.wait([task])
