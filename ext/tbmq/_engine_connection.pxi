# One socket. Part of _engine.pyx.


@cython.final
cdef class Connection:
    """One socket. Python sees it in the handler's calls; the fields of the hot path are C."""

    cdef readonly Engine engine
    cdef Session session                 # None before the policy accepted CONNECT
    cdef public object context           # whatever the policy keeps with the connection
    cdef readonly str peer               # "address:port", for logs
    cdef public tuple common_names       # of the client's certificate and its chain, its own first; empty: none
    cdef int kind                        # CLIENT, LINK_IN or LINK_OUT
    cdef public int peer_index           # of a link: the other worker
    cdef public object listener          # it came through this one, which counts it; None: nobody here counts it
    cdef readonly object transport       # instead of a socket: a Stream (TLS, WebSocket), see tbmq/net/stream.py
    cdef int fd                          # -1: closed, or a transport
    cdef int level                       # protocol level; 0 before CONNECT
    cdef Limits limits                   # what we accept
    cdef public uint32_t max_outgoing_bytes  # the client's Maximum Packet Size
    cdef uint32_t send_quota             # the client's Receive Maximum
    cdef bint open                       # False once close() began: nothing is read or delivered any more
    cdef bint suspended                  # the policy waits for something: no packet is handled
    cdef bint was_tolerated              # has broken a rule that we let pass
    cdef bint lingering                  # our last packet is out; waiting for the peer to close
    cdef bint readable                   # an edge was seen and not yet read dry
    cdef bint hung_up                    # the peer closed its side, or the socket failed: read until the end
    cdef bint ready_listed               # in engine.ready
    # input
    cdef uint8_t* pending                # start of a packet that is not complete
    cdef size_t pending_size
    cdef size_t pending_capacity
    cdef bint stopped_early              # `pending` may hold whole packets that were not handled
    cdef bint has_room                   # in engine.roomy: keeps `pending` for the next large packet
    cdef bint used_room                  # since the last tick
    cdef char** alias_in                 # topics by alias, each with its length in front; NULL until used
    cdef uint16_t alias_in_maximum
    cdef public bint is_restricted       # what it publishes is judged topic by topic
    cdef Judged** judged                 # topics that were judged, see _engine_limits; NULL until used
    cdef uint32_t judged_slots
    cdef uint32_t judged_bytes           # of their topics
    cdef Meter* meter                    # of its rates; NULL: none is limited
    cdef bint throttled                  # in engine.throttled: not read
    cdef bint got_tokens                 # since it was there last
    cdef bint waits_for_tokens           # in engine.waiting_for_tokens
    cdef dict alias_out                  # topic -> alias that we have told the client
    cdef uint16_t alias_out_maximum
    cdef uint32_t unsent_acks            # QoS 1 and 2 received whose ack is still in our output
    cdef HeldAck* held                   # acks that wait for other workers, oldest first
    cdef uint32_t held_count
    cdef uint32_t held_capacity
    cdef tuple violation                 # (reason code, detail) for which it ends when its held acks have left
    cdef uint64_t confirm_round          # LINK_IN: the round to confirm at the end of ours
    cdef bint confirms                   # in engine.confirming
    # output
    cdef uint8_t* out
    cdef size_t out_start
    cdef size_t out_end
    cdef size_t out_capacity
    cdef bint touched                    # in engine.touched
    cdef bint blocked                    # the socket took no more; an edge will tell
    # flow
    cdef bint congested                  # output over high water: publishers wait
    cdef bint slow                       # has been congested for too long: publishers do not wait
    cdef int64_t congested_since_ms      # or since it was last found to keep up
    cdef size_t taken_bytes              # since then
    cdef list waiters                    # connections that wait for this one
    cdef bint paused                     # waits for a congested subscriber: not read
    # timers
    cdef uint32_t keep_alive_ms          # 1.5 times the keep-alive; 0: none
    cdef int64_t last_seen_ms
    cdef int64_t deadline_ms             # of CONNECT, or of lingering; 0: none
    cdef int64_t wheel_s                 # the second in whose slot it waits; -1: in none

    def __cinit__(self):
        self.fd = -1
        self.wheel_s = -1
        self.max_outgoing_bytes = 0xFFFFFFFF
        self.common_names = ()

    def __dealloc__(self):
        cdef int i
        if self.fd >= 0:
            close_fd(self.fd)
        free(self.pending)
        free(self.out)
        free(self.held)
        free(self.meter)
        forget_judged(self)
        if self.alias_in != NULL:
            for i in range(self.alias_in_maximum + 1):
                free(self.alias_in[i])
            free(self.alias_in)

    @property
    def current_session(self):
        return self.session

    @property
    def is_open(self):
        return self.open

    @property
    def protocol_level(self):
        return self.level

    @property
    def output_bytes(self):
        return self.out_end - self.out_start

    def fileno(self):
        return self.fd

    def accept(self, Session session not None, int protocol_level, *, uint32_t max_packet_bytes,
               uint32_t receive_maximum, uint32_t keep_alive_ms, int topic_alias_maximum, int alias_out_maximum):
        """CONNECT was accepted: from here on the session's messages flow. Resends what was in flight."""
        self.level = protocol_level
        self.limits.max_packet_bytes = max_packet_bytes
        self.send_quota = min(receive_maximum, self.engine.settings.max_inflight)
        self.keep_alive_ms = keep_alive_ms
        self.deadline_ms = 0
        self.alias_in_maximum = <uint16_t>topic_alias_maximum
        self.alias_out_maximum = <uint16_t>alias_out_maximum
        if not start_meter(self.engine, self):
            raise MemoryError()
        self.session = session
        session.connection = self
        arm(self.engine, self)
        resend(self.engine, session)

    def send(self, packet):
        """Any packet object, encoded for this connection's level. What only explains is left out when it is too long
        for the client, and a packet that is still too long is not sent [MQTT-3.1.2-24]."""
        cdef bytes data = encode(packet, self.level or 4)
        if <size_t>len(data) > self.max_outgoing_bytes:
            for name in ("reason_string", "user_property"):
                packet.properties.pop(name, None)
            data = encode(packet, self.level or 4)
        if <size_t>len(data) <= self.max_outgoing_bytes:
            self.send_raw(data)

    def send_raw(self, bytes data not None):
        cdef uint8_t* place
        if self.open:
            place = reserve(self.engine, self, len(data))
            if place == NULL:
                raise MemoryError()
            memcpy(place, PyBytes_AS_STRING(data), len(data))
            self.out_end += len(data)
            self.engine.counters.packets_out[<uint8_t>data[0] >> 4] += 1

    def forget_permissions(self):
        """The rules have changed: every topic is judged anew."""
        forget_judged(self)

    def suspend(self):
        """Handle no further packet until `resume`: the policy is waiting for an answer."""
        self.suspended = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self):
        if self.suspended and self.open:
            self.suspended = False
            if self.transport is not None and not self.paused and not self.throttled:
                self.transport.resume_reading()
            make_ready(self.engine, self)

    def receive(self, data):
        """Bytes that came through a transport (TLS)."""
        cdef Py_buffer view
        if not self.open:
            return
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            take_input(self.engine, self, <const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def writable(self, bint can_write):
        """Flow control of a transport: its own buffer is full, or has room again."""
        self.blocked = not can_write
        if can_write:
            touch(self.engine, self)

    def lost(self):
        """The transport's peer is gone; what it sent before is still handled."""
        self.hung_up = True
        make_ready(self.engine, self)

    def close(self, bint flush=True):
        """Ends the connection; with `flush` what is in the output is sent first, and the peer gets time to read it."""
        end_connection(self.engine, self, flush)

    def abandon(self):
        """Takes the socket out of the engine without closing it; answers (descriptor, bytes read but not handled)."""
        cdef int fd = self.fd
        cdef bytes rest = PyBytes_FromStringAndSize(<char*>self.pending, self.pending_size)
        self.open = False
        self.fd = -1
        if self.transport is not None:
            fd = self.transport.hand_over()
            self.transport = None
        else:
            epoll_ctl(self.engine.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
        forget_connection(self.engine, self)
        return fd, rest
