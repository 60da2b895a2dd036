"""Look-ups that are remembered, before a real store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tbmq.auth.lookup import MAX_KEY_CHARACTERS, CachedLookup
from tbmq.storage.entities import BasicProof, Credentials, X509Proof
from tests.auth.support import entity_store, on_loop


@on_loop
async def test_store_is_asked_once_until_something_changes(tmp_path):
    async with entity_store(tmp_path, BasicProof(username="u"), X509Proof("cn")) as (store, [by_name, by_cn]):
        lookup = CachedLookup(store.lookup)
        for _ in range(3):
            assert await lookup.find_basic("c", "u") == [by_name]
            assert await lookup.find_basic("c", None) == []
            assert await lookup.find_x509(["cn"]) == [by_cn]
        assert lookup.statistics() == {"entries": 2, "hits": 4, "misses": 5}
        await store.credentials.remove(by_name.name)
        added = Credentials("new", BasicProof(client_id="c"))
        await store.credentials.add([added])
        lookup.clear()
        assert await lookup.find_basic("c", "u") == [added]
        assert await lookup.find_basic("c", None) == [added]


@on_loop
async def test_store_is_asked_again_when_the_time_is_over(tmp_path):
    now = 0.0
    async with entity_store(tmp_path, BasicProof(username="u")) as (store, [credentials]):
        lookup = CachedLookup(store.lookup, ttl_s=60, clock=lambda: now)
        assert await lookup.find_basic("c", "u") == [credentials]
        changed = replace(credentials, rules=())
        await store.credentials.replace(changed)
        now = 59.9
        assert await lookup.find_basic("c", "u") == [credentials]
        now = 60.0
        assert await lookup.find_basic("c", "u") == [changed]


@on_loop
async def test_strangers_are_not_remembered_when_their_names_are_unknown_or_long(tmp_path):
    async with entity_store(tmp_path, BasicProof(username="u")) as (store, [credentials]):
        lookup = CachedLookup(store.lookup)
        assert await lookup.find_basic("c", "nobody") == []
        assert await lookup.find_basic("c" * MAX_KEY_CHARACTERS, "u") == [credentials]
        assert lookup.statistics()["entries"] == 0


@on_loop
async def test_least_recently_used_goes_when_the_cache_is_full(tmp_path):
    async with entity_store(tmp_path, BasicProof(username="u")) as (store, _):
        lookup = CachedLookup(store.lookup, max_entries=2)
        for client_id in ("a", "b", "a", "c", "a", "b"):
            await lookup.find_basic(client_id, "u")
        assert lookup.statistics() == {"entries": 2, "hits": 2, "misses": 4}


@on_loop
async def test_answer_is_not_kept_when_a_change_came_while_it_was_read():
    go = asyncio.Event()

    class Slow:
        found: list[Credentials] = []

        async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
            found = self.found
            await go.wait()
            return found

    slow = Slow()
    lookup = CachedLookup(slow)
    reading = asyncio.create_task(lookup.find_basic("c", "u"))
    await asyncio.sleep(0)
    slow.found = [Credentials("new", BasicProof(username="u"))]
    lookup.clear()
    go.set()
    assert await reading == []
    assert await lookup.find_basic("c", "u") == slow.found
