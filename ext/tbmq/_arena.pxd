# cython: language_level=3
"""Memory by number: an arena of small slots, and a table that maps hashes to their numbers.

**Arena**: 32-byte slots by u32 id, from chunks of 65,536. Addresses are stable and an id costs half of a pointer.

    bases     [ chunk 0 | NULL | chunk 2 ]      id = chunk << 16 | slot
    chunk 2   [ used | free -> slot 0 ... | used | fresh: never touched ... ]
    open   -> chunks with room, linked          vacant -> chunks whose slots were all freed; the memory went back

**Table**: one sorted array with gaps.

    home = hash * capacity >> 32, which grows with the hash

    slots     [ 03 |    | 41 | 44 | 47 |    | a0 | ... | f9 |    |    ]      44 and 47 could not stay at home (2): they
    home        0    1    2    3    4    5    6          capacity  tail      moved right, in the order of their hashes

A search starts at home and ends at a gap or a greater hash, so one that fails is as short as one that succeeds. Removal
moves the right neighbours back: no tombstones. Growing is one sequential pass that searches nothing. Load 1/2 to 3/4,
so 11 to 16 bytes an entry. Different keys may have one hash: the caller verifies what it finds.

Nothing here raises. "No memory" is an answer (False, NO_ID), and then nothing has changed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset

cdef extern from "topic_tree.h" nogil:
    const uint32_t NO_ID "TREE_NO_ID"  # in the place of an id: there was no memory
    long tree_fail_after
    uint64_t tree_mix(uint64_t a, uint64_t b)
    void tree_prefetch(const void* address)
    void* tree_new(size_t size, bint may_be_huge)
    void* tree_resize(void* block, size_t size)
    void tree_delete(void* block, size_t size)

cdef enum:
    NONE = 0             # no id
    SLOT_SHIFT = 5       # an arena's slot has 32 bytes
    CHUNK_SHIFT = 16     # an arena's chunk has 65,536 slots, 2 MiB
    MAX_CHUNKS = 0xFFFF  # so that no id reaches NO_ID and the marks for wildcards
    TABLE_TAIL = 32      # slots of a table behind the last home, for those that moved right

cdef struct Slot:
    uint32_t id           # NONE: this slot is empty
    uint32_t hash         # all of it; decides the order

cdef struct Table:
    Slot* slots           # capacity + TABLE_TAIL of them; the last one is always empty and ends every search
    uint64_t capacity     # homes
    uint64_t used         # slots that hold something

cdef struct Chunk:
    uint32_t live         # slots in use
    uint32_t fresh        # slots used at least once; the rest is untouched memory
    uint32_t free         # 1 + the slot freed last, which holds the next one; NONE: none
    uint32_t next         # 1 + the next chunk that has room (or, without memory, the next vacant one)
    uint32_t previous     # 1 + the previous chunk that has room

cdef struct Arena:
    uint8_t** bases       # memory of each chunk; NULL: vacant
    Chunk* chunks         # their book-keeping
    uint32_t n_chunks     # chunks ever opened, vacant ones included
    uint32_t room         # entries of the two arrays
    uint32_t open         # 1 + the first chunk that has room
    uint32_t vacant       # 1 + the first chunk without memory
    uint64_t live         # slots in use


# --- table ------------------------------------------------------------------------------------------------------------

cdef inline uint64_t table_home(const Table* table, uint32_t hash) noexcept nogil:
    return (hash * table.capacity) >> 32


cdef inline Slot* table_find(const Table* table, uint32_t hash) noexcept nogil:
    """The first slot of this hash, or NULL. More of the same hash may follow it directly."""
    cdef Slot* slot = table.slots + table_home(table, hash)
    while slot.id != NONE and slot.hash < hash:
        slot += 1
    return slot if slot.id != NONE and slot.hash == hash else NULL


cdef inline size_t table_bytes(uint64_t capacity) noexcept nogil:
    return (capacity + TABLE_TAIL) * sizeof(Slot)


cdef inline void table_free(Table* table) noexcept nogil:
    if table.slots != NULL:
        tree_delete(table.slots, table_bytes(table.capacity))
    table.slots = NULL
    table.capacity = table.used = 0


cdef inline bint table_resize(Table* table, uint64_t capacity) noexcept nogil:
    """Move everything to a table of at least so many homes: in order, so nothing is searched for."""
    cdef Table new
    cdef uint64_t i, at, free_from
    cdef uint64_t old_size = table.capacity + TABLE_TAIL if table.slots != NULL else 0
    new.used = table.used
    while True:
        new.capacity = capacity
        new.slots = <Slot*>tree_new(table_bytes(capacity), True)
        if new.slots == NULL:
            return False
        free_from = 0
        for i in range(old_size):
            if table.slots[i].id == NONE:
                continue
            at = table_home(&new, table.slots[i].hash)
            if at < free_from:
                at = free_from
            if at >= capacity + TABLE_TAIL - 1:
                break
            new.slots[at] = table.slots[i]
            free_from = at + 1
        else:
            table_free(table)
            table[0] = new
            return True
        table_free(&new)  # the tail overflowed: rare, and gone with more room
        new.used = table.used
        capacity += capacity // 2


cdef inline bint table_insert(Table* table, uint32_t hash, uint32_t id) noexcept nogil:
    cdef Slot* slot
    cdef Slot* gap
    if (table.used + 1) * 4 > table.capacity * 3 and not table_resize(table, table.capacity + table.capacity // 2):
        return False
    while True:
        slot = table.slots + table_home(table, hash)
        while slot.id != NONE and slot.hash <= hash:
            slot += 1
        gap = slot
        while gap.id != NONE:
            gap += 1
        if gap < table.slots + table.capacity + TABLE_TAIL - 1:
            break
        if not table_resize(table, table.capacity + table.capacity // 2):
            return False
    memmove(slot + 1, slot, <size_t>(gap - slot) * sizeof(Slot))
    slot.id = id
    slot.hash = hash
    table.used += 1
    return True


cdef inline void table_remove(Table* table, Slot* slot) noexcept nogil:
    """Empty this slot; those that had to move right come back. May shrink the table: all slots move."""
    cdef Slot* end = slot + 1
    while end.id != NONE and table.slots + table_home(table, end.hash) < end:
        end += 1
    memmove(slot, slot + 1, <size_t>(end - slot - 1) * sizeof(Slot))
    (end - 1).id = NONE
    table.used -= 1
    if table.used * 4 < table.capacity and table.capacity > 64:
        table_resize(table, table.capacity // 2)  # without memory it just stays large


# --- arena ------------------------------------------------------------------------------------------------------------

cdef inline void* arena_at(const Arena* arena, uint32_t id) noexcept nogil:
    return arena.bases[id >> CHUNK_SHIFT] + (<size_t>(id & 0xFFFF) << SLOT_SHIFT)


cdef inline bint arena_open_chunk(Arena* arena) noexcept nogil:
    cdef uint32_t index, room
    cdef void* grown
    cdef uint8_t* base
    if arena.vacant == NONE and arena.n_chunks == arena.room:
        if arena.n_chunks == MAX_CHUNKS:
            return False
        room = arena.room * 2 if arena.room else 4
        if room > MAX_CHUNKS:
            room = MAX_CHUNKS
        grown = tree_resize(arena.bases, room * sizeof(uint8_t*))
        if grown == NULL:
            return False
        arena.bases = <uint8_t**>grown
        grown = tree_resize(arena.chunks, room * sizeof(Chunk))
        if grown == NULL:
            return False
        arena.chunks = <Chunk*>grown
        arena.room = room
    base = <uint8_t*>tree_new(<size_t>1 << (CHUNK_SHIFT + SLOT_SHIFT), arena.n_chunks > 0)
    if base == NULL:
        return False
    if arena.vacant != NONE:
        index = arena.vacant - 1
        arena.vacant = arena.chunks[index].next
    else:
        index = arena.n_chunks
        arena.n_chunks += 1
    arena.bases[index] = base
    memset(&arena.chunks[index], 0, sizeof(Chunk))
    arena.chunks[index].next = arena.open
    if arena.open != NONE:
        arena.chunks[arena.open - 1].previous = index + 1
    arena.open = index + 1
    return True


cdef inline void arena_leave_open(Arena* arena, Chunk* chunk) noexcept nogil:
    """Take the chunk out of the list of those that have room."""
    if chunk.next != NONE:
        arena.chunks[chunk.next - 1].previous = chunk.previous
    if chunk.previous != NONE:
        arena.chunks[chunk.previous - 1].next = chunk.next
    else:
        arena.open = chunk.next
    chunk.next = chunk.previous = NONE


cdef inline uint32_t arena_new(Arena* arena) noexcept nogil:
    """The id of a zeroed slot, or NO_ID. The first one is 0."""
    cdef Chunk* chunk
    cdef uint32_t index, at
    cdef uint32_t* slot
    if arena.open == NONE and not arena_open_chunk(arena):
        return NO_ID
    index = arena.open - 1
    chunk = &arena.chunks[index]
    if chunk.free != NONE:
        at = chunk.free - 1
        slot = <uint32_t*>arena_at(arena, (index << CHUNK_SHIFT) | at)
        chunk.free = slot[0]
        slot[0] = 0
    else:
        at = chunk.fresh
        chunk.fresh += 1
    chunk.live += 1
    arena.live += 1
    if chunk.live == 1 << CHUNK_SHIFT:
        arena_leave_open(arena, chunk)
    return (index << CHUNK_SHIFT) | at


cdef inline void arena_free(Arena* arena, uint32_t id) noexcept nogil:
    """Take the slot back. It is zeroed but for the link, so who looks over a chunk knows that it is free."""
    cdef uint32_t index = id >> CHUNK_SHIFT
    cdef Chunk* chunk = &arena.chunks[index]
    cdef uint32_t* slot = <uint32_t*>arena_at(arena, id)
    memset(slot, 0, 1 << SLOT_SHIFT)
    slot[0] = chunk.free
    chunk.free = (id & 0xFFFF) + 1
    if chunk.live == 1 << CHUNK_SHIFT:
        chunk.next = arena.open
        if arena.open != NONE:
            arena.chunks[arena.open - 1].previous = index + 1
        arena.open = index + 1
    chunk.live -= 1
    arena.live -= 1
    if chunk.live == 0 and (chunk.next != NONE or chunk.previous != NONE):  # the last one with room stays
        arena_leave_open(arena, chunk)
        tree_delete(arena.bases[index], <size_t>1 << (CHUNK_SHIFT + SLOT_SHIFT))
        arena.bases[index] = NULL
        memset(chunk, 0, sizeof(Chunk))
        chunk.next = arena.vacant
        arena.vacant = index + 1


cdef inline uint64_t arena_bytes(const Arena* arena) noexcept nogil:
    """Memory that was touched. The first chunk comes in small pages, the others in huge ones."""
    cdef uint64_t total = arena.room * (sizeof(uint8_t*) + sizeof(Chunk))
    cdef uint32_t i
    for i in range(arena.n_chunks):
        if arena.bases[i] != NULL:
            total += <uint64_t>(arena.chunks[i].fresh if i == 0 else 1 << CHUNK_SHIFT) << SLOT_SHIFT
    return total


cdef inline void arena_destroy(Arena* arena) noexcept nogil:
    cdef uint32_t i
    for i in range(arena.n_chunks):
        if arena.bases[i] != NULL:
            tree_delete(arena.bases[i], <size_t>1 << (CHUNK_SHIFT + SLOT_SHIFT))
    free(arena.bases)
    free(arena.chunks)
    memset(arena, 0, sizeof(Arena))
