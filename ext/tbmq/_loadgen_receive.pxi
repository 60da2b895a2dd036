# What comes in. Part of class Engine in _loadgen.pyx.
#
#     input   [ start of a cut packet | recv() ]──parse──▶ streams, histogram; acks into `output`
#                                          └── a cut packet ──▶ connection.partial; a large one is completed there


cdef void receive(Engine self, Connection* c) noexcept nogil:
    cdef const uint8_t* data
    cdef size_t size
    cdef ssize_t taken
    cdef uint8_t* into = self.input + c.partial_size
    cdef size_t room = self.read_bytes
    if self.is_wrapped:
        receive_wrapped(self, c)
        return
    if c.partial_wanted:
        into, room = c.partial + c.partial_size, c.partial_wanted - c.partial_size
    taken = recv(c.fd, into, room, MSG_DONTWAIT)
    if taken <= 0:
        on_no_bytes(self, c, taken)
        return
    self.now_ns = loadgen_now()
    self.received_bytes += taken
    if c.partial_wanted:
        c.partial_size += taken
        if c.partial_size < c.partial_wanted:
            return
        data, size = c.partial, c.partial_size
        c.partial_size = c.partial_wanted = 0
    else:
        if c.partial_size:
            memcpy(self.input, c.partial, c.partial_size)
        data, size = self.input, c.partial_size + taken
        c.partial_size = 0
    take_up(self, c, data, size)


cdef void receive_wrapped(Engine self, Connection* c) noexcept with gil:
    """The same through TLS and WebSocket: slower, by way of Python bytes."""
    cdef ssize_t taken = recv(c.fd, self.input, self.read_bytes, MSG_DONTWAIT)
    cdef bytes data, reply
    if taken <= 0:
        on_no_bytes(self, c, taken)
        return
    self.received_bytes += taken
    transport = self.transports[c - self.connections]
    try:
        data, reply = transport.receive(PyBytes_FromStringAndSize(<const char*>self.input, taken))
    except Exception as error:
        lose_transport(self, c, error)
        return
    send_raw(self, c, reply)
    if c.fd >= 0 and c.state == SHAKING and transport.is_ready:
        greet(self, c)
    if c.fd < 0 or not data:
        return
    if c.partial_size:
        data = PyBytes_FromStringAndSize(<const char*>c.partial, c.partial_size) + data
    c.partial_size = 0
    self.now_ns = loadgen_now()
    take_up(self, c, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef void on_no_bytes(Engine self, Connection* c, ssize_t taken) noexcept nogil:
    if taken == 0:
        lose(self, c, CLOSED, 0)
    elif errno != EAGAIN and errno != EINTR:
        lose(self, c, BROKEN, errno)


cdef void take_up(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept nogil:
    """Handles all whole packets, keeps the rest, and answers."""
    cdef const uint8_t* end = data + size
    cdef uint8_t* acks = self.output
    data = parse(self, c, data, end, &acks)
    if c.fd < 0:
        return
    if data < end:
        keep_partial(self, c, data, end - data)
    # A publisher that waits for its window goes on with the acks that just came.
    if acks > self.output or (c.is_publisher and self.qos and self.is_publishing and not c.is_blocked):
        pump(self, c, acks - self.output)


cdef void keep_partial(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept nogil:
    cdef Header header
    cdef const char* fault = NULL
    cdef size_t room = size
    cdef uint8_t* grown
    if (
        not self.is_wrapped
        and read_header(data, size, self.level, FROM_SERVER, self.limits.max_packet_bytes, &header, &fault) == OK
        and header.size + <size_t>header.body_bytes > LARGE_PACKET
    ):
        c.partial_wanted = room = header.size + <size_t>header.body_bytes
    if room > c.partial_room:
        room = max(room, <size_t>256)
        grown = <uint8_t*>realloc(c.partial, room)
        if grown == NULL:
            lose(self, c, BROKEN, ENOMEM)
            return
        c.partial = grown
        c.partial_room = room
    memcpy(c.partial, data, size)
    c.partial_size = size


cdef const uint8_t* parse(
    Engine self, Connection* c, const uint8_t* at, const uint8_t* end, uint8_t** acks
) noexcept nogil:
    """Handles whole packets and writes their acks; answers where the first cut one begins."""
    cdef Header header
    cdef Cursor body
    cdef int status
    cdef const char* fault = NULL
    while c.fd >= 0:
        if c.state == READY:
            at = parse_acks(self, c, at, end) if c.is_publisher else parse_messages(self, c, at, end, acks)
        status = read_header(
            at, end - at, self.level, FROM_SERVER, self.limits.max_packet_bytes, &header, &fault
        )
        if status == NEED_MORE:
            break
        if status != OK:
            lose(self, c, BAD_PACKET, status)
            break
        if <size_t>(end - at) < header.size + <size_t>header.body_bytes:
            break
        body.at = at + header.size
        body.end = body.at + header.body_bytes
        body.fault = NULL
        at = body.end
        handle_packet(self, c, header.first, &body, acks)
    return at


cdef const uint8_t* parse_messages(
    Engine self, Connection* c, const uint8_t* at, const uint8_t* end, uint8_t** acks
) noexcept nogil:
    """The short cut: packets that begin like our template have everything where our template has it."""
    cdef size_t size = self.publish_packet.size
    cdef size_t payload_at = self.payload_at
    cdef uint64_t head_mask = self.head_mask
    cdef uint64_t head_expected = self.head_expected
    cdef uint64_t words = self.stream_words
    cdef uint64_t now = self.now_ns
    cdef Stream* streams = self.streams + c.first_stream
    cdef uint32_t first_publisher = c.first_publisher
    cdef uint32_t heard = c.heard_publishers
    cdef const uint8_t* from_here = at
    cdef uint64_t head, publisher, count
    cdef uint64_t word[2]
    cdef uint8_t* ack = acks[0]
    cdef uint8_t ack_type = <uint8_t>(PUBACK << 4 if self.qos == 1 else PUBREC << 4)
    cdef bint needs_acks = self.qos > 0
    if not self.is_stamped:
        return at
    while <size_t>(end - at) >= size:
        memcpy(&head, at, 8)
        memcpy(word, at + payload_at, STAMP_SIZE)
        publisher = (word[0] >> PUBLISHER_AT & <uint64_t>PUBLISHER_MASK) - first_publisher
        if head & head_mask != head_expected or word[0] >> 56 != MAGIC or publisher >= heard:
            break
        arrive(&streams[publisher], word[0] & <uint64_t>SEQUENCE_MASK, words)
        if word[1]:
            self.latency.put(now - word[1] if now > word[1] else 0)
        if needs_acks:
            ack[0], ack[1] = ack_type, 2
            memcpy(ack + 2, at + self.packet_id_at, 2)
            ack += 4
        at += size
    if at > from_here:
        count = <size_t>(at - from_here) // size
        self.received += count
        self.short_cuts += count
        self.last_arrival_ns = now
        acks[0] = ack
    return at


cdef const uint8_t* parse_acks(Engine self, Connection* c, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """PUBACKs of four bytes, one after the other, without going through the codec."""
    while end - at >= 4 and at[0] == PUBACK << 4 and at[1] == 2 and free_id(self, c, load_u16(at + 2), ID_PUBLISHED):
        at += 4
    return at


cdef void handle_packet(Engine self, Connection* c, uint8_t first, Cursor* body, uint8_t** acks) noexcept nogil:
    cdef int packet = first >> 4
    if packet == PUBLISH:
        on_publish(self, c, first, body, acks)
    elif PUBACK <= packet <= PUBCOMP:
        on_ack(self, c, <PacketType>packet, body, acks)
    elif packet == CONNACK:
        on_connack(self, c, body)
    elif packet == SUBACK:
        on_suback(self, c, body)
    elif packet == DISCONNECT:
        lose(self, c, DISCONNECTED, body.at[0] if left(body) else 0)
    elif packet != PINGRESP:
        lose(self, c, BAD_PACKET, 0x82)


cdef void on_publish(Engine self, Connection* c, uint8_t first, Cursor* body, uint8_t** acks) noexcept nogil:
    cdef PublishView view
    cdef uint64_t word[2]
    cdef uint64_t publisher = 0
    cdef int status = decode_publish(body, first, self.level, FROM_SERVER, &self.limits, &view)
    if status != OK:
        lose(self, c, BAD_PACKET, status)
        return
    if view.qos:
        add_ack(acks, PUBACK << 4 if view.qos == 1 else PUBREC << 4, view.packet_id)
    if c.is_publisher:
        self.strays += 1
        return
    if self.is_stamped and view.payload.size >= STAMP_SIZE:
        memcpy(word, view.payload.data, STAMP_SIZE)
        publisher = (word[0] >> PUBLISHER_AT & <uint64_t>PUBLISHER_MASK) - c.first_publisher
        if word[0] >> 56 != MAGIC or publisher >= c.heard_publishers:
            self.strays += 1
            return
        arrive(&self.streams[c.first_stream + publisher], word[0] & <uint64_t>SEQUENCE_MASK, self.stream_words)
        if word[1]:
            self.latency.put(self.now_ns - min(word[1], self.now_ns))
    elif self.is_stamped:
        self.strays += 1
        return
    else:
        self.streams[c.first_stream].arrived += 1  # too short to be numbered: only counted
    self.received += 1
    self.redelivered += view.dup
    self.last_arrival_ns = self.now_ns


cdef void on_ack(Engine self, Connection* c, PacketType packet, Cursor* body, uint8_t** acks) noexcept nogil:
    """QoS 1: PUBACK frees the id. QoS 2: PUBREC gets a PUBREL, then PUBCOMP frees it; a PUBREL gets a PUBCOMP."""
    cdef AckView view
    cdef int status = decode_ack(body, packet, self.level, FROM_SERVER, &self.limits, &view)
    cdef bint is_expected = True
    if status != OK:
        lose(self, c, BAD_PACKET, status)
        return
    if view.reason_code >= 0x80:
        note(self, NOT_TAKEN, view.reason_code)
    if packet == PUBREL:
        add_ack(acks, PUBCOMP << 4, view.packet_id)
    elif packet == PUBREC and view.reason_code < 0x80:
        is_expected = (
            c.is_publisher and self.qos == 2 and view.packet_id <= c.window
            and c.id_states[view.packet_id] == ID_PUBLISHED
        )
        if is_expected:
            c.id_states[view.packet_id] = ID_RELEASED
            add_ack(acks, PUBREL << 4 | 2, view.packet_id)
    else:
        is_expected = free_id(self, c, view.packet_id, ID_RELEASED if packet == PUBCOMP else ID_PUBLISHED)
    if not is_expected:
        lose(self, c, BAD_PACKET, 0x82)


cdef inline void add_ack(uint8_t** acks, int first, uint16_t packet_id) noexcept nogil:
    acks[0][0], acks[0][1] = <uint8_t>first, 2
    acks[0] = store_u16(acks[0] + 2, packet_id)
