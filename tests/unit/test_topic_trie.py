"""TopicTrie: topics -> numbers, matched by filters, at once or in pages while it changes."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tbmq._trie import TopicTrie, TopicWalk, fail_allocation
from tests.reference.matcher import ReferenceTopics, matches
from tests.vectors.topics import MALFORMED, MATCHES, FilterCase, MatchCase

LONG = "a-level-of-more-than-22-bytes"
LEVELS = ["", "a", "b", "$x", LONG]
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(
    st.lists(st.sampled_from([*LEVELS, "+", "+"]), max_size=3), st.sampled_from(["a", "+", "#", "#"])
).map(lambda parts: "/".join([*parts[0], parts[1]]))


def pages(walk: TopicWalk, limit: int) -> list[tuple[str, int]]:
    found = []
    while page := walk.next(limit):
        assert len(page) <= limit
        found += [(topic.decode(), value) for topic, value in page]
    assert walk.done
    return found


@pytest.mark.parametrize("case", MATCHES, ids=lambda case: f"{case.topic_filter} {case.topic}")
def test_filter_matches_topic_or_not(case: MatchCase):
    trie = TopicTrie()
    trie.set(case.topic, 7)
    assert trie.match(case.topic_filter) == [7] * case.matches
    assert trie.walk(case.topic_filter.encode()).next(10) == [(case.topic.encode(), 7)] * case.matches


def test_filters_match_among_all_topics():
    trie, reference = TopicTrie(), ReferenceTopics()
    for number, topic in enumerate({case.topic for case in MATCHES}):
        trie.set(topic, number)
        reference.values[topic] = number
    for case in MATCHES:
        expected = reference.match(case.topic_filter)
        assert sorted(trie.match(case.topic_filter)) == sorted(expected.values())
        assert sorted(pages(trie.walk(case.topic_filter), 2)) == sorted(expected.items())


def test_numbers_are_set_replaced_and_removed():
    trie = TopicTrie()
    assert trie.set("a/b", 1) is None
    assert trie.set(b"a/b", 2**64 - 1) == 1
    assert trie.get("a/b") == 2**64 - 1
    assert trie.get("a") is None
    assert trie.get("a/b/c") is None
    assert trie.get("x") is None
    assert trie.set("a", 0) is None
    assert len(trie) == 2
    assert trie.remove("a/b") == 2**64 - 1
    assert trie.remove("a/b") is None
    assert trie.get("a") == 0
    assert trie.remove("a") == 0
    assert trie.statistics()["nodes"] == trie.statistics()["words"] == len(trie) == 0


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a#", "a/b+c", "x" * 65_536])
def test_what_is_no_topic_is_refused(topic: str):
    trie = TopicTrie()
    with pytest.raises(ValueError):
        trie.set(topic, 1)
    assert trie.get(topic) is None
    assert trie.remove(topic) is None
    assert trie.statistics()["nodes"] == 0


def test_numbers_out_of_range_are_refused():
    trie = TopicTrie()
    for value in (-1, 2**64):
        with pytest.raises(OverflowError):
            trie.set("a", value)
    assert len(trie) == 0


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_malformed_filter_is_refused(case: FilterCase):
    trie = TopicTrie()
    with pytest.raises(ValueError):
        trie.match(case.topic_filter)
    with pytest.raises(ValueError):
        trie.walk(case.topic_filter)


def test_topics_may_be_as_long_as_a_packet_allows():
    trie = TopicTrie()
    topics = ["/" * 65_535, "a" * 65_535, "/".join("ab" * 16_000), "/" * 20_000]
    for number, topic in enumerate(topics):
        trie.set(topic, number)
    assert sorted(trie.match("#")) == [0, 1, 2, 3]
    assert sorted(trie.match("/#")) == [0, 3]
    assert trie.match("+/" * 20_000 + "+") == [3]
    assert sorted(pages(trie.walk("#"), 1)) == sorted((topic, number) for number, topic in enumerate(topics))
    for topic in topics:
        trie.remove(topic)
    assert trie.statistics()["nodes"] == trie.statistics()["words"] == 0


# --- walks


class Walks(RuleBasedStateMachine):
    """Any sequence of changes while any number of walks are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = TopicTrie()
        self.reference = ReferenceTopics()
        self.walks: list[WalkModel] = []

    @rule(topic=TOPICS, value=st.integers(0, 2**64 - 1))
    def set(self, topic: str, value: int) -> None:
        assert self.trie.set(topic, value) == self.reference.values.get(topic)
        self.reference.values[topic] = value

    @rule(topics=st.lists(TOPICS, max_size=8))
    def set_many(self, topics: list[str]) -> None:
        for topic in topics:
            self.set(topic, len(topic))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.reference.values) or ["a"]) | TOPICS)
        assert self.trie.remove(topic) == self.reference.values.pop(topic, None)
        for walk in self.walks:
            walk.stayed.discard(topic)

    @rule(topic_filter=FILTERS)
    def remove_matching(self, topic_filter: str) -> None:
        for topic in self.reference.match(topic_filter):
            assert self.trie.remove(topic) == self.reference.values.pop(topic)
            for walk in self.walks:
                walk.stayed.discard(topic)

    @rule()
    def remove_and_set_again(self) -> None:
        """What was visited already must not come a second time."""
        for topic, value in self.reference.values.items():
            self.trie.remove(topic)
            self.trie.set(topic, value)
        for walk in self.walks:
            walk.stayed.clear()

    @rule()
    def clear(self) -> None:
        self.trie.clear()
        self.reference = ReferenceTopics()
        for walk in self.walks:
            assert walk.walk.done
            walk.stayed.clear()

    @rule(topic_filter=FILTERS)
    def walk(self, topic_filter: str) -> None:
        stayed = set(self.reference.match(topic_filter))
        self.walks.append(WalkModel(self.trie.walk(topic_filter), topic_filter, stayed))

    @rule(data=st.data(), limit=st.integers(1, 3), max_visits=st.sampled_from([0, 0, 1, 3]), comes_back=st.booleans())
    def next_page(self, data: st.DataObject, limit: int, max_visits: int, comes_back: bool) -> None:
        if not self.walks:
            return
        model = self.walks[data.draw(st.integers(0, len(self.walks) - 1))]  # drawing itself would keep it alive
        page = model.walk.next(limit, max_visits)
        assert len(page) <= limit
        for topic, value in page:
            assert self.reference.values[topic.decode()] == value
            assert matches(model.topic_filter, topic.decode())
            assert topic.decode() not in model.seen
            model.seen.add(topic.decode())
            if comes_back:
                self.trie.remove(topic)
                self.trie.set(topic, value)
                for walk in self.walks:
                    walk.stayed.discard(topic.decode())
        if (not page and not max_visits) or model.walk.done:
            assert model.walk.done
            assert model.stayed <= model.seen
            assert model.walk.next(limit) == []
            self.walks.remove(model)

    @rule()
    def forget_a_walk(self) -> None:
        if self.walks:
            self.walks.pop()

    @invariant()
    def matches_are_right(self) -> None:
        for topic_filter in ("#", "+", "a/#", "+/+", "$x/#", "/+", "+/a/#"):
            expected = sorted(self.reference.match(topic_filter).values())
            assert sorted(self.trie.match(topic_filter)) == expected
        numbers = self.trie.statistics()
        assert numbers["topics"] == len(self.trie) == len(self.reference.values)
        prefixes = {tuple(t.split("/")[: n + 1]) for t in self.reference.values for n in range(t.count("/") + 1)}
        assert numbers["nodes"] == len(prefixes)
        assert numbers["words"] >= len({prefix[-1] for prefix in prefixes})  # walks hold some, too

    def teardown(self) -> None:
        for model in self.walks:
            pages(model.walk, 5)
        self.walks.clear()
        for topic in self.reference.values:
            self.trie.remove(topic)
        assert self.trie.statistics()["words"] == self.trie.statistics()["nodes"] == 0


class WalkModel:
    def __init__(self, walk: TopicWalk, topic_filter: str, stayed: set[str]) -> None:
        self.walk = walk
        self.topic_filter = topic_filter
        self.stayed = stayed  # matching topics that were there all the time
        self.seen: set[str] = set()


TestWalks = Walks.TestCase


def test_walk_goes_on_when_all_that_it_rests_on_goes():
    trie = TopicTrie()
    for a in range(10):
        for b in range(10):
            trie.set(f"{a}/{b}/x", a * 10 + b)
    walk = trie.walk("+/+/x")
    seen = [value for _, value in walk.next(25)]
    for value in range(99):
        trie.remove(f"{value // 10}/{value % 10}/x")
    rest = [value for _, value in walk.next(100)]
    assert (99 in seen) != (99 in rest)
    assert set(rest) <= {99}
    assert walk.next(1) == []


def test_topic_that_goes_and_comes_back_does_not_come_twice():
    trie = TopicTrie()
    for value in range(100):
        trie.set(f"{value // 10}/{value % 10}", value)
    walk = trie.walk("#")
    seen: list[tuple[bytes, int]] = []
    while len(seen) <= 100 and (page := walk.next(1)):
        seen += page
        for topic, value in seen:
            trie.remove(topic)
            trie.set(topic, value)
    assert sorted(value for _, value in seen) == list(range(100))


def test_walk_keeps_the_trie_alive():
    trie = TopicTrie()
    trie.set("a/b", 1)
    walk = trie.walk("a/+")
    del trie
    assert walk.next(5) == [(b"a/b", 1)]
    assert walk.next(5) == []


def test_walk_without_a_page_has_no_end():
    walk = TopicTrie().walk("#")
    with pytest.raises(ValueError):
        walk.next(0)
    assert walk.next(1) == []


def test_call_ends_after_so_many_visits():
    trie = TopicTrie()
    for number in range(1_000):
        trie.set(f"{number}/x/y", number)
    trie.set("0/x/z", 7)
    walk = trie.walk("+/x/z")
    calls, found = 0, []
    while not walk.done:
        found += walk.next(10, max_visits=100)
        calls += 1
    assert found == [(b"0/x/z", 7)]
    assert calls == 21  # a first and a second level of each, and the one that is found


def test_many_walks_rest_on_one_node():
    trie = TopicTrie()
    for number in range(100):
        trie.set(f"t/{number}", number)
    walks = [trie.walk("t/+") for _ in range(50)]
    firsts = {walk.next(1)[0][1] for walk in walks}
    assert len(firsts) == 1
    for number in range(100):
        if number % 2 == 0:
            trie.remove(f"t/{number}")
    expected = {number for number in range(100) if number % 2} - firsts
    for walk in walks:
        assert {value for _, value in walk.next(200)} == expected


# --- memory


def test_memory_comes_back_when_topics_go():
    trie = TopicTrie()
    before = trie.statistics()["bytes"]
    topics = [f"site{n % 100}/device{n}/x" for n in range(200_000)]
    for number, topic in enumerate(topics):
        trie.set(topic, number)
    assert sorted(trie.match("site7/#")) == list(range(7, 200_000, 100))
    assert trie.match("+/device77777/+") == [77_777]
    assert trie.statistics()["bytes"] - before < 200 * len(topics)
    order = list(range(len(topics)))
    random.Random(4).shuffle(order)
    for number in order:
        assert trie.remove(topics[number]) == number
    numbers = trie.statistics()
    assert numbers["nodes"] == numbers["words"] == numbers["topics"] == 0
    assert numbers["bytes"] - before < 9 << 20


def test_trie_is_what_it_was_when_memory_runs_out():
    def changes(trie: TopicTrie) -> list:
        return [
            lambda: trie.set(f"new/{LONG}/words/" + "/".join("abcdefghijkl"), 9),
            lambda: trie.set("/" * 300, 9),
            lambda: trie.walk("a/+/" + "x/" * 300 + "#"),
            lambda: trie.match("+/b"),
            trie.clear,
        ]

    for number in range(len(changes(TopicTrie()))):
        for after in range(1_000):
            trie = TopicTrie()
            trie.set("a/b", 1)
            change = changes(trie)[number]
            fail_allocation(after)
            try:
                change()
                break
            except MemoryError:
                fail_allocation(-1)
                assert trie.match("#") == [1]
                assert trie.statistics()["nodes"] == trie.statistics()["words"] == 2
            finally:
                fail_allocation(-1)
        else:
            pytest.fail("the change never succeeded")
