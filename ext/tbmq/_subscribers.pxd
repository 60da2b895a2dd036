# cython: language_level=3
"""Who gets a message: subscriptions of one filter, shared groups, and the result of a match.

    Subscription   8 bytes: subscriber, and options = identifier << 4 | retain_as_published << 3 | no_local << 2 | qos

    SubscriberList [size|room|groups|index| s0 | s1 | s2 | ... ]      one block; a filter with one subscriber has none
                                |      `-> table: hash(subscriber) -> 1 + position, once there are more than LIST_SCAN
                                `-> Group <-> Group <-> ...           the shared groups of the same filter, each with
                                    its own list of members, and a cursor for whoever takes them in turn

The order of a list is that of arrival, except that the last one takes the place of one that leaves.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from tbmq._arena cimport (
    NONE, Slot, Table, table_bytes, table_find, table_free, table_insert, table_remove, table_resize, tree_mix,
    tree_resize,
)
from tbmq._topic_tree cimport ADDED, NO_MEMORY, REPLACED, UNCHANGED

cdef enum:
    LIST_SCAN = 32       # lists up to this size are searched from end to end
    QOS_MASK = 0x03
    NO_LOCAL = 0x04
    RETAIN_AS_PUBLISHED = 0x08
    IDENTIFIER_SHIFT = 4
    MAX_IDENTIFIER = 268_435_455

cdef struct Subscription:
    uint32_t subscriber  # opaque: a session's slot, a service's index
    uint32_t options     # identifier << 4 | retain_as_published << 3 | no_local << 2 | qos; identifier 0: none

cdef struct SubscriberList:
    uint32_t size        # items in use
    uint32_t room        # items in this block
    Group* groups        # of the same filter, linked; NULL in the list of a group's members
    Table* index         # subscriber -> 1 + position; NULL while size <= LIST_SCAN
    Subscription items[1]  # really `room` of them

cdef struct Group:
    const uint8_t* name      # not ended by a zero; lives as long as the group
    uint32_t name_size
    uint32_t cursor          # the caller's: whose turn it is; never read here
    SubscriberList* members  # at least one; the pointer changes when members come and go
    uint32_t node            # of its filter
    uint32_t id              # in SubscriptionTrie.groups
    Group* next              # of the same filter
    Group* previous

cdef struct Target:
    uint32_t subscriber           # one target per subscriber, however many of its filters match
    uint32_t first_identifier     # its identifiers are Match.identifiers[first_identifier:][:n_identifiers]
    uint32_t n_identifiers        # of all its matching subscriptions that have one
    uint8_t qos                   # the highest
    uint8_t no_local              # all of them say so
    uint8_t retain_as_published   # one of them says so

cdef struct Match:
    uint32_t n_targets
    uint32_t n_groups
    uint32_t n_identifiers
    Target* targets
    Group** groups                # each wants the message once, for one of its members
    uint32_t* identifiers


cdef inline uint32_t subscriber_hash(uint32_t subscriber, const uint64_t* seed) noexcept nogil:
    return <uint32_t>(tree_mix(subscriber ^ seed[0], seed[1]) >> 32)


cdef inline size_t list_bytes(const SubscriberList* members) noexcept nogil:
    cdef size_t size = sizeof(SubscriberList) + (members.room - 1) * sizeof(Subscription)
    if members.index != NULL:
        size += sizeof(Table) + table_bytes(members.index.capacity)
    return size


cdef inline SubscriberList* list_new() noexcept nogil:
    cdef SubscriberList* members = <SubscriberList*>tree_resize(NULL, sizeof(SubscriberList) + sizeof(Subscription))
    if members != NULL:
        members.size = 0
        members.room = 2
        members.groups = NULL
        members.index = NULL
    return members


cdef inline void list_drop_index(SubscriberList* members) noexcept nogil:
    if members.index != NULL:
        table_free(members.index)
        free(members.index)
        members.index = NULL


cdef inline void list_free(SubscriberList* members) noexcept nogil:
    list_drop_index(members)
    free(members)


cdef inline bint list_build_index(SubscriberList* members, const uint64_t* seed) noexcept nogil:
    cdef Table* index = <Table*>tree_resize(NULL, sizeof(Table))
    cdef uint32_t i
    if index == NULL:
        return False
    index.slots = NULL
    index.capacity = index.used = 0
    members.index = index
    if table_resize(index, members.size * 2):
        for i in range(members.size):
            if not table_insert(index, subscriber_hash(members.items[i].subscriber, seed), i + 1):
                break
        else:
            return True
    list_drop_index(members)
    return False


cdef inline Slot* list_slot(const SubscriberList* members, uint32_t position, const uint64_t* seed) noexcept nogil:
    """Where the index has the item of this position."""
    cdef Slot* slot = table_find(members.index, subscriber_hash(members.items[position].subscriber, seed))
    while slot.id != position + 1:
        slot += 1
    return slot


cdef inline uint32_t list_find(const SubscriberList* members, uint32_t subscriber, const uint64_t* seed) noexcept nogil:
    """1 + the position of the subscriber, or NONE."""
    cdef uint32_t i, hash
    cdef const Slot* slot
    if members.index == NULL:
        for i in range(members.size):
            if members.items[i].subscriber == subscriber:
                return i + 1
        return NONE
    hash = subscriber_hash(subscriber, seed)
    slot = table_find(members.index, hash)
    if slot != NULL:
        while slot.id != NONE and slot.hash == hash:
            if members.items[slot.id - 1].subscriber == subscriber:
                return slot.id
            slot += 1
    return NONE


cdef inline int list_put(SubscriberList** place, Subscription subscription, const uint64_t* seed) noexcept nogil:
    """ADDED, REPLACED (other options), UNCHANGED or NO_MEMORY. The list may move."""
    cdef SubscriberList* members = place[0]
    cdef uint32_t at = list_find(members, subscription.subscriber, seed)
    cdef uint32_t room
    cdef void* grown
    if at != NONE:
        if members.items[at - 1].options == subscription.options:
            return UNCHANGED
        members.items[at - 1].options = subscription.options
        return REPLACED
    if members.size == members.room:
        room = members.room + members.room // 2 + 1
        grown = tree_resize(members, sizeof(SubscriberList) + (<size_t>room - 1) * sizeof(Subscription))
        if grown == NULL:
            return NO_MEMORY
        place[0] = members = <SubscriberList*>grown
        members.room = room
    if members.size >= LIST_SCAN and members.index == NULL and not list_build_index(members, seed):
        return NO_MEMORY
    if members.index != NULL and not table_insert(
            members.index, subscriber_hash(subscription.subscriber, seed), members.size + 1):
        return NO_MEMORY
    members.items[members.size] = subscription
    members.size += 1
    return ADDED


cdef inline bint list_remove(SubscriberList** place, uint32_t subscriber, const uint64_t* seed) noexcept nogil:
    """False: it was not there. The list may move."""
    cdef SubscriberList* members = place[0]
    cdef uint32_t at = list_find(members, subscriber, seed)
    cdef uint32_t last = members.size - 1
    cdef void* shrunk
    if at == NONE:
        return False
    at -= 1
    if members.index != NULL:
        table_remove(members.index, list_slot(members, at, seed))
        if at != last:
            list_slot(members, last, seed).id = at + 1
    members.items[at] = members.items[last]
    members.size = last
    if members.index != NULL and members.size <= LIST_SCAN // 2:
        list_drop_index(members)
    if members.room > 8 and members.size * 4 < members.room:
        shrunk = tree_resize(members, sizeof(SubscriberList) + (<size_t>members.room // 2 - 1) * sizeof(Subscription))
        if shrunk != NULL:
            place[0] = members = <SubscriberList*>shrunk
            members.room //= 2
    return True
