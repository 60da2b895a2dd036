# PUBLISH and the four acks from clients; retained messages. Part of _engine.pyx.


cdef int dispatch(Engine engine, Publication* publication) noexcept:
    """Everything that has to happen to a message that was published here. Answers how many want it."""
    cdef int taken
    if publication.retain and (engine.workers == 1 or owner_of(engine, &publication.topic) == engine.index):
        retain_message(engine, publication)
    taken = deliver_to_subscribers(engine, publication)
    if engine.workers > 1:
        taken += forward(engine, publication)
    if engine.groups.tree.n_shared:
        taken += deliver_to_groups(engine, publication)
    end_publication(publication)
    if engine.round_is_full:
        seal_round(engine)
    return taken


cdef int deliver_to_subscribers(Engine engine, Publication* publication) noexcept:
    """To every matching subscription of this worker's sessions."""
    cdef const Match* match = engine.subscriptions.find(publication.topic.data, publication.topic.size)
    cdef const Target* target
    cdef uint32_t i
    cdef int taken = 0
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return 0
    for i in range(match.n_targets):
        target = &match.targets[i]
        if target.no_local and target.subscriber == publication.publisher:
            continue
        taken += deliver(
            engine,
            <Session>engine.sessions[target.subscriber],
            target.qos,
            target.retain_as_published,
            match.identifiers + target.first_identifier,
            target.n_identifiers,
            publication,
        )
    return taken


# --- Retained messages ---------------------------------------------------------------------------------------------

cdef void retain_message(Engine engine, Publication* publication) noexcept:
    """Stores, replaces or (empty payload) deletes the topic's retained message; over a limit it is left as it was."""
    cdef uint64_t old = 0
    cdef uint64_t old_bytes = 0
    cdef uint64_t new_bytes = (
        sizeof(Message) + publication.topic.size + publication.properties.size + publication.payload.size
    )
    cdef bint has_old
    cdef Message* message
    cdef int status
    if publication.payload.size == 0:  # [MQTT-3.3.1-6]
        forget_retained(engine, publication.topic)
        return
    has_old = engine.retained.look_up(publication.topic.data, publication.topic.size, &old)
    if has_old:
        old_bytes = message_bytes(<Message*><size_t>old)
    if (
        publication.payload.size > engine.settings.max_retained_payload_bytes
        or engine.retained_bytes - old_bytes + new_bytes > engine.settings.max_retained_total_bytes
        or (not has_old and <uint32_t>len(engine.retained) >= engine.settings.max_retained)
    ):
        engine.counters.drops[DROP_RETAINED_LIMIT] += 1
        publication.over_limit = True
        return
    message = message_of(publication)
    status = NO_MEMORY
    if message != NULL:
        status = engine.retained.put(
            publication.topic.data, publication.topic.size, <uint64_t><size_t>message, &old
        )
    if status != ADDED and status != REPLACED:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        publication.over_limit = True
        return
    message.refs += 1
    engine.retained_bytes += message_bytes(message)
    if status == REPLACED:
        release_retained(engine, old)


cdef void forget_retained(Engine engine, Span topic) noexcept:
    cdef uint64_t old = 0
    if engine.retained.take(topic.data, topic.size, &old):
        release_retained(engine, old)


cdef void release_retained(Engine engine, uint64_t value) noexcept:
    cdef Message* message = <Message*><size_t>value
    engine.retained_bytes -= message_bytes(message)
    release(message)


cdef bint send_retained(Engine engine, Session session, Message* message, uint8_t granted_qos, uint32_t identifier):
    """One retained message to one session, as part of a new subscription. False when it has expired."""
    if remaining_expiry_s(message, engine.wall_ms) == 0:
        engine.counters.drops[DROP_EXPIRED] += 1
        forget_retained(engine, Span(message_topic(message), message.topic_bytes))
        return False
    replay(engine, session, message, granted_qos, identifier)
    return True


cdef void replay(Engine engine, Session session, Message* message, uint8_t granted_qos, uint32_t identifier) noexcept:
    cdef Publication publication
    publication_of(engine, &publication, message)
    publication.is_replay = True
    deliver(engine, session, granted_qos, True, &identifier, 1 if identifier else 0, &publication)
    end_publication(&publication)


cdef int batch_message(BatchWriter writer, Message* message) except -1:
    cdef MessageView view
    memset(&view, 0, sizeof(MessageView))
    view.topic, view.topic_bytes = message_topic(message), message.topic_bytes
    view.properties, view.properties_bytes = message_properties(message), message.properties_bytes
    view.payload, view.payload_bytes = message_payload(message), message.payload_bytes
    view.time_ms = message.received_ms
    view.has_expiry = message.expiry_s != NO_EXPIRY
    view.expiry_s = message.expiry_s
    view.qos, view.retain = message.qos, True
    writer.append_message(&view)
    return 0


cdef int send_retained_batch(Engine engine, Session session, bytes batch, uint8_t granted_qos, uint32_t identifier) except -1:
    cdef BatchReader reader = BatchReader(batch)
    cdef MessageView view
    cdef Message* message
    cdef Span topic, properties, payload
    while reader.next(&view):
        topic = Span(view.topic, view.topic_bytes)
        properties = Span(view.properties, view.properties_bytes)
        payload = Span(view.payload, view.payload_bytes)
        message = new_message(&topic, &properties, &payload)
        if message == NULL:
            raise MemoryError()
        message.received_ms = view.time_ms
        message.expiry_s = view.expiry_s if view.has_expiry else <uint32_t>NO_EXPIRY
        message.qos, message.retain = view.qos, True
        if remaining_expiry_s(message, engine.wall_ms):
            replay(engine, session, message, granted_qos, identifier)
        release(message)
    return 0


# --- PUBLISH -------------------------------------------------------------------------------------------------------

cdef int handle_publish(Engine engine, Connection connection, const Header* header, Cursor* body, Run* run) noexcept:
    """0, or the reason code for which the connection has to end (text in body.fault). May begin a run."""
    cdef PublishView view
    cdef Publication publication
    cdef Session session = connection.session
    cdef Cursor packet = body[0]
    cdef int code = decode_publish(body, header.first, connection.level, FROM_CLIENT, &connection.limits, &view)
    cdef int taken
    if code != OK:
        return code
    engine.counters.messages_in[view.qos] += 1
    if view.topic_alias:
        code = resolve_alias(connection, &view, body)
        if code != OK:
            return code
    if view.qos:
        if view.qos == 2 and ids_contain(&session.received, view.packet_id):
            engine.counters.duplicates_in += 1
            write_ack(engine, connection, PUBREC, view.packet_id, 0)
            return OK
        if (
            connection.level == 5
            and session.received.count + connection.unsent_acks >= engine.settings.receive_maximum
        ):
            if engine.settings.strict:
                body.fault = "more messages in flight than Receive Maximum allows"  # [MQTT-3.3.4-9]
                return 0x93
            tolerate(engine, connection, "more messages in flight than Receive Maximum allows")
        if view.qos == 1:  # QoS 2 counts by its id until PUBREL
            connection.unsent_acks += 1
    if view.payload_format and not is_utf8(view.payload.data, view.payload.size, True):
        return refuse_publish(engine, connection, &view, 0x99)
    if view.topic.data[0] == c"$":
        code = judge_dollar_topic(engine, connection, &view.topic)
        if not connection.open:
            return OK
        if code != OK:
            return refuse_publish(engine, connection, &view, code)
    elif connection.is_restricted:
        code = judge_topic(engine, connection, &view.topic)
        if not connection.open:  # the policy has closed it
            return OK
        if code != OK:
            engine.counters.drops[DROP_NOT_AUTHORIZED] += 1
            return refuse_publish(engine, connection, &view, code)
    if is_plain(&view, header.first):
        begin_run(run, connection, header, &packet, &view.topic)
        return OK
    start_publication(engine, &publication)
    publication.topic = view.topic
    publication.payload = view.payload
    publication.qos = view.qos
    publication.retain = view.retain
    publication.publisher = session.number
    publication.packet_id = view.packet_id
    if view.has_expiry:
        publication.expiry_s = view.expiry_s
    publication.properties = view.properties
    if view.has_expiry or (view.topic_alias and view.properties.size):
        if not strip_properties(engine, connection, &publication.properties):
            return refuse_publish(engine, connection, &view, 0x97)
    if view.qos == 2 and not ids_add(&session.received, view.packet_id):
        return refuse_publish(engine, connection, &view, 0x97)
    engine.publisher = connection
    taken = dispatch(engine, &publication)
    engine.publisher = None
    if view.qos:
        code = 0
        if connection.level == 5:
            code = 0x97 if publication.over_limit else 0x10 if taken == 0 else 0
        if view.qos == 2 and code >= 0x80:
            ids_remove(&session.received, view.packet_id)
        return acknowledge(
            engine, connection, PUBACK if view.qos == 1 else PUBREC, view.packet_id, code, publication.round
        )
    return OK


cdef int acknowledge(
    Engine engine, Connection connection, PacketType packet, uint16_t packet_id, int code, uint64_t round_number
) noexcept:
    """Now, or, when other workers have to confirm this message or one before it, when they have."""
    if round_number == 0 and connection.held_count == 0:
        write_ack(engine, connection, packet, packet_id, <uint8_t>code)
    elif not hold_ack(engine, connection, packet, packet_id, <uint8_t>code, round_number):
        return 0x97
    return OK


cdef void tolerate(Engine engine, Connection connection, str what) noexcept:
    """Not strict: counted, and told once per connection."""
    engine.counters.tolerated += 1
    if not connection.was_tolerated:
        connection.was_tolerated = True
        engine.handler.on_tolerated(connection, what)


cdef int judge_dollar_topic(Engine engine, Connection connection, const Span* topic) noexcept:
    """Topics that start with `$` mean something special: the policy decides. 0, or the reason code of the refusal."""
    try:
        return engine.handler.on_dollar_publish(
            connection, PyBytes_FromStringAndSize(<char*>topic.data, topic.size)
        )
    except Exception:
        engine.handler.on_exception(connection)
        return 0x80


cdef int refuse_publish(Engine engine, Connection connection, const PublishView* view, int code) noexcept:
    """The message is dropped; the client is told if it speaks MQTT 5, and gets a plain ack otherwise."""
    if connection.level < 5:
        code = 0
        if view.qos == 2 and not ids_add(&connection.session.received, view.packet_id):
            return 0x97
    if view.qos:
        return acknowledge(engine, connection, PUBACK if view.qos == 1 else PUBREC, view.packet_id, code, 0)
    return OK


cdef int resolve_alias(Connection connection, PublishView* view, Cursor* body) noexcept:
    """Remembers the topic of an alias, or fills in the one remembered. Each is kept as its length and its bytes."""
    cdef char* kept
    if view.topic_alias > connection.alias_in_maximum:
        body.fault = "a topic alias is larger than Topic Alias Maximum"  # [MQTT-3.3.2-9]
        return 0x94
    if connection.alias_in == NULL:
        connection.alias_in = <char**>calloc(connection.alias_in_maximum + 1, sizeof(char*))
        if connection.alias_in == NULL:
            body.fault = "no memory for topic aliases"
            return 0x97
    if view.topic.size:
        kept = <char*>realloc(connection.alias_in[view.topic_alias], 2 + view.topic.size)
        if kept == NULL:
            body.fault = "no memory for topic aliases"
            return 0x97
        (<uint16_t*>kept)[0] = <uint16_t>view.topic.size
        memcpy(kept + 2, view.topic.data, view.topic.size)
        connection.alias_in[view.topic_alias] = kept
        return OK
    kept = connection.alias_in[view.topic_alias]
    if kept == NULL:
        body.fault = "a topic alias was never set"
        return 0x82
    view.topic = Span(<uint8_t*>kept + 2, (<uint16_t*>kept)[0])
    return OK


cdef bint strip_properties(Engine engine, Connection connection, Span* properties) noexcept:
    """Takes out topic alias and message expiry: the one belongs to the hop, the other is written anew."""
    cdef PropertySection section
    cdef Property found
    cdef const uint8_t* at
    cdef uint8_t* grown
    cdef size_t size = 0
    if engine.stripped_capacity < properties.size:
        grown = <uint8_t*>realloc(engine.stripped, properties.size)
        if grown == NULL:
            return False
        engine.stripped = grown
        engine.stripped_capacity = properties.size
    memset(&section, 0, sizeof(PropertySection))
    section.cursor.at = properties.data
    section.cursor.end = properties.data + properties.size
    section.max_count = connection.limits.max_properties
    section.packet = <uint8_t>PUBLISH
    section.sender = <uint8_t>FROM_CLIENT
    at = section.cursor.at
    while next_property(&section, &found) == 1:
        if found.identifier != 0x02 and found.identifier != 0x23:
            memcpy(engine.stripped + size, at, section.cursor.at - at)
            size += section.cursor.at - at
        at = section.cursor.at
    properties.data = engine.stripped
    properties.size = <uint32_t>size
    return True


# --- Acks ----------------------------------------------------------------------------------------------------------

cdef void write_ack(Engine engine, Connection connection, PacketType packet, uint16_t packet_id, uint8_t code) noexcept:
    cdef uint8_t* out = reserve(engine, connection, 5)
    if out == NULL:
        connection.hung_up = True
        make_ready(engine, connection)
        return
    out[0] = <uint8_t>(packet << 4 | (2 if packet == PUBREL else 0))
    out[1] = 2
    store_u16(out + 2, packet_id)
    if code and connection.level == 5:
        out[1] = 3
        out[4] = code
        connection.out_end += 1
    connection.out_end += 4
    engine.counters.packets_out[<int>packet] += 1


cdef int handle_ack(Engine engine, Connection connection, PacketType packet, Cursor* body) noexcept:
    cdef AckView view
    cdef Session session = connection.session
    cdef Delivery* delivery
    cdef int code = decode_ack(body, packet, connection.level, FROM_CLIENT, &connection.limits, &view)
    if code != OK:
        return code
    if packet == PUBREL:
        if ids_remove(&session.received, view.packet_id):
            write_ack(engine, connection, PUBCOMP, view.packet_id, 0)
        else:
            engine.counters.stray_acks += 1
            write_ack(engine, connection, PUBCOMP, view.packet_id, 0x92)
        return OK
    delivery = window_find(&session.window, view.packet_id)
    if delivery == NULL or not is_answer(packet, delivery):
        engine.counters.stray_acks += 1
        if packet == PUBREC:
            write_ack(engine, connection, PUBREL, view.packet_id, 0x92)
        return OK
    if packet == PUBREC and view.reason_code < 0x80:
        drop_delivery(delivery)
        delivery.state = RELEASED
        write_ack(engine, connection, PUBREL, view.packet_id, 0)
        return OK
    drop_delivery(delivery)
    window_remove(&session.window, delivery)
    if session.queue.count or session.held_back:
        pump(engine, session)
        if connection.congested:
            relax(engine, connection)
    return OK


cdef inline bint is_answer(PacketType packet, const Delivery* delivery) noexcept:
    """Whether this ack is what the delivery waits for. PUBREC may come again after PUBREL was sent."""
    if packet == PUBACK:
        return delivery.qos == 1 and delivery.state == SENT
    if packet == PUBREC:
        return delivery.qos == 2 and (delivery.state == SENT or delivery.state == RELEASED)
    return delivery.qos == 2 and delivery.state == RELEASED
