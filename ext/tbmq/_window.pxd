# cython: language_level=3
"""What a session has to remember of its QoS 1 and 2 flows. Three structures, each empty (no memory) until it is used.

    Window   packet id -> Delivery: sent, not acknowledged. An open-addressing table whose home slot is the id itself,
             so ids given out in turn never collide; one message that is stuck takes one slot and hurts nobody.
                 slot:  0   1   2   3   4   5   6   7
                 id:    -   9   -  11  12   -   -   7     (capacity 8: home of 9 is 1)
             Send order, which redelivery needs, is the `order` of each entry.
    Queue    Deliveries that wait for room in the window or for the client: a ring, oldest first.
    IdSet    packet ids of QoS 2 messages received and not released yet: the same table, ids only.

Tables hold powers of two, at most half full. Ids given out in turn fill neighbouring slots, each at home, and removing one
must not walk over all its neighbours: only while some entry is displaced by a collision does a removal shift back what
sits behind it. A Delivery owns one reference to its message and its list of identifiers.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset
from tbmq._message cimport Message, release

cdef enum DeliveryState:
    QUEUED = 0
    SENT = 1          # PUBLISH sent: waits for PUBACK or PUBREC
    RELEASED = 2      # QoS 2, PUBREL sent: waits for PUBCOMP; the message is gone
    HELD_BACK = 3     # was sent on an earlier connection; this one has no quota for it yet

cdef struct Delivery:
    Message* message        # one reference; NULL when RELEASED
    uint32_t* identifiers   # more than one subscription identifier: count, then the identifiers; else NULL
    uint32_t identifier     # exactly one subscription identifier, or 0
    uint32_t order          # rises with every message sent by the session; redelivery goes by it
    uint16_t packet_id      # 0 while queued
    uint8_t qos
    uint8_t retain          # the flag as this subscriber gets it
    uint8_t state           # DeliveryState
    uint8_t is_shared       # through a shared subscription: goes to another member when this one leaves

cdef struct Window:
    Delivery* slots         # NULL until the first message
    uint32_t capacity       # power of two
    uint32_t count
    uint32_t displaced      # entries that are not in their home slot
    uint32_t next_order
    uint16_t last_id        # the id given out last

cdef struct Queue:
    Delivery* ring          # NULL until the first message
    uint32_t capacity       # power of two
    uint32_t head           # index of the oldest
    uint32_t count

cdef struct IdSet:
    uint16_t* slots         # 0: free
    uint32_t capacity       # power of two
    uint32_t count
    uint32_t displaced      # ids that are not in their home slot


cdef inline void drop_delivery(Delivery* delivery) noexcept nogil:
    """Gives back what the delivery owns."""
    if delivery.message != NULL:
        release(delivery.message)
        delivery.message = NULL
    if delivery.identifiers != NULL:
        free(delivery.identifiers)
        delivery.identifiers = NULL


# --- Window --------------------------------------------------------------------------------------------------------

cdef inline Delivery* window_find(Window* window, uint16_t packet_id) noexcept nogil:
    cdef uint32_t mask, i
    if window.count == 0:
        return NULL
    mask = window.capacity - 1
    i = packet_id & mask
    while window.slots[i].packet_id:
        if window.slots[i].packet_id == packet_id:
            return &window.slots[i]
        i = (i + 1) & mask
    return NULL


cdef inline bint window_grow(Window* window) noexcept nogil:
    cdef uint32_t capacity = window.capacity * 2 if window.capacity else 8
    cdef Delivery* slots = <Delivery*>calloc(capacity, sizeof(Delivery))
    cdef uint32_t i, j
    if slots == NULL:
        return False
    window.displaced = 0
    for i in range(window.capacity):
        if window.slots[i].packet_id:
            j = window.slots[i].packet_id & (capacity - 1)
            while slots[j].packet_id:
                j = (j + 1) & (capacity - 1)
            slots[j] = window.slots[i]
            window.displaced += j != slots[j].packet_id & (capacity - 1)
    free(window.slots)
    window.slots = slots
    window.capacity = capacity
    return True


cdef inline Delivery* window_insert(Window* window, uint16_t packet_id) noexcept nogil:
    """A zeroed slot with this id, which must not be in use. NULL when memory is out."""
    cdef uint32_t i
    if 2 * (window.count + 1) > window.capacity and not window_grow(window):
        return NULL
    i = packet_id & (window.capacity - 1)
    while window.slots[i].packet_id:
        i = (i + 1) & (window.capacity - 1)
    window.slots[i].packet_id = packet_id
    window.count += 1
    window.displaced += i != packet_id & (window.capacity - 1)
    return &window.slots[i]


cdef inline uint16_t window_next_id(Window* window) noexcept nogil:
    """The next packet id that is not in use; 0 when all 65,535 are."""
    cdef uint16_t packet_id = window.last_id
    if window.count >= 65_535:
        return 0
    while True:
        packet_id += 1
        if packet_id and window_find(window, packet_id) == NULL:
            window.last_id = packet_id
            return packet_id


cdef inline void window_remove(Window* window, Delivery* found) noexcept nogil:
    """Takes out a slot that `window_find` gave; what it owned has been dropped already."""
    cdef uint32_t mask = window.capacity - 1
    cdef uint32_t hole = <uint32_t>(found - window.slots)
    cdef uint32_t i = hole
    cdef uint32_t home
    window.displaced -= hole != found.packet_id & mask
    while window.displaced:
        i = (i + 1) & mask
        if not window.slots[i].packet_id:
            break
        home = window.slots[i].packet_id & mask
        # Move back what sits behind the hole, unless its home lies between the hole and itself.
        if ((i - home) & mask) >= ((i - hole) & mask):
            window.slots[hole] = window.slots[i]
            window.displaced -= hole == home
            hole = i
    memset(&window.slots[hole], 0, sizeof(Delivery))
    window.count -= 1
    if window.count == 0 and window.capacity > 64:
        free(window.slots)
        window.slots = NULL
        window.capacity = 0


cdef inline void window_clear(Window* window) noexcept nogil:
    cdef uint32_t i
    for i in range(window.capacity):
        if window.slots[i].packet_id:
            drop_delivery(&window.slots[i])
    free(window.slots)
    window.slots = NULL
    window.capacity = window.count = window.displaced = 0


# --- Queue ---------------------------------------------------------------------------------------------------------

cdef inline Delivery* queue_at(Queue* queue, uint32_t position) noexcept nogil:
    return &queue.ring[(queue.head + position) & (queue.capacity - 1)]


cdef inline Delivery* queue_push(Queue* queue) noexcept nogil:
    """A zeroed place at the end; NULL when memory is out."""
    cdef Delivery* ring
    cdef Delivery* place
    cdef uint32_t i, capacity
    if queue.count == queue.capacity:
        capacity = queue.capacity * 2 if queue.capacity else 4
        ring = <Delivery*>malloc(capacity * sizeof(Delivery))
        if ring == NULL:
            return NULL
        for i in range(queue.count):
            ring[i] = queue_at(queue, i)[0]
        free(queue.ring)
        queue.ring = ring
        queue.capacity = capacity
        queue.head = 0
    queue.count += 1
    place = queue_at(queue, queue.count - 1)
    memset(place, 0, sizeof(Delivery))
    return place


cdef inline void queue_pop(Queue* queue) noexcept nogil:
    """Takes the oldest out; what it owned has been moved or dropped already."""
    queue.head = (queue.head + 1) & (queue.capacity - 1)
    queue.count -= 1
    if queue.count == 0 and queue.capacity > 64:
        free(queue.ring)
        queue.ring = NULL
        queue.capacity = queue.head = 0


cdef inline void queue_clear(Queue* queue) noexcept nogil:
    cdef uint32_t i
    for i in range(queue.count):
        drop_delivery(queue_at(queue, i))
    free(queue.ring)
    queue.ring = NULL
    queue.capacity = queue.head = queue.count = 0


# --- IdSet ---------------------------------------------------------------------------------------------------------

cdef inline bint ids_contain(IdSet* ids, uint16_t packet_id) noexcept nogil:
    cdef uint32_t i
    if ids.count == 0:
        return False
    i = packet_id & (ids.capacity - 1)
    while ids.slots[i]:
        if ids.slots[i] == packet_id:
            return True
        i = (i + 1) & (ids.capacity - 1)
    return False


cdef inline bint ids_add(IdSet* ids, uint16_t packet_id) noexcept nogil:
    """Adds an id that is not in the set. False when memory is out."""
    cdef uint32_t capacity, i, j
    cdef uint16_t* slots
    if 2 * (ids.count + 1) > ids.capacity:
        capacity = ids.capacity * 2 if ids.capacity else 8
        slots = <uint16_t*>calloc(capacity, sizeof(uint16_t))
        if slots == NULL:
            return False
        ids.displaced = 0
        for i in range(ids.capacity):
            if ids.slots[i]:
                j = ids.slots[i] & (capacity - 1)
                while slots[j]:
                    j = (j + 1) & (capacity - 1)
                slots[j] = ids.slots[i]
                ids.displaced += j != slots[j] & (capacity - 1)
        free(ids.slots)
        ids.slots = slots
        ids.capacity = capacity
    i = packet_id & (ids.capacity - 1)
    while ids.slots[i]:
        i = (i + 1) & (ids.capacity - 1)
    ids.slots[i] = packet_id
    ids.count += 1
    ids.displaced += i != packet_id & (ids.capacity - 1)
    return True


cdef inline bint ids_remove(IdSet* ids, uint16_t packet_id) noexcept nogil:
    """False when the id was not there."""
    cdef uint32_t mask, hole, i
    if ids.count == 0:
        return False
    mask = ids.capacity - 1
    hole = packet_id & mask
    while ids.slots[hole] != packet_id:
        if not ids.slots[hole]:
            return False
        hole = (hole + 1) & mask
    i = hole
    ids.displaced -= hole != packet_id & mask
    while ids.displaced:
        i = (i + 1) & mask
        if not ids.slots[i]:
            break
        if ((i - (ids.slots[i] & mask)) & mask) >= ((i - hole) & mask):
            ids.slots[hole] = ids.slots[i]
            ids.displaced -= hole == ids.slots[hole] & mask
            hole = i
    ids.slots[hole] = 0
    ids.count -= 1
    return True


cdef inline void ids_clear(IdSet* ids) noexcept nogil:
    free(ids.slots)
    ids.slots = NULL
    ids.capacity = ids.count = ids.displaced = 0
