# cython: language_level=3
"""The hot path of one worker: sockets to sockets in C, policy in Python.

    epoll ──▶ read one buffer ──▶ all packets in it ──▶ PUBLISH: match, copy into each subscriber's output
      ▲            (_engine_input)      │                    (_engine_publish, _engine_deliver)
      │                                 ├── acks, PINGREQ: windows and answers, here (_engine_publish)
      │                                 └── CONNECT, SUBSCRIBE ...: `handler` in Python
      └── every connection that was touched is written once per round (_engine_output)

An Engine has an epoll descriptor of its own, which the worker's uvloop watches: one Python call serves all sockets that are
ready, where a protocol object per socket would cost one call each. Sockets are edge-triggered and registered once, so
pausing and resuming a connection needs no system call. The engine owns connections, sessions' flows (windows, queues) and
the subscriptions' trie; it knows no asyncio, no logging and no policy.

    Connection   the socket: input left over, output waiting, limits, timers. Gone when the socket is.
    Session      what outlives it: packet ids, window, queue, received ids. Its `number` is the subscriber in the trie.

Guarantees: packets of one connection are handled in order, its acks leave in order; a connection's output, a session's
queue and a packet's size are bounded; an exception in Python code costs only the connection that caused it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, nanosleep, timespec
from posix.unistd cimport close as close_fd
from tbmq._batch cimport BatchReader, BatchWriter, MessageView, new_reader
from tbmq._codec cimport (
    AUTH, CONNECT, DISCONNECT, FROM_CLIENT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, AckView, Decoder,
    Header, Limits, PacketType, Property, PropertySection, PublishView, decode_ack, decode_publish, next_property,
    read_header,
)
from tbmq._message cimport (
    NO_EXPIRY, Message, message_bytes, message_payload, message_properties, message_topic, new_message, release,
    remaining_expiry_s,
)
from tbmq._subscribers cimport Group, Match, SubscriberList, Target
from tbmq._system cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP,
    MSG_DONTWAIT, MSG_NOSIGNAL, PR_SET_TIMERSLACK, SHUT_WR, epoll_create1, epoll_ctl, epoll_event, epoll_wait, iovec,
    msghdr, prctl, recv, send, sendmsg, shutdown,
)
from tbmq._topic_tree cimport ADDED, NO_MEMORY, REPLACED
from tbmq._trie cimport SubscriptionTrie, TopicTrie
from tbmq._window cimport (
    HELD_BACK, RELEASED, SENT, Delivery, IdSet, Queue, Window, drop_delivery, ids_add, ids_clear, ids_contain,
    ids_remove, queue_at, queue_clear, queue_pop, queue_push, window_clear, window_find, window_insert,
    window_next_id, window_remove,
)
from tbmq._wire cimport (
    MALFORMED, NEED_MORE, OK, Cursor, Span, is_utf8, store_u16, store_u32, store_varint, take_varint, varint_size,
)

from tbmq import protocol
from tbmq._codec import encode
from tbmq.errors import PacketError

cdef extern from "crc32c.h" nogil:
    void crc32c_init()
    uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t size)

crc32c_init()

cdef enum:
    NOBODY = 0xFFFFFFFF          # a session number that nobody has
    EVENTS = 256                 # sockets taken per epoll_wait
    READ_BYTES = 262_144         # most that is read from one socket in one go
    CARRY_BYTES = 65_536         # an incomplete packet below this is moved in front of the next read
    GATHER_NS = 100_000          # with many clients and little from each: wait so long for more, see run_rounds
    GATHER_EVENTS = 16           # when a round had fewer events than this
    GATHER_CLIENTS = 64          # and there are so many connections
    GATHER_GAP_NS = 100_000      # and rounds follow each other faster than this
    ROUND_NS = 2_000_000         # after this long in one run() the loop gets its turn
    LARGE_FRAME_BYTES = 32_768   # from here on a frame is written straight from its source when the socket takes it
    WHEEL_SLOTS = 1024           # seconds; longer deadlines go around more than once
    POOL_CLASSES = 12            # output buffers of 4 KiB << class
    LINGER_S = 2                 # time for a peer to read our last packet

# Why a message was not delivered, and why a connection ended: counted by these names.
cdef enum:
    DROP_SLOW_READER = 0         # QoS 0 for a client whose output is full
    DROP_QUEUE_FULL = 1          # the oldest of a full queue
    DROP_EXPIRED = 2
    DROP_TOO_LARGE = 3           # over the client's Maximum Packet Size
    DROP_NO_MEMORY = 4
    DROP_OFFLINE_QOS0 = 5        # QoS 0 for a client that is away
    DROP_RETAINED_LIMIT = 6      # delivered, but not retained
    DROP_MEMBER_LEFT = 7         # the chosen member of a group left while the message was on its way
    DROP_NOT_AUTHORIZED = 8      # the publisher may not publish to this topic
    DROP_RATE_LIMIT = 9          # QoS 0 over the client's outgoing rate
    DROPS = 10

DROP_NAMES = (
    "slow_reader", "queue_full", "expired", "too_large", "no_memory", "offline_qos0", "retained_limit", "member_left",
    "not_authorized", "rate_limit",
)

cdef enum:                       # the rates that can be limited
    CLIENT_MESSAGES = 0
    CLIENT_BYTES = 1
    CLIENT_OUT = 2
    TOTAL = 3                    # of this worker
    RATES = 4

RATE_NAMES = ("client_messages", "client_bytes", "client_out", "total")

cdef enum:                       # what a Connection is
    CLIENT = 0
    LINK_IN = 1                  # from another worker
    LINK_OUT = 2                 # to another worker

cdef struct Counters:
    uint64_t packets_in[16]
    uint64_t packets_out[16]
    uint64_t bytes_in
    uint64_t bytes_out
    uint64_t messages_in[3]      # PUBLISH by QoS
    uint64_t messages_out[3]
    uint64_t drops[DROPS]
    uint64_t duplicates_in       # QoS 2 PUBLISH seen again before its PUBREL
    uint64_t stray_acks          # acks for packet ids that are not in flight
    uint64_t reads
    uint64_t writes
    uint64_t tolerated           # breaches that were let pass
    uint64_t pauses              # a publisher stopped for a slow subscriber
    uint64_t throttles           # a publisher stopped because it has used up its rate

cdef struct Settings:
    uint32_t high_water_bytes    # output above this makes a subscriber congested
    uint32_t low_water_bytes     # and below this ready again
    uint64_t max_output_bytes    # QoS 0 beyond this is dropped
    uint32_t slow_after_ms       # congested this long: publishers no longer wait for it
    uint32_t max_inflight        # our side's window towards clients that announce none
    uint32_t receive_maximum     # QoS 1 and 2 that a v5 client may have unacknowledged
    bint strict                  # a client that breaks a rule which we could bear is disconnected
    uint32_t max_retained
    uint32_t max_retained_payload_bytes
    uint64_t max_retained_total_bytes


include "_engine_limits.pxi"
include "_engine_session.pxi"
include "_engine_connection.pxi"


@cython.final
@cython.no_gc_clear  # __dealloc__ still needs `waiting`
cdef class Engine:
    """See the head of this file. All methods run on the worker's loop and do not wait.

    `handler` has: on_packet(connection, packet), on_violation(connection, reason_code, detail),
    on_lost(connection) when the peer went without DISCONNECT, on_closed(connection) always and last,
    on_tolerated(connection, what), on_timeout(connection, connected), on_exception(connection),
    on_first_publish(connection, topic) and on_dollar_publish(connection, topic) that answer 0 or a reason code,
    on_peer_message(link, bytes), on_link_closed(link), and wake(engine) to have `run` called soon.
    """

    cdef public object handler
    cdef readonly SubscriptionTrie subscriptions  # of this worker's sessions
    cdef readonly SubscriptionTrie routes         # topic filter -> other workers that have subscribers
    cdef readonly SubscriptionTrie groups         # shared subscriptions of all workers; see deliver_to_groups
    cdef readonly TopicTrie retained     # topic -> Message*
    cdef readonly uint32_t index         # of this worker
    cdef readonly uint32_t workers
    cdef list peers                      # by index; None: ourselves
    cdef BatchReader reader              # of the frame being read
    cdef uint64_t round                  # number of the round that is being collected for other workers
    cdef uint64_t complete_round         # everybody has confirmed up to here
    cdef bint round_is_full              # send it now rather than at the end
    cdef dict waiting                    # groups without a connected member: (name, node) -> list of Message*
    cdef list holders                    # connections with held acks
    cdef list confirming                 # links that get a CONFIRM at the end of this round
    cdef readonly uint64_t retained_bytes
    cdef Counters counters
    cdef Settings settings
    cdef Rate rates[RATES]
    cdef Bucket total                    # of the rate TOTAL
    cdef list throttled                  # connections that have used up their rate
    cdef list waiting_for_tokens         # connections whose queue has to wait for their outgoing rate
    cdef int epoll_fd
    cdef epoll_event* events
    cdef uint8_t* read_buffer            # CARRY_BYTES + READ_BYTES
    cdef Decoder decoder                 # builds packet objects for the handler
    cdef PyObject** sessions             # by number; owns a reference; NULL: free
    cdef uint32_t n_sessions             # numbers given out so far
    cdef uint32_t capacity_sessions
    cdef list free_numbers
    cdef set connections                 # owns them
    cdef list touched                    # have output that nobody tried to send yet
    cdef list ready                      # have input, or packets, that were not handled yet
    cdef list congested                  # over high water
    cdef list roomy                      # keep room for large packets
    cdef list graveyard                  # closed in this round: kept until events of this round are done
    cdef list wheel                      # WHEEL_SLOTS sets of connections
    cdef int64_t wheel_at_s              # the last second that was handled
    cdef readonly int64_t now_ms         # monotonic, as of this round
    cdef readonly uint64_t wall_ms       # wall clock, as of this round
    cdef int64_t last_run_ns             # monotonic: when run() had nothing more to do
    cdef bint running                    # inside run(): the end of the round will flush
    cdef bint woken                      # handler.wake() was called and run() has not come yet
    cdef Connection publisher            # whose PUBLISH is being delivered; None: nobody can be paused
    cdef uint8_t* scratch                # one frame per layout, see _engine_deliver
    cdef uint8_t* stripped               # properties of a PUBLISH without those that are not forwarded
    cdef size_t stripped_capacity
    cdef uint8_t* pool[POOL_CLASSES]     # free output buffers, linked through their first bytes
    cdef uint64_t pool_bytes

    def __cinit__(self, handler, *, uint32_t index=0, uint32_t workers=1, uint32_t high_water_bytes=524_288, uint64_t max_output_bytes=8_388_608,
                  uint32_t slow_after_ms=1000, uint32_t max_inflight=1024, uint32_t receive_maximum=1024, bint strict=True,
                  uint32_t max_retained=1_000_000, uint32_t max_retained_payload_bytes=1_048_576,
                  uint64_t max_retained_total_bytes=1_073_741_824, dict rates=None):
        self.epoll_fd = -1
        self.handler = handler
        self.settings = Settings(
            high_water_bytes, high_water_bytes // 4, max_output_bytes, slow_after_ms, max_inflight, receive_maximum,
            strict, max_retained, max_retained_payload_bytes, max_retained_total_bytes
        )
        for name, windows in (rates or {}).items():
            set_rate(&self.rates[<int>RATE_NAMES.index(name)], windows)
        self.throttled, self.waiting_for_tokens = [], []
        self.index, self.workers = index, workers
        self.peers = [None if i == index else Peer.__new__(Peer, i) for i in range(workers)]
        self.reader = new_reader()
        self.round = 1
        self.holders, self.confirming, self.waiting = [], [], {}
        self.subscriptions, self.routes, self.groups = SubscriptionTrie(), SubscriptionTrie(), SubscriptionTrie()
        self.retained = TopicTrie()
        self.decoder = Decoder()
        self.connections, self.free_numbers = set(), []
        self.touched, self.ready, self.congested, self.roomy, self.graveyard = [], [], [], [], []
        self.wheel = [set() for _ in range(WHEEL_SLOTS)]
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise OSError(errno, "epoll_create1 failed")
        self.events = <epoll_event*>malloc(EVENTS * sizeof(epoll_event))
        self.read_buffer = <uint8_t*>malloc(CARRY_BYTES + READ_BYTES)
        self.scratch = <uint8_t*>malloc(LAYOUTS * LAYOUT_BYTES)
        if self.events == NULL or self.read_buffer == NULL or self.scratch == NULL:
            raise MemoryError()
        prctl(PR_SET_TIMERSLACK, 1000)  # nanoseconds: GATHER_NS means what it says
        read_clocks(self)
        self.wheel_at_s = self.now_ms // 1000
        fill_bucket(&self.rates[TOTAL], &self.total, self.now_ms)

    def __dealloc__(self):
        cdef uint32_t i
        cdef uint8_t* buffer
        for i in range(self.n_sessions):
            if self.sessions[i] != NULL:
                Py_DECREF(<object>self.sessions[i])
        if self.waiting is not None:  # else it was never whole
            for messages in self.waiting.values():
                drop_waiting(messages)
        free(self.sessions)
        for i in range(<uint32_t>POOL_CLASSES):
            while self.pool[i] != NULL:
                buffer = self.pool[i]
                self.pool[i] = (<uint8_t**>buffer)[0]
                free(buffer)
        free(self.events)
        free(self.read_buffer)
        free(self.scratch)
        free(self.stripped)
        if self.epoll_fd >= 0:
            close_fd(self.epoll_fd)

    def fileno(self):
        """The epoll descriptor: readable when `run` has something to do."""
        return self.epoll_fd

    def adopt(self, int fd, str peer, *, uint32_t max_connect_packet_bytes, uint32_t max_topic_levels,
              uint32_t connect_timeout_ms, bytes initial=b"", object transport=None) -> Connection:
        """Takes over a connected, non-blocking socket (or, with fd -1, a transport) and waits for its CONNECT. The socket
        is ours in any case: when this raises, it is closed.

        `initial`: bytes of it that were read already.
        """
        cdef Connection connection = Connection.__new__(Connection)
        cdef epoll_event event
        read_clocks(self)
        connection.engine = self
        connection.peer = peer
        connection.transport = transport
        connection.limits = Limits(max_connect_packet_bytes, max_topic_levels, 1024)
        connection.open = True
        connection.last_seen_ms = self.now_ms
        connection.deadline_ms = self.now_ms + connect_timeout_ms
        if fd >= 0:
            event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
            event.data.ptr = <void*>connection
            if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
                error = errno
                close_fd(fd)
                raise OSError(error, "epoll_ctl failed")
            connection.fd = fd
        self.connections.add(connection)
        arm(self, connection)
        if initial:
            keep_pending(connection, <const uint8_t*>PyBytes_AS_STRING(initial), len(initial))
            make_ready(self, connection)
        return connection

    def adopt_link(self, int fd, int peer_index) -> Connection:
        """A connected socket to another worker: ours to it, or (-1: it will say who it is) one that it dialled."""
        cdef Connection link = self.adopt(
            fd, f"worker {peer_index}", max_connect_packet_bytes=0, max_topic_levels=0, connect_timeout_ms=0
        )
        link.kind = LINK_IN if peer_index < 0 else LINK_OUT
        link.peer_index = peer_index
        link.deadline_ms = 0
        disarm(self, link)
        if link.kind == LINK_OUT:
            (<Peer>self.peers[peer_index]).link = link
        return link

    def send_message(self, int peer_index, bytes message not None) -> bool:
        """Bytes for the handler of another worker; False while it is away."""
        cdef Peer peer = self.peers[peer_index]
        cdef uint8_t* out
        if peer.link is None:
            return False
        out = write_frame(self, peer.link, FRAME_MESSAGE, self.round, len(message))
        if out != NULL:
            memcpy(out, PyBytes_AS_STRING(message), len(message))
        return out != NULL

    def retained_batch(self, list topics not None, size_t max_bytes) -> tuple:
        """Retained messages as one batch, for a subscriber on another worker: (batch, how many topics it covers).

        Takes topics until the batch has `max_bytes`, at least one."""
        cdef BatchWriter writer = BatchWriter()
        cdef uint64_t value = 0
        cdef int taken = 0
        cdef bytes topic
        for topic in topics:
            if writer.count and writer.size >= max_bytes:
                break
            taken += 1
            if self.retained.look_up(<const uint8_t*>PyBytes_AS_STRING(topic), len(topic), &value):
                batch_message(writer, <Message*><size_t>value)
        return writer.finish() if writer.count else b"", taken

    def deliver_retained(self, Session session not None, bytes batch not None, int qos, uint32_t identifier):
        """Sends retained messages that another worker found to one session, as a subscription's first messages."""
        send_retained_batch(self, session, batch, qos, identifier)

    def run(self):
        """Serves everything that is ready, for at most about ROUND_NS; asks to be called again when something is left."""
        run_rounds(self)

    def tick(self):
        """Once or twice a second: keep-alive, CONNECT deadlines, slow subscribers, lingering sockets."""
        run_rounds(self)  # what clients have said until now is heard before they are judged
        turn_wheel(self)
        judge_congested(self)
        release_throttled(self)
        free_unused_room(self)
        flush_touched(self)

    def new_session(self, str client_id not None) -> Session:
        cdef uint32_t number
        cdef Session session
        cdef PyObject** grown
        if self.free_numbers:
            number = self.free_numbers.pop()
        else:
            if self.n_sessions == self.capacity_sessions:
                grown = <PyObject**>realloc(self.sessions, max(2 * self.n_sessions, <uint32_t>64) * sizeof(PyObject*))
                if grown == NULL:
                    raise MemoryError()
                self.sessions = grown
                self.capacity_sessions = max(2 * self.n_sessions, <uint32_t>64)
            number = self.n_sessions
            self.n_sessions += 1
            self.sessions[number] = NULL
        session = Session.__new__(Session, self, number, client_id)
        Py_INCREF(session)
        self.sessions[number] = <PyObject*>session
        return session

    def drop_session(self, Session session not None):
        """Forgets a session for good. Its subscriptions must have been taken out of the trie before."""
        if session.connection is not None:
            raise ValueError("the session is still connected")
        if self.sessions[session.number] == <PyObject*>session:
            session.forget_flows()
            self.sessions[session.number] = NULL
            self.free_numbers.append(session.number)
            Py_DECREF(session)

    def publish(self, bytes topic not None, bytes payload not None, *, int qos=0, bint retain=False,
                bytes properties=b"", object expiry_s=None, Session publisher=None) -> int:
        """A message that no socket brought: a will, a delayed one, the system's. Answers how many subscribers got it."""
        cdef Publication publication
        start_publication(self, &publication)
        publication.topic = Span(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>len(topic))
        publication.payload = Span(<const uint8_t*>PyBytes_AS_STRING(payload), <uint32_t>len(payload))
        publication.properties = Span(<const uint8_t*>PyBytes_AS_STRING(properties), <uint32_t>len(properties))
        publication.qos, publication.retain = qos, retain
        publication.expiry_s = NO_EXPIRY if expiry_s is None else <uint32_t>expiry_s
        publication.publisher = NOBODY if publisher is None else publisher.number
        self.publisher = None
        return dispatch(self, &publication)

    def owner_of(self, bytes topic not None) -> int:
        """The worker that keeps this topic's retained message."""
        cdef Span span = Span(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>len(topic))
        return owner_of(self, &span)

    def replay_retained(self, Session session not None, bytes topic not None, int qos, uint32_t identifier) -> bool:
        """Sends the retained message of one topic, if there still is one, as a subscription's first messages."""
        cdef uint64_t value = 0
        if not self.retained.look_up(<const uint8_t*>PyBytes_AS_STRING(topic), len(topic), &value):
            return False
        return send_retained(self, session, <Message*><size_t>value, qos, identifier)

    def member_leaves(self, Session session not None):
        """Call before a member leaves its groups: what it has not acknowledged goes to others."""
        release_shared(self, session)

    def member_came(self, bytes group not None):
        """A member of this group (name without sign) is connected now, on any worker: what waited for one is sent."""
        drain_group(self, group)

    def group_changed(self, bytes group not None):
        """A member is gone for good: when it was the last one, nobody will ever come for what waits."""
        prune_group(self, group)

    def close_strangers(self):
        """Closes connections whose CONNECT has not come: the worker stops."""
        cdef Connection connection
        for item in list(self.connections):
            connection = <Connection>item
            if connection.kind == CLIENT and connection.session is None and connection.open:
                end_connection(self, connection, False)

    def statistics(self) -> dict:
        cdef int i
        return {
            "connections": len(self.connections),
            "sessions": self.n_sessions - len(self.free_numbers),
            "retained": len(self.retained),
            "retained_bytes": self.retained_bytes,
            "waiting_for_group": sum(map(len, self.waiting.values())),
            "congested": len(self.congested),
            "free_buffer_bytes": self.pool_bytes,
            "bytes_in": self.counters.bytes_in,
            "bytes_out": self.counters.bytes_out,
            "reads": self.counters.reads,
            "writes": self.counters.writes,
            "pauses": self.counters.pauses,
            "throttles": self.counters.throttles,
            "throttled": len(self.throttled),
            "tolerated": self.counters.tolerated,
            "stray_acks": self.counters.stray_acks,
            "duplicates_in": self.counters.duplicates_in,
            "messages_in": [self.counters.messages_in[i] for i in range(3)],
            "messages_out": [self.counters.messages_out[i] for i in range(3)],
            "packets_in": {t.name.lower(): self.counters.packets_in[t] for t in protocol.PacketType},
            "packets_out": {t.name.lower(): self.counters.packets_out[t] for t in protocol.PacketType},
            "dropped": {DROP_NAMES[i]: self.counters.drops[i] for i in range(DROPS)},
        }


include "_engine_mesh.pxi"
include "_engine_output.pxi"
include "_engine_deliver.pxi"
include "_engine_kept.pxi"
include "_engine_shared.pxi"
include "_engine_run.pxi"
include "_engine_publish.pxi"
include "_engine_input.pxi"
