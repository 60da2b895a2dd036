# Input: rounds, reading, framing. Part of _engine.pyx.
#
# A read goes into the engine's one buffer, behind the few bytes that the connection had left over; a packet too large for
# that is collected in the connection's own buffer, which grows with what arrives, never with what is announced.


cdef void run_rounds(Engine engine) noexcept:
    """epoll, serve, flush; again while there is something to do and time left.

    Many clients that each send a message now and then wake the process for each of them, and waking costs more than the
    message. So when rounds are short and follow fast, the next one waits GATHER_NS for company: measured at 500 pairs and
    50,000 messages a second, a quarter less CPU per message for some 80 µs more latency. Few clients are never made to
    wait."""
    cdef int64_t start_ns = monotonic_ns()
    cdef bint gathers = (
        start_ns - engine.last_run_ns < GATHER_GAP_NS and len(engine.connections) >= GATHER_CLIENTS
    )
    cdef int n, i
    cdef Connection connection
    cdef uint32_t happened
    cdef list ready
    cdef timespec pause = timespec(0, GATHER_NS)
    engine.running = True
    engine.woken = False
    while True:
        read_clocks(engine)
        n = epoll_wait(engine.epoll_fd, engine.events, EVENTS, 0)
        for i in range(n):
            connection = <Connection>engine.events[i].data.ptr
            happened = engine.events[i].events
            if happened & EPOLLOUT and connection.blocked:
                connection.blocked = False
                touch(engine, connection)
            if happened & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                connection.readable = True
                if happened & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                    connection.hung_up = True
                serve(engine, connection)
        if engine.ready:
            ready = engine.ready
            engine.ready = []
            for item in ready:
                connection = <Connection>item
                connection.ready_listed = False
                serve(engine, connection)
        if engine.workers > 1:
            seal_round(engine)
            send_confirms(engine)
        flush_touched(engine)
        engine.graveyard.clear()
        if n <= 0 and not engine.ready:
            break
        if monotonic_ns() - start_ns > ROUND_NS:
            if engine.ready:
                wake(engine)
            break
        if gathers and n < GATHER_EVENTS and not engine.ready:
            nanosleep(&pause, NULL)
    engine.last_run_ns = monotonic_ns()
    engine.running = False


cdef void make_ready(Engine engine, Connection connection) noexcept:
    """The connection is served in the next round even if its socket says nothing new."""
    if not connection.ready_listed:
        connection.ready_listed = True
        engine.ready.append(connection)
        if not engine.running:
            wake(engine)


cdef void serve(Engine engine, Connection connection) noexcept:
    """Handles what is left over, then reads once."""
    cdef size_t left_over
    cdef size_t room
    cdef uint8_t* place
    cdef ssize_t got
    if not connection.open:
        discard(engine, connection)
        return
    if connection.suspended or connection.paused or (connection.throttled and not connection.hung_up):
        return
    if connection.kind == CLIENT and waiting_bytes(connection) > engine.settings.max_output_bytes:
        connection.readable = True  # it does not read our answers: nothing more is taken from it until it does
        return
    if connection.held_count > MAX_HELD_ACKS:
        connection.readable = True
        return
    if connection.pending_size and (connection.transport is not None or connection.stopped_early):
        take_input(engine, connection, NULL, 0)
        if not connection.open or connection.suspended or connection.throttled or connection.paused:
            return  # what is held is enough: the rest stays in the socket
    if connection.fd < 0:
        if connection.hung_up:
            lose(engine, connection)
        return
    left_over = connection.pending_size
    if left_over < CARRY_BYTES:
        place, room = engine.read_buffer + left_over, READ_BYTES
    else:
        if not grow_pending(connection, max(left_over, <size_t>READ_BYTES)):
            lose(engine, connection)
            return
        place = connection.pending + left_over
        room = connection.pending_capacity - left_over
    got = 0
    if connection.readable or connection.hung_up:
        got = recv(connection.fd, place, room, MSG_DONTWAIT)
        engine.counters.reads += 1
        if got <= 0:
            if got < 0 and (errno == EAGAIN or errno == EINTR):
                connection.readable = False
                got = 0
            else:
                if left_over:  # another worker passed these on, and the peer was gone before they were looked at
                    take_input(engine, connection, NULL, 0)
                lose(engine, connection)
                return
    if got:
        connection.last_seen_ms = engine.now_ms
        engine.counters.bytes_in += got
        # A short read has emptied the socket, unless the end of the stream is still to be read.
        connection.readable = <size_t>got == room or connection.hung_up
    if got or left_over:
        if left_over < CARRY_BYTES:
            if left_over:
                memcpy(engine.read_buffer, connection.pending, left_over)
            connection.pending_size = 0
            settle(engine, connection, engine.read_buffer, left_over + got)
        else:
            connection.pending_size = left_over + got
            settle(engine, connection, connection.pending, connection.pending_size)
    if connection.readable and connection.open and not (
        connection.suspended or connection.paused or connection.throttled
    ):
        make_ready(engine, connection)


cdef void take_input(Engine engine, Connection connection, const uint8_t* data, size_t size) noexcept:
    """Bytes from a transport: the same as a read."""
    connection.last_seen_ms = engine.now_ms
    engine.counters.bytes_in += size
    if connection.pending_size == 0:
        settle(engine, connection, data, size)
    elif keep_pending(connection, data, size):
        settle(engine, connection, connection.pending, connection.pending_size)


cdef void settle(Engine engine, Connection connection, const uint8_t* data, size_t size) noexcept:
    """Handles all whole packets in `data` and keeps the rest."""
    cdef size_t used = handle_packets(engine, connection, data, size)
    if not connection.open or used == size:
        empty_pending(engine, connection)
    elif data == connection.pending:
        connection.pending_size = size - used
        memmove(connection.pending, connection.pending + used, size - used)
    elif not keep_pending(connection, data + used, size - used):
        lose(engine, connection)


cdef void empty_pending(Engine engine, Connection connection) noexcept:
    """Who sends large packets keeps the room for them until a tick finds it unused: fresh memory is slow memory."""
    connection.pending_size = 0
    if connection.open and connection.pending_capacity > CARRY_BYTES:
        if not connection.has_room:
            engine.roomy.append(connection)
        connection.has_room = connection.used_room = True
        return
    free(connection.pending)
    connection.pending = NULL
    connection.pending_capacity = 0


cdef void free_unused_room(Engine engine) noexcept:
    cdef Connection connection
    cdef list roomy
    if not engine.roomy:
        return
    roomy = engine.roomy
    engine.roomy = []
    for item in roomy:
        connection = <Connection>item
        if connection.open and (connection.used_room or connection.pending_size):
            connection.used_room = False
            engine.roomy.append(connection)
            continue
        connection.has_room = False
        if connection.pending_size == 0:
            free(connection.pending)
            connection.pending = NULL
            connection.pending_capacity = 0


cdef bint keep_pending(Connection connection, const uint8_t* data, size_t size) noexcept:
    if connection.pending_size + size > connection.pending_capacity:
        if not grow_pending(connection, size):
            return False
    memcpy(connection.pending + connection.pending_size, data, size)
    connection.pending_size += size
    return True


cdef bint grow_pending(Connection connection, size_t more) noexcept:
    cdef size_t capacity = connection.pending_size + more
    cdef uint8_t* grown
    if capacity > connection.pending_capacity:
        grown = <uint8_t*>realloc(connection.pending, capacity)
        if grown == NULL:
            return False
        connection.pending = grown
        connection.pending_capacity = capacity
    return True


cdef void discard(Engine engine, Connection connection) noexcept:
    """A lingering socket: its input is thrown away until the peer closes."""
    cdef ssize_t got
    if connection.fd < 0 or not connection.lingering:
        if connection.hung_up:
            shut(engine, connection)
        return
    while True:
        got = recv(connection.fd, engine.read_buffer, READ_BYTES, MSG_DONTWAIT)
        if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
            shut(engine, connection)
            return
        if got < <ssize_t>READ_BYTES:
            return


# --- Packets -------------------------------------------------------------------------------------------------------

cdef size_t handle_packets(Engine engine, Connection connection, const uint8_t* data, size_t size) noexcept:
    """All whole packets at `data`, in order; answers how many bytes they took."""
    cdef size_t used = 0
    cdef Header header
    cdef Cursor body
    cdef Run run
    cdef int code
    cdef int packet_type
    if connection.kind != CLIENT:
        return handle_frames(engine, connection, data, size)
    run.count, run.size = 0, 0
    while connection.open and not connection.suspended and not connection.paused:
        code = read_header(
            data + used, size - used, connection.level, FROM_CLIENT, connection.limits.max_packet_bytes, &header,
            &body.fault
        )
        if code == NEED_MORE or (code == OK and size - used < header.size + <size_t>header.body_bytes):
            break
        body.at = data + used + header.size
        body.end = body.at + header.body_bytes
        packet_type = header.first >> 4
        if code == OK and connection.meter != NULL and packet_type == PUBLISH and not connection.hung_up:
            if not may_publish_now(engine, connection, header.size + header.body_bytes):
                break
        if code == OK and is_next_of_run(&run, &header, &body):
            extend_run(&run, &header)
            used += header.size + header.body_bytes
            continue
        if run.count and not end_run(engine, connection, &run):
            break
        if code == OK:
            used += header.size + header.body_bytes
            engine.counters.packets_in[packet_type] += 1
            if connection.session is None or not PUBLISH <= packet_type <= PUBCOMP:
                code = handle_other(engine, connection, &header, &body)
            elif packet_type == PUBLISH:
                code = handle_publish(engine, connection, &header, &body, &run)
            else:
                code = handle_ack(engine, connection, <PacketType>packet_type, &body)
        if code != OK:
            violate(engine, connection, code, body.fault)
    if run.count:
        end_run(engine, connection, &run)
    used -= run.size  # what has to wait is handled again
    connection.stopped_early = connection.suspended or connection.throttled or connection.paused
    return used


cdef int handle_other(Engine engine, Connection connection, const Header* header, Cursor* body) noexcept:
    """PINGREQ here; CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT and AUTH as objects to the handler."""
    cdef int packet_type = header.first >> 4
    cdef uint8_t* out
    if connection.session is None:
        if packet_type != CONNECT and packet_type != AUTH and packet_type != DISCONNECT:
            body.fault = "a packet came before the connection was accepted"
            return 0x82
    elif packet_type == PINGREQ:
        if body.at != body.end:
            body.fault = "PINGREQ has a body"
            return MALFORMED
        out = reserve(engine, connection, 2)
        if out != NULL:
            out[0], out[1] = 0xD0, 0
            connection.out_end += 2
            engine.counters.packets_out[13] += 1
        return OK
    try:
        engine.decoder.level = connection.level
        engine.decoder.limits = connection.limits
        packet = engine.decoder.read_body(header, body)
        connection.level = engine.decoder.level
        engine.handler.on_packet(connection, packet)
    except PacketError as error:
        if packet_type == CONNECT:
            connection.level = engine.decoder.announced_level  # so that the refusal speaks the right version
        violate_with(engine, connection, error.reason_code, error.detail)
    except Exception:
        engine.handler.on_exception(connection)
        end_connection(engine, connection, False)
    return OK


cdef void violate(Engine engine, Connection connection, int code, const char* fault) noexcept:
    violate_with(engine, connection, code, fault.decode())


cdef void violate_with(Engine engine, Connection connection, int code, str detail) noexcept:
    """The peer broke the protocol: the policy says goodbye, then the connection ends. Acks of what came before, which
    wait for other workers, leave first."""
    if connection.held_count and connection.violation is None:
        connection.violation = (code, detail)
        connection.suspended = True
        return
    try:
        engine.handler.on_violation(connection, code, detail)
    except Exception:
        engine.handler.on_exception(connection)
    if connection.open:
        end_connection(engine, connection, True)
