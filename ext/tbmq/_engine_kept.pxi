# Sending what a session has kept: its queue, and after a reconnect its window. Part of _engine.pyx.
#
#   queue ──pump──▶ window (packet id, SENT) ──PUBACK, PUBCOMP──▶ gone
#                   after a reconnect HELD_BACK ──send_held_back──▶ SENT again, DUP
#
# Both go as fast as the client's Receive Maximum and its output allow; the window goes before the queue.


cdef bint send_delivery(Engine engine, Connection connection, Delivery* delivery, bint dup) noexcept:
    """Sends the PUBLISH of an entry of the window. False when the client cannot take it."""
    cdef Outgoing outgoing
    cdef Message* message = delivery.message
    memset(&outgoing, 0, sizeof(Outgoing))
    outgoing.topic = Span(message_topic(message), message.topic_bytes)
    outgoing.properties = Span(message_properties(message), message.properties_bytes)
    outgoing.payload = Span(message_payload(message), message.payload_bytes)
    outgoing.qos = delivery.qos
    outgoing.retain = delivery.retain
    outgoing.dup = dup
    outgoing.packet_id = delivery.packet_id
    outgoing.expiry_s = remaining_expiry_s(message, engine.wall_ms) or 1
    if delivery.identifiers != NULL:
        outgoing.n_identifiers = delivery.identifiers[0]
        outgoing.identifiers = delivery.identifiers + 1
    elif delivery.identifier:
        outgoing.n_identifiers = 1
        outgoing.identifiers = &delivery.identifier
    return write_publish(engine, connection, &outgoing)


cdef void pump(Engine engine, Session session) noexcept:
    """Moves messages from the queue into the window while there is quota and room in the output."""
    cdef Connection connection = session.connection
    cdef Delivery* waiting
    cdef Delivery* delivery
    cdef uint16_t packet_id
    if connection is None:
        return
    if session.held_back:
        send_held_back(engine, session)
    while (
        session.queue.count
        and session.held_back == 0
        and session.window.count < connection.send_quota
        and waiting_bytes(connection) <= engine.settings.high_water_bytes
    ):
        waiting = queue_at(&session.queue, 0)
        if remaining_expiry_s(waiting.message, engine.wall_ms) == 0:
            engine.counters.drops[DROP_EXPIRED] += 1
            drop_delivery(waiting)
            queue_pop(&session.queue)
            continue
        if not may_receive_now(engine, connection):
            wait_for_tokens(engine, connection)
            return
        packet_id = window_next_id(&session.window)
        delivery = window_insert(&session.window, packet_id) if packet_id else NULL
        if delivery == NULL:
            return
        delivery[0] = waiting[0]  # with its references
        delivery.packet_id = packet_id
        delivery.state = SENT
        queue_pop(&session.queue)
        if not send_delivery(engine, connection, delivery, False):
            drop_delivery(delivery)
            window_remove(&session.window, delivery)


cdef uint64_t* ordered_window(const Window* window) noexcept:
    """The window's entries by send order, as order << 16 | packet id; malloc'ed. NULL when memory is out."""
    cdef uint64_t* entries = <uint64_t*>malloc(max(window.count, <uint32_t>1) * sizeof(uint64_t))
    cdef uint32_t i, n = 0
    if entries != NULL:
        for i in range(window.capacity):
            if window.slots[i].packet_id:
                entries[n] = <uint64_t>window.slots[i].order << 16 | window.slots[i].packet_id
                n += 1
        qsort(entries, n, sizeof(uint64_t), by_order)
    return entries


cdef int by_order(const void* left_side, const void* right_side) noexcept nogil:
    cdef uint64_t a = (<const uint64_t*>left_side)[0]
    cdef uint64_t b = (<const uint64_t*>right_side)[0]
    return (a > b) - (a < b)


cdef void resend(Engine engine, Session session) noexcept:
    """A session is resumed: everything in flight goes out again, in the order it was sent first [MQTT-4.4.0-1], as fast
    as the client's quota and its output allow; `held_back` counts what is still to come."""
    cdef Connection connection = session.connection
    cdef uint64_t* entries
    cdef uint32_t i, n = session.window.count
    cdef Delivery* delivery
    forget_held_back(session)
    if n:
        entries = ordered_window(&session.window)
        if entries == NULL:
            connection.hung_up = True  # without its order nothing may be sent
            make_ready(engine, connection)
            return
        for i in range(n):
            delivery = window_find(&session.window, <uint16_t>(entries[i] & 0xFFFF))
            if delivery.state == RELEASED:
                write_ack(engine, connection, PUBREL, delivery.packet_id, 0)
            else:
                delivery.state = HELD_BACK
                entries[session.held_back] = entries[i]
                session.held_back += 1
        session.resend_entries = entries
    pump(engine, session)


cdef void send_held_back(Engine engine, Session session) noexcept:
    cdef Connection connection = session.connection
    cdef Delivery* oldest
    while (
        session.held_back
        and session.window.count - session.held_back < connection.send_quota
        and waiting_bytes(connection) <= engine.settings.high_water_bytes
    ):
        oldest = window_find(&session.window, <uint16_t>(session.resend_entries[session.resend_at] & 0xFFFF))
        session.resend_at += 1
        session.held_back -= 1
        if oldest == NULL or oldest.state != HELD_BACK:  # somebody else has got it
            continue
        oldest.state = SENT
        if not send_delivery(engine, connection, oldest, True):
            drop_delivery(oldest)
            window_remove(&session.window, oldest)
    if session.held_back == 0:
        forget_held_back(session)


cdef int drop_denied(Engine engine, Session session, object is_denied) except -1:
    """Each topic is asked about once. Between PUBREC and PUBCOMP there is nothing left to drop."""
    cdef dict answers = {}
    cdef Delivery* delivery
    cdef int dropped = 0
    cdef uint32_t i, n = session.queue.count
    for i in range(n):  # once around the ring: what stays goes back to its end
        delivery = queue_at(&session.queue, 0)
        if is_denied_message(answers, delivery.message, is_denied):
            drop_delivery(delivery)
            queue_pop(&session.queue)
            dropped += 1
        else:
            rotate(&session.queue)
    i = 0
    while i < session.window.capacity:
        delivery = &session.window.slots[i]
        if delivery.packet_id and delivery.message != NULL and is_denied_message(answers, delivery.message, is_denied):
            drop_delivery(delivery)
            window_remove(&session.window, delivery)  # may move another one here: look again
            dropped += 1
        else:
            i += 1
    engine.counters.drops[DROP_NOT_AUTHORIZED] += dropped
    return dropped


cdef bint is_denied_message(dict answers, Message* message, object is_denied) except -1:
    cdef bytes topic = PyBytes_FromStringAndSize(<char*>message_topic(message), message.topic_bytes)
    if topic not in answers:
        answers[topic] = bool(is_denied(topic))
    return answers[topic]


cdef void forget_held_back(Session session) noexcept:
    free(session.resend_entries)
    session.resend_entries = NULL
    session.resend_at = session.held_back = 0
