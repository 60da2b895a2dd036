# Shared subscriptions: one message to one member of each group. Part of _engine.pyx.
#
# Every worker knows the members of all workers, so that the one where a message is published can choose among all of them. A
# group appears as up to two groups of the trie engine.groups: `@name` holds its members that are connected, `-name` those that
# are away but keep their session. A member is `worker << MEMBER_BITS | session number`.
#
# QoS 1 and 2 for a group of which nobody is connected waits at the worker where it was published (`engine.waiting`), until
# a member connects anywhere. When a member leaves, what was queued for it, and QoS 1 that it did not acknowledge, goes to
# another; a QoS 2 message under way stays with its client [MQTT-4.8.2-5].

cdef enum:
    MAX_WAITING = 10_000         # messages that wait for one group


cdef int deliver_to_groups(Engine engine, Publication* publication) noexcept:
    cdef const Match* match = engine.groups.find(publication.topic.data, publication.topic.size)
    cdef uint32_t i
    cdef int taken = 0
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return 0
    for i in range(match.n_groups):
        if match.groups[i].name[0] == c"@":
            taken += deliver_to_member(engine, match.groups[i], NOBODY, publication)
        elif connected_twin(match, match.groups[i]) == NULL and publication.qos:
            taken += wait_for_member(engine, match.groups[i], publication)
    return taken


cdef Group* connected_twin(const Match* match, const Group* group) noexcept:
    """The connected members of the same group and filter; NULL when there are none."""
    cdef uint32_t i
    cdef Group* other
    for i in range(match.n_groups):
        other = match.groups[i]
        if (
            other.node == group.node
            and other.name_size == group.name_size
            and other.name[0] == c"@"
            and memcmp(other.name + 1, group.name + 1, group.name_size - 1) == 0
        ):
            return other
    return NULL


cdef bint deliver_to_member(Engine engine, Group* group, uint32_t except_member, Publication* publication) noexcept:
    """Round robin: one turn further for every message. False when there is nobody else."""
    cdef SubscriberList* members = group.members
    cdef uint32_t at = group.cursor % members.size
    cdef uint32_t member, options, worker, number
    if members.items[at].subscriber == except_member:
        if members.size == 1:
            return False
        at = (at + 1) % members.size
    group.cursor = at + 1
    member, options = members.items[at].subscriber, members.items[at].options
    worker, number = member >> MEMBER_BITS, member & ((1 << MEMBER_BITS) - 1)
    if worker != engine.index:
        return append_directed(engine, <Peer>engine.peers[worker], number, options, group, publication)
    return deliver_shared(engine, <Session>engine.sessions[number], options, publication)


cdef bint deliver_shared(Engine engine, Session session, uint32_t options, Publication* publication) noexcept:
    cdef uint32_t identifier = options >> 4
    cdef bint delivered
    publication.is_shared = True
    delivered = deliver(
        engine, session, options & 3, (options >> 3) & 1, &identifier, 1 if identifier else 0, publication
    )
    publication.is_shared = False
    return delivered


cdef inline uint32_t group_checksum(const Group* group) noexcept:
    return crc32c_update(0, group.name + 1, group.name_size - 1)


cdef inline bint is_member(const Group* group, uint32_t member) noexcept:
    cdef uint32_t i
    for i in range(group.members.size):
        if group.members.items[i].subscriber == member:
            return True
    return False


cdef void take_order(Engine engine, const Order* order, Publication* publication) noexcept:
    """A message for a member that another worker has chosen. If that one has left meanwhile, somebody else gets it."""
    cdef const Match* match = engine.groups.find(publication.topic.data, publication.topic.size)
    cdef uint32_t member = engine.index << MEMBER_BITS | order.session
    cdef Group* substitute = NULL
    cdef uint32_t i
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return
    for i in range(match.n_groups):
        if group_checksum(match.groups[i]) == order.group:
            if match.groups[i].name[0] == c"@" and is_member(match.groups[i], member):
                deliver_shared(engine, <Session>engine.sessions[order.session], order.options, publication)
                return
            if substitute == NULL or match.groups[i].name[0] == c"@":
                substitute = match.groups[i]
    if substitute == NULL:
        engine.counters.drops[DROP_MEMBER_LEFT] += 1
    elif substitute.name[0] == c"@":
        deliver_to_member(engine, substitute, NOBODY, publication)
    elif publication.qos:
        wait_for_member(engine, substitute, publication)


# --- Waiting for a member ------------------------------------------------------------------------------------------

cdef inline bytes name_of(const Group* group):
    """Without its sign."""
    cdef const char* name = <const char*>group.name
    return PyBytes_FromStringAndSize(name + 1, group.name_size - 1)


cdef bint wait_for_member(Engine engine, const Group* group, Publication* publication) noexcept:
    cdef Message* message = message_of(publication)
    cdef list messages
    cdef tuple key
    if message == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return False
    key = (name_of(group), group.node)
    messages = engine.waiting.setdefault(key, [])
    if len(messages) >= MAX_WAITING:  # the oldest goes
        release(<Message*><size_t>messages.pop(0))
        engine.counters.drops[DROP_QUEUE_FULL] += 1
    message.refs += 1
    messages.append(<size_t>message)
    return True


cdef void drop_waiting(list messages) noexcept:
    for value in messages:
        release(<Message*><size_t>value)


cdef int drain_group(Engine engine, bytes name) except -1:
    cdef Message* message
    cdef list messages
    for key in [key for key in engine.waiting if key[0] == name]:
        messages = engine.waiting.pop(key)
        for value in messages:
            message = <Message*><size_t>value
            if remaining_expiry_s(message, engine.wall_ms) == 0:
                engine.counters.drops[DROP_EXPIRED] += 1
            else:
                send_to_group(engine, message, name, key[1], NOBODY)
            release(message)
    return 0


cdef int prune_group(Engine engine, bytes name) except -1:
    cdef Message* message
    cdef const Match* match
    for key in [key for key in engine.waiting if key[0] == name]:
        message = <Message*><size_t>engine.waiting[key][0]
        match = engine.groups.find(message_topic(message), message.topic_bytes)
        if match == NULL or find_group(match, name, key[1]) == NULL:
            drop_waiting(engine.waiting.pop(key))
    return 0


cdef Group* find_group(const Match* match, bytes name, uint32_t node) noexcept:
    """The group of this name and filter, its connected members if there are any, else those that are away."""
    cdef Group* away = NULL
    cdef Group* group
    cdef uint32_t i
    for i in range(match.n_groups):
        group = match.groups[i]
        if (
            group.node == node
            and group.name_size == <uint32_t>len(name) + 1
            and memcmp(group.name + 1, PyBytes_AS_STRING(name), len(name)) == 0
        ):
            if group.name[0] == c"@":
                return group
            away = group
    return away


cdef void send_to_group(Engine engine, Message* message, bytes name, uint32_t node, uint32_t except_member) noexcept:
    """A kept message to a connected member of a group; it waits when there is none but `except_member`."""
    cdef Publication publication
    cdef const Match* match = engine.groups.find(message_topic(message), message.topic_bytes)
    cdef Group* group = find_group(match, name, node) if match != NULL else NULL
    if group == NULL:
        return
    publication_of(engine, &publication, message)
    if group.name[0] != c"@" or not deliver_to_member(engine, group, except_member, &publication):
        wait_for_member(engine, group, &publication)
    end_publication(&publication)


cdef void publication_of(Engine engine, Publication* publication, Message* message) noexcept:
    """A publication of a message that is kept already; takes a reference of its own."""
    start_publication(engine, publication)
    publication.topic = Span(message_topic(message), message.topic_bytes)
    publication.properties = Span(message_properties(message), message.properties_bytes)
    publication.payload = Span(message_payload(message), message.payload_bytes)
    publication.received_ms = message.received_ms
    publication.expiry_s = message.expiry_s
    publication.qos = message.qos
    message.refs += 1
    publication.message = message


# --- A member leaves -----------------------------------------------------------------------------------------------

cdef int release_shared(Engine engine, Session session) except -1:
    """Gives its messages to others, oldest first: in flight, then queued."""
    cdef uint64_t* entries
    cdef Delivery* delivery
    cdef uint32_t i, n = session.window.count
    entries = ordered_window(&session.window)
    if entries == NULL:
        raise MemoryError()
    for i in range(n):
        delivery = window_find(&session.window, <uint16_t>(entries[i] & 0xFFFF))
        if delivery.is_shared and delivery.qos == 1:
            pass_to_others(engine, session, delivery.message)
            drop_delivery(delivery)
            window_remove(&session.window, delivery)
    free(entries)
    n = session.queue.count
    for i in range(n):  # once around the ring: what is not shared goes back to its end
        delivery = queue_at(&session.queue, 0)
        if delivery.is_shared:
            pass_to_others(engine, session, delivery.message)
            drop_delivery(delivery)
            queue_pop(&session.queue)
        else:
            rotate(&session.queue)
    return 0


cdef void rotate(Queue* queue) noexcept:
    """The oldest becomes the newest."""
    cdef Delivery oldest = queue_at(queue, 0)[0]
    queue.head = (queue.head + 1) & (queue.capacity - 1)
    queue_at(queue, queue.count - 1)[0] = oldest


cdef void pass_to_others(Engine engine, Session session, Message* message) noexcept:
    """To the first matching group of which the session is a connected member."""
    cdef const Match* match = engine.groups.find(message_topic(message), message.topic_bytes)
    cdef uint32_t member = engine.index << MEMBER_BITS | session.number
    cdef Group* group
    cdef uint32_t i
    if match == NULL:
        return
    for i in range(match.n_groups):
        group = match.groups[i]
        if group.name[0] == c"@" and is_member(group, member):
            send_to_group(engine, message, name_of(group), group.node, member)
            return
