# Connections come and go. Part of class Engine in _loadgen.pyx.
#
#     IDLE ──open──▶ CONNECTING ──▶ (SHAKING) ──▶ GREETING ──CONNACK──▶ (SUBSCRIBING ──SUBACK──▶) READY
#       ▲                                                      │
#       └── a failure: stays idle, counted                     └── recycling: counted, closed, IDLE again


cdef uint64_t next_open_ns(Engine self) noexcept nogil:
    """When the next connection may be opened; the end of time when none is waiting."""
    if not self.idle_count or self.opening >= self.max_opening or self.opened >= self.open_limit:
        return <uint64_t>-1
    return self.open_start_ns + <uint64_t>(<double>self.opened * self.open_period_ns)


cdef void open_due(Engine self) noexcept nogil:
    while next_open_ns(self) <= self.now_ns:
        self.idle_count -= 1
        open_one(self, &self.connections[self.idle[self.idle_count]])


cdef void open_one(Engine self, Connection* c) noexcept nogil:
    cdef const sockaddr_storage* source = NULL
    cdef int fd
    if self.source_count:
        source = &self.sources[self.opened % self.source_count]
    if self.is_recycling:
        c.number = self.next_number
        self.next_number = (self.next_number + 1) % 10_000_000
    self.opened += 1
    c.opened_ns = loadgen_now()
    fd = loadgen_connect(
        &self.target, self.target_size, source, self.source_size if self.source_count else 0, self.send_buffer_bytes
    )
    if fd < 0:
        note(self, CONNECT_FAILED, -fd)
        leave_idle(self, c)
        return
    c.fd = fd
    c.state = CONNECTING
    c.watches_out = True
    self.opening += 1
    loadgen_watch(self.set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, <uint32_t>(c - self.connections))


cdef void finish_connect(Engine self, Connection* c) noexcept nogil:
    cdef int problem = loadgen_socket_error(c.fd)
    if problem:
        lose(self, c, CONNECT_FAILED, problem)
    elif self.is_wrapped:
        c.state = SHAKING
        begin_transport(self, c)
    else:
        greet(self, c)


cdef void begin_transport(Engine self, Connection* c) noexcept with gil:
    transport = self.make_transport()
    self.transports[c - self.connections] = transport
    send_raw(self, c, transport.start())
    if c.fd >= 0:
        watch(self, c)


cdef void greet(Engine self, Connection* c) noexcept nogil:
    c.state = GREETING
    # Client ids: the publishers of all processes first, then the subscribers.
    number_template(&self.connect_packet, c.number + (0 if c.is_publisher else self.all_publishers))
    transmit(self, c, self.connect_packet.data, self.connect_packet.size)
    if c.fd >= 0:
        watch(self, c)


cdef void on_connack(Engine self, Connection* c, Cursor* body) noexcept nogil:
    cdef PropertySection section
    cdef Property found
    cdef uint8_t code
    if c.state != GREETING or left(body) < 2:
        lose(self, c, BAD_PACKET, 0x82)
        return
    code = body.at[1]
    if code:
        lose(self, c, REFUSED, code)
        return
    self.connected += 1
    body.at += 2
    if self.level == 5 and open_properties(body, CONNACK, FROM_SERVER, 65_535, &section) == OK:
        while next_property(&section, &found) == 1:
            if found.identifier == 0x21 and c.is_publisher and self.qos and found.number < c.window:
                set_window(c, found.number)  # Receive Maximum
    if self.is_recycling:
        self.latency.put(self.now_ns - min(c.opened_ns, self.now_ns))
        part(self, c)
    elif c.is_publisher or not self.subscribe_packet.size:
        become_ready(self, c)
    else:
        c.state = SUBSCRIBING
        number_template(&self.subscribe_packet, c.number)
        transmit(self, c, self.subscribe_packet.data, self.subscribe_packet.size)


cdef void on_suback(Engine self, Connection* c, Cursor* body) noexcept nogil:
    cdef uint8_t code
    if c.state != SUBSCRIBING or left(body) < 3:
        lose(self, c, BAD_PACKET, 0x82)
        return
    code = (body.end - 1)[0]  # we subscribe to one filter, so the last byte is its code
    if code >= 0x80 or code < self.qos:
        lose(self, c, NOT_SUBSCRIBED, code)
    else:
        become_ready(self, c)


cdef void become_ready(Engine self, Connection* c) noexcept nogil:
    c.state = READY
    self.opening -= 1
    self.ready += 1


cdef void lose(Engine self, Connection* c, Failure kind, int code) noexcept nogil:
    """Closes a connection that failed, and counts why."""
    note(self, kind, code)
    drop(self, c)


cdef void lose_transport(Engine self, Connection* c, object error) noexcept:
    """The same when TLS or WebSocket failed; the text of the error stands for the code."""
    key = (<int>TRANSPORT_FAILED, str(error))
    self.failures[key] = self.failures.get(key, 0) + 1
    drop(self, c)


cdef void part(Engine self, Connection* c) noexcept nogil:
    """Closes a connection that is in order, with DISCONNECT."""
    cdef uint8_t packet[2]
    packet[0], packet[1] = 0xE0, 0
    if c.state > SHAKING:
        transmit(self, c, packet, 2)
    if c.fd >= 0:
        drop(self, c)


cdef void drop(Engine self, Connection* c) noexcept nogil:
    close(c.fd)
    c.fd = -1
    if c.state == READY:
        self.ready -= 1
    else:
        self.opening -= 1
    c.pending_at = c.pending_end = 0
    c.partial_size = c.partial_wanted = 0
    c.is_blocked = False
    if self.is_wrapped:
        drop_transport(self, c)
    leave_idle(self, c)


cdef void drop_transport(Engine self, Connection* c) noexcept with gil:
    self.transports[c - self.connections] = None


cdef void leave_idle(Engine self, Connection* c) noexcept nogil:
    """Without a socket; opened again only when recycling, so that what failed stays visible."""
    c.state = IDLE
    if self.is_recycling:
        self.idle[self.idle_count] = <uint32_t>(c - self.connections)
        self.idle_count += 1


cdef void every_second(Engine self) noexcept nogil:
    """Gives up connections that wait too long for an answer, and keeps the others alive."""
    cdef uint8_t packet[2]
    cdef uint32_t i
    cdef uint64_t period = max(self.keep_alive_s // 2, <uint64_t>1)
    cdef Connection* c
    if self.now_ns < self.next_second_ns:
        return
    self.next_second_ns = self.now_ns + SECOND_NS
    self.second += 1
    packet[0], packet[1] = 0xC0, 0  # PINGREQ
    for i in range(self.count):
        c = &self.connections[i]
        if c.state == READY:
            # Spread over the period, so that not all of them ping at once.
            if self.keep_alive_s and (i + self.second) % period == 0 and c.pending_at == c.pending_end:
                transmit(self, c, packet, 2)
                if c.fd >= 0:
                    watch(self, c)
        elif c.state != IDLE and self.now_ns > c.opened_ns + self.timeout_ns:
            lose(self, c, TIMED_OUT, c.state)
