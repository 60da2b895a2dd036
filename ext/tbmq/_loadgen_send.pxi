# What goes out. Part of class Engine in _loadgen.pyx.
#
#     output   [ acks of the last read | chunk of messages ]──send()──▶ kernel
#                                               └── the rest of a cut packet ──▶ connection.pending, to be sent first


# --- When -----------------------------------------------------------------------------------------------------------

cdef inline bint is_saturating(Engine self, Connection* c) noexcept nogil:
    """It could send at any time, so only the kernel holds it back."""
    return (
        c.is_publisher and self.is_publishing and not self.period_ns and not self.qos and c.state == READY
        and c.sequence < c.limit
    )


cdef inline uint64_t due_ns(Engine self, uint64_t sequence, uint32_t number) noexcept nogil:
    """When message `sequence` of publisher `number` is to be sent."""
    return self.start_ns + <uint64_t>(<double>(sequence * self.all_publishers + number) * self.period_ns)


cdef uint64_t allowance(Engine self, Connection* c) noexcept nogil:
    """How many messages the connection may send now."""
    cdef uint64_t count, due
    cdef double elapsed_ns
    if not c.is_publisher or not self.is_publishing or c.state != READY or c.sequence >= c.limit:
        return 0
    count = c.limit - c.sequence
    if self.qos:
        count = min(count, <uint64_t>c.free_count)
    if self.period_ns:
        elapsed_ns = <double>(self.now_ns - self.start_ns) - c.number * self.period_ns
        if self.now_ns < self.start_ns or elapsed_ns < 0:
            return 0
        # The number of its messages that are due: message k is due k * publishers periods after its first one.
        due = <uint64_t>(elapsed_ns / (self.period_ns * self.all_publishers)) + 1
        count = min(count, due - c.sequence if due > c.sequence else 0)
    return count


cdef uint64_t next_message_ns(Engine self) noexcept nogil:
    """When the clock must bring the next message; the end of time in saturation, where sockets and acks do."""
    if self.is_waiting_to_start:
        return self.start_ns
    if not self.is_publishing or not self.period_ns or not self.publishers:
        return <uint64_t>-1
    return due_ns(
        self, self.scheduled // self.publishers, self.first_publisher + <uint32_t>(self.scheduled % self.publishers)
    )


cdef void start_publishing(Engine self) noexcept nogil:
    cdef uint32_t i
    self.is_waiting_to_start = False
    self.is_publishing = True
    if not self.period_ns:
        for i in range(self.publishers):
            if self.connections[i].state == READY:
                pump(self, &self.connections[i], 0)


cdef void send_due(Engine self) noexcept nogil:
    """One message for each publisher whose time has come. Who cannot send now does it when socket and window allow."""
    cdef Connection* c
    while next_message_ns(self) <= self.now_ns:
        c = &self.connections[self.scheduled % self.publishers]
        self.scheduled += 1
        if c.state == READY and not c.is_blocked:
            pump(self, c, 0)


# --- What -----------------------------------------------------------------------------------------------------------

cdef void fill(Engine self, Connection* c, uint8_t* out, uint64_t count) noexcept nogil:
    """Writes the next `count` messages of the connection; the state is as before."""
    cdef const uint8_t* template = self.publish_packet.data
    cdef size_t size = self.publish_packet.size
    cdef size_t payload_at = self.payload_at
    cdef uint64_t sequence = c.sequence
    cdef uint64_t end = sequence + count
    cdef uint64_t first_word = <uint64_t>MAGIC << 56 | <uint64_t>c.number << PUBLISHER_AT
    cdef uint64_t now = self.now_ns
    cdef uint64_t sample_mask = self.sample_mask
    cdef uint64_t word[2]
    cdef uint32_t id_at = c.free_at
    number_template(&self.publish_packet, c.number)
    while sequence < end:
        loadgen_copy(out, template, size)
        if self.is_stamped:
            word[0] = first_word | (sequence & <uint64_t>SEQUENCE_MASK)
            word[1] = 0 if sequence & sample_mask else now
            if self.period_ns:
                word[1] = due_ns(self, sequence, c.number)
            memcpy(out + payload_at, word, STAMP_SIZE)
        if self.qos:
            store_u16(out + self.packet_id_at, c.free_ids[id_at])
            id_at = id_at + 1 if id_at + 1 < c.window else 0
        out += size
        sequence += 1


cdef void commit(Engine self, Connection* c, uint64_t count) noexcept nogil:
    """The kernel has (the start of) so many of the messages that fill() wrote."""
    cdef uint64_t i
    c.sequence += count
    self.sent += count
    if self.qos:
        for i in range(count):
            c.id_states[c.free_ids[c.free_at]] = ID_PUBLISHED
            c.free_at = c.free_at + 1 if c.free_at + 1 < c.window else 0
        c.free_count -= <uint32_t>count


cdef bint free_id(Engine self, Connection* c, uint16_t packet_id, IdState expected) noexcept nogil:
    """The broker is done with the id; False when it was not in that state."""
    cdef uint32_t place
    if not c.is_publisher or not self.qos or packet_id > c.window or c.id_states[packet_id] != expected:
        return False
    c.id_states[packet_id] = ID_FREE
    place = c.free_at + c.free_count
    c.free_ids[place if place < c.window else place - c.window] = packet_id
    c.free_count += 1
    self.acked += 1
    return True


cdef void pump(Engine self, Connection* c, size_t acks) noexcept nogil:
    """Sends `acks` bytes that stand at the start of `output`, then what may be published now."""
    cdef size_t size = self.publish_packet.size
    cdef size_t taken, offered, messages
    cdef uint64_t count
    c.is_blocked = False
    if c.pending_at < c.pending_end:
        keep(self, c, self.output, acks)
        acks = 0
        if not flush(self, c):
            return
    while c.fd >= 0:
        count = min(allowance(self, c), max(self.chunk_bytes // size, <size_t>1) if size else 0)
        if count == 0 and acks == 0:
            break
        fill(self, c, self.output + acks, count)
        offered = acks + count * size
        taken = transmit_some(self, c, self.output, offered)
        if c.fd < 0:
            return
        if taken < acks:
            keep(self, c, self.output + taken, acks - taken)
            messages = 0
        else:
            messages = (taken - acks + size - 1) // size if count else 0
            keep(self, c, self.output + taken, acks + messages * size - taken)
        if messages:
            commit(self, c, messages)
        acks = 0
        if taken < offered:
            c.is_blocked = True
            break
        if is_saturating(self, c):
            break  # one chunk, then the others
    if c.fd >= 0:
        watch(self, c)


# --- Bytes ----------------------------------------------------------------------------------------------------------

cdef size_t transmit_some(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept nogil:
    """How many bytes the kernel took. TLS and WebSocket take all and keep what the kernel did not."""
    cdef ssize_t taken
    if self.is_wrapped:
        transmit_wrapped(self, c, data, size)
        return size
    taken = send(c.fd, data, size, MSG_NOSIGNAL)
    if taken >= 0:
        self.sent_bytes += taken
        return taken
    if errno != EAGAIN and errno != EINTR:
        lose(self, c, BROKEN, errno)
    return 0


cdef void transmit_wrapped(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept with gil:
    cdef bytes raw
    try:
        raw = self.transports[c - self.connections].send(PyBytes_FromStringAndSize(<const char*>data, size))
    except Exception as error:
        lose_transport(self, c, error)
        return
    send_raw(self, c, raw)


cdef void transmit(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept nogil:
    """Sends all of it, now or later. The caller watches the connection afterwards."""
    cdef size_t taken = 0
    if c.pending_at == c.pending_end:
        taken = transmit_some(self, c, data, size)
    if c.fd >= 0 and taken < size:
        keep(self, c, data + taken, size - taken)


cdef void send_raw(Engine self, Connection* c, bytes raw) noexcept:
    """Below TLS and WebSocket: bytes for the kernel, now or later."""
    keep(self, c, <const uint8_t*>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
    if c.fd >= 0:
        flush(self, c)


cdef void keep(Engine self, Connection* c, const uint8_t* data, size_t size) noexcept nogil:
    """Puts bytes behind those that wait for the kernel."""
    cdef uint8_t* grown
    if not size:
        return
    if c.pending_at == c.pending_end:
        c.pending_at = c.pending_end = 0
    if c.pending_end + size > c.pending_room:
        grown = <uint8_t*>realloc(c.pending, 2 * (c.pending_end + size))
        if grown == NULL:
            lose(self, c, BROKEN, ENOMEM)
            return
        c.pending = grown
        c.pending_room = 2 * (c.pending_end + size)
    memcpy(c.pending + c.pending_end, data, size)
    c.pending_end += size


cdef bint flush(Engine self, Connection* c) noexcept nogil:
    """True when nothing waits any more. Otherwise EPOLLOUT is asked for, or the connection is gone."""
    cdef ssize_t taken
    while c.pending_at < c.pending_end:
        taken = send(c.fd, c.pending + c.pending_at, c.pending_end - c.pending_at, MSG_NOSIGNAL)
        if taken < 0:
            if errno == EAGAIN or errno == EINTR:
                watch(self, c)
            else:
                lose(self, c, BROKEN, errno)
            return False
        self.sent_bytes += taken
        c.pending_at += taken
    return True
