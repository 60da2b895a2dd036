"""Look-ups of credentials, remembered: a query costs ten times what the rest of a login does.

    (client id, user name) ──▶ (good until, credentials)      least recently used first, bounded
    common names           ──▶ the same

Whoever builds this follows the changes of the store and calls `clear` at each that concerns credentials: what was read
before is dropped, and what is being read at that moment is not kept. `ttl_s` is the net below, for the case that
changes are not heard. Straight from the store a login sees what is committed; from here, what was committed when the
store last told of a change, which it does within half a second.

Only credentials that were found are remembered, under names of usual length: strangers can neither push others out with
names that do not exist nor fill the memory with long ones.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from tbmq.auth.model import Principal
from tbmq.storage.entities import Credentials

MAX_KEY_CHARACTERS = 512


def principal_of(credentials: Credentials) -> Principal:
    """Who a client is that has shown what these credentials ask for."""
    name = f"{credentials.proof.kind}:{credentials.id}"
    return Principal(name, credentials.client_type, credentials.rules, credentials.id, credentials.proof)


class Lookup(Protocol):
    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]: ...

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]: ...


Key = tuple[str | None, ...]


class Entry(NamedTuple):
    good_until: float
    found: list[Credentials]


class CachedLookup:
    """Stands before a Lookup and is one itself. Runs on one loop."""

    def __init__(
        self,
        lookup: Lookup,
        max_entries: int = 100_000,
        ttl_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._generation = 0
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._hits = 0
        self._misses = 0

    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
        return await self._find(("basic", client_id, username), lambda: self._lookup.find_basic(client_id, username))

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]:
        return await self._find(("x509", *common_names), lambda: self._lookup.find_x509(common_names))

    def clear(self) -> None:
        """Some credentials have changed, or may have."""
        self._generation += 1
        self._entries.clear()

    def statistics(self) -> dict[str, int]:
        return {"entries": len(self._entries), "hits": self._hits, "misses": self._misses}

    async def _find(self, key: Key, read: Callable[[], Awaitable[list[Credentials]]]) -> list[Credentials]:
        entry = self._entries.get(key)
        if entry is not None and self._clock() < entry.good_until:
            self._entries.move_to_end(key)
            self._hits += 1
            return entry.found
        self._misses += 1
        generation = self._generation
        found = await read()
        if found and generation == self._generation and self._max_entries and _characters(key) <= MAX_KEY_CHARACTERS:
            self._entries.pop(key, None)
            if len(self._entries) >= self._max_entries:
                self._entries.popitem(last=False)
            self._entries[key] = Entry(self._clock() + self._ttl_s, found)
        return found


def _characters(key: Key) -> int:
    return sum(len(part) for part in key if part is not None)
