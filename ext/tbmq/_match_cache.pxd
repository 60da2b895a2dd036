# cython: language_level=3
"""Results of matches by topic, bounded, and dropped exactly when they become wrong.

    topic --hash--> index --> id --> entries[id] --> CachedMatch [ header | topic | groups | targets | identifiers ]
                              ^                         one block, so a hit touches few cache lines
    topics (TopicIndex) ------'
      `-- answers "which cached topics does this filter match?" when a wildcard filter changes

* **Admission**: a topic is kept when it is seen the second time. `doorkeeper` remembers hashes of topics seen once,
  DOOR_SEATS per hash, where a new one takes any seat; a stream of topics that never come back so costs one store each.
* **Eviction**: a clock hand gives every entry hit since its last visit a second chance, but passes at most CLOCK_STEPS.
* **Bounds**: `max_entries` and `max_bytes`; an entry counts with its block and with what its levels can cost in
  `topics`.
* **Invalidation**: an exact filter drops its own topic; a wildcard filter drops the topics that it matches and no
  others. Finding those may visit many nodes for nothing (`+/x` under a million first levels), so a search spends from a
  credit that look-ups earn; when the credit is used up the whole cache is dropped instead (counted as `flushes`). So a
  storm of subscriptions costs at most about as much as the publishing that filled the cache, and with traffic it stays
  precise.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from tbmq._arena cimport (
    NONE, Slot, Table, table_bytes, table_find, table_free, table_insert, table_remove, table_resize, tree_delete,
    tree_new, tree_resize,
)
from tbmq._subscribers cimport Group, Match, Target
from tbmq._topic_index cimport (
    TopicIndex, Walk, index_init, index_put, index_take, topic_node, walk_begin, walk_end, walk_next,
)
from tbmq._topic_tree cimport ADDED, ROOT, tree_bytes, tree_destroy

cdef enum:
    DOOR_SEATS = 4           # u32 that share a place of the doorkeeper; there are half as many places as entries
    CLOCK_STEPS = 16         # entries that one eviction passes at most
    BYTES_PER_LEVEL = 96     # node, edge and word of a level of `topics`, at most
    CREDIT_PER_LOOKUP = 4    # nodes that a search may visit per look-up since the last one
    MAX_CREDIT = 4_000_000   # nodes; some 50 ms in all

cdef struct CachedMatch:
    Match match              # points into this block
    uint32_t hash            # of the topic; the index is sorted by it
    uint32_t node            # of the topic in MatchCache.topics
    uint32_t cost            # bytes that it counts for
    uint32_t topic_size
    uint32_t was_hit         # since the clock hand passed

cdef struct MatchCache:
    TopicIndex topics        # cached topics -> id
    Table index              # hash of the topic -> id
    CachedMatch** entries    # by id, from 1; NULL: free. NULL as a whole: there is no cache
    uint32_t* spare          # ids below `fresh` that are free
    uint32_t* doorkeeper     # n_doors places of DOOR_SEATS hashes of topics that were seen once
    uint32_t n_doors
    uint32_t turn            # which seat is taken next
    uint32_t n_spare
    uint32_t fresh           # ids from here on were never used
    uint32_t hand            # the clock's: the id looked at last
    uint32_t max_entries
    uint32_t size            # entries
    uint64_t used_bytes      # cost of all entries
    uint64_t max_bytes
    uint64_t hits
    uint64_t misses
    uint64_t invalidations   # entries dropped because a filter changed
    uint64_t evictions       # entries dropped for want of room
    uint64_t flushes         # times that all entries were dropped instead of searching
    uint64_t credit          # nodes that searches may visit
    uint64_t earned_at       # look-ups when credit was last earned


cdef inline size_t door_bytes(const MatchCache* cache) noexcept nogil:
    return <size_t>cache.n_doors * DOOR_SEATS * sizeof(uint32_t)


cdef inline bint cache_init(
        MatchCache* cache, uint32_t max_entries, uint64_t max_bytes, const uint64_t* seed) noexcept nogil:
    """False: no memory; destroy it all the same. Its arrays are untouched memory until entries come."""
    memset(cache, 0, sizeof(MatchCache))
    cache.max_bytes = max_bytes
    cache.credit = MAX_CREDIT
    cache.fresh = 1
    if max_entries == 0:
        return True
    if not index_init(&cache.topics, seed) or not table_resize(&cache.index, 8):
        return False
    cache.entries = <CachedMatch**>tree_new((<size_t>max_entries + 1) * sizeof(CachedMatch*), False)
    cache.spare = <uint32_t*>tree_new(<size_t>max_entries * sizeof(uint32_t), False)
    cache.n_doors = max_entries // 2 + 1
    cache.doorkeeper = <uint32_t*>tree_new(door_bytes(cache), False)
    cache.max_entries = max_entries
    return cache.entries != NULL and cache.spare != NULL and cache.doorkeeper != NULL


cdef inline void cache_destroy(MatchCache* cache) noexcept nogil:
    cdef uint32_t id
    if cache.entries != NULL:
        for id in range(1, cache.fresh):
            free(cache.entries[id])
        tree_delete(cache.entries, (<size_t>cache.max_entries + 1) * sizeof(CachedMatch*))
    if cache.spare != NULL:
        tree_delete(cache.spare, <size_t>cache.max_entries * sizeof(uint32_t))
    if cache.doorkeeper != NULL:
        tree_delete(cache.doorkeeper, door_bytes(cache))
    tree_destroy(&cache.topics.tree)
    table_free(&cache.index)
    memset(cache, 0, sizeof(MatchCache))


cdef inline uint64_t cache_bytes(const MatchCache* cache) noexcept nogil:
    """All memory, as far as it was touched (the doorkeeper counts in full)."""
    if cache.entries == NULL:
        return 0
    return (cache.used_bytes + tree_bytes(&cache.topics.tree) + table_bytes(cache.index.capacity)
            + <uint64_t>cache.fresh * (sizeof(CachedMatch*) + sizeof(uint32_t)) + door_bytes(cache))


cdef inline uint8_t* cached_topic(CachedMatch* entry) noexcept nogil:
    return <uint8_t*>(entry + 1)


cdef inline uint32_t cache_id(const MatchCache* cache, const uint8_t* topic, size_t size, uint32_t hash) noexcept nogil:
    cdef const Slot* slot = table_find(&cache.index, hash)
    cdef CachedMatch* entry
    if slot != NULL:
        while slot.id != NONE and slot.hash == hash:
            entry = cache.entries[slot.id]
            if entry.topic_size == size and memcmp(cached_topic(entry), topic, size) == 0:
                return slot.id
            slot += 1
    return NONE


cdef inline void cache_drop(MatchCache* cache, uint32_t id) noexcept nogil:
    cdef CachedMatch* entry = cache.entries[id]
    cdef Slot* slot = table_find(&cache.index, entry.hash)
    while slot.id != id:
        slot += 1
    table_remove(&cache.index, slot)
    index_take(&cache.topics, entry.node)
    cache.used_bytes -= entry.cost
    cache.size -= 1
    cache.entries[id] = NULL
    cache.spare[cache.n_spare] = id
    cache.n_spare += 1
    free(entry)
    if cache.size == 0:  # keep the clock's round short
        cache.fresh = 1
        cache.n_spare = cache.hand = 0


cdef inline void cache_drop_all(MatchCache* cache) noexcept nogil:
    cdef uint32_t id
    for id in range(1, cache.fresh):
        if cache.entries[id] != NULL:
            cache_drop(cache, id)


cdef inline void cache_evict(MatchCache* cache) noexcept nogil:
    """Drop one entry; there is at least one."""
    cdef uint32_t steps = 0
    cdef CachedMatch* entry
    while True:
        cache.hand += 1
        if cache.hand >= cache.fresh:
            cache.hand = 1
        entry = cache.entries[cache.hand]
        if entry == NULL:
            continue
        if entry.was_hit == 0 or steps == CLOCK_STEPS:
            cache_drop(cache, cache.hand)
            cache.evictions += 1
            return
        entry.was_hit = 0
        steps += 1


cdef inline bint cache_wants(MatchCache* cache, uint32_t hash) noexcept nogil:
    """Was this topic (or one of the same hash) seen before, and not long ago? If not, remember it."""
    cdef uint32_t* seats = &cache.doorkeeper[((<uint64_t>hash * cache.n_doors) >> 32) * DOOR_SEATS]
    cdef uint32_t i
    for i in range(<uint32_t>DOOR_SEATS):
        if seats[i] == hash:
            seats[i] = 0
            return True
    cache.turn += 1
    for i in range(<uint32_t>DOOR_SEATS):
        if seats[i] == 0:
            seats[i] = hash
            return False
    seats[cache.turn % DOOR_SEATS] = hash
    return False


cdef inline const Match* cache_put(
        MatchCache* cache, const uint8_t* topic, size_t size, uint32_t hash, const Match* match) noexcept nogil:
    """Keep a copy and return it; or `match` itself, when it is too large or there is no memory."""
    cdef size_t topic_room = (size + 7) & ~<size_t>7
    cdef size_t block = (sizeof(CachedMatch) + topic_room + match.n_groups * sizeof(Group*)
                         + match.n_targets * sizeof(Target) + match.n_identifiers * sizeof(uint32_t))
    cdef uint64_t cost = block + BYTES_PER_LEVEL + 2 * size
    cdef uint64_t old = 0
    cdef uint32_t id, node = NONE
    cdef uint8_t* at
    cdef CachedMatch* entry
    cdef size_t i
    for i in range(size):
        if topic[i] == c"/":
            cost += BYTES_PER_LEVEL
    if cost > cache.max_bytes // 4 or cost > <uint64_t>0xFFFFFFFF:
        return match
    entry = <CachedMatch*>tree_resize(NULL, block)
    if entry == NULL:
        return match
    while cache.size == cache.max_entries or cache.used_bytes + cost > cache.max_bytes:
        cache_evict(cache)
    id = cache.spare[cache.n_spare - 1] if cache.n_spare else cache.fresh
    if not table_insert(&cache.index, hash, id):
        free(entry)
        return match
    if index_put(&cache.topics, topic, size, id, &old, &node) != ADDED:
        table_remove(&cache.index, table_find(&cache.index, hash))
        free(entry)
        return match
    if cache.n_spare:
        cache.n_spare -= 1
    else:
        cache.fresh += 1
    cache.entries[id] = entry
    cache.size += 1
    cache.used_bytes += cost
    entry.hash = hash
    entry.node = node
    entry.cost = <uint32_t>cost
    entry.topic_size = <uint32_t>size
    entry.was_hit = 0
    entry.match = match[0]
    at = cached_topic(entry)
    memcpy(at, topic, size)
    at += topic_room
    entry.match.groups = <Group**>at
    memcpy(at, match.groups, match.n_groups * sizeof(Group*))
    at += match.n_groups * sizeof(Group*)
    entry.match.targets = <Target*>at
    memcpy(at, match.targets, match.n_targets * sizeof(Target))
    at += match.n_targets * sizeof(Target)
    entry.match.identifiers = <uint32_t*>at
    memcpy(at, match.identifiers, match.n_identifiers * sizeof(uint32_t))
    return &entry.match


cdef inline void cache_invalidate_topic(
        MatchCache* cache, const uint8_t* topic, size_t size, uint32_t hash) noexcept nogil:
    """The exact filter of this text has changed."""
    cdef uint32_t id = cache_id(cache, topic, size, hash)
    if id != NONE:
        cache_drop(cache, id)
        cache.invalidations += 1


cdef inline void cache_invalidate_filter(MatchCache* cache, const uint8_t* topic_filter, size_t size) noexcept nogil:
    """A wildcard filter has changed. Needs memory for the filter's levels only; without it, all entries are dropped."""
    cdef Walk walk
    cdef uint64_t lookups = cache.hits + cache.misses
    cdef uint32_t node
    cdef bint is_done
    cache.credit += (lookups - cache.earned_at) * CREDIT_PER_LOOKUP
    cache.earned_at = lookups
    if cache.credit > MAX_CREDIT:
        cache.credit = MAX_CREDIT
    if walk_begin(&cache.topics, &walk, topic_filter, size) >= 0:
        while True:
            node = walk_next(&cache.topics, &walk, &cache.credit)
            if node == NONE:
                break
            # The walk is past this node already, and past what goes with it: ancestors left without children.
            cache_drop(cache, <uint32_t>topic_node(&cache.topics, node).value)
            cache.invalidations += 1
            cache.credit += 1  # a visit that found something is not wasted
        is_done = walk.node == ROOT
        walk_end(&cache.topics, &walk)
        if is_done:
            return
    cache.flushes += 1
    cache.invalidations += cache.size
    cache_drop_all(cache)
