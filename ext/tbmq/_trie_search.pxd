# cython: language_level=3
"""The match itself: from a topic to the subscribers of all filters that match it.

It looks at all nodes of one level before it goes to the next one:

    topic  a / b / c      level     0         1           2               3
                          frontier  {root} -> {a}      -> {a/+, a/b}  ->  {a/+/c}
                                               `-> found: a/#              `-> found: a/+/c

The wildcard children stand in the node, so they cost no search; a child by word costs one search in the table of edges.
With a million subscriptions each of these is a cache miss, and a frontier's misses overlap: first all edges of the
level are prefetched, then probed, and the nodes that they lead to are prefetched for the next level. A probe is trusted
by its hash and verified when the node is looked at. Words of all levels are looked up together before that; a level
that is no word of the tree has no child by word anywhere.

What is found are nodes. Their subscriptions become targets, one per subscriber: with a single list they are all
different, otherwise they are merged, a few by comparing each with all, many through a hash table that is never cleared
(a stamp says which match an entry is from). The order is that of the found nodes: `#` from the root downwards, then the
last level.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from tbmq._arena cimport NONE, Slot, arena_at, table_find, table_home, tree_prefetch, tree_resize
from tbmq._subscribers cimport (
    Group, IDENTIFIER_SHIFT, Match, NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED, SubscriberList, Subscription, Target,
)
from tbmq._topic_tree cimport PLUS, ROOT, Tree, edge_find, edge_hash, guess_words, split_topic, verify_words

cdef enum:  # SubscriptionNode.kind
    NOBODY = 0
    ONE = 1              # its subscription stands in the node
    MANY = 2             # a SubscriberList, because of more subscriptions or of groups

cdef enum:
    FEW = 16             # subscriptions up to this number are merged by comparing each with all
    LAST_STAMP = 0x7FFFFFFF  # then claims are cleared and stamps start anew

cdef struct SubscriptionNode:
    uint32_t parent
    uint32_t word
    uint32_t plus        # the child `+`; NONE: none
    uint32_t hash        # the child `#`; NONE: none
    uint32_t n_children  # by words; they are in the table of edges
    uint32_t kind        # NOBODY, ONE or MANY
    Subscription one     # ONE: the subscription; MANY: in its place a pointer to the SubscriberList

cdef struct Step:
    uint32_t id          # frontier: a node to look at; probes: the hash of an edge to look for
    uint32_t parent      # whose child it is

cdef struct Part:
    const Subscription* items  # of one matching filter
    uint32_t size

cdef struct Claim:
    uint32_t stamp       # of the match that made it; entries of others are void
    uint32_t target      # position in Scratch.targets

cdef struct Scratch:     # memory of a match, kept for the next one
    Step* frontier       # nodes of the present level
    Step* next           # nodes of the next level
    Step* probes         # edges to look for
    uint32_t* found      # nodes of matching filters
    Part* parts          # their subscriptions
    Target* targets      # the result
    uint32_t* owners     # of each subscription of all parts: its target
    Group** groups       # the result
    uint32_t* identifiers  # the result
    uint32_t* taken      # of each target: identifiers written so far
    Claim* claims        # hash table: subscriber -> target
    size_t frontier_room, next_room, probe_room, found_room, part_room, target_room, owner_room, group_room
    size_t identifier_room, taken_room, claim_room
    size_t claim_mask    # of the part of claims that this match uses
    uint32_t stamp       # of the last match that used claims
    uint32_t n_found
    uint32_t n_parts
    uint32_t n_subscriptions  # of all parts
    Match result         # points into the above


cdef inline SubscriptionNode* node_at(const Tree* tree, uint32_t id) noexcept nogil:
    return <SubscriptionNode*>arena_at(&tree.nodes, id)


cdef inline SubscriberList** list_of(SubscriptionNode* node) noexcept nogil:
    """Where a node of kind MANY keeps its list."""
    return <SubscriberList**>&node.one


cdef inline bint reserve(void** block, size_t* room, size_t wanted, size_t item) noexcept nogil:
    """Let the block have at least so many items; what is in it stays."""
    cdef void* grown
    if wanted <= room[0]:
        return True
    wanted += wanted // 2 + 16
    grown = tree_resize(block[0], wanted * item)
    if grown == NULL:
        return False
    block[0] = grown
    room[0] = wanted
    return True


cdef inline void scratch_destroy(Scratch* scratch) noexcept nogil:
    free(scratch.frontier)
    free(scratch.next)
    free(scratch.probes)
    free(scratch.found)
    free(scratch.parts)
    free(scratch.targets)
    free(scratch.owners)
    free(scratch.groups)
    free(scratch.identifiers)
    free(scratch.taken)
    free(scratch.claims)
    memset(scratch, 0, sizeof(Scratch))


cdef inline uint64_t scratch_bytes(const Scratch* scratch) noexcept nogil:
    return (sizeof(Step) * (scratch.frontier_room + scratch.next_room + scratch.probe_room)
            + sizeof(uint32_t) * (scratch.found_room + scratch.owner_room)
            + sizeof(uint32_t) * (scratch.identifier_room + scratch.taken_room)
            + sizeof(Part) * scratch.part_room + sizeof(Target) * scratch.target_room
            + sizeof(Group*) * scratch.group_room + sizeof(Claim) * scratch.claim_room)


cdef inline bint descend(const Tree* tree, Scratch* scratch, uint32_t n_levels, bint is_dollar) noexcept nogil:
    """Follow tree.levels from the root and collect in `found` the nodes of all filters that match."""
    cdef uint32_t depth, i, id, hash, word_here, word_next
    cdef uint32_t n_frontier = 1
    cdef uint32_t n_next, n_probes
    cdef uint32_t n_found = 0
    cdef bint may_be_wild
    cdef Step step
    cdef const Slot* slot
    cdef const SubscriptionNode* node
    cdef Step* swap
    cdef size_t swap_room, most
    if not reserve(<void**>&scratch.frontier, &scratch.frontier_room, 1, sizeof(Step)):
        return False
    scratch.frontier[0].id = ROOT
    scratch.frontier[0].parent = NONE
    word_here = NONE
    for depth in range(n_levels + 1):
        most = 2 * <size_t>n_frontier  # that a level can add: to the next one, and to what is found
        if not (reserve(<void**>&scratch.next, &scratch.next_room, most, sizeof(Step))
                and reserve(<void**>&scratch.probes, &scratch.probe_room, n_frontier, sizeof(Step))
                and reserve(<void**>&scratch.found, &scratch.found_room, n_found + most, sizeof(uint32_t))):
            return False
        n_next = n_probes = 0
        may_be_wild = depth > 0 or not is_dollar  # [MQTT-4.7.2-1]
        word_next = tree.levels[depth].word if depth < n_levels else NONE
        for i in range(n_frontier):
            step = scratch.frontier[i]
            node = node_at(tree, step.id)
            if node.parent != step.parent or (node.word != word_here and node.word != PLUS):
                continue  # another edge of the same hash
            if node.hash != NONE and may_be_wild:
                tree_prefetch(node_at(tree, node.hash))
                scratch.found[n_found] = node.hash
                n_found += 1
            if depth == n_levels:
                if node.kind != NOBODY:
                    scratch.found[n_found] = step.id
                    n_found += 1
                continue
            if node.n_children != 0 and word_next != NONE:
                hash = edge_hash(tree, step.id, tree.levels[depth].hash)
                tree_prefetch(tree.edges.slots + table_home(&tree.edges, hash))
                scratch.probes[n_probes].id = hash
                scratch.probes[n_probes].parent = step.id
                n_probes += 1
            if node.plus != NONE and may_be_wild:
                tree_prefetch(node_at(tree, node.plus))
                scratch.next[n_next].id = node.plus
                scratch.next[n_next].parent = step.id
                n_next += 1
        for i in range(n_probes):
            step = scratch.probes[i]
            slot = table_find(&tree.edges, step.id)
            if slot == NULL:
                continue
            id = slot.id
            if slot[1].id != NONE and slot[1].hash == slot.hash:
                id = edge_find(tree, step.parent, word_next)
                if id == NONE:
                    continue
            tree_prefetch(node_at(tree, id))
            scratch.next[n_next].id = id
            scratch.next[n_next].parent = step.parent
            n_next += 1
        if n_next == 0:
            break
        swap = scratch.frontier
        swap_room = scratch.frontier_room
        scratch.frontier = scratch.next
        scratch.frontier_room = scratch.next_room
        scratch.next = swap
        scratch.next_room = swap_room
        n_frontier = n_next
        word_here = word_next
    scratch.n_found = n_found
    return True


cdef inline bint gather(const Tree* tree, Scratch* scratch) noexcept nogil:
    """From found nodes to lists of subscriptions (`parts`) and groups."""
    cdef uint32_t i
    cdef size_t n_groups = 0
    cdef size_t total = 0
    cdef uint32_t n_parts = 0
    cdef SubscriptionNode* node
    cdef const SubscriberList* members
    cdef Group* group
    cdef Part* part
    if not reserve(<void**>&scratch.parts, &scratch.part_room, scratch.n_found, sizeof(Part)):
        return False
    for i in range(scratch.n_found):
        node = node_at(tree, scratch.found[i])
        if node.kind == MANY:
            tree_prefetch(list_of(node)[0])
    for i in range(scratch.n_found):
        node = node_at(tree, scratch.found[i])
        part = &scratch.parts[n_parts]
        if node.kind == ONE:
            part.items = &node.one
            part.size = 1
            n_parts += 1
            total += 1
        elif node.kind == MANY:
            members = list_of(node)[0]
            if members.size != 0:
                part.items = &members.items[0]
                part.size = members.size
                n_parts += 1
                total += members.size
            group = members.groups
            while group != NULL:
                if not reserve(<void**>&scratch.groups, &scratch.group_room, n_groups + 1, sizeof(Group*)):
                    return False
                scratch.groups[n_groups] = group
                n_groups += 1
                group = group.next
    scratch.n_parts = n_parts
    scratch.n_subscriptions = <uint32_t>total
    scratch.result.n_groups = <uint32_t>n_groups
    if n_parts > 1:
        if not reserve(<void**>&scratch.owners, &scratch.owner_room, total, sizeof(uint32_t)):
            return False
        if total > FEW and not reserve_claims(scratch, total):
            return False
    return reserve(<void**>&scratch.targets, &scratch.target_room, total, sizeof(Target))


cdef inline bint reserve_claims(Scratch* scratch, size_t total) noexcept nogil:
    """A table of a power of two, at most half full, with a new stamp."""
    cdef size_t room = 64
    cdef void* grown
    while room < 2 * total:
        room *= 2
    if room > scratch.claim_room:
        grown = tree_resize(scratch.claims, room * sizeof(Claim))
        if grown == NULL:
            return False
        scratch.claims = <Claim*>grown
        scratch.claim_room = room
        scratch.stamp = LAST_STAMP
    scratch.claim_mask = room - 1
    if scratch.stamp == LAST_STAMP:
        memset(scratch.claims, 0, scratch.claim_room * sizeof(Claim))
        scratch.stamp = 0
    scratch.stamp += 1
    return True


cdef inline void target_from(Target* target, const Subscription* subscription) noexcept nogil:
    target.subscriber = subscription.subscriber
    target.first_identifier = 0
    target.n_identifiers = subscription.options >> IDENTIFIER_SHIFT != 0
    target.qos = subscription.options & QOS_MASK
    target.no_local = subscription.options & NO_LOCAL != 0
    target.retain_as_published = subscription.options & RETAIN_AS_PUBLISHED != 0


cdef inline void target_merge(Target* target, const Subscription* subscription) noexcept nogil:
    target.n_identifiers += subscription.options >> IDENTIFIER_SHIFT != 0
    if target.qos < subscription.options & QOS_MASK:
        target.qos = subscription.options & QOS_MASK
    target.no_local &= subscription.options & NO_LOCAL != 0
    target.retain_as_published |= subscription.options & RETAIN_AS_PUBLISHED != 0


cdef inline uint32_t merge_few(Scratch* scratch) noexcept nogil:
    """Fill in targets and owners; the number of targets."""
    cdef uint32_t i, k, t, n = 0
    cdef uint32_t at = 0
    cdef const Subscription* subscription
    for i in range(scratch.n_parts):
        for k in range(scratch.parts[i].size):
            subscription = &scratch.parts[i].items[k]
            t = 0
            while t < n and scratch.targets[t].subscriber != subscription.subscriber:
                t += 1
            if t == n:
                target_from(&scratch.targets[t], subscription)
                n += 1
            else:
                target_merge(&scratch.targets[t], subscription)
            scratch.owners[at] = t
            at += 1
    return n


cdef inline uint32_t merge_many(Scratch* scratch) noexcept nogil:
    """As merge_few, through the table of claims."""
    cdef uint32_t i, k, n = 0
    cdef uint32_t at = 0
    cdef size_t mask = scratch.claim_mask
    cdef size_t place
    cdef const Subscription* subscription
    cdef Claim* claim
    for i in range(scratch.n_parts):
        for k in range(scratch.parts[i].size):
            subscription = &scratch.parts[i].items[k]
            place = (subscription.subscriber * <uint64_t>0x9E3779B97F4A7C15 >> 32) & mask
            claim = &scratch.claims[place]
            while claim.stamp == scratch.stamp and scratch.targets[claim.target].subscriber != subscription.subscriber:
                place = (place + 1) & mask
                claim = &scratch.claims[place]
            if claim.stamp != scratch.stamp:
                claim.stamp = scratch.stamp
                claim.target = n
                target_from(&scratch.targets[n], subscription)
                n += 1
            else:
                target_merge(&scratch.targets[claim.target], subscription)
            scratch.owners[at] = claim.target
            at += 1
    return n


cdef inline bint write_identifiers(Scratch* scratch) noexcept nogil:
    """Give each target its piece of result.identifiers, in the order of the parts. They may repeat [MQTT-3.3.4-5]."""
    cdef uint32_t i, k, t, identifier
    cdef uint32_t at = 0
    cdef size_t n = 0
    for t in range(scratch.result.n_targets):
        n += scratch.targets[t].n_identifiers
    scratch.result.n_identifiers = <uint32_t>n
    if n == 0:
        return True
    if not (reserve(<void**>&scratch.identifiers, &scratch.identifier_room, n, sizeof(uint32_t))
            and reserve(<void**>&scratch.taken, &scratch.taken_room, scratch.result.n_targets, sizeof(uint32_t))):
        return False
    n = 0
    for t in range(scratch.result.n_targets):
        scratch.targets[t].first_identifier = scratch.taken[t] = <uint32_t>n
        n += scratch.targets[t].n_identifiers
    for i in range(scratch.n_parts):
        for k in range(scratch.parts[i].size):
            identifier = scratch.parts[i].items[k].options >> IDENTIFIER_SHIFT
            if identifier != 0:
                t = scratch.owners[at] if scratch.n_parts > 1 else at
                scratch.identifiers[scratch.taken[t]] = identifier
                scratch.taken[t] += 1
            at += 1
    return True


cdef inline const Match* search_tree(Tree* tree, Scratch* scratch, const uint8_t* topic, size_t size) noexcept nogil:
    """The result of a match, in scratch; NULL: no memory."""
    cdef int n_levels = split_topic(tree, topic, size)
    cdef Match* result = &scratch.result
    cdef const Slot* slot
    cdef uint32_t i, first_edge
    if n_levels < 0:
        return NULL
    first_edge = edge_hash(tree, ROOT, tree.levels[0].hash)
    tree_prefetch(tree.edges.slots + table_home(&tree.edges, first_edge))
    guess_words(tree, n_levels)
    slot = table_find(&tree.edges, first_edge)  # while the words come: what the first level will look at
    if slot != NULL:
        tree_prefetch(node_at(tree, slot.id))
    verify_words(tree, n_levels)
    if not descend(tree, scratch, <uint32_t>n_levels, size > 0 and topic[0] == c"$") or not gather(tree, scratch):
        return NULL
    if scratch.n_parts == 0:
        result.n_targets = 0
    elif scratch.n_parts == 1:
        result.n_targets = scratch.parts[0].size
        for i in range(result.n_targets):
            target_from(&scratch.targets[i], &scratch.parts[0].items[i])
    elif scratch.n_subscriptions <= FEW:
        result.n_targets = merge_few(scratch)
    else:
        result.n_targets = merge_many(scratch)
    if not write_identifiers(scratch):
        return NULL
    result.targets = scratch.targets
    result.groups = scratch.groups
    result.identifiers = scratch.identifiers
    return result
