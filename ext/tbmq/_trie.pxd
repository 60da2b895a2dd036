# cython: language_level=3
"""The C side of the two tries, for the broker's hot path. See `_trie.pyx`; all of it runs on the worker's loop.

Texts are pointer and length, need not end with a zero, and are not kept. Answers: ADDED, REPLACED, UNCHANGED, INVALID,
NO_MEMORY.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from tbmq._match_cache cimport MatchCache
from tbmq._subscribers cimport (
    Group, IDENTIFIER_SHIFT, Match, MAX_IDENTIFIER, NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED, SubscriberList,
    Subscription, Target,
)
from tbmq._subscription_tree cimport SubscriptionTree
from tbmq._topic_index cimport TopicIndex, Walk
from tbmq._topic_tree cimport ADDED, INVALID, NO_MEMORY, REPLACED, UNCHANGED
from tbmq._trie_search cimport Scratch


cdef class SubscriptionTrie:
    cdef SubscriptionTree tree  # filters, subscriptions, groups
    cdef MatchCache cache       # results of matches, always right
    cdef Scratch scratch        # of the last search

    # The result of a match, cached or not. It belongs to the trie and is valid until the trie changes or is asked
    # again; a Group* lives as long as the group has members. NULL: no memory.
    cdef const Match* find(self, const uint8_t* topic, size_t size) noexcept
    # The same, never from the cache and not kept.
    cdef const Match* search(self, const uint8_t* topic, size_t size) noexcept

    # ADDED, REPLACED (other options), UNCHANGED, INVALID, NO_MEMORY (nothing has changed). Options as in Subscription.
    cdef int insert(self, const uint8_t* topic_filter, size_t size, uint32_t subscriber, uint32_t options) noexcept
    cdef int insert_shared(self, const uint8_t* group, size_t group_size, const uint8_t* topic_filter, size_t size,
                           uint32_t subscriber, uint32_t options) noexcept
    # 1: removed, 0: was not there, INVALID, NO_MEMORY (a filter of very many levels; nothing has changed).
    cdef int delete(self, const uint8_t* topic_filter, size_t size, uint32_t subscriber) noexcept
    cdef int delete_shared(self, const uint8_t* group, size_t group_size, const uint8_t* topic_filter, size_t size,
                           uint32_t subscriber) noexcept

    cdef void invalidate(self, const uint8_t* topic_filter, size_t size) noexcept


cdef class TopicTrie:
    cdef TopicIndex index

    # ADDED, REPLACED (then `old` holds the value before), INVALID (empty, too long, a wildcard), NO_MEMORY.
    cdef int put(self, const uint8_t* topic, size_t size, uint64_t value, uint64_t* old) noexcept
    # True, and the value in `value`; False: no such topic.
    cdef bint look_up(self, const uint8_t* topic, size_t size, uint64_t* value) noexcept
    # True, and the value that was there in `old`; False: no such topic.
    cdef bint take(self, const uint8_t* topic, size_t size, uint64_t* old) noexcept


cdef class TopicWalk:
    cdef TopicTrie trie  # keeps the index alive
    cdef Walk walk       # in trie.index.walks until it is at its end

    cdef void finish(self) noexcept
