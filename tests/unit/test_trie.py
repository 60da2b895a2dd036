"""SubscriptionTrie: what matches, what merges, what goes, what it costs; random changes beside the reference."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tbmq._trie import SubscriptionTrie, fail_allocation, topic_matches
from tests.reference.matcher import Options, ReferenceSubscriptions, Target, matches
from tests.vectors.topics import MALFORMED, MATCHES, FilterCase, MatchCase

LONG = "a-level-of-more-than-22-bytes"
LEVELS = ["", "a", "b", "$x", LONG]
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, "+"]), max_size=4), st.sampled_from(["a", "+", "#"]))
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)
SUBSCRIBERS = st.integers(0, 3)
GROUPS = st.sampled_from(["g", "h", "$queue"])
OPTIONS = st.builds(Options, st.integers(0, 2), st.booleans(), st.booleans(), st.sampled_from([0, 1, 268_435_455]))


def by_subscriber(targets: list) -> dict[int, Target]:
    """Fails on a subscriber that comes twice."""
    result = {subscriber: Target(*rest[:-1], sorted(rest[-1])) for subscriber, *rest in targets}
    assert len(result) == len(targets)
    return result


def by_group(groups: list) -> list[tuple[str, list[tuple[int, Options]]]]:
    return sorted(
        (group, sorted((subscriber, Options(*rest)) for subscriber, *rest in members)) for group, members in groups
    )


def sizes(trie: SubscriptionTrie) -> dict[str, int]:
    names = ("subscriptions", "shared_subscriptions", "shared_groups", "nodes", "words")
    return {name: trie.statistics()[name] for name in names}


# --- one filter, one topic


@pytest.mark.parametrize("case", MATCHES, ids=lambda case: f"{case.topic_filter} {case.topic}")
def test_filter_matches_topic_or_not(case: MatchCase):
    trie = SubscriptionTrie()
    trie.add(case.topic_filter, 1)
    trie.add_shared("g", case.topic_filter.encode(), 2)
    assert matches(case.topic_filter, case.topic) == case.matches
    assert topic_matches(case.topic_filter, case.topic) == case.matches
    for _ in range(3):  # not cached, kept, from the cache
        assert [target[0] for target in trie.match(case.topic)] == [1] * case.matches
        assert [group for group, _ in trie.match_shared(case.topic.encode())] == ["g"] * case.matches


@pytest.mark.parametrize("case", MATCHES, ids=lambda case: f"{case.topic_filter} {case.topic}")
def test_filter_matches_among_all_others(case: MatchCase):
    trie = SubscriptionTrie()
    for number, topic_filter in enumerate({case.topic_filter for case in MATCHES}):
        trie.add(topic_filter, number)
    expected = [n for n, f in enumerate({case.topic_filter for case in MATCHES}) if matches(f, case.topic)]
    assert sorted(target[0] for target in trie.match(case.topic)) == expected


@given(FILTERS, TOPICS)
def test_topic_matches_is_the_reference(topic_filter: str, topic: str):
    assert topic_matches(topic_filter, topic) == matches(topic_filter, topic)


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_malformed_filter_is_refused_and_changes_nothing(case: FilterCase):
    trie = SubscriptionTrie()
    for change in (trie.add, trie.remove):
        with pytest.raises(ValueError):
            change(case.topic_filter, 1)
    for change in (trie.add_shared, trie.remove_shared):
        with pytest.raises(ValueError):
            change("g", case.topic_filter, 1)
    with pytest.raises(ValueError):
        topic_matches(case.topic_filter, "a")
    assert set(sizes(trie).values()) == {0}


@pytest.mark.parametrize("group", ["", "a/b", "+", "g#", "x" * 65_536])
def test_malformed_group_is_refused(group: str):
    trie = SubscriptionTrie()
    with pytest.raises(ValueError):
        trie.add_shared(group, "t", 1)
    assert set(sizes(trie).values()) == {0}


def test_values_out_of_range_are_refused():
    trie = SubscriptionTrie()
    for wrong in ({"qos": 3}, {"qos": -1}, {"identifier": 268_435_456}):
        with pytest.raises(ValueError):
            trie.add("t", 1, **wrong)
    for subscriber in (-1, 2**32):
        with pytest.raises(OverflowError):
            trie.add("t", subscriber)
    with pytest.raises(TypeError):
        trie.add(7, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        trie.add("\ud800", 1)
    assert len(trie) == 0


def test_filters_and_topics_may_be_as_long_as_a_packet_allows():
    trie = SubscriptionTrie()
    filters = ["/" * 65_535, "+/" * 10_000 + "#", "a" * 65_535, "/".join("ab" * 10_000), "/" * 30_000 + "+"]
    for number, topic_filter in enumerate(filters):
        assert trie.add(topic_filter, number)
    assert [target[0] for target in trie.match("/" * 65_535)] == [1, 0]
    assert [target[0] for target in trie.match("/" * 30_000)] == [1, 4]
    assert [target[0] for target in trie.match("a" * 65_535)] == [2]
    assert trie.match("a" * 65_536) == []
    assert trie.match("/" * 100_000) == trie.match("x/" * 10_000) == [(1, 0, False, False, [])]
    for number, topic_filter in enumerate(filters):
        assert trie.remove(topic_filter, number)
    assert set(sizes(trie).values()) == {0}


# --- merging


def test_overlapping_subscriptions_of_a_client_become_one_target():
    trie = SubscriptionTrie()
    trie.add("a/b", 1, qos=0, no_local=True, identifier=5)
    trie.add("a/+", 1, qos=2, no_local=True, identifier=268_435_455)
    trie.add("a/#", 1, qos=1, no_local=True, retain_as_published=True, identifier=5)
    trie.add("#", 2)
    assert by_subscriber(trie.match("a/b")) == {
        1: Target(2, True, True, [5, 5, 268_435_455]),
        2: Target(0, False, False, []),
    }
    trie.add("#", 1)
    assert by_subscriber(trie.match("a/b"))[1] == Target(2, False, True, [5, 5, 268_435_455])


def test_many_subscribers_of_many_filters_are_merged():
    trie, reference = SubscriptionTrie(), ReferenceSubscriptions()
    dice = random.Random(1)
    for topic_filter in ("a/b/c", "a/+/c", "+/b/c", "a/#", "#", "+/+/+"):
        for subscriber in dice.sample(range(3_000), 1_000):
            options = Options(dice.randrange(3), dice.random() < 0.9, dice.random() < 0.1, dice.randrange(3))
            trie.add(topic_filter, subscriber, *options)
            reference.plain[topic_filter, subscriber] = options
    for topic in ("a/b/c", "a/x/c", "x/y/z", "a", "a/b/c/d", "q"):
        assert by_subscriber(trie.match(topic)) == reference.match(topic)


def test_a_filter_may_have_very_many_subscribers():
    trie = SubscriptionTrie()
    dice = random.Random(2)
    there: dict[int, int] = {}
    for _ in range(30_000):
        subscriber, qos = dice.randrange(2_000), dice.randrange(3)
        if dice.random() < 0.5:
            assert trie.add("t", subscriber, qos) == (subscriber not in there)
            there[subscriber] = qos
        else:
            assert trie.remove("t", subscriber) == (there.pop(subscriber, None) is not None)
    assert {target[0]: target[1] for target in trie.match("t")} == there
    assert len(trie) == len(there)
    for subscriber in there:
        assert trie.remove("t", subscriber)
    assert set(sizes(trie).values()) == {0}


# --- shared groups


def test_plain_and_shared_subscriptions_are_independent():
    trie = SubscriptionTrie()
    assert trie.add("t", 1)
    assert trie.add_shared("g", "t", 1, qos=1)
    assert trie.add_shared("h", "t", 1, qos=2, identifier=7)
    assert not trie.add_shared("h", "t", 1, qos=2, identifier=7)
    assert len(trie) == 3
    assert trie.match("t") == [(1, 0, False, False, [])]
    assert by_group(trie.match_shared("t")) == [("g", [(1, Options(1))]), ("h", [(1, Options(2, identifier=7))])]
    assert trie.remove("t", 1)
    assert not trie.remove("t", 1)
    assert trie.match("t") == []
    assert trie.remove_shared("g", "t", 1)
    assert not trie.remove_shared("g", "t", 1)
    assert not trie.remove_shared("h", "t", 2)
    assert not trie.remove_shared("h", "u", 1)
    assert by_group(trie.match_shared("t")) == [("h", [(1, Options(2, identifier=7))])]
    assert trie.remove_shared("h", "t", 1)
    assert set(sizes(trie).values()) == {0}


def test_a_filter_may_have_very_many_groups():
    trie = SubscriptionTrie()
    names = [f"g{number}" for number in range(20_000)]
    for name in names:
        assert trie.add_shared(name, "t/#", 1)
    assert sorted(group for group, _ in trie.match_shared("t/x")) == sorted(names)
    for name in reversed(names):
        assert trie.remove_shared(name, "t/#", 1)
    assert trie.match_shared("t/x") == []
    assert set(sizes(trie).values()) == {0}


# --- random changes


class Changes(RuleBasedStateMachine):
    """Any sequence of changes; after each, cached and uncached matches are those of the reference."""

    @initialize(entries=st.sampled_from([0, 1, 4, 64]))
    def start(self, entries: int) -> None:
        self.trie = SubscriptionTrie(cache_entries=entries)
        self.reference = ReferenceSubscriptions()
        self.asked = ["a", "a/b", "/", "$x/a"]

    @rule(topic_filter=FILTERS, subscriber=SUBSCRIBERS, options=OPTIONS)
    def add(self, topic_filter: str, subscriber: int, options: Options) -> None:
        is_new = (topic_filter, subscriber) not in self.reference.plain
        assert self.trie.add(topic_filter, subscriber, *options) == is_new
        self.reference.plain[topic_filter, subscriber] = options

    @rule(group=GROUPS, topic_filter=FILTERS, subscriber=SUBSCRIBERS, options=OPTIONS)
    def add_shared(self, group: str, topic_filter: str, subscriber: int, options: Options) -> None:
        is_new = (group, topic_filter, subscriber) not in self.reference.shared
        assert self.trie.add_shared(group, topic_filter, subscriber, *options) == is_new
        self.reference.shared[group, topic_filter, subscriber] = options

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.reference.plain) or [("a", 0)]) | st.tuples(FILTERS, SUBSCRIBERS))
        assert self.trie.remove(*key) == (self.reference.plain.pop(key, None) is not None)

    @rule(data=st.data())
    def remove_shared(self, data: st.DataObject) -> None:
        there = sorted(self.reference.shared) or [("g", "a", 0)]
        key = data.draw(st.sampled_from(there) | st.tuples(GROUPS, FILTERS, SUBSCRIBERS))
        assert self.trie.remove_shared(*key) == (self.reference.shared.pop(key, None) is not None)

    @rule(topic=TOPICS)
    def ask(self, topic: str) -> None:
        self.asked = [topic, *self.asked[:7]]

    @rule()
    def clear(self) -> None:
        self.trie.clear()
        self.reference = ReferenceSubscriptions()

    @invariant()
    def matches_are_right(self) -> None:
        if not hasattr(self, "trie"):
            return
        for topic in self.asked:
            targets, groups = self.reference.match(topic), self.reference.match_shared(topic)
            for use_cache in (False, True):
                assert by_subscriber(self.trie.match(topic, use_cache)) == targets
                assert by_group(self.trie.match_shared(topic, use_cache)) == groups
        numbers = self.trie.statistics()
        assert len(self.trie) == len(self.reference.plain) + len(self.reference.shared)
        assert numbers["shared_groups"] == len({key[:2] for key in self.reference.shared})
        filters = {key[0] for key in self.reference.plain} | {key[1] for key in self.reference.shared}
        prefixes = {tuple(f.split("/")[: n + 1]) for f in filters for n in range(f.count("/") + 1)}
        assert numbers["nodes"] == len(prefixes)
        assert numbers["words"] == len({prefix[-1] for prefix in prefixes} - {"+", "#"})


TestChanges = Changes.TestCase


def test_thousands_of_filters_match_as_the_reference_says():
    trie, reference = SubscriptionTrie(), ReferenceSubscriptions()
    dice = random.Random(3)
    words = [f"w{number}" for number in range(12)]

    def random_filter() -> str:
        levels = [dice.choice([*words, "+", "+"]) for _ in range(dice.randrange(1, 5))]
        return "/".join(levels[:-1] + ["#"] if dice.random() < 0.2 else levels)

    for _ in range(6_000):
        key = (random_filter(), dice.randrange(500))
        trie.add(*key, qos=1)
        reference.plain[key] = Options(1)
        if dice.random() < 0.4:
            key = dice.choice(list(reference.plain)) if dice.random() < 0.05 else (random_filter(), dice.randrange(500))
            assert trie.remove(*key) == (reference.plain.pop(key, None) is not None)
    for _ in range(100):
        topic = "/".join(dice.choice(words) for _ in range(dice.randrange(1, 5)))
        assert by_subscriber(trie.match(topic)) == reference.match(topic)
    for topic_filter, subscriber in reference.plain:
        assert trie.remove(topic_filter, subscriber)
    assert set(sizes(trie).values()) == {0}


# --- memory


def test_memory_comes_back_when_subscriptions_go():
    trie = SubscriptionTrie()
    before = trie.statistics()["bytes"]
    filters = [f"site{n % 100}/+/device{n}/{'#' if n % 3 else 'x'}" for n in range(200_000)]
    for number, topic_filter in enumerate(filters):
        trie.add(topic_filter, number)
    assert trie.statistics()["bytes"] - before < 250 * len(filters)
    random.Random(4).shuffle(filters)
    for topic_filter in filters:
        number = int(topic_filter.split("/")[2].removeprefix("device"))
        assert trie.remove(topic_filter, number)
    assert set(sizes(trie).values()) == {0}
    # One chunk of nodes and one of words stay open, and what is left of the two tables.
    assert trie.statistics()["bytes"] - before < 9 << 20


def test_same_subscriptions_again_take_no_more_memory():
    trie = SubscriptionTrie()
    seen = []
    for _ in range(6):
        for number in range(20_000):
            trie.add(f"a/{number}/b", number)
        seen.append(trie.statistics()["bytes"])
        for number in range(20_000):
            trie.remove(f"a/{number}/b", number)
    assert max(seen) < 1.2 * seen[0]  # tables grow in steps, not always the same ones


def test_trie_is_what_it_was_when_memory_runs_out():
    """Let every single allocation of every kind of change fail once."""

    def changes(trie: SubscriptionTrie) -> list:
        return [
            lambda: trie.add(f"new/{LONG}/words/+/#", 9),
            lambda: trie.add("a/b", 9),  # one subscription becomes a list
            lambda: trie.add("many", 100),  # a list grows, its index too
            lambda: trie.add_shared("g", f"{LONG}/x/y", 9),
            lambda: trie.add_shared("g", "a/b", 9),
            lambda: trie.add_shared("h", "shared", 33),
            lambda: trie.add("/" * 300, 9),
            trie.clear,
        ]

    for number in range(len(changes(SubscriptionTrie()))):
        for after in range(1_000):
            trie, reference = SubscriptionTrie(), ReferenceSubscriptions()
            for subscriber in range(33 + after % 3):
                trie.add("many", subscriber)
                reference.plain["many", subscriber] = Options()
                if subscriber < 33:
                    trie.add_shared("h", "shared", subscriber)
            trie.add("a/b", 1)
            reference.plain["a/b", 1] = Options()
            before = sizes(trie)
            change = changes(trie)[number]
            fail_allocation(after)
            try:
                change()
                break
            except MemoryError:
                assert sizes(trie) == before
                for topic in ("many", "a/b", f"new/{LONG}/words/x", f"{LONG}/x/y"):
                    assert by_subscriber(trie.match(topic)) == reference.match(topic)
                    assert trie.match_shared(topic) == []
            finally:
                fail_allocation(-1)
        else:
            pytest.fail("the change never succeeded")


def test_match_is_right_or_fails_when_memory_runs_out():
    filters = [f"{a}/{b}/{c}" for a in "+a" for b in "+b" for c in "+c#"]
    failures = 0
    for after in range(40):
        trie = SubscriptionTrie()
        for subscriber in range(40):
            for topic_filter in filters:
                trie.add(topic_filter, subscriber, identifier=subscriber + 1)
            trie.add_shared("g", "a/#", subscriber)
        expected = {subscriber: Target(0, False, False, [subscriber + 1] * len(filters)) for subscriber in range(40)}
        for _ in range(3):
            fail_allocation(after)
            try:
                assert by_subscriber(trie.match("a/b/c")) == expected
            except MemoryError:
                failures += 1
            finally:
                fail_allocation(-1)
        assert by_subscriber(trie.match("a/b/c")) == expected
        trie.remove("+/+/+", 0)  # what was kept is dropped
        expected[0].identifiers.pop()
        assert by_subscriber(trie.match("a/b/c")) == expected
    assert failures > 5


def test_construction_fails_cleanly_when_memory_runs_out():
    after = 0
    while True:
        fail_allocation(after)
        try:
            SubscriptionTrie()
            break
        except MemoryError:
            after += 1
        finally:
            fail_allocation(-1)
    assert after > 5
