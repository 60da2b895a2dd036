# cython: language_level=3
"""The tries of the broker: topic filters -> subscribers, and topics -> retained messages.

    SubscriptionTrie   add "a/+/c", "a/#"; who wants "a/b/c"?        below
    TopicTrie          set "a/b/c"; which topics does "a/#" match?   `_topic_trie.pxi`

Both are made of layers, each in a file that starts with its drawing:

    topic_tree.h         hashing, memory
    _arena.pxd           slots by number; a table from hashes to numbers
    _topic_tree.pxd      words, nodes, edges             _subscribers.pxd         lists of subscriptions, groups, Match
    _topic_index.pxd     topics -> numbers, walks        _trie_search.pxd         the match, level by level
    _match_cache.pxd     topics -> results               _subscription_tree.pxd   add and remove
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tbmq._arena cimport NONE, tree_fail_after
from tbmq._match_cache cimport (
    CachedMatch, MatchCache, cache_bytes, cache_destroy, cache_drop_all, cache_id, cache_init, cache_invalidate_filter,
    cache_invalidate_topic, cache_put, cache_wants,
)
from tbmq._subscribers cimport (
    Group, IDENTIFIER_SHIFT, MAX_IDENTIFIER, Match, NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED, Subscription, Target,
)
from tbmq._subscription_tree cimport (
    SubscriptionTree, subscribe, subscribe_shared, subscriptions_bytes, subscriptions_destroy, subscriptions_init,
    unsubscribe, unsubscribe_shared,
)
from tbmq._topic_index cimport (
    TopicIndex, Walk, index_find, index_init, index_put, index_take, topic_node, topic_size, walk_begin, walk_end,
    walk_next, walk_register, walk_rest, walk_unregister, write_topic,
)
from tbmq._topic_tree cimport (
    ADDED, INVALID, MAX_TOPIC_BYTES, NO_MEMORY, REPLACED, ROOT, tree_bytes, tree_destroy, tree_hash,
)
from tbmq._trie_search cimport scratch_bytes, scratch_destroy, search_tree
from tbmq._wire cimport has_more_levels, has_wildcard, is_mqtt_utf8

cdef uint64_t[2] SEED  # of all hashes: drawn at start, so that nobody can prepare topics that collide
memcpy(SEED, PyBytes_AS_STRING(os.urandom(16)), 16)
SEED[1] |= 1

include "_trie_texts.pxi"
include "_topic_trie.pxi"


def fail_allocation(long after):
    """For tests: let the allocation after the next `after` ones fail, once. -1: none."""
    global tree_fail_after
    tree_fail_after = after


cdef inline uint32_t topic_hash(const uint8_t* topic, size_t size) noexcept:
    return <uint32_t>(tree_hash(topic, size, SEED) >> 32)


cdef uint32_t options_of(int qos, bint no_local, bint retain_as_published, uint32_t identifier) except? 0xFFFFFFFF:
    if qos < 0 or qos > 2:
        raise ValueError("qos is 0, 1 or 2")
    if identifier > MAX_IDENTIFIER:
        raise ValueError("an identifier is at most 268,435,455; 0 is none")
    return (identifier << IDENTIFIER_SHIFT | (RETAIN_AS_PUBLISHED if retain_as_published else 0)
            | (NO_LOCAL if no_local else 0) | <uint32_t>qos)


@cython.final
cdef class SubscriptionTrie:
    """Topic filter -> subscribers, with a cache of matches. `cache_entries` 0: without one."""

    def __cinit__(self, uint32_t cache_entries=65536, uint64_t cache_bytes=64 << 20):
        if not subscriptions_init(&self.tree, SEED) or not cache_init(&self.cache, cache_entries, cache_bytes, SEED):
            raise MemoryError()

    def __dealloc__(self):
        subscriptions_destroy(&self.tree)
        cache_destroy(&self.cache)
        scratch_destroy(&self.scratch)

    # --- C ------------------------------------------------------------------------------------------------------------

    cdef const Match* search(self, const uint8_t* topic, size_t size) noexcept:
        return search_tree(&self.tree.tree, &self.scratch, topic, size)

    cdef const Match* find(self, const uint8_t* topic, size_t size) noexcept:
        cdef MatchCache* cache = &self.cache
        cdef CachedMatch* entry
        cdef const Match* match
        cdef uint32_t hash, id
        if cache.entries == NULL:
            return self.search(topic, size)
        hash = topic_hash(topic, size)
        id = cache_id(cache, topic, size, hash)
        if id != NONE:
            entry = cache.entries[id]
            entry.was_hit = 1
            cache.hits += 1
            return &entry.match
        cache.misses += 1
        match = self.search(topic, size)
        if match != NULL and cache_wants(cache, hash):
            return cache_put(cache, topic, size, hash, match)
        return match

    cdef void invalidate(self, const uint8_t* topic_filter, size_t size) noexcept:
        """Who is a target of topics that this filter matches has changed."""
        if self.cache.size == 0:
            return
        if has_wildcard(topic_filter, size):
            cache_invalidate_filter(&self.cache, topic_filter, size)
        else:
            cache_invalidate_topic(&self.cache, topic_filter, size, topic_hash(topic_filter, size))

    cdef int insert(self, const uint8_t* topic_filter, size_t size, uint32_t subscriber, uint32_t options) noexcept:
        cdef bint is_stale
        cdef int answer = subscribe(&self.tree, topic_filter, size, subscriber, options, &is_stale)
        if is_stale:
            self.invalidate(topic_filter, size)
        return answer

    cdef int delete(self, const uint8_t* topic_filter, size_t size, uint32_t subscriber) noexcept:
        cdef bint is_stale
        cdef int answer = unsubscribe(&self.tree, topic_filter, size, subscriber, &is_stale)
        if is_stale:
            self.invalidate(topic_filter, size)
        return answer

    cdef int insert_shared(self, const uint8_t* group, size_t group_size, const uint8_t* topic_filter, size_t size,
                           uint32_t subscriber, uint32_t options) noexcept:
        cdef bint is_stale
        cdef int answer = subscribe_shared(
            &self.tree, group, group_size, topic_filter, size, subscriber, options, &is_stale)
        if is_stale:
            self.invalidate(topic_filter, size)
        return answer

    cdef int delete_shared(self, const uint8_t* group, size_t group_size, const uint8_t* topic_filter, size_t size,
                           uint32_t subscriber) noexcept:
        cdef bint is_stale
        cdef int answer = unsubscribe_shared(&self.tree, group, group_size, topic_filter, size, subscriber, &is_stale)
        if is_stale:
            self.invalidate(topic_filter, size)
        return answer

    # --- Python -------------------------------------------------------------------------------------------------------

    def __len__(self):
        return self.tree.n_subscriptions + self.tree.n_shared

    def add(self, topic_filter, uint32_t subscriber, int qos=0, bint no_local=False, bint retain_as_published=False,
            uint32_t identifier=0):
        """True: new; False: it was there, and has these options now. ValueError: not a topic filter."""
        cdef Text text
        view(topic_filter, &text)
        return check(self.insert(
            text.data, text.size, subscriber, options_of(qos, no_local, retain_as_published, identifier))) == ADDED

    def remove(self, topic_filter, uint32_t subscriber):
        """False: it was not there."""
        cdef Text text
        view(topic_filter, &text)
        return check(self.delete(text.data, text.size, subscriber)) == 1

    def add_shared(self, group, topic_filter, uint32_t subscriber, int qos=0, bint no_local=False,
                   bint retain_as_published=False, uint32_t identifier=0):
        """As add, for a member of a group. The same filter without a group, or in another one, is independent."""
        cdef Text name, text
        view(group, &name)
        view(topic_filter, &text)
        return check(self.insert_shared(
            name.data, name.size, text.data, text.size, subscriber,
            options_of(qos, no_local, retain_as_published, identifier))) == ADDED

    def remove_shared(self, group, topic_filter, uint32_t subscriber):
        """False: it was not there."""
        cdef Text name, text
        view(group, &name)
        view(topic_filter, &text)
        return check(self.delete_shared(name.data, name.size, text.data, text.size, subscriber)) == 1

    def match(self, topic, bint use_cache=True):
        """(subscriber, qos, no_local, retain_as_published, identifiers) for each subscriber of a plain filter."""
        cdef Text text
        cdef const Match* found
        cdef bytes copy, numbers  # making tuples may run the collector, and that anything: the result may not stay
        cdef const Target* target
        cdef const uint32_t* identifiers
        cdef uint32_t i, k
        cdef list targets = []
        view(topic, &text)
        found = self.find(text.data, text.size) if use_cache else self.search(text.data, text.size)
        if found == NULL:
            raise MemoryError()
        copy = PyBytes_FromStringAndSize(<const char*>found.targets, found.n_targets * sizeof(Target))
        numbers = PyBytes_FromStringAndSize(<const char*>found.identifiers, found.n_identifiers * sizeof(uint32_t))
        identifiers = <const uint32_t*>PyBytes_AS_STRING(numbers)
        for i in range(<uint32_t>(PyBytes_GET_SIZE(copy) // sizeof(Target))):
            target = <const Target*>PyBytes_AS_STRING(copy) + i
            targets.append((
                target.subscriber, target.qos, target.no_local != 0, target.retain_as_published != 0,
                [identifiers[target.first_identifier + k] for k in range(target.n_identifiers)],
            ))
        return targets

    def match_shared(self, topic, bint use_cache=True):
        """(group, members) for each group of a filter that matches; a member is a tuple as add_shared took it."""
        cdef Text text
        cdef const Match* found
        cdef Group* group
        cdef const Subscription* member
        cdef bytes copy
        cdef uint32_t i
        cdef list copies = []
        cdef list groups = []
        view(topic, &text)
        found = self.find(text.data, text.size) if use_cache else self.search(text.data, text.size)
        if found == NULL:
            raise MemoryError()
        for i in range(found.n_groups):
            group = found.groups[i]
            copies.append(PyBytes_FromStringAndSize(<const char*>group.name, group.name_size))
            copies.append(PyBytes_FromStringAndSize(
                <const char*>group.members.items, group.members.size * sizeof(Subscription)))
        for name, copy in zip(copies[::2], copies[1::2]):
            members = []
            for i in range(<uint32_t>(PyBytes_GET_SIZE(copy) // sizeof(Subscription))):
                member = <const Subscription*>PyBytes_AS_STRING(copy) + i
                members.append((
                    member.subscriber, member.options & QOS_MASK, member.options & NO_LOCAL != 0,
                    member.options & RETAIN_AS_PUBLISHED != 0, member.options >> IDENTIFIER_SHIFT,
                ))
            groups.append((name.decode(), members))
        return groups

    def match_many(self, list topics, bint use_cache=True):
        """Match each of these `bytes` and return the number of all targets and groups: the C loop of the benchmarks."""
        cdef uint64_t total = 0
        cdef const Match* found
        cdef bytes topic
        for topic in topics:
            if use_cache:
                found = self.find(<const uint8_t*>PyBytes_AS_STRING(topic), <size_t>PyBytes_GET_SIZE(topic))
            else:
                found = self.search(<const uint8_t*>PyBytes_AS_STRING(topic), <size_t>PyBytes_GET_SIZE(topic))
            if found == NULL:
                raise MemoryError()
            total += found.n_targets + found.n_groups
        return total

    def clear(self):
        """Remove everything; the counters of the cache stay. MemoryError: nothing has changed."""
        cdef SubscriptionTree empty
        if not subscriptions_init(&empty, SEED):
            subscriptions_destroy(&empty)
            raise MemoryError()
        cache_drop_all(&self.cache)
        subscriptions_destroy(&self.tree)
        self.tree = empty

    def statistics(self):
        """Sizes now, and counters since the start. `bytes` is all memory of the trie, the cache included."""
        cdef MatchCache* cache = &self.cache
        return {
            "subscriptions": self.tree.n_subscriptions,
            "shared_subscriptions": self.tree.n_shared,
            "shared_groups": self.tree.group_ids.live,
            "nodes": self.tree.tree.nodes.live - 1,
            "words": self.tree.tree.words.live - 1,
            "bytes": subscriptions_bytes(&self.tree) + scratch_bytes(&self.scratch) + cache_bytes(cache),
            "cache_entries": cache.size,
            "cache_bytes": cache.used_bytes,
            "cache_hits": cache.hits,
            "cache_misses": cache.misses,
            "cache_invalidations": cache.invalidations,
            "cache_evictions": cache.evictions,
            "cache_flushes": cache.flushes,
        }
