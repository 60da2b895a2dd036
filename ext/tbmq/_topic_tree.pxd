# cython: language_level=3
"""The tree under both tries: levels of topics as interned words, nodes by number, one table for all edges.

    "a/b"  "a/c"                  arena of nodes (32 bytes each)      table of edges            dictionary of words

             0 root               0: parent -, word -                 hash(0, "a") -> 1         hash("a") -> 1
             |"a"                 1: parent 0, word 1                 hash(1, "b") -> 2         hash("b") -> 2
             1                    2: parent 1, word 2                 hash(1, "c") -> 3         hash("c") -> 3
       "b" /   \\ "c"              3: parent 1, word 3
          2     3                 ... fields of the user ...          Slot = node, hash         Word = text, references

A word is a level that some node uses, counted by those nodes; 22 bytes fit into its slot. A slot of the tables holds
the whole hash, and what it leads to is verified there: the node has (parent, word), the word its text. Arena and table:
`_arena.pxd`.

A node begins with `Node`; the other 24 bytes belong to the user of the tree (subscriptions or retained topics). `+` and
`#` are marks, not words, and are never in the table of edges: their users keep those children in the node.

Rejected: a hash table in every node (10 times the memory, one more miss per level), sorted children (log n misses),
path compression (splits and merges for little, since a chain of new nodes lies in one cache line anyway).

Nothing here raises. "No memory" is an answer (False, NO_ID), and then nothing has changed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from tbmq._arena cimport (
    Arena, CHUNK_SHIFT, NONE, NO_ID, Slot, Table, arena_at, arena_bytes, arena_destroy, arena_free, arena_new,
    table_bytes, table_find, table_free, table_home, table_insert, table_remove, table_resize, tree_mix, tree_prefetch,
    tree_resize,
)
from tbmq._wire cimport has_wildcard

cdef extern from "topic_tree.h" nogil:
    const uint32_t PLUS "TREE_PLUS"  # in the place of a word: `+`
    const uint32_t HASH "TREE_HASH"  # in the place of a word: `#`
    uint64_t tree_hash(const uint8_t* data, size_t size, const uint64_t* seed)

cdef enum:
    ROOT = 0             # also NONE, as the root is nobody's child
    WORD_INLINE = 22     # bytes of text that fit into a Word
    MAX_TOPIC_BYTES = 65535

cdef enum:  # answers of what changes a tree
    ADDED = 1
    REPLACED = 0
    INVALID = -1
    NO_MEMORY = -2
    UNCHANGED = -3

cdef struct Word:
    uint32_t references   # nodes (and walks) that use it
    uint32_t hash
    uint16_t size
    uint8_t text[WORD_INLINE]  # the bytes, or the address of a copy when there are more than WORD_INLINE

cdef struct Node:
    uint32_t parent
    uint32_t word         # id of the level's word, PLUS or HASH
    uint32_t of_user[6]

cdef struct Level:
    const uint8_t* text   # into the caller's topic or filter
    uint32_t size
    uint32_t hash
    uint32_t word         # id; NONE: no node has such a level; PLUS, HASH: a wildcard

cdef struct Tree:
    Arena nodes           # id 0 is the root
    Arena words           # id 0 is nobody
    Table edges           # hash(parent, hash of the word) -> node
    Table dictionary      # hash(text) -> word
    uint64_t seed[2]      # of all hashes; secret, drawn once per process
    Level* levels         # what split_* saw last
    uint32_t level_room   # entries of it
    uint64_t text_bytes   # of words that do not fit into their slot


# --- words ------------------------------------------------------------------------------------------------------------

cdef inline const uint8_t* word_text(const Word* word) noexcept nogil:
    cdef const uint8_t* text = &word.text[0]
    if word.size > WORD_INLINE:
        memcpy(&text, word.text, sizeof(text))
    return text


cdef inline bint word_is(const Word* word, const Level* level) noexcept nogil:
    return word.size == level.size and memcmp(word_text(word), level.text, level.size) == 0


cdef inline uint32_t word_find(const Tree* tree, const Level* level) noexcept nogil:
    cdef const Slot* slot = table_find(&tree.dictionary, level.hash)
    if slot != NULL:
        while slot.id != NONE and slot.hash == level.hash:
            if word_is(<Word*>arena_at(&tree.words, slot.id), level):
                return slot.id
            slot += 1
    return NONE


cdef inline uint32_t word_acquire(Tree* tree, const Level* level) noexcept nogil:
    """The id of the level's word with one more reference, or NO_ID."""
    cdef uint32_t id = level.word if level.word != NONE else word_find(tree, level)
    cdef Word* word
    cdef uint8_t* copy = NULL
    if id != NONE:
        (<Word*>arena_at(&tree.words, id)).references += 1
        return id
    if level.size > WORD_INLINE:
        copy = <uint8_t*>tree_resize(NULL, level.size)
        if copy == NULL:
            return NO_ID
    id = arena_new(&tree.words)
    if id == NO_ID or not table_insert(&tree.dictionary, level.hash, id):
        if id != NO_ID:
            arena_free(&tree.words, id)
        free(copy)
        return NO_ID
    word = <Word*>arena_at(&tree.words, id)
    word.references = 1
    word.hash = level.hash
    word.size = <uint16_t>level.size
    if copy != NULL:
        memcpy(copy, level.text, level.size)
        memcpy(word.text, &copy, sizeof(copy))
        tree.text_bytes += level.size
    else:
        memcpy(word.text, level.text, level.size)
    return id


cdef inline void word_release(Tree* tree, uint32_t id) noexcept nogil:
    cdef Word* word = <Word*>arena_at(&tree.words, id)
    cdef Slot* slot
    word.references -= 1
    if word.references != 0:
        return
    slot = table_find(&tree.dictionary, word.hash)
    while slot.id != id:
        slot += 1
    table_remove(&tree.dictionary, slot)
    if word.size > WORD_INLINE:
        tree.text_bytes -= word.size
        free(<void*>word_text(word))
    arena_free(&tree.words, id)


# --- tree -------------------------------------------------------------------------------------------------------------

cdef inline bint tree_init(Tree* tree, const uint64_t* seed) noexcept nogil:
    """Root and nothing else. False: no memory; the tree may (and must) be destroyed all the same."""
    memset(tree, 0, sizeof(Tree))
    tree.seed[0] = seed[0]
    tree.seed[1] = seed[1]
    tree.level_room = 16
    tree.levels = <Level*>tree_resize(NULL, tree.level_room * sizeof(Level))
    return (tree.levels != NULL and table_resize(&tree.edges, 8) and table_resize(&tree.dictionary, 8)
            and arena_new(&tree.nodes) == 0 and arena_new(&tree.words) == 0)


cdef inline void tree_destroy(Tree* tree) noexcept nogil:
    cdef uint32_t i, k
    cdef Word* word
    for i in range(tree.words.n_chunks if tree.text_bytes else 0):
        for k in range(tree.words.chunks[i].fresh):
            word = <Word*>arena_at(&tree.words, (i << CHUNK_SHIFT) | k)
            if word.size > WORD_INLINE:
                free(<void*>word_text(word))
    arena_destroy(&tree.nodes)
    arena_destroy(&tree.words)
    table_free(&tree.edges)
    table_free(&tree.dictionary)
    free(tree.levels)
    tree.levels = NULL


cdef inline uint64_t tree_bytes(const Tree* tree) noexcept nogil:
    return (arena_bytes(&tree.nodes) + arena_bytes(&tree.words) + table_bytes(tree.edges.capacity)
            + table_bytes(tree.dictionary.capacity) + tree.level_room * sizeof(Level) + tree.text_bytes)


cdef inline int split_topic(Tree* tree, const uint8_t* topic, size_t size) noexcept nogil:
    """Cut at `/` into tree.levels, with their hashes: the number of levels, or NO_MEMORY. Wildcards are plain text."""
    cdef const uint8_t* end = topic + size
    cdef const uint8_t* cut
    cdef Level* level
    cdef uint32_t n = 0
    cdef void* grown
    while True:
        if n == tree.level_room:
            grown = tree_resize(tree.levels, <size_t>tree.level_room * 2 * sizeof(Level))
            if grown == NULL:
                return NO_MEMORY
            tree.levels = <Level*>grown
            tree.level_room *= 2
        cut = <const uint8_t*>memchr(topic, c"/", <size_t>(end - topic))
        level = &tree.levels[n]
        level.text = topic
        level.size = <uint32_t>((cut if cut != NULL else end) - topic)
        level.hash = <uint32_t>(tree_hash(topic, level.size, tree.seed) >> 32)
        level.word = NONE
        tree_prefetch(tree.dictionary.slots + table_home(&tree.dictionary, level.hash))
        n += 1
        if cut == NULL:
            return <int>n
        topic = cut + 1


cdef inline int split_filter(Tree* tree, const uint8_t* topic_filter, size_t size) noexcept nogil:
    """As split_topic, with the wildcards marked. INVALID: empty, too long, or a wildcard in a wrong place."""
    cdef int n, i
    cdef Level* level
    if size == 0 or size > MAX_TOPIC_BYTES:
        return INVALID
    n = split_topic(tree, topic_filter, size)
    if n < 0 or not has_wildcard(topic_filter, size):
        return n
    for i in range(n):
        level = &tree.levels[i]
        if level.size == 1 and level.text[0] == c"+":
            level.word = PLUS
        elif level.size == 1 and level.text[0] == c"#":
            if i + 1 < n:
                return INVALID
            level.word = HASH
        elif has_wildcard(level.text, level.size):
            return INVALID
    return n


cdef inline void guess_words(Tree* tree, int n) noexcept nogil:
    """Fill in the first word of its hash for each level that is not a wildcard. The misses of all levels overlap."""
    cdef int i
    cdef Level* level
    cdef const Slot* slot
    for i in range(n):
        level = &tree.levels[i]
        if level.word == NONE:
            slot = table_find(&tree.dictionary, level.hash)
            if slot != NULL:
                level.word = slot.id
                tree_prefetch(arena_at(&tree.words, slot.id))


cdef inline void verify_words(Tree* tree, int n) noexcept nogil:
    """After guess_words: let each level have its own word, or NONE."""
    cdef int i
    cdef Level* level
    for i in range(n):
        level = &tree.levels[i]
        if level.word != NONE and level.word < HASH and not word_is(<Word*>arena_at(&tree.words, level.word), level):
            level.word = word_find(tree, level)


cdef inline void find_words(Tree* tree, int n) noexcept nogil:
    """Fill in the word of each level that is not a wildcard."""
    guess_words(tree, n)
    verify_words(tree, n)


cdef inline uint32_t edge_hash(const Tree* tree, uint32_t parent, uint32_t word_hash) noexcept nogil:
    """By the hash of the word rather than its id: a search need not wait until the word is found."""
    return <uint32_t>(tree_mix(((<uint64_t>parent << 32) | word_hash) ^ tree.seed[0], tree.seed[1]) >> 32)


cdef inline uint32_t edge_find(const Tree* tree, uint32_t parent, uint32_t word) noexcept nogil:
    """The child of this parent by a real word, or NONE."""
    cdef uint32_t hash = edge_hash(tree, parent, (<Word*>arena_at(&tree.words, word)).hash)
    cdef const Slot* slot = table_find(&tree.edges, hash)
    cdef const Node* node
    if slot != NULL:
        while slot.id != NONE and slot.hash == hash:
            node = <Node*>arena_at(&tree.nodes, slot.id)
            if node.parent == parent and node.word == word:
                return slot.id
            slot += 1
    return NONE


cdef inline uint32_t node_add(Tree* tree, uint32_t parent, const Level* level) noexcept nogil:
    """A new child, which must not exist yet: its id or NO_ID. Links of the user in the parent are his to set."""
    cdef uint32_t id = arena_new(&tree.nodes)
    cdef uint32_t word = level.word
    cdef bint has_edge = word != PLUS and word != HASH
    cdef Node* node
    if id == NO_ID:
        return NO_ID
    if has_edge:
        word = word_acquire(tree, level)
        if word == NO_ID:
            arena_free(&tree.nodes, id)
            return NO_ID
    node = <Node*>arena_at(&tree.nodes, id)
    node.parent = parent
    node.word = word
    if has_edge and not table_insert(&tree.edges, edge_hash(tree, parent, level.hash), id):
        word_release(tree, word)
        arena_free(&tree.nodes, id)
        return NO_ID
    return id


cdef inline void node_remove(Tree* tree, uint32_t id) noexcept nogil:
    """Free a node that has no children any more, its edge, and its word if nobody else has it."""
    cdef const Node* node = <Node*>arena_at(&tree.nodes, id)
    cdef uint32_t word = node.word
    cdef Slot* slot
    if word != PLUS and word != HASH:
        slot = table_find(&tree.edges, edge_hash(tree, node.parent, (<Word*>arena_at(&tree.words, word)).hash))
        while slot.id != id:
            slot += 1
        table_remove(&tree.edges, slot)
        word_release(tree, word)
    arena_free(&tree.nodes, id)
