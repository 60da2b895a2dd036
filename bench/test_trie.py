"""The tries at the size that they are built for: a million subscriptions, half a million topics.

Half of the filters are exact, half have a `+` or a `#`; all come from topics of four levels, a quarter of them each
from

    plant        site/building/floor/sensor, few words in all, many filters below each
    first level  device/..., unique, so that every subscription has a branch of its own
    last level   .../device, unique, so that few nodes have a hundred thousand children
    words        any of 1,000 at every level, so that hardly a branch is shared

A topic that is matched is one of the exact filters, and also matches wildcard filters of its family.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tbmq._trie import SubscriptionTrie, TopicTrie, topic_matches

SUBSCRIPTIONS = 1_000_000
TOPICS = 500_000
MATCHED = 20_000  # topics that one timed call matches
CHANGED = 50_000  # subscriptions that one timed call adds or removes

Subscriptions = list[tuple[bytes, int]]


def topic_levels(number: int, dice: random.Random, words: list[str]) -> list[str]:
    family, number = number % 4, number // 4
    if family == 0:
        sizes = {"site": 100, "building": 50, "floor": 20, "sensor": 100}
        return [f"{name}{dice.randrange(size)}" for name, size in sizes.items()]
    if family == 1:
        return [f"device{number}", "telemetry", "room", "temperature"]
    if family == 2:
        return ["telemetry", "room", "temperature", f"device{number}"]
    return [dice.choice(words) for _ in range(4)]


def with_wildcard(levels: list[str], number: int, dice: random.Random) -> list[str]:
    """In the families of devices the device's own level stays, as in what a device's user subscribes to."""
    own = {1: 0, 2: 3}.get(number % 4)
    position = dice.choice([place for place in range(4) if place != own])
    if dice.random() < 0.25:
        return [*levels[: max(position, 1 if own is None else own + 1)], "#"]
    return [*levels[:position], "+", *levels[position + 1 :]]


def filters() -> Iterator[bytes]:
    """Exact filter, wildcard filter, exact filter, ..."""
    dice = random.Random(1)
    words = [f"w{dice.getrandbits(40):x}" for _ in range(1_000)]
    for number in range(SUBSCRIPTIONS // 2):
        levels = topic_levels(number, dice, words)
        yield "/".join(levels).encode()
        yield "/".join(with_wildcard(levels, number, dice)).encode()


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


class Full(NamedTuple):
    trie: SubscriptionTrie
    subscriptions: Subscriptions
    topics: list[bytes]  # exact filters, in any order
    sizes: dict[str, float]


@pytest.fixture(scope="module")
def full() -> Full:
    """The trie with all subscriptions, in random order: a trie is not filled branch by branch."""
    subscriptions = [(topic_filter, number) for number, topic_filter in enumerate(filters())]
    topics = [topic_filter for topic_filter, _ in subscriptions[::2]]
    dice = random.Random(2)
    dice.shuffle(subscriptions)
    dice.shuffle(topics)
    topics = [bytes(bytearray(topic)) for topic in topics]  # copies in the order of use, as a socket's buffer has them
    before = resident_bytes()
    trie = SubscriptionTrie()
    for topic_filter, subscriber in subscriptions:
        trie.add(topic_filter, subscriber)
    sizes = {
        "bytes_per_subscription": round(trie.statistics()["bytes"] / SUBSCRIPTIONS, 1),
        "resident_bytes_per_subscription": round((resident_bytes() - before) / SUBSCRIPTIONS, 1),
    }
    assert len(trie) == SUBSCRIPTIONS
    for topic in topics[:3]:
        expected = [subscriber for topic_filter, subscriber in subscriptions if topic_matches(topic_filter, topic)]
        assert sorted(target[0] for target in trie.match(topic, use_cache=False)) == sorted(expected)
    return Full(trie, subscriptions, topics, sizes)


def test_match_uncached(benchmark: BenchmarkFixture, full: Full) -> None:
    """A new piece of the topics in each call, so that the caches of the processor do not know them."""
    pieces = [full.topics[start : start + MATCHED] for start in range(0, len(full.topics), MATCHED)]
    assert full.trie.match_many(pieces[0][:100], use_cache=False) == sum(
        len(full.trie.match(topic, use_cache=False)) for topic in pieces[0][:100]
    )
    calls = iter(range(1 << 30))
    targets = full.trie.match_many(pieces[0], use_cache=False) / MATCHED
    benchmark.extra_info.update(operations=MATCHED, targets_per_match=round(targets, 1), **full.sizes)
    benchmark(lambda: full.trie.match_many(pieces[next(calls) % len(pieces)], use_cache=False))


def test_match_cached(benchmark: BenchmarkFixture, full: Full) -> None:
    topics = list(dict.fromkeys(full.topics[: 2 * MATCHED]))[:MATCHED]
    total = full.trie.match_many(topics, use_cache=False)
    for _ in range(4):
        assert full.trie.match_many(topics) == total
    hits = full.trie.statistics()["cache_hits"]
    assert full.trie.match_many(topics) == total
    assert full.trie.statistics()["cache_hits"] - hits >= 0.999 * MATCHED
    benchmark.extra_info.update(operations=MATCHED)
    benchmark(full.trie.match_many, topics)


def add_all(trie: SubscriptionTrie, subscriptions: Subscriptions) -> None:
    for topic_filter, subscriber in subscriptions:
        trie.add(topic_filter, subscriber)


def remove_all(trie: SubscriptionTrie, subscriptions: Subscriptions) -> None:
    for topic_filter, subscriber in subscriptions:
        trie.remove(topic_filter, subscriber)


def test_insert(benchmark: BenchmarkFixture, full: Full) -> None:
    """Into the full trie, through the Python API; each call another piece, which was taken out before."""
    pieces = [full.subscriptions[start : start + CHANGED] for start in range(0, SUBSCRIPTIONS, CHANGED)]
    assert all(full.trie.remove(*subscription) for subscription in pieces[0])
    assert all(full.trie.add(*subscription) for subscription in pieces[0])
    assert len(full.trie) == SUBSCRIPTIONS
    calls = iter(range(1 << 30))

    def take_out() -> tuple[tuple[SubscriptionTrie, Subscriptions], dict[str, object]]:
        piece = pieces[next(calls) % len(pieces)]
        remove_all(full.trie, piece)
        return (full.trie, piece), {}

    benchmark.extra_info.update(operations=CHANGED, **full.sizes)
    benchmark.pedantic(add_all, setup=take_out, rounds=20)
    assert len(full.trie) == SUBSCRIPTIONS


def test_remove(benchmark: BenchmarkFixture, full: Full) -> None:
    """From the full trie; each call another piece, and the last one is put back before."""
    pieces = [full.subscriptions[start : start + CHANGED] for start in range(0, SUBSCRIPTIONS, CHANGED)]
    assert all(full.trie.remove(*subscription) for subscription in pieces[0])
    assert all(full.trie.add(*subscription) for subscription in pieces[0])
    out: list[Subscriptions] = []
    calls = iter(range(1 << 30))

    def put_back() -> tuple[tuple[SubscriptionTrie, Subscriptions], dict[str, object]]:
        if out:
            add_all(full.trie, out.pop())
        out.append(pieces[next(calls) % len(pieces)])
        return (full.trie, out[0]), {}

    benchmark.extra_info.update(operations=CHANGED)
    benchmark.pedantic(remove_all, setup=put_back, rounds=20)
    assert len(full.trie) == SUBSCRIPTIONS - CHANGED
    add_all(full.trie, out.pop())


@pytest.fixture(scope="module")
def retained() -> tuple[TopicTrie, list[bytes]]:
    topics = sorted({topic_filter for number, topic_filter in enumerate(filters()) if number % 2 == 0})[:TOPICS]
    random.Random(3).shuffle(topics)
    trie = TopicTrie()
    for number, topic in enumerate(topics):
        trie.set(topic, number)
    assert len(trie) == len(topics)
    return trie, topics


def test_topic_trie_set(benchmark: BenchmarkFixture, retained: tuple[TopicTrie, list[bytes]]) -> None:
    """New topics into the full trie; each call another piece, which was taken out before."""
    trie, topics = retained
    pieces = [topics[start : start + CHANGED] for start in range(0, len(topics), CHANGED)][:-1]
    calls = iter(range(1 << 30))

    def take_out() -> tuple[tuple[list[bytes]], dict[str, object]]:
        piece = pieces[next(calls) % len(pieces)]
        assert all(trie.remove(topic) is not None for topic in piece)
        return (piece,), {}

    def set_all(piece: list[bytes]) -> None:
        for number, topic in enumerate(piece):
            trie.set(topic, number)

    set_all(take_out()[0][0])
    assert len(trie) == len(topics)
    assert trie.get(pieces[0][7]) == 7
    benchmark.extra_info.update(operations=CHANGED, bytes_per_topic=round(trie.statistics()["bytes"] / len(topics), 1))
    benchmark.pedantic(set_all, setup=take_out, rounds=20)
    assert len(trie) == len(topics)


def test_topic_trie_match(benchmark: BenchmarkFixture, retained: tuple[TopicTrie, list[bytes]]) -> None:
    """An operation is a topic that a filter with wildcards finds."""
    trie, topics = retained
    topic_filter = b"+/building7/+/sensor1/#"
    expected = sum(topic_matches(topic_filter, topic) for topic in topics)
    assert len(trie.match(b"site7/#")) == sum(topic.startswith(b"site7/") for topic in topics)
    assert len(trie.match(topic_filter)) == expected > 0
    benchmark.extra_info.update(operations=len(trie.match(b"site7/#")))
    benchmark(trie.match, b"site7/#")
