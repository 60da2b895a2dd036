# Output: buffers, writing, congestion, the end of a connection. Part of _engine.pyx.
#
#   out   [ sent already | waiting to be sent | room ]
#         0          out_start              out_end      out_capacity
#
# A connection has a buffer only while something waits; drained buffers go back to the engine's pool, so idle connections
# cost nothing and busy ones do not allocate.
#
# Congestion: READY --output or queue over its mark, and sending did not help--> CONGESTED --too slow for it--> SLOW
#             While CONGESTED the publishers that feed it are not read. While SLOW they are: its QoS 0 is dropped, and of
#             its queue the oldest. Back to READY when output and queue are low again. Too slow is who has not taken
#             high_water_bytes in slow_after_ms: a busy client that keeps up with that holds its publishers, and loses
#             nothing.


cdef void read_clocks(Engine engine) noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    engine.now_ms = <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000
    clock_gettime(CLOCK_REALTIME, &now)
    engine.wall_ms = <uint64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef inline int64_t monotonic_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


# --- Buffers -------------------------------------------------------------------------------------------------------

cdef uint8_t* take_buffer(Engine engine, size_t needed, size_t* capacity) noexcept:
    cdef int size_class = 0
    cdef uint8_t* buffer
    while size_class < POOL_CLASSES and (<size_t>4096 << size_class) < needed:
        size_class += 1
    if size_class == POOL_CLASSES:
        capacity[0] = needed + needed // 2
        return <uint8_t*>malloc(capacity[0])
    capacity[0] = <size_t>4096 << size_class
    buffer = engine.pool[size_class]
    if buffer == NULL:
        return <uint8_t*>malloc(capacity[0])
    engine.pool[size_class] = (<uint8_t**>buffer)[0]
    engine.pool_bytes -= capacity[0]
    return buffer


cdef void give_buffer(Engine engine, uint8_t* buffer, size_t capacity) noexcept:
    cdef int size_class = 0
    while size_class < POOL_CLASSES and (<size_t>4096 << size_class) != capacity:
        size_class += 1
    if size_class == POOL_CLASSES or engine.pool_bytes + capacity > 64 * 1024 * 1024:
        free(buffer)
        return
    (<uint8_t**>buffer)[0] = engine.pool[size_class]
    engine.pool[size_class] = buffer
    engine.pool_bytes += capacity


cdef inline size_t waiting_bytes(Connection connection) noexcept:
    return connection.out_end - connection.out_start


cdef inline uint8_t* reserve(Engine engine, Connection connection, size_t size) noexcept:
    """Room for `size` bytes at the end of the output; the caller moves out_end. NULL when memory is out."""
    if not connection.touched:
        touch(engine, connection)
    if connection.out_capacity - connection.out_end >= size:
        return connection.out + connection.out_end
    return grow_output(engine, connection, size)


cdef uint8_t* grow_output(Engine engine, Connection connection, size_t size) noexcept:
    cdef size_t waiting = waiting_bytes(connection)
    cdef size_t capacity = 0
    cdef uint8_t* bigger = take_buffer(engine, waiting + size, &capacity)
    if bigger == NULL:
        return NULL
    if connection.out != NULL:
        memcpy(bigger, connection.out + connection.out_start, waiting)
        give_buffer(engine, connection.out, connection.out_capacity)
    connection.out = bigger
    connection.out_capacity = capacity
    connection.out_start = 0
    connection.out_end = waiting
    return bigger + waiting


cdef void touch(Engine engine, Connection connection) noexcept:
    """The end of the round will try to write this connection."""
    if not connection.touched:
        connection.touched = True
        engine.touched.append(connection)
        if not engine.running:
            wake(engine)


cdef void wake(Engine engine) noexcept:
    if not engine.woken:
        engine.woken = True
        engine.handler.wake(engine)


# --- Writing -------------------------------------------------------------------------------------------------------

cdef void flush_touched(Engine engine) noexcept:
    cdef list touched
    cdef Connection connection
    while engine.touched:
        touched = engine.touched
        engine.touched = []
        for item in touched:
            connection = <Connection>item
            connection.touched = False
            flush(engine, connection)


cdef void flush(Engine engine, Connection connection) noexcept:
    cdef size_t waiting = waiting_bytes(connection)
    cdef ssize_t sent
    if waiting and not connection.blocked:
        if connection.transport is not None:
            sent = write_transport(connection, waiting)
        elif connection.fd >= 0:
            sent = send(connection.fd, connection.out + connection.out_start, waiting, MSG_DONTWAIT | MSG_NOSIGNAL)
        else:
            sent = waiting
        engine.counters.writes += 1
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                # A delivery may be under way, whose subscribers must not change: the end waits for the round's end.
                connection.hung_up = True
                connection.out_start = connection.out_end
                make_ready(engine, connection)
            sent = 0
            waiting = waiting_bytes(connection)
        if sent:
            connection.unsent_acks = 0
            connection.taken_bytes += sent
            engine.counters.bytes_out += sent
        connection.out_start += sent
        if <size_t>sent < waiting:  # a transport may have said so itself, from inside write()
            connection.blocked = True
    if connection.out != NULL and connection.out_start == connection.out_end:
        give_buffer(engine, connection.out, connection.out_capacity)
        connection.out = NULL
        connection.out_start = connection.out_end = connection.out_capacity = 0
    if not connection.open:
        if connection.out == NULL and not connection.lingering:
            begin_lingering(engine, connection)
        return
    if waiting_bytes(connection) <= engine.settings.low_water_bytes:
        if connection.session is not None and (connection.session.queue.count or connection.session.held_back):
            pump(engine, connection.session)
        if connection.congested:
            relax(engine, connection)
        if connection.readable and not connection.ready_listed:
            make_ready(engine, connection)


cdef ssize_t write_transport(Connection connection, size_t waiting) noexcept:
    try:
        connection.transport.write(PyBytes_FromStringAndSize(<char*>connection.out + connection.out_start, waiting))
    except Exception:
        connection.engine.handler.on_exception(connection)
    return waiting


# --- Congestion ----------------------------------------------------------------------------------------------------

cdef inline bint is_over(Engine engine, Connection subscriber) noexcept:
    return waiting_bytes(subscriber) > engine.settings.high_water_bytes or (
        subscriber.session is not None and subscriber.session.queue.count > subscriber.session.max_queued // 2
    )


cdef void check_congestion(Engine engine, Connection subscriber) noexcept:
    """A subscriber is over its marks: tries to send, and if that does not help, holds the publisher."""
    cdef Connection publisher
    if not subscriber.blocked and waiting_bytes(subscriber) > engine.settings.high_water_bytes:
        flush(engine, subscriber)
        if not is_over(engine, subscriber):
            return
    if not subscriber.congested:
        subscriber.congested = True
        subscriber.congested_since_ms = engine.now_ms
        subscriber.taken_bytes = 0
        engine.congested.append(subscriber)
    publisher = engine.publisher
    if publisher is None or subscriber.slow or publisher.paused or publisher is subscriber or not publisher.open:
        return
    if publisher.kind != CLIENT and subscriber.kind != CLIENT:  # two workers must not wait for each other
        return
    hold_publisher(engine, publisher, subscriber)


cdef void hold_publisher(Engine engine, Connection publisher, Connection subscriber) noexcept:
    """It is not read until the subscriber has taken what it has."""
    publisher.paused = True
    engine.counters.pauses += 1
    if publisher.transport is not None:
        publisher.transport.pause_reading()
    if subscriber.waiters is None:
        subscriber.waiters = []
    subscriber.waiters.append(publisher)


cdef inline void relax(Engine engine, Connection subscriber) noexcept:
    """Ends the congestion when both the output and the queue are low again."""
    if waiting_bytes(subscriber) <= engine.settings.low_water_bytes and (
        subscriber.session is None or subscriber.session.queue.count <= subscriber.session.max_queued // 8
    ):
        end_congestion(engine, subscriber)


cdef void end_congestion(Engine engine, Connection subscriber) noexcept:
    subscriber.congested = False
    subscriber.slow = False
    engine.congested.remove(subscriber)
    release_waiters(engine, subscriber)


cdef void release_waiters(Engine engine, Connection subscriber) noexcept:
    cdef list waiters = subscriber.waiters
    cdef Connection publisher
    if waiters is None:
        return
    subscriber.waiters = None
    for item in waiters:
        publisher = <Connection>item
        publisher.paused = False
        if publisher.open:
            if publisher.transport is not None and not publisher.throttled:
                publisher.transport.resume_reading()
            make_ready(engine, publisher)


cdef void judge_congested(Engine engine) noexcept:
    """A subscriber that stays congested no longer holds its publishers. A worker holds them as long as it takes: dropping
    what it should get would lose messages for clients that are well."""
    cdef Connection subscriber
    for item in list(engine.congested):
        subscriber = <Connection>item
        if subscriber.kind != CLIENT or subscriber.slow:
            continue
        if engine.now_ms - subscriber.congested_since_ms < engine.settings.slow_after_ms:
            continue
        if subscriber.taken_bytes >= engine.settings.high_water_bytes:
            subscriber.congested_since_ms = engine.now_ms
            subscriber.taken_bytes = 0
        else:
            subscriber.slow = True
            release_waiters(engine, subscriber)


# --- The end -------------------------------------------------------------------------------------------------------

cdef void end_connection(Engine engine, Connection connection, bint flush_first) noexcept:
    """Logical end: nothing more is read or delivered. What is in the output is still sent when `flush_first`."""
    cdef Session session = connection.session
    if not connection.open:
        return
    connection.open = False
    connection.session = None
    if session is not None and session.connection is connection:
        session.connection = None
    if connection.congested:
        end_congestion(engine, connection)
    release_waiters(engine, connection)
    try:
        if connection.kind == CLIENT:
            engine.handler.on_closed(connection)
        else:
            drop_link(engine, connection)
            engine.handler.on_link_closed(connection)
    except Exception:
        engine.handler.on_exception(connection)
    if flush_first:
        connection.deadline_ms = engine.now_ms + LINGER_S * 1000  # also for a peer that does not read
        arm(engine, connection)
        touch(engine, connection)
    else:
        shut(engine, connection)


cdef void lose(Engine engine, Connection connection) noexcept:
    """The peer is gone."""
    if not connection.open:
        shut(engine, connection)
        return
    if connection.kind == CLIENT:
        try:
            engine.handler.on_lost(connection)
        except Exception:
            engine.handler.on_exception(connection)
    end_connection(engine, connection, False)


cdef void begin_lingering(Engine engine, Connection connection) noexcept:
    """Our last packet is with the kernel. Closing now, with unread input, would reset the connection and could destroy
    it; so we only close our direction and discard what still comes, for LINGER_S at most."""
    connection.lingering = True
    if connection.fd < 0:
        shut(engine, connection)
        return
    shutdown(connection.fd, SHUT_WR)
    connection.deadline_ms = engine.now_ms + LINGER_S * 1000
    arm(engine, connection)
    make_ready(engine, connection)


cdef void shut(Engine engine, Connection connection) noexcept:
    if connection.fd >= 0:
        # Closing alone does not leave the epoll set while another process has the socket, too: the worker that passed it
        # on may not have closed its own yet. An event of it would find a connection that is gone.
        epoll_ctl(engine.epoll_fd, EPOLL_CTL_DEL, connection.fd, NULL)
        close_fd(connection.fd)
        connection.fd = -1
    if connection.transport is not None:
        try:
            connection.transport.close()
        except Exception:
            engine.handler.on_exception(connection)
        connection.transport = None
    forget_connection(engine, connection)


cdef void forget_connection(Engine engine, Connection connection) noexcept:
    """Events of this round may still point to it: the graveyard keeps it until they are done."""
    disarm(engine, connection)
    if connection.out != NULL:
        give_buffer(engine, connection.out, connection.out_capacity)
        connection.out = NULL
        connection.out_start = connection.out_end = connection.out_capacity = 0
    if connection in engine.connections:
        engine.graveyard.append(connection)
        engine.connections.discard(connection)


# --- Timers --------------------------------------------------------------------------------------------------------
# One wheel, a slot per second. A connection waits in the slot of its next deadline; when the slot comes up and the
# deadline has moved (something was heard meanwhile), it goes to its new slot. So activity costs nothing.

cdef int64_t next_deadline_ms(Connection connection) noexcept:
    if connection.deadline_ms:
        return connection.deadline_ms
    if connection.keep_alive_ms:
        return connection.last_seen_ms + connection.keep_alive_ms
    return 0


cdef void arm(Engine engine, Connection connection) noexcept:
    cdef int64_t deadline_ms = next_deadline_ms(connection)
    cdef int64_t second
    disarm(engine, connection)
    if deadline_ms:
        second = min(max((deadline_ms + 999) // 1000, engine.wheel_at_s + 1), engine.wheel_at_s + WHEEL_SLOTS - 1)
        connection.wheel_s = second
        (<set>engine.wheel[second % WHEEL_SLOTS]).add(connection)


cdef void disarm(Engine engine, Connection connection) noexcept:
    if connection.wheel_s >= 0:
        (<set>engine.wheel[connection.wheel_s % WHEEL_SLOTS]).discard(connection)
        connection.wheel_s = -1


cdef void turn_wheel(Engine engine) noexcept:
    cdef int64_t now_s = engine.now_ms // 1000
    cdef Connection connection
    cdef set slot
    while engine.wheel_at_s < now_s:
        engine.wheel_at_s += 1
        slot = engine.wheel[engine.wheel_at_s % WHEEL_SLOTS]
        if not slot:
            continue
        engine.wheel[engine.wheel_at_s % WHEEL_SLOTS] = set()
        for item in slot:
            connection = <Connection>item
            connection.wheel_s = -1
            if connection.paused or connection.throttled or connection.suspended:
                connection.last_seen_ms = engine.now_ms  # it may have spoken: we did not listen
            if next_deadline_ms(connection) > engine.now_ms:
                arm(engine, connection)
            elif not connection.open:
                shut(engine, connection)
            else:
                try:
                    engine.handler.on_timeout(connection, connection.session is not None)
                except Exception:
                    engine.handler.on_exception(connection)
                if connection.open:
                    end_connection(engine, connection, True)
