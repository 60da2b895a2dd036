# What a client may publish, and how much of it. Part of _engine.pyx.
#
# Permissions. Only a client with rules (Connection.is_restricted) is asked about: the policy judges a topic once, and the
# answer is kept with the connection in a table that is bounded, exact, and emptied when the rules change:
#
#   judged    slot = checksum of the topic & (slots - 1);  slot -> Judged: answer, length, text; or NULL
#             doubles from 8 to MAX_JUDGED slots while topics collide; then a newcomer displaces the one in its slot;
#             emptied when its topics have more than MAX_JUDGED_BYTES
#
# Rates. A Rate is what TBMQ writes as "100:1,2000:60": up to MAX_WINDOWS token buckets, all of which must have a token. A
# bucket holds at most its limit and refills evenly, so that in any stretch of t seconds at most limit + t * limit / seconds
# pass. Bytes are taken after the fact: a packet passes while there is a token, and may leave a debt. Who has no token left
# is not read until a tick finds one: nothing is lost, the client is slowed down. Outgoing QoS 0 is dropped instead, QoS 1
# and 2 wait in the queue.

cdef enum:
    MIN_JUDGED = 8
    MAX_JUDGED = 1024
    MAX_JUDGED_BYTES = 262_144
    MAX_WINDOWS = 4

cdef struct Judged:
    uint8_t code                 # 0: allowed; else the reason code of the refusal
    uint16_t size
    uint8_t topic[0]

cdef struct Rate:
    uint32_t n                   # windows; 0: no limit
    double limit[MAX_WINDOWS]
    double per_ms[MAX_WINDOWS]

cdef struct Bucket:
    int64_t at_ms                # when it was filled last
    double tokens[MAX_WINDOWS]

cdef struct Meter:               # of one client
    Bucket messages
    Bucket size                  # bytes
    Bucket out_messages


# --- Permissions ---------------------------------------------------------------------------------------------------

cdef int judge_topic(Engine engine, Connection connection, const Span* topic) noexcept:
    """0, or the reason code of the refusal."""
    cdef uint32_t checksum = crc32c_update(0, topic.data, topic.size)
    cdef Judged* judged
    cdef int code
    if connection.judged != NULL:
        judged = connection.judged[checksum & (connection.judged_slots - 1)]
        if judged != NULL and judged.size == topic.size and memcmp(judged.topic, topic.data, topic.size) == 0:
            return judged.code
    try:
        code = engine.handler.on_first_publish(connection, PyBytes_FromStringAndSize(<char*>topic.data, topic.size))
    except Exception:
        engine.handler.on_exception(connection)
        return 0x80
    keep_judged(connection, topic, checksum, <uint8_t>code)
    return code


cdef void keep_judged(Connection connection, const Span* topic, uint32_t checksum, uint8_t code) noexcept:
    """Without memory it is not kept, and the next time asked again."""
    cdef Judged* judged
    cdef Judged** slot
    if connection.judged_bytes + topic.size > MAX_JUDGED_BYTES:
        forget_judged(connection)
    if connection.judged == NULL:
        connection.judged = <Judged**>calloc(MIN_JUDGED, sizeof(Judged*))
        if connection.judged == NULL:
            return
        connection.judged_slots = MIN_JUDGED
    while (
        connection.judged[checksum & (connection.judged_slots - 1)] != NULL
        and connection.judged_slots < MAX_JUDGED
        and double_judged(connection)
    ):
        pass
    judged = <Judged*>malloc(sizeof(Judged) + topic.size)
    if judged != NULL:
        judged.code, judged.size = code, <uint16_t>topic.size
        memcpy(judged.topic, topic.data, topic.size)
        slot = &connection.judged[checksum & (connection.judged_slots - 1)]
        if slot[0] != NULL:
            connection.judged_bytes -= slot[0].size
            free(slot[0])
        slot[0] = judged
        connection.judged_bytes += topic.size


cdef bint double_judged(Connection connection) noexcept:
    """Twice the slots; those that were apart stay apart."""
    cdef uint32_t slots = 2 * connection.judged_slots
    cdef Judged** table = <Judged**>calloc(slots, sizeof(Judged*))
    cdef Judged* judged
    cdef uint32_t i
    if table == NULL:
        return False
    for i in range(connection.judged_slots):
        judged = connection.judged[i]
        if judged != NULL:
            table[crc32c_update(0, judged.topic, judged.size) & (slots - 1)] = judged
    free(connection.judged)
    connection.judged = table
    connection.judged_slots = slots
    return True


cdef void forget_judged(Connection connection) noexcept:
    cdef uint32_t i
    if connection.judged != NULL:
        for i in range(connection.judged_slots):
            free(connection.judged[i])
        free(connection.judged)
        connection.judged = NULL
        connection.judged_slots = connection.judged_bytes = 0


# --- Rates ---------------------------------------------------------------------------------------------------------

cdef int set_rate(Rate* rate, object windows) except -1:
    """`windows`: (limit, seconds) pairs."""
    if len(windows) > MAX_WINDOWS:
        raise ValueError(f"at most {MAX_WINDOWS} windows per rate limit")
    rate.n = 0
    for limit, seconds in windows:
        rate.limit[rate.n] = limit
        rate.per_ms[rate.n] = limit / (1000.0 * seconds)
        rate.n += 1
    return 0


cdef void fill_bucket(const Rate* rate, Bucket* bucket, int64_t now_ms) noexcept:
    cdef uint32_t i
    for i in range(rate.n):
        bucket.tokens[i] = rate.limit[i]
    bucket.at_ms = now_ms


cdef bint has_token(const Rate* rate, Bucket* bucket, int64_t now_ms) noexcept:
    """Refills, and tells whether there is one."""
    cdef uint32_t i
    if now_ms > bucket.at_ms:
        for i in range(rate.n):
            bucket.tokens[i] = min(rate.limit[i], bucket.tokens[i] + (now_ms - bucket.at_ms) * rate.per_ms[i])
        bucket.at_ms = now_ms
    for i in range(rate.n):
        if bucket.tokens[i] < 1.0:
            return False
    return True


cdef inline void take_tokens(const Rate* rate, Bucket* bucket, double amount) noexcept:
    cdef uint32_t i
    for i in range(rate.n):
        bucket.tokens[i] -= amount


cdef bint start_meter(Engine engine, Connection connection) noexcept:
    """When a client is accepted. False when memory is out."""
    if engine.rates[CLIENT_MESSAGES].n or engine.rates[CLIENT_BYTES].n or engine.rates[CLIENT_OUT].n or engine.rates[TOTAL].n:
        connection.meter = <Meter*>calloc(1, sizeof(Meter))
        if connection.meter == NULL:
            return False
        fill_bucket(&engine.rates[CLIENT_MESSAGES], &connection.meter.messages, engine.now_ms)
        fill_bucket(&engine.rates[CLIENT_BYTES], &connection.meter.size, engine.now_ms)
        fill_bucket(&engine.rates[CLIENT_OUT], &connection.meter.out_messages, engine.now_ms)
    return True


cdef bint may_publish_now(Engine engine, Connection connection, uint32_t packet_bytes) noexcept:
    """Takes the tokens for one PUBLISH; False, and the connection is not read for a while, when there are none."""
    cdef Meter* meter = connection.meter
    if (
        has_token(&engine.rates[CLIENT_MESSAGES], &meter.messages, engine.now_ms)
        and has_token(&engine.rates[CLIENT_BYTES], &meter.size, engine.now_ms)
        and has_token(&engine.rates[TOTAL], &engine.total, engine.now_ms)
    ):
        take_tokens(&engine.rates[CLIENT_MESSAGES], &meter.messages, 1.0)
        take_tokens(&engine.rates[CLIENT_BYTES], &meter.size, packet_bytes)
        take_tokens(&engine.rates[TOTAL], &engine.total, 1.0)
        connection.got_tokens = True
        return True
    engine.counters.throttles += 1
    connection.throttled = True
    engine.throttled.append(connection)
    if connection.transport is not None:
        connection.transport.pause_reading()
    return False


cdef bint may_receive_now(Engine engine, Connection connection) noexcept:
    """Takes the token for one PUBLISH to a client whose outgoing rate is limited."""
    if engine.rates[CLIENT_OUT].n == 0 or connection.meter == NULL:
        return True
    if not has_token(&engine.rates[CLIENT_OUT], &connection.meter.out_messages, engine.now_ms):
        return False
    take_tokens(&engine.rates[CLIENT_OUT], &connection.meter.out_messages, 1.0)
    return True


cdef void wait_for_tokens(Engine engine, Connection connection) noexcept:
    """Its queue is looked at again at the next tick."""
    if not connection.waits_for_tokens:
        connection.waits_for_tokens = True
        engine.waiting_for_tokens.append(connection)


cdef void release_throttled(Engine engine) noexcept:
    """At a tick: everybody tries again, first those who got nothing at the last; who still has no token comes back."""
    cdef list throttled = engine.throttled
    cdef list waiting = engine.waiting_for_tokens
    cdef Connection connection
    if not throttled and not waiting:
        return
    engine.throttled, engine.waiting_for_tokens = [], []
    hungry = [item for item in throttled if not (<Connection>item).got_tokens]
    for item in hungry + [item for item in throttled if (<Connection>item).got_tokens]:
        connection = <Connection>item
        connection.throttled = connection.got_tokens = False
        if connection.open:
            connection.last_seen_ms = engine.now_ms  # it may have spoken: we did not listen
            if connection.transport is not None and not connection.suspended and not connection.paused:
                connection.transport.resume_reading()
            make_ready(engine, connection)
    for item in waiting:
        connection = <Connection>item
        connection.waits_for_tokens = False
        if connection.open and connection.session is not None:
            pump(engine, connection.session)
