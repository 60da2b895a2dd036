# The mesh: links between the workers of one node. Part of _engine.pyx.
#
#   worker A                                         worker B
#   Peer B.link  ──── BATCH, DIRECTED, MESSAGE ───▶  incoming connection from A
#                ◀─────────── CONFIRM ─────────────
#
# Each ordered pair of workers has one link, dialled by the side that sends on it. A frame is a header of 16 bytes and a body:
#
#   0  size of the body u32 | 4  kind u8 | 5  wants CONFIRM u8 | 6  zero | 8  round u64   (both ends are one machine)
#
#   BATCH      a batch; the receiver matches each message against its own subscriptions
#   DIRECTED   u32 n, n times an Order, a batch of n messages: shared subscriptions, whose member the sender has chosen
#   RUN        a RunHeader and the packets of a run, see _engine_run
#   REFUSED    a Refusal: a message of that round was delivered, but could not be retained
#   CONFIRM    all frames up to this round have taken effect
#   MESSAGE    bytes for the handler in Python: routes, requests
#
# Rounds. What is published is collected per peer and sent at the end of a round, all peers together, under one round
# number, which then rises. An ack of a message that went to other workers is held until its round and all before it
# are confirmed by everybody they went to: then it leaves, in order. Rounds without such messages ask for no confirmation.
# A peer that dies confirms everything.

cdef enum:
    FRAME_BYTES = 16
    FRAME_BATCH = 1
    FRAME_DIRECTED = 2
    FRAME_CONFIRM = 3
    FRAME_MESSAGE = 4
    FRAME_RUN = 5
    FRAME_REFUSED = 6
    BATCH_BYTES = 65_536         # a batch that reaches this is sent at once
    MAX_HELD_ACKS = 65_536       # of one connection; then it is not read
    MEMBER_BITS = 24             # a member of a group: worker << MEMBER_BITS | session number

cdef struct Order:               # of a DIRECTED frame
    uint32_t session             # number at the receiver
    uint32_t options             # of the subscription, as in the trie
    uint32_t group               # checksum of the group's name: when the member has left, another one gets the message

cdef struct Refusal:
    uint32_t session             # number of the publisher at the receiver of this frame
    uint16_t packet_id
    uint16_t code

cdef struct HeldAck:
    uint64_t round               # leaves when this round is complete
    uint16_t packet_id
    uint8_t packet               # PUBACK or PUBREC
    uint8_t code


@cython.final
cdef class Peer:
    """Another worker, as this one sees it."""

    cdef readonly int index
    cdef Connection link             # ours to it; None while it is away
    cdef BatchWriter batch           # for everybody there who matches
    cdef BatchWriter directed        # for chosen sessions there
    cdef Order* orders               # one for each message in `directed`
    cdef uint32_t orders_capacity
    cdef bint wants_confirm          # this round has something for it whose ack is held
    cdef uint64_t sent_round         # the last one that it has to confirm
    cdef uint64_t confirmed_round

    def __cinit__(self, int index):
        self.index = index
        self.batch = BatchWriter()
        self.directed = BatchWriter()

    def __dealloc__(self):
        free(self.orders)


# --- Sending -------------------------------------------------------------------------------------------------------

cdef inline uint32_t owner_of(Engine engine, const Span* topic) noexcept:
    """The worker that keeps a topic's retained message."""
    return crc32c_update(0, topic.data, topic.size) % engine.workers


cdef int forward(Engine engine, Publication* publication) noexcept:
    """Hands a publication to every other worker that has a matching subscription, and to the keeper of its retained
    message. Answers how many workers want it."""
    cdef const Match* match
    cdef Peer peer
    cdef uint32_t i
    cdef int wanted = 0
    cdef uint32_t keeper = engine.index
    cdef bint keeper_has_it = False
    if publication.retain:
        keeper = owner_of(engine, &publication.topic)
    match = engine.routes.find(publication.topic.data, publication.topic.size)
    if match == NULL:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return 0
    for i in range(match.n_targets):
        peer = <Peer>engine.peers[match.targets[i].subscriber]
        wanted += 1
        keeper_has_it |= <uint32_t>peer.index == keeper
        append(engine, peer, peer.batch, publication)
    if keeper != engine.index and not keeper_has_it:
        peer = <Peer>engine.peers[keeper]
        append(engine, peer, peer.batch, publication)
    return wanted


cdef bint append(Engine engine, Peer peer, BatchWriter writer, Publication* publication) noexcept:
    cdef MessageView view
    cdef int done
    if peer.link is None:
        return False
    memset(&view, 0, sizeof(MessageView))
    view.topic, view.topic_bytes = publication.topic.data, <uint16_t>publication.topic.size
    view.properties, view.properties_bytes = publication.properties.data, publication.properties.size
    view.payload, view.payload_bytes = publication.payload.data, publication.payload.size
    view.time_ms = publication.received_ms
    view.has_expiry = publication.expiry_s != NO_EXPIRY
    view.expiry_s = publication.expiry_s
    view.qos, view.retain = publication.qos, publication.retain
    if publication.retain and publication.qos:  # its keeper may have to refuse it
        view.publisher, view.publisher_bytes = <const uint8_t*>&publication.publisher, sizeof(uint32_t)
        view.packet_id = publication.packet_id
    try:
        done = writer.append_message(&view)
        if done == 0:
            seal_round(engine)
            done = writer.append_message(&view)
    except Exception:
        engine.handler.on_exception(peer.link)
        done = 0
    if done == 0:
        engine.counters.drops[DROP_NO_MEMORY] += 1
        return False
    if publication.qos:
        publication.round = engine.round
        peer.wants_confirm = True
    if not engine.running:
        wake(engine)
    if writer.size >= BATCH_BYTES:
        engine.round_is_full = True
    if waiting_bytes(peer.link) > engine.settings.high_water_bytes:
        check_congestion(engine, peer.link)
    return True


cdef bint append_directed(
    Engine engine, Peer peer, uint32_t number, uint32_t options, const Group* group, Publication* publication
) noexcept:
    cdef Order* grown
    cdef uint32_t at = peer.directed.count
    if at == peer.orders_capacity:
        grown = <Order*>realloc(peer.orders, max(2 * at, <uint32_t>64) * sizeof(Order))
        if grown == NULL:
            engine.counters.drops[DROP_NO_MEMORY] += 1
            return False
        peer.orders = grown
        peer.orders_capacity = max(2 * at, <uint32_t>64)
    if not append(engine, peer, peer.directed, publication):
        return False
    at = peer.directed.count - 1  # the round may have been sealed in between
    peer.orders[at] = Order(number, options, group_checksum(group))
    return True


cdef void seal_round(Engine engine) noexcept:
    """Sends what this round has for other workers, all of it under the same round number."""
    cdef Peer peer
    cdef bint has_any = False
    engine.round_is_full = False
    for item in engine.peers:
        if item is None:
            continue
        peer = <Peer>item
        if peer.batch.count:
            has_any = True
            write_batch(engine, peer, FRAME_BATCH, peer.batch, 0)
        if peer.directed.count:
            has_any = True
            write_batch(engine, peer, FRAME_DIRECTED, peer.directed, peer.directed.count)
        peer.wants_confirm = False
    if has_any:  # also when its only receiver is gone: acks wait for this number
        engine.round += 1


cdef void write_batch(Engine engine, Peer peer, uint8_t kind, BatchWriter writer, uint32_t n_orders) noexcept:
    cdef size_t batch_bytes = 0
    cdef size_t orders_bytes = 4 + n_orders * sizeof(Order) if n_orders else 0
    cdef const uint8_t* batch
    cdef uint8_t* out = NULL
    if peer.link is not None:
        try:
            batch = writer.seal(&batch_bytes)
        except Exception:
            engine.handler.on_exception(peer.link)
            writer.reset()
            return
        out = write_frame(engine, peer.link, kind, engine.round, orders_bytes + batch_bytes)
        if out != NULL:
            if n_orders:
                memcpy(out, &n_orders, 4)
                memcpy(out + 4, peer.orders, n_orders * sizeof(Order))
            memcpy(out + orders_bytes, batch, batch_bytes)
            if peer.wants_confirm:
                out[5 - FRAME_BYTES] = True
                peer.sent_round = engine.round
    writer.reset()


cdef uint8_t* write_frame(Engine engine, Connection link, uint8_t kind, uint64_t round_number, size_t body_bytes) noexcept:
    """Writes the header and answers where the body goes, already counted; NULL when memory is out."""
    return begin_frame(engine, link, kind, round_number, body_bytes, body_bytes)


cdef uint8_t* begin_frame(
    Engine engine, Connection link, uint8_t kind, uint64_t round_number, size_t body_bytes, size_t here_bytes
) noexcept:
    """The same for a body of which only the first `here_bytes` go into the output: the caller sends the others."""
    cdef uint8_t* out = reserve(engine, link, FRAME_BYTES + here_bytes)
    cdef uint32_t size = <uint32_t>body_bytes
    if out == NULL:
        link.hung_up = True  # a lost frame would be lost messages: better a new link
        make_ready(engine, link)
        return NULL
    memset(out, 0, FRAME_BYTES)
    memcpy(out, &size, 4)
    out[4] = kind
    memcpy(out + 8, &round_number, 8)
    link.out_end += FRAME_BYTES + here_bytes
    return out + FRAME_BYTES


# --- Receiving -----------------------------------------------------------------------------------------------------

cdef size_t handle_frames(Engine engine, Connection link, const uint8_t* data, size_t size) noexcept:
    """All whole frames at `data`; answers how many bytes they took. A frame that cannot be read ends the link."""
    cdef size_t used = 0
    cdef uint32_t body_bytes = 0
    cdef uint64_t round_number = 0
    cdef const uint8_t* body
    while link.open and not link.paused and size - used >= FRAME_BYTES:
        memcpy(&body_bytes, data + used, 4)
        if size - used - FRAME_BYTES < body_bytes:
            break
        memcpy(&round_number, data + used + 8, 8)
        body = data + used + FRAME_BYTES
        try:
            handle_frame(engine, link, data[used + 4], round_number, body, body_bytes)
            if data[used + 5]:
                link.confirm_round = round_number
                if not link.confirms:
                    link.confirms = True
                    engine.confirming.append(link)
        except Exception:
            engine.handler.on_exception(link)
            end_connection(engine, link, False)
        used += FRAME_BYTES + body_bytes
    link.stopped_early = link.paused
    return used


cdef int handle_frame(
    Engine engine, Connection link, uint8_t kind, uint64_t round_number, const uint8_t* body, uint32_t body_bytes
) except -1:
    cdef uint32_t n = 0
    cdef size_t orders_bytes
    if kind == FRAME_BATCH:
        engine.reader.open(body, body_bytes, False)
        take_batch(engine, link, round_number, NULL, 0)
    elif kind == FRAME_DIRECTED:
        if body_bytes < 4:
            raise ValueError("a directed frame is cut")
        memcpy(&n, body, 4)
        orders_bytes = 4 + n * sizeof(Order)
        if body_bytes < orders_bytes:
            raise ValueError("a directed frame is cut")
        engine.reader.open(body + orders_bytes, body_bytes - orders_bytes, False)
        take_batch(engine, link, round_number, <const Order*>(body + 4), n)
    elif kind == FRAME_RUN:
        take_run(engine, link, body, body_bytes)
    elif kind == FRAME_REFUSED:
        if body_bytes < sizeof(Refusal):
            raise ValueError("a refusal is cut")
        take_refusal(engine, <const Refusal*>body)
    elif kind == FRAME_CONFIRM:
        confirm(engine, link.peer_index, round_number)
    elif kind == FRAME_MESSAGE:
        engine.handler.on_peer_message(link, PyBytes_FromStringAndSize(<char*>body, body_bytes))
    else:
        raise ValueError(f"a frame of unknown kind {kind}")
    return 0


cdef int take_batch(
    Engine engine, Connection link, uint64_t round_number, const Order* orders, uint32_t n_orders
) except -1:
    """Delivers the messages of the batch in engine.reader: to whoever matches here, or each as its order says."""
    cdef MessageView view
    cdef Publication publication
    cdef Order order
    cdef uint32_t at = 0
    while engine.reader.next(&view):
        start_publication(engine, &publication)
        publication.topic = Span(view.topic, view.topic_bytes)
        publication.properties = Span(view.properties, view.properties_bytes)
        publication.payload = Span(view.payload, view.payload_bytes)
        publication.received_ms = view.time_ms
        publication.expiry_s = view.expiry_s if view.has_expiry else <uint32_t>NO_EXPIRY
        publication.qos, publication.retain = view.qos, view.retain
        engine.publisher = link
        if orders == NULL:
            if publication.retain and owner_of(engine, &publication.topic) == engine.index:
                retain_message(engine, &publication)
                if publication.over_limit and view.publisher_bytes == sizeof(uint32_t):
                    refuse_to_retain(engine, link, round_number, &view)
            deliver_to_subscribers(engine, &publication)
        elif at < n_orders:
            memcpy(&order, &orders[at], sizeof(Order))
            at += 1
            take_order(engine, &order, &publication)
        engine.publisher = None
        end_publication(&publication)
    return 0


cdef void refuse_to_retain(Engine engine, Connection link, uint64_t round_number, const MessageView* view) noexcept:
    """Tells the publisher's worker, before the round is confirmed."""
    cdef Refusal refusal = Refusal(0, view.packet_id, 0x97)
    cdef uint8_t* out = write_frame(engine, link, FRAME_REFUSED, round_number, sizeof(Refusal))
    if out != NULL:
        memcpy(&refusal.session, view.publisher, sizeof(uint32_t))
        memcpy(out, &refusal, sizeof(Refusal))


cdef void take_refusal(Engine engine, const Refusal* body) noexcept:
    """The ack of that message, which is still held, tells it to an MQTT 5 client."""
    cdef Refusal refusal
    cdef Connection publisher
    cdef HeldAck* ack
    cdef uint32_t i
    memcpy(&refusal, body, sizeof(Refusal))
    if refusal.session >= engine.n_sessions or engine.sessions[refusal.session] == NULL:
        return
    publisher = (<Session>engine.sessions[refusal.session]).connection
    if publisher is None or publisher.level != 5:
        return
    for i in range(publisher.held_count):
        ack = &publisher.held[i]
        if ack.packet_id == refusal.packet_id:  # ids are not used again while their ack is held
            ack.code = <uint8_t>refusal.code
            if ack.packet == PUBREC:  # it ends here: no PUBREL will come
                ids_remove(&publisher.session.received, refusal.packet_id)


cdef void send_confirms(Engine engine) noexcept:
    """The effects of everything received in this round are there."""
    cdef Connection link
    for item in engine.confirming:
        link = <Connection>item
        link.confirms = False
        if link.open:
            write_frame(engine, link, FRAME_CONFIRM, link.confirm_round, 0)
    engine.confirming.clear()


# --- Held acks -----------------------------------------------------------------------------------------------------

cdef void confirm(Engine engine, int index, uint64_t round_number) noexcept:
    cdef Peer peer = <Peer>engine.peers[index]
    if round_number > peer.confirmed_round:
        peer.confirmed_round = round_number
        complete_rounds(engine)


cdef void complete_rounds(Engine engine) noexcept:
    """Finds the last round that everybody has confirmed, and lets the acks go that waited for it."""
    cdef uint64_t complete = engine.round - 1
    cdef Peer peer
    cdef Connection connection
    cdef list holders
    for item in engine.peers:
        if item is not None:
            peer = <Peer>item
            if peer.confirmed_round < peer.sent_round:
                complete = min(complete, peer.confirmed_round)
    if complete <= engine.complete_round:
        return
    engine.complete_round = complete
    holders = engine.holders
    engine.holders = []
    for item in holders:
        connection = <Connection>item
        release_acks(engine, connection)
        if connection.held_count and connection.open:
            engine.holders.append(connection)
        elif connection.violation is not None and connection.open:
            violate_with(engine, connection, connection.violation[0], connection.violation[1])


cdef void release_acks(Engine engine, Connection connection) noexcept:
    cdef uint32_t done = 0
    cdef HeldAck* ack
    while done < connection.held_count and connection.held[done].round <= engine.complete_round:
        ack = &connection.held[done]
        if connection.open:
            write_ack(engine, connection, <PacketType>ack.packet, ack.packet_id, ack.code)
        done += 1
    if done:
        if connection.readable and connection.held_count > MAX_HELD_ACKS:
            make_ready(engine, connection)
        connection.held_count -= done
        memmove(connection.held, connection.held + done, connection.held_count * sizeof(HeldAck))


cdef bint hold_ack(Engine engine, Connection connection, PacketType packet, uint16_t packet_id, uint8_t code,
                   uint64_t round_number) noexcept:
    """Keeps an ack until that round, and those of the acks before it, are complete. Bounded: over MAX_HELD_ACKS nothing
    more is read from the connection."""
    cdef HeldAck* grown
    cdef uint32_t capacity
    if connection.held_count == connection.held_capacity:
        capacity = max(2 * connection.held_capacity, <uint32_t>16)
        grown = <HeldAck*>realloc(connection.held, capacity * sizeof(HeldAck))
        if grown == NULL:
            return False
        connection.held = grown
        connection.held_capacity = capacity
    if connection.held_count == 0:
        engine.holders.append(connection)
    connection.held[connection.held_count] = HeldAck(round_number, packet_id, <uint8_t>packet, code)
    connection.held_count += 1
    return True


cdef void drop_link(Engine engine, Connection link) noexcept:
    """A link is gone; when it was ours, its worker is: what it had not confirmed needs no confirmation any more."""
    cdef Peer peer
    if link.kind == LINK_OUT:
        peer = <Peer>engine.peers[link.peer_index]
        if peer.link is link:
            peer.link = None
            peer.confirmed_round = peer.sent_round
            seal_round(engine)  # what was collected for it goes nowhere, but its round has to end
            complete_rounds(engine)
