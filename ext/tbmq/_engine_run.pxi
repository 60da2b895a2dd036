# Runs: packets that are passed on as they came. Part of _engine.pyx.
#
# A publisher that is in a hurry fills a read with PUBLISH packets for one topic. At QoS 0, without retain, alias and
# properties, such a packet looks the same going out as it did coming in; so the whole run of them is handled as one:
#
#   read buffer   [ ... | PUBLISH t | PUBLISH t | PUBLISH t | PUBLISH u | ... ]
#                       └──────────── run ──────────────────┘
#
# One comparison per packet, one match per run, and one send() per subscriber straight from the read buffer. Subscribers
# that get something else than what came (the other protocol version, identifiers, aliases) get each packet by itself.
# To another worker a run travels as one frame, and is a run there.
#
# A run ends with the first packet that is not part of it, and before anything else happens: it never lives longer than
# one call of handle_packets. While one of its subscribers is congested it is not delivered at all: its publisher waits,
# and its packets are handled again later. So many publishers of one slow subscriber do not overrun it.

cdef enum:
    PLAIN_PUBLISH = 0x30         # first byte: QoS 0, neither DUP nor RETAIN
    DIRECT_BYTES = 8_192         # from here on a run goes to the socket without being copied first

cdef struct Run:
    const uint8_t* data          # its packets, one behind the other
    size_t size
    uint32_t count               # of packets; 0: there is no run
    uint32_t largest             # bytes of the largest packet
    const uint8_t* head          # what all bodies start with: the topic with its length; MQTT 5: and no properties
    uint32_t head_bytes
    uint32_t publisher           # session number, or NOBODY
    bint is_v5

cdef struct RunHeader:           # in front of the packets, between workers
    uint32_t count
    uint32_t largest
    uint32_t head_at             # where `head` is in the packets
    uint32_t is_v5


cdef inline bint is_plain(const PublishView* view, uint8_t first) noexcept:
    return first == PLAIN_PUBLISH and view.topic_alias == 0 and view.properties.size == 0


cdef inline void begin_run(Run* run, Connection connection, const Header* header, const Cursor* packet, const Span* topic) noexcept:
    """`packet` starts at the body of the first one, whose `topic` has been judged."""
    run.is_v5 = connection.level == 5
    run.head = packet.at
    run.head_bytes = 2 + topic.size + run.is_v5
    run.publisher = connection.session.number
    run.data = packet.at - header.size
    run.size = 0
    run.count = run.largest = 0
    extend_run(run, header)


cdef inline bint is_next_of_run(const Run* run, const Header* header, const Cursor* packet) noexcept:
    return (
        run.count != 0
        and header.first == PLAIN_PUBLISH
        and header.body_bytes >= run.head_bytes
        and memcmp(packet.at, run.head, run.head_bytes) == 0
    )


cdef inline void extend_run(Run* run, const Header* header) noexcept:
    cdef uint32_t size = header.size + header.body_bytes
    run.count += 1
    run.size += size
    run.largest = max(run.largest, size)


cdef inline Span topic_of(const Run* run) noexcept:
    return Span(run.head + 2, run.head_bytes - 2 - run.is_v5)


cdef bint end_run(Engine engine, Connection connection, Run* run) noexcept:
    """Delivers the run, and leaves none. False: it has to wait, the connection is paused, and run.size tells how many bytes
    have to be handled again."""
    cdef Connection congested
    if engine.congested:
        congested = find_congested(engine, run)
        if congested is not None and congested is not connection:
            hold_publisher(engine, connection, congested)
            engine.counters.packets_in[<int>PUBLISH] -= 1
            engine.counters.messages_in[0] -= 1
            run.count = 0
            return False
    engine.counters.packets_in[<int>PUBLISH] += run.count - 1  # the first was counted when it came
    engine.counters.messages_in[0] += run.count - 1
    engine.publisher = connection
    deliver_run(engine, run)
    if engine.workers > 1:
        forward_run(engine, run)
    if engine.groups.tree.n_shared:
        deliver_run_to_groups(engine, run)
    engine.publisher = None
    run.count, run.size = 0, 0
    return True


cdef Connection find_congested(Engine engine, const Run* run):
    """A subscriber, or another worker, for which this run has to wait; None: nobody."""
    cdef Span topic = topic_of(run)
    cdef const Match* match = engine.subscriptions.find(topic.data, topic.size)
    cdef Connection subscriber
    cdef uint32_t i
    if match != NULL:
        for i in range(match.n_targets):
            subscriber = (<Session>engine.sessions[match.targets[i].subscriber]).connection
            if subscriber is not None and subscriber.congested and not subscriber.slow:
                return subscriber
    if engine.workers > 1:
        match = engine.routes.find(topic.data, topic.size)
        if match != NULL:
            for i in range(match.n_targets):
                subscriber = (<Peer>engine.peers[match.targets[i].subscriber]).link
                if subscriber is not None and subscriber.congested:
                    return subscriber
    return None


cdef void deliver_run(Engine engine, const Run* run) noexcept:
    """To every matching subscription of this worker's sessions."""
    cdef Span topic = topic_of(run)
    cdef const Match* match = engine.subscriptions.find(topic.data, topic.size)
    cdef const Target* target
    cdef Connection subscriber
    cdef bint any_differs = False
    cdef uint32_t i
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += run.count
        return
    for i in range(match.n_targets):
        target = &match.targets[i]
        if target.no_local and target.subscriber == run.publisher:
            continue
        subscriber = (<Session>engine.sessions[target.subscriber]).connection
        if subscriber is None:
            engine.counters.drops[DROP_OFFLINE_QOS0] += run.count
        elif differs(run, subscriber, target):
            any_differs = True
        elif not has_room(engine, subscriber):
            engine.counters.drops[DROP_SLOW_READER] += run.count
        elif write_run(engine, subscriber, run):
            engine.counters.messages_out[0] += run.count
            engine.counters.packets_out[<int>PUBLISH] += run.count
        else:
            engine.counters.drops[DROP_NO_MEMORY] += run.count
    if any_differs:
        deliver_one_by_one(engine, run, match)


cdef inline bint differs(const Run* run, Connection subscriber, const Target* target) noexcept:
    """Whether the subscriber gets other bytes than those that came, or may not get all of them."""
    return (
        target.n_identifiers != 0
        or subscriber.meter != NULL
        or subscriber.alias_out_maximum != 0
        or (subscriber.level == 5) != run.is_v5
        or subscriber.max_outgoing_bytes < run.largest
    )


cdef bint write_run(Engine engine, Connection subscriber, const Run* run) noexcept:
    """False when memory is out."""
    cdef const uint8_t* data = run.data
    cdef size_t size = run.size
    cdef ssize_t sent
    cdef uint8_t* out
    if size >= DIRECT_BYTES and subscriber.out == NULL and not subscriber.blocked and subscriber.fd >= 0:
        sent = send(subscriber.fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        engine.counters.writes += 1
        if sent < 0:
            sent = 0  # a failed socket shows itself at the next flush
        engine.counters.bytes_out += sent
        if <size_t>sent == size:
            return True
        data, size = data + sent, size - sent
    out = reserve(engine, subscriber, size)
    if out == NULL:
        if size < run.size:  # a part is out: the connection cannot go on
            subscriber.hung_up = True
            make_ready(engine, subscriber)
        return False
    memcpy(out, data, size)
    subscriber.out_end += size
    return True


cdef bint next_of_run(const Run* run, size_t* at, Publication* publication) noexcept:
    """The packet at `at`, which moves to the next; False at the end."""
    cdef Header header
    cdef const char* fault = NULL
    cdef const uint8_t* body
    if at[0] >= run.size:
        return False
    if read_header(run.data + at[0], run.size - at[0], 4, FROM_CLIENT, 0xFFFFFFFF, &header, &fault) != OK:
        return False
    body = run.data + at[0] + header.size
    if header.body_bytes < run.head_bytes or header.body_bytes > run.size - at[0] - header.size:
        return False
    at[0] += header.size + header.body_bytes
    publication.topic = topic_of(run)
    publication.payload = Span(body + run.head_bytes, header.body_bytes - run.head_bytes)
    publication.publisher = run.publisher
    return True


cdef void deliver_one_by_one(Engine engine, const Run* run, const Match* match) noexcept:
    """To those whose bytes differ."""
    cdef Publication publication
    cdef const Target* target
    cdef Connection subscriber
    cdef size_t at = 0
    cdef uint32_t i
    start_publication(engine, &publication)
    while next_of_run(run, &at, &publication):
        for i in range(match.n_targets):
            target = &match.targets[i]
            subscriber = (<Session>engine.sessions[target.subscriber]).connection
            if subscriber is None or not differs(run, subscriber, target):
                continue
            if target.no_local and target.subscriber == run.publisher:
                continue
            deliver(
                engine,
                <Session>engine.sessions[target.subscriber],
                target.qos,
                target.retain_as_published,
                match.identifiers + target.first_identifier,
                target.n_identifiers,
                &publication,
            )
        start_publication(engine, &publication)


cdef void deliver_run_to_groups(Engine engine, const Run* run) noexcept:
    cdef Span topic = topic_of(run)
    cdef const Match* match = engine.groups.find(topic.data, topic.size)
    cdef Publication publication
    cdef size_t at = 0
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += run.count
        return
    if match.n_groups == 0:
        return
    start_publication(engine, &publication)
    while next_of_run(run, &at, &publication):
        deliver_to_groups(engine, &publication)
        if engine.round_is_full:
            seal_round(engine)
        start_publication(engine, &publication)


# --- Between workers -----------------------------------------------------------------------------------------------

cdef void forward_run(Engine engine, const Run* run) noexcept:
    """To every other worker that has a matching subscription."""
    cdef Span topic = topic_of(run)
    cdef const Match* match = engine.routes.find(topic.data, topic.size)
    cdef Peer peer
    cdef uint32_t i
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += run.count
        return
    for i in range(match.n_targets):
        peer = <Peer>engine.peers[match.targets[i].subscriber]
        if peer.link is None:
            continue
        if peer.batch.count or peer.directed.count:
            seal_round(engine)  # what was published before goes before
        write_run_frame(engine, peer.link, run)
        if waiting_bytes(peer.link) > engine.settings.high_water_bytes:
            check_congestion(engine, peer.link)


cdef void write_run_frame(Engine engine, Connection link, const Run* run) noexcept:
    cdef RunHeader header = RunHeader(run.count, run.largest, <uint32_t>(run.head - run.data), run.is_v5)
    cdef bint is_direct = run.size >= DIRECT_BYTES and link.out == NULL and not link.blocked
    cdef size_t body_bytes = sizeof(RunHeader) + run.size
    cdef uint8_t* out = begin_frame(
        engine, link, FRAME_RUN, engine.round, body_bytes, sizeof(RunHeader) if is_direct else body_bytes
    )
    if out == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += run.count
        return
    memcpy(out, &header, sizeof(RunHeader))
    if is_direct:
        send_with_payload(engine, link, FRAME_BYTES + sizeof(RunHeader), run.data, run.size)
    else:
        memcpy(out + sizeof(RunHeader), run.data, run.size)


cdef int take_run(Engine engine, Connection link, const uint8_t* body, uint32_t body_bytes) except -1:
    """A run that another worker has read."""
    cdef Run run
    cdef RunHeader header
    if body_bytes < sizeof(RunHeader):
        raise ValueError("a run is cut")
    memcpy(&header, body, sizeof(RunHeader))
    run.data = body + sizeof(RunHeader)
    run.size = body_bytes - sizeof(RunHeader)
    if header.head_at + 2 > run.size:
        raise ValueError("a run is cut")
    run.count, run.largest, run.is_v5 = header.count, header.largest, header.is_v5 != 0
    run.head = run.data + header.head_at
    run.head_bytes = 2 + (run.head[0] << 8 | run.head[1]) + run.is_v5
    if header.head_at + run.head_bytes > run.size:
        raise ValueError("a run is cut")
    run.publisher = NOBODY
    engine.publisher = link
    deliver_run(engine, &run)
    engine.publisher = None
    return 0
