"""Look-ups of credentials, many at once: a query costs the same for one login as for a hundred.

    find_basic ──▶ waiting ──▶ query under way? no: one for all that wait      the next query takes who came meanwhile

So a storm of logins makes few queries, and a single login does not wait for others. A look-up begins after it was asked
for, never before: it sees everything that was committed by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from tbmq.storage.entities import Credentials

MAX_BATCH = 256

Asked = tuple[str, str | None]  # client id, user name


class ManyLookup(Protocol):
    async def find_basic_many(self, logins: Sequence[Asked]) -> list[list[Credentials]]: ...

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]: ...


class BatchedLookup:
    """Runs on one loop. What the store raises is raised to everybody who waited for that query."""

    def __init__(self, lookup: ManyLookup) -> None:
        self._lookup = lookup
        self._waiting: dict[Asked, asyncio.Future[list[Credentials]]] = {}
        self._asking: asyncio.Task[None] | None = None
        self.queries = 0

    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
        loop = asyncio.get_running_loop()
        answer = self._waiting.setdefault((client_id, username), loop.create_future())
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
        return await asyncio.shield(answer)  # one who gives up must not take the answer from the others

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]:
        return await self._lookup.find_x509(common_names)

    async def _ask(self) -> None:
        while self._waiting:
            batch = dict(islice(self._waiting.items(), MAX_BATCH))
            for asked in batch:
                del self._waiting[asked]
            self.queries += 1
            try:
                found = await self._lookup.find_basic_many(list(batch))
            except Exception as error:
                for answer in batch.values():
                    answer.set_exception(error)
                    answer.exception()  # seen: those who asked may have given up
            else:
                for answer, credentials in zip(batch.values(), found, strict=True):
                    answer.set_result(credentials)
        self._asking = None
