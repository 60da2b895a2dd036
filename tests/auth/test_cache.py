"""What is remembered of logins, and for how long."""

from __future__ import annotations

from tbmq.auth.cache import DigestCache


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_entry_is_found_until_its_time_is_over():
    clock = Clock()
    cache = DigestCache(10, 60, clock)
    digest = cache.digest(b"id", b"hash", b"password")
    assert not cache.find(digest)
    cache.add(digest, "id")
    clock.now += 59.9
    assert cache.find(digest) and cache.holds(digest)
    cache.add(digest, "id")  # does not prolong it
    clock.now += 0.1
    assert not cache.holds(digest) and not cache.find(digest)
    assert cache.statistics() == {"entries": 0, "hits": 1, "misses": 2}
    assert cache._by_owner == {}


def test_entry_is_renewed_when_it_is_added_after_its_time():
    clock = Clock()
    cache = DigestCache(10, 60, clock)
    cache.add(b"digest", "id")
    clock.now += 61
    cache.add(b"digest", "id")
    assert cache.holds(b"digest")


def test_least_recently_used_goes_when_the_cache_is_full():
    cache = DigestCache(3, 60)
    for digest in (b"a", b"b", b"c"):
        cache.add(digest, digest.decode())
    assert cache.find(b"a")
    cache.add(b"d", "d")
    assert [cache.holds(digest) for digest in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert set(cache._by_owner) == {"a", "c", "d"}


def test_only_entries_of_the_owner_go_when_it_is_forgotten():
    cache = DigestCache(10, 60)
    for digest, owner in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"x", "")):
        cache.add(digest, owner)
    cache.forget("a")
    cache.forget("nobody")
    assert [cache.holds(digest) for digest in (b"a1", b"a2", b"b1", b"x")] == [False, False, True, True]
    cache.clear()
    assert not cache.holds(b"b1") and cache.statistics()["entries"] == 0


def test_nothing_is_kept_when_it_is_switched_off():
    for cache in (DigestCache(0, 60), DigestCache(10, 0)):
        cache.add(b"a", "a")
        assert not cache.find(b"a")


def test_digests_differ_when_parts_are_cut_elsewhere_or_the_process_is_another():
    cache = DigestCache(10, 60)
    assert cache.digest(b"ab", b"c") != cache.digest(b"a", b"bc")
    assert cache.digest(b"ab", b"c") == cache.digest(b"ab", b"c")
    assert cache.digest(b"ab", b"c") != DigestCache(10, 60).digest(b"ab", b"c")


def test_no_password_is_kept():
    cache = DigestCache(10, 60)
    cache.add(cache.digest(b"id", b"hash", b"hunter2-hunter2"), "id")
    assert b"hunter2" not in repr(vars(cache)).encode()
