# cython: language_level=3
"""Topic filters and who subscribed to them: what SubscriptionTrie is without its cache.

A node is a topic filter or the beginning of one:

    root --plus--> "+"           n_children = 1, kind = NOBODY
      |             `-- "b"      kind = ONE: subscriber 7 stands in the node               filter +/b
      `-- "a"                    n_children = 0
           `--hash--> "#"        kind = MANY: a list of subscribers, and of groups         filters a/# and $share/g/a/#

    group_table: hash(node, name) -> 1 + id,  group_ids: id -> Group*        a filter may have very many groups

Removal frees what nobody needs any more: list, node, edge, word, and the same upwards. Memory is asked for before
anything is changed, or what was made is taken back: after NO_MEMORY the tree is what it was.

What changes a filter says in `is_stale` whether matches made before are wrong now. A group that gains or loses a
member, but not its first or last, leaves them right: a match has the group, not its members.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from tbmq._arena cimport (
    Arena, CHUNK_SHIFT, NONE, NO_ID, Slot, Table, arena_at, arena_bytes, arena_destroy, arena_free, arena_new,
    table_bytes, table_find, table_free, table_insert, table_remove, table_resize, tree_mix, tree_resize,
)
from tbmq._subscribers cimport (
    Group, SubscriberList, Subscription, list_bytes, list_free, list_new, list_put, list_remove,
)
from tbmq._topic_tree cimport (
    ADDED, HASH, INVALID, Level, MAX_TOPIC_BYTES, NO_MEMORY, PLUS, REPLACED, ROOT, Tree, UNCHANGED, edge_find,
    find_words, node_add, node_remove, split_filter, tree_bytes, tree_destroy, tree_hash, tree_init,
)
from tbmq._trie_search cimport MANY, NOBODY, ONE, SubscriptionNode, list_of, node_at
from tbmq._wire cimport has_wildcard

cdef struct SubscriptionTree:
    Tree tree
    Table group_table         # hash(node, name) -> 1 + id of the group
    Arena group_ids           # id -> Group*
    uint64_t n_subscriptions  # plain ones
    uint64_t n_shared         # members of all groups
    uint64_t list_bytes       # of SubscriberLists and Groups


cdef inline bint subscriptions_init(SubscriptionTree* trie, const uint64_t* seed) noexcept nogil:
    """False: no memory; destroy it all the same."""
    memset(trie, 0, sizeof(SubscriptionTree))
    return tree_init(&trie.tree, seed) and table_resize(&trie.group_table, 8)


cdef inline void subscriptions_destroy(SubscriptionTree* trie) noexcept nogil:
    cdef uint32_t i, k
    cdef SubscriptionNode* node
    cdef SubscriberList* members
    cdef Group* group
    for i in range(trie.tree.nodes.n_chunks):
        for k in range(trie.tree.nodes.chunks[i].fresh):
            node = node_at(&trie.tree, (i << CHUNK_SHIFT) | k)
            if node.kind != MANY:
                continue
            members = list_of(node)[0]
            while members.groups != NULL:
                group = members.groups
                members.groups = group.next
                list_free(group.members)
                free(group)
            list_free(members)
    tree_destroy(&trie.tree)
    table_free(&trie.group_table)
    arena_destroy(&trie.group_ids)


cdef inline uint64_t subscriptions_bytes(const SubscriptionTree* trie) noexcept nogil:
    return (tree_bytes(&trie.tree) + trie.list_bytes + table_bytes(trie.group_table.capacity)
            + arena_bytes(&trie.group_ids))


# --- nodes ------------------------------------------------------------------------------------------------------------

cdef inline uint32_t find_node(SubscriptionTree* trie, int n_levels) noexcept nogil:
    """The node of the filter in tree.levels, or NONE."""
    cdef uint32_t id = ROOT
    cdef uint32_t word
    cdef int i
    find_words(&trie.tree, n_levels)
    for i in range(n_levels):
        word = trie.tree.levels[i].word
        if word == PLUS:
            id = node_at(&trie.tree, id).plus
        elif word == HASH:
            id = node_at(&trie.tree, id).hash
        elif word != NONE:
            id = edge_find(&trie.tree, id, word)
        else:
            return NONE
        if id == NONE:
            return NONE
    return id


cdef inline uint32_t make_node(SubscriptionTree* trie, int n_levels) noexcept nogil:
    """The same, made where it is missing; NO_ID: no memory, and nothing has changed."""
    cdef Level* levels = trie.tree.levels
    cdef uint32_t id = ROOT
    cdef uint32_t child, word
    cdef SubscriptionNode* node
    cdef int i
    find_words(&trie.tree, n_levels)
    for i in range(n_levels):
        word = levels[i].word
        node = node_at(&trie.tree, id)
        if word == PLUS:
            child = node.plus
        elif word == HASH:
            child = node.hash
        else:
            child = edge_find(&trie.tree, id, word) if word != NONE else NONE
        if child == NONE:
            child = node_add(&trie.tree, id, &levels[i])
            if child == NO_ID:
                prune(trie, id)
                return NO_ID
            if word == PLUS:
                node.plus = child
            elif word == HASH:
                node.hash = child
            else:
                node.n_children += 1
        id = child
    return id


cdef inline void prune(SubscriptionTree* trie, uint32_t id) noexcept nogil:
    """Free this node and those above it as long as nobody needs them."""
    cdef SubscriptionNode* node
    cdef SubscriptionNode* parent
    cdef uint32_t above
    while id != ROOT:
        node = node_at(&trie.tree, id)
        if node.kind != NOBODY or node.n_children != 0 or node.plus != NONE or node.hash != NONE:
            return
        above = node.parent
        parent = node_at(&trie.tree, above)
        if node.word == PLUS:
            parent.plus = NONE
        elif node.word == HASH:
            parent.hash = NONE
        else:
            parent.n_children -= 1
        node_remove(&trie.tree, id)
        id = above


cdef inline SubscriberList* make_list(SubscriptionTree* trie, SubscriptionNode* node) noexcept nogil:
    """The node's list; a subscription that stood in the node moves into it. NULL: no memory."""
    cdef SubscriberList* members
    if node.kind == MANY:
        return list_of(node)[0]
    members = list_new()
    if members == NULL:
        return NULL
    if node.kind == ONE:
        members.items[0] = node.one
        members.size = 1
    trie.list_bytes += list_bytes(members)
    node.kind = MANY
    list_of(node)[0] = members
    return members


cdef inline void simplify(SubscriptionTree* trie, SubscriptionNode* node) noexcept nogil:
    """Without groups, one subscription needs no list, and none needs nothing."""
    cdef SubscriberList* members
    if node.kind != MANY:
        return
    members = list_of(node)[0]
    if members.groups != NULL or members.size > 1:
        return
    trie.list_bytes -= list_bytes(members)
    node.kind = NOBODY
    if members.size == 1:
        node.kind = ONE
        node.one = members.items[0]
    list_free(members)


cdef inline int change_list(SubscriptionTree* trie, SubscriberList** place, Subscription subscription) noexcept nogil:
    """list_put, with the memory counted."""
    cdef int answer
    trie.list_bytes -= list_bytes(place[0])
    answer = list_put(place, subscription, trie.tree.seed)
    trie.list_bytes += list_bytes(place[0])
    return answer

# --- plain subscriptions ----------------------------------------------------------------------------------------------


cdef inline int subscribe(SubscriptionTree* trie, const uint8_t* topic_filter, size_t size, uint32_t subscriber,
                          uint32_t options, bint* is_stale) noexcept nogil:
    """ADDED, REPLACED (other options), UNCHANGED, INVALID or NO_MEMORY."""
    cdef int answer = split_filter(&trie.tree, topic_filter, size)
    cdef uint32_t id
    cdef SubscriptionNode* node
    cdef Subscription subscription
    is_stale[0] = False
    if answer < 0:
        return answer
    id = make_node(trie, answer)
    if id == NO_ID:
        return NO_MEMORY
    subscription.subscriber = subscriber
    subscription.options = options
    node = node_at(&trie.tree, id)
    if node.kind == NOBODY:
        node.kind = ONE
        node.one = subscription
        answer = ADDED
    elif node.kind == ONE and node.one.subscriber == subscriber:
        answer = REPLACED if node.one.options != options else UNCHANGED
        node.one = subscription
    elif make_list(trie, node) == NULL:
        return NO_MEMORY
    else:
        answer = change_list(trie, list_of(node), subscription)
        simplify(trie, node)
    if answer == ADDED:
        trie.n_subscriptions += 1
    is_stale[0] = answer >= 0
    return answer


cdef inline int unsubscribe(SubscriptionTree* trie, const uint8_t* topic_filter, size_t size, uint32_t subscriber,
                            bint* is_stale) noexcept nogil:
    """1: removed, 0: was not there, INVALID or NO_MEMORY."""
    cdef int answer = split_filter(&trie.tree, topic_filter, size)
    cdef uint32_t id
    cdef SubscriptionNode* node
    cdef SubscriberList* members
    is_stale[0] = False
    if answer < 0:
        return answer
    id = find_node(trie, answer)
    if id == NONE:
        return 0
    node = node_at(&trie.tree, id)
    if node.kind == MANY:
        members = list_of(node)[0]
        trie.list_bytes -= list_bytes(members)
        answer = list_remove(&members, subscriber, trie.tree.seed)
        trie.list_bytes += list_bytes(members)
        list_of(node)[0] = members
        simplify(trie, node)
    else:
        answer = node.kind == ONE and node.one.subscriber == subscriber
        if answer:
            node.kind = NOBODY
    if answer:
        trie.n_subscriptions -= 1
        prune(trie, id)
    is_stale[0] = answer
    return answer

# --- shared subscriptions ---------------------------------------------------------------------------------------------


cdef inline uint32_t group_hash(
        const SubscriptionTree* trie, uint32_t node, const uint8_t* name, size_t size) noexcept nogil:
    cdef const uint64_t* seed = &trie.tree.seed[0]
    return <uint32_t>((tree_hash(name, size, seed) ^ tree_mix(node ^ seed[0], seed[1])) >> 32)


cdef inline Group* find_group(SubscriptionTree* trie, uint32_t node, const uint8_t* name, size_t size) noexcept nogil:
    """The group of this name at this node; NULL: there is none."""
    cdef uint32_t hash = group_hash(trie, node, name, size)
    cdef Slot* slot = table_find(&trie.group_table, hash)
    cdef Group* group
    if slot != NULL:
        while slot.id != NONE and slot.hash == hash:
            group = (<Group**>arena_at(&trie.group_ids, slot.id - 1))[0]
            if group.node == node and group.name_size == size and memcmp(group.name, name, size) == 0:
                return group
            slot += 1
    return NULL


cdef inline Group* make_group(SubscriptionTree* trie, uint32_t node, const uint8_t* name, size_t size) noexcept nogil:
    """A group without members, linked to its node; NULL: no memory, and nothing has changed."""
    cdef SubscriberList* siblings
    cdef SubscriberList* members = list_new()
    cdef Group* group = <Group*>tree_resize(NULL, sizeof(Group) + size)
    cdef uint32_t id = arena_new(&trie.group_ids)
    cdef bint is_listed = id != NO_ID and table_insert(&trie.group_table, group_hash(trie, node, name, size), id + 1)
    if is_listed and members != NULL and group != NULL:
        siblings = make_list(trie, node_at(&trie.tree, node))
        if siblings != NULL:
            (<Group**>arena_at(&trie.group_ids, id))[0] = group
            memset(group, 0, sizeof(Group))
            group.id = id
            group.node = node
            group.members = members
            group.name = <const uint8_t*>(group + 1)
            group.name_size = <uint32_t>size
            memcpy(<void*>group.name, name, size)
            group.next = siblings.groups
            if group.next != NULL:
                group.next.previous = group
            siblings.groups = group
            trie.list_bytes += sizeof(Group) + size + list_bytes(members)
            return group
    if is_listed:
        table_remove(&trie.group_table, group_slot(trie, node, name, size, id))
    if id != NO_ID:
        arena_free(&trie.group_ids, id)
    free(members)
    free(group)
    return NULL


cdef inline Slot* group_slot(
        SubscriptionTree* trie, uint32_t node, const uint8_t* name, size_t size, uint32_t id) noexcept nogil:
    """Where group_table has the group of this id, which it has."""
    cdef Slot* slot = table_find(&trie.group_table, group_hash(trie, node, name, size))
    while slot.id != id + 1:
        slot += 1
    return slot


cdef inline void remove_group(SubscriptionTree* trie, Group* group) noexcept nogil:
    """Free a group and what nobody needs any more without it."""
    cdef uint32_t id = group.node
    cdef SubscriptionNode* node = node_at(&trie.tree, id)
    table_remove(&trie.group_table, group_slot(trie, id, group.name, group.name_size, group.id))
    arena_free(&trie.group_ids, group.id)
    if group.next != NULL:
        group.next.previous = group.previous
    if group.previous != NULL:
        group.previous.next = group.next
    else:
        list_of(node)[0].groups = group.next
    trie.list_bytes -= sizeof(Group) + group.name_size + list_bytes(group.members)
    list_free(group.members)
    free(group)
    simplify(trie, node)
    prune(trie, id)


cdef inline int subscribe_shared(
        SubscriptionTree* trie, const uint8_t* name, size_t name_size, const uint8_t* topic_filter, size_t size,
        uint32_t subscriber, uint32_t options, bint* is_stale) noexcept nogil:
    """As subscribe; INVALID also for a name that is empty or has a wildcard or a `/`."""
    cdef int answer = split_filter(&trie.tree, topic_filter, size)
    cdef uint32_t id
    cdef Group* group
    cdef Subscription subscription
    is_stale[0] = False
    if answer < 0:
        return answer
    if (name_size == 0 or name_size > MAX_TOPIC_BYTES or has_wildcard(name, name_size)
            or memchr(name, c"/", name_size) != NULL):
        return INVALID
    id = make_node(trie, answer)
    if id == NO_ID:
        return NO_MEMORY
    group = find_group(trie, id, name, name_size)
    if group == NULL:
        group = make_group(trie, id, name, name_size)
        if group == NULL:
            prune(trie, id)
            return NO_MEMORY
    subscription.subscriber = subscriber
    subscription.options = options
    answer = change_list(trie, &group.members, subscription)
    if answer == ADDED:
        trie.n_shared += 1
        is_stale[0] = group.members.size == 1
    elif group.members.size == 0:
        remove_group(trie, group)
    return answer


cdef inline int unsubscribe_shared(
        SubscriptionTree* trie, const uint8_t* name, size_t name_size, const uint8_t* topic_filter, size_t size,
        uint32_t subscriber, bint* is_stale) noexcept nogil:
    """As unsubscribe."""
    cdef int answer = split_filter(&trie.tree, topic_filter, size)
    cdef uint32_t id
    cdef Group* group
    is_stale[0] = False
    if answer < 0:
        return answer
    id = find_node(trie, answer)
    group = find_group(trie, id, name, name_size) if id != NONE else NULL
    if group == NULL:
        return 0
    trie.list_bytes -= list_bytes(group.members)
    answer = list_remove(&group.members, subscriber, trie.tree.seed)
    trie.list_bytes += list_bytes(group.members)
    if answer:
        trie.n_shared -= 1
        if group.members.size == 0:
            remove_group(trie, group)
            is_stale[0] = True
    return answer
