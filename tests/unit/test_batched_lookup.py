"""Look-ups of credentials, many at once: few queries, right answers, errors for those who waited."""

import asyncio

import pytest

from tbmq.auth.batching import MAX_BATCH, BatchedLookup
from tbmq.storage.interfaces import StoreUnavailable


class Store:
    """Answers with what it was asked; its query ends when told."""

    def __init__(self):
        self.asked = []
        self.go = asyncio.Event()
        self.error = None

    async def find_basic_many(self, logins):
        self.asked.append(list(logins))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [[f"{client_id}/{username}"] for client_id, username in logins]

    async def find_x509(self, common_names):
        return list(common_names)


def run(main):
    asyncio.run(main())


def test_one_query_answers_all_who_came_while_the_last_was_under_way():
    async def main():
        store = Store()
        lookup = BatchedLookup(store)
        tasks = [asyncio.create_task(lookup.find_basic("first", None))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(lookup.find_basic(f"c{n % 10}", "u")) for n in range(100)]
        await asyncio.sleep(0)
        store.go.set()
        answers = await asyncio.gather(*tasks)
        assert answers == [["first/None"], *([f"c{n % 10}/u"] for n in range(100))]
        assert [len(asked) for asked in store.asked] == [1, 10]

    run(main)


def test_a_query_is_bounded():
    async def main():
        store = Store()
        store.go.set()
        lookup = BatchedLookup(store)
        await asyncio.gather(*(lookup.find_basic(f"c{n}", None) for n in range(2 * MAX_BATCH + 1)))
        assert [len(asked) for asked in store.asked] == [MAX_BATCH, MAX_BATCH, 1]

    run(main)


def test_an_error_reaches_everybody_who_waited_and_the_next_query_is_made():
    async def main():
        store = Store()
        store.go.set()
        store.error = StoreUnavailable("gone")
        lookup = BatchedLookup(store)
        answers = await asyncio.gather(*(lookup.find_basic(f"c{n}", None) for n in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        store.error = None
        assert await lookup.find_basic("c", "u") == ["c/u"]

    run(main)


def test_who_gives_up_does_not_take_the_answer_from_others():
    async def main():
        store = Store()
        lookup = BatchedLookup(store)
        impatient = asyncio.create_task(lookup.find_basic("c", "u"))
        patient = asyncio.create_task(lookup.find_basic("c", "u"))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        store.go.set()
        assert await patient == ["c/u"]

    run(main)
