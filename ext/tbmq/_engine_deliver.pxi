# Delivery: one publication to its subscribers. Part of _engine.pyx.
#
#   Publication  the message as it passes: spans into the buffer that brought it, and lazily
#                - `message`: a counted copy, made when a session has to keep it (QoS 1 and 2, retained)
#                - `frames`: its bytes on the wire, made once per layout (level below 5 or 5, times QoS) in engine.scratch;
#                  a subscriber's copy differs only in the retain bit and the packet id
#
# No Python code runs between the match and the last delivery: the match belongs to the trie and must not change.

cdef enum:
    LAYOUTS = 6
    LAYOUT_BYTES = 8192          # larger frames are written for each subscriber

cdef struct Frame:
    uint32_t size                # 0: not made yet
    uint32_t id_at               # where the packet id goes

cdef struct Publication:
    Span topic
    Span properties              # forwarded as they are
    Span payload
    uint64_t received_ms
    uint32_t expiry_s            # as received
    uint32_t publisher           # session number, or NOBODY
    uint16_t packet_id           # the publisher's
    uint8_t qos
    bint retain
    uint64_t round               # in which it goes to other workers: its ack waits for them; 0: to none
    bint is_shared               # it is being delivered through a shared subscription
    bint over_limit              # it should have been retained, but a limit forbade it
    bint is_replay               # a retained message for a new subscription: its retain flag stays
    Message* message             # NULL until somebody has to keep it; one reference is ours
    Frame frames[LAYOUTS]

cdef struct Outgoing:            # one PUBLISH as a particular subscriber gets it
    Span topic
    Span properties
    Span payload
    const uint32_t* identifiers
    uint32_t n_identifiers
    uint32_t expiry_s            # remaining; NO_EXPIRY: none
    uint16_t packet_id
    uint16_t alias               # 0: none
    uint8_t qos
    bint retain
    bint dup


cdef inline void start_publication(Engine engine, Publication* publication) noexcept:
    memset(publication, 0, sizeof(Publication))
    publication.received_ms = engine.wall_ms
    publication.expiry_s = NO_EXPIRY
    publication.publisher = NOBODY


cdef inline void end_publication(Publication* publication) noexcept:
    if publication.message != NULL:
        release(publication.message)
        publication.message = NULL


cdef Message* message_of(Publication* publication) noexcept:
    """The counted copy, made on first use; NULL when memory is out. The publication keeps its own reference."""
    cdef Message* message = publication.message
    if message == NULL:
        message = new_message(&publication.topic, &publication.properties, &publication.payload)
        if message != NULL:
            message.received_ms = publication.received_ms
            message.expiry_s = publication.expiry_s
            message.qos = publication.qos
            message.retain = publication.retain
            publication.message = message
    return message


# --- A PUBLISH on the wire -----------------------------------------------------------------------------------------

cdef uint32_t outgoing_properties_bytes(const Outgoing* outgoing) noexcept:
    cdef uint32_t size = outgoing.properties.size
    cdef uint32_t i
    if outgoing.expiry_s != NO_EXPIRY:
        size += 5
    if outgoing.alias:
        size += 3
    for i in range(outgoing.n_identifiers):
        size += 1 + varint_size(outgoing.identifiers[i])
    return size


cdef uint32_t head_and_body(int level, const Outgoing* outgoing, uint32_t* properties_bytes) noexcept:
    """Bytes of the whole body; with MQTT 5 also of its property section."""
    cdef uint32_t size = 2 + outgoing.topic.size + (2 if outgoing.qos else 0) + outgoing.payload.size
    properties_bytes[0] = 0
    if level == 5:
        properties_bytes[0] = outgoing_properties_bytes(outgoing)
        size += varint_size(properties_bytes[0]) + properties_bytes[0]
    return size


cdef uint8_t* write_head(
    uint8_t* out, int level, const Outgoing* outgoing, uint32_t body_bytes, uint32_t properties_bytes
) noexcept:
    """Everything but the payload; answers where that goes."""
    cdef uint32_t i
    out[0] = <uint8_t>(PUBLISH << 4 | outgoing.dup << 3 | outgoing.qos << 1 | outgoing.retain)
    out = store_varint(out + 1, body_bytes)
    out = store_u16(out, <uint16_t>outgoing.topic.size)
    memcpy(out, outgoing.topic.data, outgoing.topic.size)
    out += outgoing.topic.size
    if outgoing.qos:
        out = store_u16(out, outgoing.packet_id)
    if level == 5:
        out = store_varint(out, properties_bytes)
        if outgoing.expiry_s != NO_EXPIRY:
            out[0] = 0x02
            out = store_u32(out + 1, outgoing.expiry_s)
        if outgoing.alias:
            out[0] = 0x23
            out = store_u16(out + 1, outgoing.alias)
        for i in range(outgoing.n_identifiers):
            out[0] = 0x0B
            out = store_varint(out + 1, outgoing.identifiers[i])
        if outgoing.properties.size:
            memcpy(out, outgoing.properties.data, outgoing.properties.size)
            out += outgoing.properties.size
    return out


cdef bint write_publish(Engine engine, Connection connection, Outgoing* outgoing) noexcept:
    """Puts one PUBLISH into the output; False, and counted, when the client cannot take it."""
    cdef uint32_t properties_bytes = 0
    cdef uint32_t body_bytes
    cdef size_t size, head_bytes
    cdef uint8_t* out
    body_bytes = head_and_body(connection.level, outgoing, &properties_bytes)
    size = 1 + varint_size(body_bytes) + <size_t>body_bytes
    if connection.alias_out_maximum and size + 3 <= connection.max_outgoing_bytes:
        choose_alias(connection, outgoing)
        body_bytes = head_and_body(connection.level, outgoing, &properties_bytes)
        size = 1 + varint_size(body_bytes) + <size_t>body_bytes
    if size > connection.max_outgoing_bytes:  # [MQTT-3.1.2-24]
        engine.counters.drops[DROP_TOO_LARGE] += 1
        return False
    head_bytes = size - outgoing.payload.size
    if size >= LARGE_FRAME_BYTES and connection.fd >= 0 and connection.out == NULL and not connection.blocked:
        out = reserve(engine, connection, head_bytes)
    else:
        out = reserve(engine, connection, size)
        if out != NULL:
            out = write_head(out, connection.level, outgoing, body_bytes, properties_bytes)
            memcpy(out, outgoing.payload.data, outgoing.payload.size)
            connection.out_end += size
            return count_publish(engine, outgoing.qos)
    if out == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return False
    write_head(out, connection.level, outgoing, body_bytes, properties_bytes)
    connection.out_end += head_bytes
    if not send_with_payload(engine, connection, head_bytes, outgoing.payload.data, outgoing.payload.size):
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return False
    return count_publish(engine, outgoing.qos)


cdef bint send_with_payload(
    Engine engine, Connection connection, size_t head_bytes, const uint8_t* payload, size_t size
) noexcept:
    """Sends an output that holds nothing but `head_bytes`, and behind it a payload straight from its source: only what
    the socket does not take is copied. False when memory for that is out."""
    cdef iovec parts[2]
    cdef msghdr header
    cdef ssize_t sent
    cdef uint8_t* out
    parts[0].iov_base, parts[0].iov_len = connection.out, head_bytes
    parts[1].iov_base, parts[1].iov_len = <void*>payload, size
    memset(&header, 0, sizeof(msghdr))
    header.msg_iov, header.msg_iovlen = parts, 2
    sent = sendmsg(connection.fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL)
    engine.counters.writes += 1
    sent = max(sent, <ssize_t>0)  # a failed socket shows itself at the next flush
    engine.counters.bytes_out += sent
    if <size_t>sent < head_bytes:
        connection.out_start += sent
        sent = 0
    else:
        connection.out_start += head_bytes
        sent -= head_bytes
    if <size_t>sent < size:
        out = reserve(engine, connection, size - sent)
        if out == NULL:  # a part is out: the connection cannot go on
            connection.hung_up = True
            make_ready(engine, connection)
            return False
        memcpy(out, payload + sent, size - sent)
        connection.out_end += size - sent
    return True


cdef inline bint count_publish(Engine engine, uint8_t qos) noexcept:
    engine.counters.messages_out[qos] += 1
    engine.counters.packets_out[<int>PUBLISH] += 1
    return True


cdef void choose_alias(Connection connection, Outgoing* outgoing) noexcept:
    """MQTT 5: the first topics sent get aliases, up to what the client allows; afterwards only the alias is sent."""
    cdef bytes topic = PyBytes_FromStringAndSize(<char*>outgoing.topic.data, outgoing.topic.size)
    if connection.alias_out is None:
        connection.alias_out = {}
    alias = connection.alias_out.get(topic)
    if alias is not None:
        outgoing.alias = alias
        outgoing.topic.size = 0
    elif len(connection.alias_out) < connection.alias_out_maximum:
        outgoing.alias = <uint16_t>(len(connection.alias_out) + 1)
        connection.alias_out[topic] = outgoing.alias


cdef bint write_copy(Engine engine, Connection connection, Publication* publication, uint8_t qos, bint retain,
                     uint16_t packet_id, const uint32_t* identifiers, uint32_t n_identifiers) noexcept:
    """Sends a publication: the prepared frame of its layout where that is all the same, else written for this one."""
    cdef Outgoing outgoing
    cdef Frame* frame
    cdef uint32_t properties_bytes = 0
    cdef uint32_t body_bytes
    cdef int layout
    cdef uint8_t* out
    cdef uint8_t* made
    if n_identifiers == 0 and connection.alias_out_maximum == 0:
        layout = (3 if connection.level == 5 else 0) + qos
        frame = &publication.frames[layout]
        made = engine.scratch + layout * LAYOUT_BYTES
        if frame.size == 0:
            fill_outgoing(engine, publication, &outgoing, qos)
            body_bytes = head_and_body(connection.level, &outgoing, &properties_bytes)
            if 1 + varint_size(body_bytes) + <size_t>body_bytes <= LAYOUT_BYTES:
                frame.size = 1 + varint_size(body_bytes) + body_bytes
                frame.id_at = 1 + varint_size(body_bytes) + 2 + outgoing.topic.size
                out = write_head(made, connection.level, &outgoing, body_bytes, properties_bytes)
                memcpy(out, outgoing.payload.data, outgoing.payload.size)
        if frame.size:
            if frame.size > connection.max_outgoing_bytes:
                engine.counters.drops[DROP_TOO_LARGE] += 1
                return False
            out = reserve(engine, connection, frame.size)
            if out == NULL:
                engine.counters.drops[DROP_NO_MEMORY] += 1
                return False
            memcpy(out, made, frame.size)
            out[0] |= retain
            if qos:
                store_u16(out + frame.id_at, packet_id)
            connection.out_end += frame.size
            return count_publish(engine, qos)
    fill_outgoing(engine, publication, &outgoing, qos)
    outgoing.retain = retain
    outgoing.packet_id = packet_id
    outgoing.identifiers = identifiers
    outgoing.n_identifiers = n_identifiers
    return write_publish(engine, connection, &outgoing)


cdef inline void fill_outgoing(Engine engine, const Publication* publication, Outgoing* outgoing, uint8_t qos) noexcept:
    cdef uint64_t age_s
    memset(outgoing, 0, sizeof(Outgoing))
    outgoing.topic = publication.topic
    outgoing.properties = publication.properties
    outgoing.payload = publication.payload
    outgoing.qos = qos
    outgoing.expiry_s = publication.expiry_s
    if publication.expiry_s != NO_EXPIRY and engine.wall_ms > publication.received_ms:  # it has waited somewhere
        age_s = (engine.wall_ms - publication.received_ms) // 1000
        outgoing.expiry_s = <uint32_t>(publication.expiry_s - age_s) if age_s < publication.expiry_s else 1


# --- One subscriber ------------------------------------------------------------------------------------------------

cdef bint deliver(Engine engine, Session session, uint8_t granted_qos, bint keep_retain, const uint32_t* identifiers,
                  uint32_t n_identifiers, Publication* publication) noexcept:
    """Sends, queues or drops one publication for one session. True unless it was dropped."""
    cdef Connection connection = session.connection
    cdef uint8_t qos = min(publication.qos, granted_qos)
    cdef bint retain = publication.is_replay or (publication.retain and keep_retain)
    cdef uint16_t packet_id
    cdef Delivery* delivery
    cdef Message* message
    if qos == 0:
        if connection is None:
            engine.counters.drops[DROP_OFFLINE_QOS0] += 1
            return False
        if not has_room(engine, connection):
            engine.counters.drops[DROP_SLOW_READER] += 1
            return False
        if not may_receive_now(engine, connection):
            engine.counters.drops[DROP_RATE_LIMIT] += 1
            return False
        return write_copy(engine, connection, publication, 0, retain, 0, identifiers, n_identifiers)
    if connection is None and not session.keeps_messages:
        return False
    message = message_of(publication)
    if message == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return False
    if connection is not None:
        if is_over(engine, connection):
            check_congestion(engine, connection)
        elif (
            session.queue.count == 0
            and session.held_back == 0
            and session.window.count < connection.send_quota
            and may_receive_now(engine, connection)
        ):
            packet_id = window_next_id(&session.window)
            delivery = window_insert(&session.window, packet_id) if packet_id else NULL
            if delivery != NULL:
                fill_delivery(session, delivery, message, qos, retain, identifiers, n_identifiers)
                delivery.state = SENT
                delivery.is_shared = publication.is_shared
                if write_copy(engine, connection, publication, qos, retain, packet_id, identifiers, n_identifiers):
                    return True
                drop_delivery(delivery)  # too large for this client: as if delivered [MQTT-3.1.2-25]
                window_remove(&session.window, delivery)
                return False
    delivery = enqueue(engine, session, message, qos, retain, identifiers, n_identifiers)
    if delivery == NULL:
        return False
    delivery.is_shared = publication.is_shared
    if connection is not None and connection.meter != NULL:
        wait_for_tokens(engine, connection)
    return True


cdef inline bint has_room(Engine engine, Connection subscriber) noexcept:
    """Whether QoS 0 may be added to its output. May hold the publisher."""
    cdef size_t waiting = waiting_bytes(subscriber)
    if waiting <= engine.settings.high_water_bytes:
        return True
    check_congestion(engine, subscriber)
    waiting = waiting_bytes(subscriber)
    return waiting <= engine.settings.high_water_bytes or (
        waiting < engine.settings.max_output_bytes and not subscriber.slow
    )


cdef void fill_delivery(Session session, Delivery* delivery, Message* message, uint8_t qos, bint retain,
                        const uint32_t* identifiers, uint32_t n_identifiers) noexcept:
    cdef uint32_t i
    message.refs += 1
    delivery.message = message
    delivery.qos = qos
    delivery.retain = retain
    delivery.order = session.window.next_order
    session.window.next_order += 1
    if n_identifiers == 1:
        delivery.identifier = identifiers[0]
    elif n_identifiers > 1:
        delivery.identifiers = <uint32_t*>malloc((n_identifiers + 1) * sizeof(uint32_t))
        if delivery.identifiers != NULL:
            delivery.identifiers[0] = n_identifiers
            for i in range(n_identifiers):
                delivery.identifiers[i + 1] = identifiers[i]


cdef Delivery* enqueue(Engine engine, Session session, Message* message, uint8_t qos, bint retain,
                  const uint32_t* identifiers, uint32_t n_identifiers) noexcept:
    """The new entry; NULL, and counted, when it cannot be kept."""
    cdef Delivery* delivery
    if session.max_queued == 0:
        engine.counters.drops[DROP_QUEUE_FULL] += 1
        return NULL
    if session.queue.count >= session.max_queued:  # the oldest goes
        drop_delivery(queue_at(&session.queue, 0))
        queue_pop(&session.queue)
        engine.counters.drops[DROP_QUEUE_FULL] += 1
    delivery = queue_push(&session.queue)
    if delivery == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return NULL
    fill_delivery(session, delivery, message, qos, retain, identifiers, n_identifiers)
    return delivery
