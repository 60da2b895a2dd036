# cython: language_level=3
"""Concrete topics -> numbers, matched by a topic filter: the index of the retained store and of the match cache.

A node of the topic tree with its children as a list, so that a wildcard can visit them:

    root --first_child--> "b" --next--> "a" --next--> NONE       a new child becomes the first one
                           |             |
                           |            "x" = 7                  the topic a/x has the number 7
                          "y" = 8

A **walk** visits the matching topics in pre-order and may rest between two pages while the index changes. It is one
position, "the node to visit next" and its depth: how to go on follows from the links of that node and the filter's
level.

* A node that goes away while a walk rests on it first moves the walk on. Nodes know that walks rest on them
  (IS_RESTED_ON), so that a removal looks at the list of walks only then.
* A topic that stays during the whole walk keeps its place, and the position only moves forward: it comes exactly once.
* A new node is the first child of its parent. A topic that was removed and came back hangs below an ancestor that was
  visited already, in front of the position: nothing comes twice. A topic that is new may come or not.
* The walk holds a reference to each word of its filter, so that no other word gets the id.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from tbmq._arena cimport NONE, NO_ID, arena_at, tree_resize
from tbmq._topic_tree cimport (
    ADDED, HASH, INVALID, Level, MAX_TOPIC_BYTES, NO_MEMORY, PLUS, REPLACED, ROOT, Tree, Word, edge_find, find_words,
    node_add, node_remove, split_filter, split_topic, tree_bytes, tree_destroy, tree_init, word_release, word_text,
)
from tbmq._wire cimport has_wildcard

cdef enum:
    HAS_VALUE = 1        # the path to this node is a topic of the index
    IS_RESTED_ON = 2     # some walk may rest here

cdef struct TopicNode:
    uint32_t parent
    uint32_t word
    uint32_t first_child # NONE: a leaf
    uint32_t next        # sibling; NONE: the last
    uint32_t previous    # sibling; NONE: the first
    uint32_t flags       # HAS_VALUE, IS_RESTED_ON
    uint64_t value       # the number, if HAS_VALUE

cdef struct Walk:
    uint32_t node        # to visit next; ROOT: nothing is left
    uint32_t depth       # of that node; the root has 0
    uint32_t n_levels    # of the filter
    uint32_t* words      # of the filter's levels; PLUS, HASH
    Walk* next           # in TopicIndex.walks, while it rests there
    Walk* previous

cdef struct TopicIndex:
    Tree tree
    uint64_t size        # topics
    Walk* walks          # those that last beyond one call


cdef inline TopicNode* topic_node(const TopicIndex* index, uint32_t id) noexcept nogil:
    return <TopicNode*>arena_at(&index.tree.nodes, id)


cdef inline bint index_init(TopicIndex* index, const uint64_t* seed) noexcept nogil:
    index.size = 0
    index.walks = NULL
    return tree_init(&index.tree, seed)


cdef inline uint32_t index_find(TopicIndex* index, const uint8_t* topic, size_t size) noexcept nogil:
    """The node that holds the topic's number; NONE: unknown topic (or no memory to cut a topic of so many levels)."""
    cdef int n = split_topic(&index.tree, topic, size)
    cdef int i
    cdef uint32_t node = ROOT
    if n < 0:
        return NONE
    find_words(&index.tree, n)
    for i in range(n):
        if index.tree.levels[i].word == NONE:
            return NONE
        node = edge_find(&index.tree, node, index.tree.levels[i].word)
        if node == NONE:
            return NONE
    return node if topic_node(index, node).flags & HAS_VALUE else NONE


cdef inline void index_prune(TopicIndex* index, uint32_t id) noexcept nogil:
    """Free this node and those above it as long as they have neither a number nor children."""
    cdef TopicNode* node
    cdef uint32_t parent
    cdef Walk* walk
    while id != ROOT:
        node = topic_node(index, id)
        if node.flags & HAS_VALUE or node.first_child != NONE:
            return
        if node.flags & IS_RESTED_ON:
            walk = index.walks
            while walk != NULL:
                if walk.node == id:
                    walk_past(index, walk)
                    topic_node(index, walk.node).flags |= IS_RESTED_ON
                walk = walk.next
        parent = node.parent
        if node.next != NONE:
            topic_node(index, node.next).previous = node.previous
        if node.previous != NONE:
            topic_node(index, node.previous).next = node.next
        else:
            topic_node(index, parent).first_child = node.next
        node_remove(&index.tree, id)
        id = parent


cdef inline int index_put(TopicIndex* index, const uint8_t* topic, size_t size, uint64_t value, uint64_t* old,
                          uint32_t* place) noexcept nogil:
    """ADDED, or REPLACED with the number before in `old`; `place` is the topic's node, stable until it is removed.

    INVALID: empty, longer than 65,535 bytes, or a wildcard in it. NO_MEMORY: nothing has changed.
    """
    cdef int n, i
    cdef uint32_t node = ROOT
    cdef uint32_t child
    cdef TopicNode* new
    if size == 0 or size > MAX_TOPIC_BYTES or has_wildcard(topic, size):
        return INVALID
    n = split_topic(&index.tree, topic, size)
    if n < 0:
        return n
    find_words(&index.tree, n)
    for i in range(n):
        child = edge_find(&index.tree, node, index.tree.levels[i].word) if index.tree.levels[i].word != NONE else NONE
        if child == NONE:
            child = node_add(&index.tree, node, &index.tree.levels[i])
            if child == NO_ID:
                index_prune(index, node)
                return NO_MEMORY
            new = topic_node(index, child)
            new.next = topic_node(index, node).first_child
            if new.next != NONE:
                topic_node(index, new.next).previous = child
            topic_node(index, node).first_child = child
        node = child
    new = topic_node(index, node)
    place[0] = node
    old[0] = new.value
    new.value = value
    if new.flags & HAS_VALUE:
        return REPLACED
    new.flags |= HAS_VALUE
    index.size += 1
    return ADDED


cdef inline uint64_t index_take(TopicIndex* index, uint32_t id) noexcept nogil:
    """Remove the topic that this node holds, and return its number."""
    cdef TopicNode* node = topic_node(index, id)
    cdef uint64_t value = node.value
    node.flags &= ~<uint32_t>HAS_VALUE
    node.value = 0
    index.size -= 1
    index_prune(index, id)
    return value


cdef inline size_t topic_size(const TopicIndex* index, uint32_t id) noexcept nogil:
    """Bytes of the topic that leads to this node."""
    cdef size_t size = 0
    cdef const TopicNode* node
    while id != ROOT:
        node = topic_node(index, id)
        size += (<Word*>arena_at(&index.tree.words, node.word)).size + 1
        id = node.parent
    return size - 1


cdef inline void write_topic(const TopicIndex* index, uint32_t id, uint8_t* out, size_t size) noexcept nogil:
    """Write the topic that leads to this node, from its last level to its first; `size` is topic_size."""
    cdef uint8_t* at = out + size
    cdef const TopicNode* node
    cdef const Word* word
    while id != ROOT:
        node = topic_node(index, id)
        word = <Word*>arena_at(&index.tree.words, node.word)
        at -= word.size
        memcpy(at, word_text(word), word.size)
        if at > out:
            at -= 1
            at[0] = c"/"
        id = node.parent


cdef inline bint is_dollar(const TopicIndex* index, uint32_t id) noexcept nogil:
    cdef const Word* word = <Word*>arena_at(&index.tree.words, topic_node(index, id).word)
    return word.size > 0 and word_text(word)[0] == c"$"


cdef inline uint32_t first_from(const TopicIndex* index, uint32_t id, uint32_t depth) noexcept nogil:
    """This sibling or the first after it that a wildcard may visit: at the root none with `$` [MQTT-4.7.2-1]."""
    if depth == 1:
        while id != NONE and is_dollar(index, id):
            id = topic_node(index, id).next
    return id


cdef inline bint is_wild(const Walk* walk, uint32_t depth) noexcept nogil:
    """Does the filter take every node of this depth below a node that it has taken?"""
    cdef uint32_t word = walk.words[(depth if depth < walk.n_levels else walk.n_levels) - 1]
    return word == HASH or (word == PLUS and depth <= walk.n_levels)


cdef inline void walk_past(const TopicIndex* index, Walk* walk) noexcept nogil:
    """To the next node in pre-order that is not below the present one."""
    cdef uint32_t sibling
    while walk.depth > 0:
        if is_wild(walk, walk.depth):
            sibling = first_from(index, topic_node(index, walk.node).next, walk.depth)
            if sibling != NONE:
                walk.node = sibling
                return
        walk.node = topic_node(index, walk.node).parent
        walk.depth -= 1


cdef inline void walk_into(const TopicIndex* index, Walk* walk) noexcept nogil:
    """To the next node in pre-order, below the present one if there is one."""
    cdef uint32_t child = NONE
    if is_wild(walk, walk.depth + 1):
        child = first_from(index, topic_node(index, walk.node).first_child, walk.depth + 1)
    elif walk.depth < walk.n_levels:
        child = edge_find(&index.tree, walk.node, walk.words[walk.depth])
    if child != NONE:
        walk.node = child
        walk.depth += 1
    else:
        walk_past(index, walk)


cdef inline int walk_begin(TopicIndex* index, Walk* walk, const uint8_t* topic_filter, size_t size) noexcept nogil:
    """Start before the first match: the number of levels, INVALID or NO_MEMORY. If it succeeds, walk_end must come."""
    cdef int n = split_filter(&index.tree, topic_filter, size)
    cdef int i
    cdef uint32_t word
    memset(walk, 0, sizeof(Walk))
    if n < 0:
        return n
    walk.words = <uint32_t*>tree_resize(NULL, n * sizeof(uint32_t))
    if walk.words == NULL:
        return NO_MEMORY
    find_words(&index.tree, n)
    for i in range(n):
        word = index.tree.levels[i].word
        if word == NONE:  # no topic has this level
            walk_end(index, walk)
            return n
        walk.words[i] = word
        walk.n_levels += 1
        if word < HASH:
            (<Word*>arena_at(&index.tree.words, word)).references += 1
    walk_into(index, walk)
    return n


cdef inline void walk_end(TopicIndex* index, Walk* walk) noexcept nogil:
    """Give back what the walk holds. It is then at its end; ending it again does nothing."""
    cdef uint32_t i
    for i in range(walk.n_levels):
        if walk.words[i] < HASH:
            word_release(&index.tree, walk.words[i])
    free(walk.words)
    walk.words = NULL
    walk.n_levels = walk.depth = walk.node = 0


cdef inline uint32_t walk_next(const TopicIndex* index, Walk* walk, uint64_t* visits) noexcept nogil:
    """The node of the next matching topic. NONE: none is left, or `visits`, which counts down, is used up."""
    cdef uint32_t id, depth
    while walk.node != ROOT and visits[0] > 0:
        visits[0] -= 1
        id = walk.node
        depth = walk.depth
        walk_into(index, walk)
        if topic_node(index, id).flags & HAS_VALUE and (
                depth == walk.n_levels or (depth + 1 >= walk.n_levels and walk.words[walk.n_levels - 1] == HASH)):
            return id
    return NONE


cdef inline void walk_rest(TopicIndex* index, Walk* walk) noexcept nogil:
    """Let the index change until the next call; the walk is in index.walks."""
    topic_node(index, walk.node).flags |= IS_RESTED_ON


cdef inline void walk_register(TopicIndex* index, Walk* walk) noexcept nogil:
    walk.next = index.walks
    walk.previous = NULL
    if index.walks != NULL:
        index.walks.previous = walk
    index.walks = walk
    walk_rest(index, walk)


cdef inline void walk_unregister(TopicIndex* index, Walk* walk) noexcept nogil:
    if walk.next != NULL:
        walk.next.previous = walk.previous
    if walk.previous != NULL:
        walk.previous.next = walk.next
    else:
        index.walks = walk.next
    walk.next = walk.previous = NULL
