"""The cache of SubscriptionTrie: it never lies, forgets exactly what it must, and stays within its bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq._trie import SubscriptionTrie, fail_allocation
from tests.reference.matcher import matches

LEVELS = ["", "a", "b", "c", "$x"]
ALL_TOPICS = [f"{a}/{b}" for a in LEVELS for b in LEVELS] + [level for level in LEVELS if level] + ["a/b/c", "a/b/a/b"]
FILTERS = st.lists(st.sampled_from([*LEVELS, "+", "+"]), min_size=1, max_size=3).map("/".join).filter(bool) | st.lists(
    st.sampled_from([*LEVELS, "+"]), max_size=2
).map(lambda levels: "/".join([*levels, "#"]))


def keep(trie: SubscriptionTrie, topics: list[str]) -> None:
    """A topic is kept when it is seen the second time."""
    for _ in range(2):
        for topic in topics:
            trie.match(topic)


def is_kept(trie: SubscriptionTrie, topic: str) -> bool:
    """Asks; a topic that was dropped is only remembered as seen once, so asking does not keep it."""
    before = trie.statistics()["cache_hits"]
    trie.match(topic)
    return trie.statistics()["cache_hits"] > before


def test_topic_is_kept_when_it_is_seen_the_second_time():
    trie = SubscriptionTrie()
    trie.add("#", 1)
    entries = []
    for _ in range(4):
        trie.match("a/b")
        entries.append(trie.statistics()["cache_entries"])
    assert entries == [0, 1, 1, 1]
    assert trie.statistics()["cache_hits"] == 2
    assert trie.statistics()["cache_misses"] == 2


def test_topics_seen_once_are_not_kept():
    trie = SubscriptionTrie()
    for number in range(50_000):
        trie.match(b"t/%d" % number)
    assert trie.statistics()["cache_entries"] < 50  # only where two hashes are equal


@given(FILTERS, st.sampled_from(["add", "remove", "replace", "first member", "last member"]))
def test_change_drops_exactly_the_topics_that_the_filter_matches(topic_filter: str, change: str):
    trie = SubscriptionTrie()
    trie.add("#", 1)
    if change in ("remove", "replace"):
        trie.add(topic_filter, 2)
    if change == "last member":
        trie.add_shared("g", topic_filter, 2)
    keep(trie, ALL_TOPICS)
    assert trie.statistics()["cache_entries"] == len(ALL_TOPICS)
    {
        "add": lambda: trie.add(topic_filter, 2),
        "remove": lambda: trie.remove(topic_filter, 2),
        "replace": lambda: trie.add(topic_filter, 2, qos=1),
        "first member": lambda: trie.add_shared("g", topic_filter, 2),
        "last member": lambda: trie.remove_shared("g", topic_filter, 2),
    }[change]()
    dropped = [topic for topic in ALL_TOPICS if matches(topic_filter, topic)]
    numbers = trie.statistics()
    assert numbers["cache_invalidations"] == len(dropped)
    assert numbers["cache_entries"] == len(ALL_TOPICS) - len(dropped)
    assert numbers["cache_flushes"] == 0
    assert [topic for topic in ALL_TOPICS if not is_kept(trie, topic)] == dropped


@pytest.mark.parametrize(
    "change",
    [
        lambda trie: trie.add("a/+", 1, qos=1),
        lambda trie: trie.add_shared("g", "a/#", 2),
        lambda trie: trie.add_shared("g", "a/#", 1, qos=2),
        lambda trie: trie.remove_shared("g", "a/#", 3),
        lambda trie: trie.remove("a/b", 7),
        lambda trie: trie.remove("a/never", 1),
    ],
    ids=["same options", "second member", "other options of a member", "a member of several", "stranger", "no filter"],
)
def test_change_that_concerns_no_match_drops_nothing(change):
    trie = SubscriptionTrie()
    trie.add("a/+", 1, qos=1)
    trie.add_shared("g", "a/#", 1)
    trie.add_shared("g", "a/#", 3)
    keep(trie, ["a/b", "a/c"])
    change(trie)
    assert trie.statistics()["cache_invalidations"] == 0
    assert is_kept(trie, "a/b")


def test_members_are_seen_through_a_kept_match():
    trie = SubscriptionTrie()
    trie.add_shared("g", "t", 1)
    keep(trie, ["t"])
    for subscriber in range(2, 100):
        trie.add_shared("g", "t", subscriber)
    assert is_kept(trie, "t")
    [(group, members)] = trie.match_shared("t")
    assert group == "g"
    assert sorted(member[0] for member in members) == list(range(1, 100))


def test_number_of_entries_is_bounded():
    trie = SubscriptionTrie(cache_entries=100)
    trie.add("#", 1)
    for number in range(1_000):
        for _ in range(2):
            assert trie.match(f"t/{number}") == [(1, 0, False, False, [])]
        assert trie.statistics()["cache_entries"] <= 100
    numbers = trie.statistics()
    assert numbers["cache_entries"] == 100
    assert numbers["cache_evictions"] >= 890


def test_topic_in_use_survives_a_stream_of_others():
    trie = SubscriptionTrie(cache_entries=100)
    keep(trie, ["in/use"])
    for number in range(5_000):
        keep(trie, [f"t/{number}"])
        assert is_kept(trie, "in/use")


def test_bytes_of_entries_are_bounded():
    bound = 1 << 20
    trie = SubscriptionTrie(cache_bytes=bound)
    for subscriber in range(1_000):
        trie.add("wide/+", subscriber, identifier=subscriber + 1)
    for number in range(200):  # 20 KB each
        keep(trie, [f"wide/{number}"])
        assert len(trie.match(f"wide/{number}")) == 1_000
        assert trie.statistics()["cache_bytes"] <= bound
    assert 20 < trie.statistics()["cache_entries"] < 60
    for subscriber in range(1_000, 20_000):
        trie.add("wider/+", subscriber)
    keep(trie, ["wider/1"])
    assert len(trie.match("wider/1")) == 19_000  # too large to be kept
    assert not is_kept(trie, "wider/1")
    deep = "/" * 20_000
    keep(trie, [deep])
    assert not is_kept(trie, deep)


def test_cache_can_be_switched_off():
    trie = SubscriptionTrie(cache_entries=0)
    trie.add("#", 1)
    keep(trie, ["a"])
    trie.add("a", 2)
    assert [target[0] for target in trie.match("a")] == [1, 2]
    assert trie.statistics()["cache_entries"] == 0


def test_topics_that_are_no_topics_are_not_kept():
    trie = SubscriptionTrie()
    keep(trie, ["a/+", "#", "", "x" * 65_536])
    assert trie.statistics()["cache_entries"] == 0


def test_storm_of_searches_in_vain_drops_everything_once_instead():
    """Each change looks at all first levels for nothing. Without look-ups in between that is soon not worth it."""
    trie = SubscriptionTrie()
    topics = [f"{number}/x" for number in range(20_000)]
    keep(trie, topics)
    kept = trie.statistics()["cache_entries"]
    assert kept > 19_900
    for number in range(20):
        trie.add(f"+/y/{number}", 1)
    assert trie.statistics()["cache_entries"] == kept  # a few are precise
    for number in range(1_000):
        trie.add(f"+/x/{number}", 1)
    assert trie.statistics()["cache_flushes"] == 1
    assert trie.statistics()["cache_entries"] == 0
    trie.add("1/#", 2)
    assert [target[0] for target in trie.match("1/x")] == [2]


def test_look_ups_earn_precision():
    trie = SubscriptionTrie()
    topics = [b"%d/x" % number for number in range(5_000)]
    for number in range(3_000):
        if number % 2 == 0:
            trie.match_many(topics)
        trie.add(f"+/x/{number}", 1)
    assert trie.statistics()["cache_flushes"] == 0
    assert trie.statistics()["cache_entries"] > 4_990


def test_kept_matches_stay_right_when_memory_runs_out():
    """A change that succeeds although its search for stale matches finds no memory drops everything."""
    flushes = 0
    for after in range(30):
        trie = SubscriptionTrie()
        trie.add("a/#", 1)
        keep(trie, ["a/b", "a/c", "x"])
        fail_allocation(after)
        try:
            trie.add("+/b", 2)
        except MemoryError:
            assert is_kept(trie, "a/b")
        finally:
            fail_allocation(-1)
        flushes += trie.statistics()["cache_flushes"]
        for topic in ("a/b", "a/c", "x"):
            assert trie.match(topic) == trie.match(topic, use_cache=False)
    assert flushes == 1


def test_kept_matches_equal_fresh_ones_under_random_changes():
    trie = SubscriptionTrie(cache_entries=50)
    dice = random.Random(5)
    words = [f"w{number}" for number in range(6)]
    topics = ["/".join(dice.choice(words) for _ in range(dice.randrange(1, 4))) for _ in range(400)]
    there: list[tuple[str, int]] = []
    for _ in range(4_000):
        if there and dice.random() < 0.5:
            trie.remove(*there.pop(dice.randrange(len(there))))
        else:
            levels = [dice.choice([*words, "+"]) for _ in range(dice.randrange(1, 4))]
            there.append(("/".join([*levels[:-1], "#"] if dice.random() < 0.2 else levels), dice.randrange(100)))
            trie.add(*there[-1])
        for topic in dice.choices(topics, k=20):
            assert trie.match(topic) == trie.match(topic, use_cache=False)
    numbers = trie.statistics()
    assert numbers["cache_hits"] > 10_000
    assert min(numbers["cache_invalidations"], numbers["cache_evictions"]) > 500
