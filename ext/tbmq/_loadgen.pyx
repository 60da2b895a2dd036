# cython: language_level=3
"""The engine of the load generator: one thread, one epoll set, many MQTT connections, no Python object per message.

    Engine
      connections   [ publisher 0 ... P-1 | subscriber 0 ... S-1 ]    a struct each: socket, buffers, window
      streams       one per publisher that a subscriber hears: which sequence numbers arrived, and in which order
      histogram     latencies, log-linear
      input,output  one read buffer and one write buffer for all connections, small enough to stay in the cache

    sending     fill: copies of one PUBLISH template, numbered and stamped ── one send() ──▶ commit what was taken
    receiving   one recv() ──▶ parse: packets that look like the template take a short cut, others go through the codec
                          ──▶ acks of all of them, and what the window now allows, in one send()

    payload     [ magic 8 bits | publisher 20 bits | sequence 36 bits ][ time in ns, 0: not a sample ][ filling ... ]
                two native 64-bit words: both ends are on one machine. Payloads below 16 bytes have none of it: such
                messages are only counted.

Filling changes no state: when the kernel takes a part of a chunk, the messages that it did not touch are numbered anew
next time, and only the rest of a cut packet is kept. So "sent" is what the kernel has, never what we meant to send.

With a rate, message k of publisher p is due at start + (k * publishers + p) / rate, whatever happened before, and its
latency counts from then: a broker that stalls is not forgiven the messages that had to wait (no coordinated omission).

Client ids and topics end in seven digits, patched into one template per packet kind. TLS and WebSocket are Python
objects (tbmq/loadgen/transports.py) between the socket and the same parser. Errors are counted by kind and code;
nothing raises inside the loop.

    loadgen.h, _loadgen_system.pxi  sockets, clock    _loadgen_connect.pxi  open, greet, close
    _loadgen_measure.pxi  histogram, streams          _loadgen_send.pxi     fill, commit, pace
    _loadgen_setup.pxi    templates, addresses        _loadgen_receive.pxi  parse, acknowledge
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.unistd cimport close
from tbmq._codec cimport (
    CONNACK,
    DISCONNECT,
    FROM_SERVER,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    AckView,
    Header,
    Limits,
    PacketType,
    Property,
    PropertySection,
    PublishView,
    decode_ack,
    decode_publish,
    next_property,
    open_properties,
    read_header,
)
from tbmq._wire cimport NEED_MORE, OK, Cursor, left, load_u16, store_u16

include "_loadgen_system.pxi"

cdef enum:
    DIGITS = 7                   # of the number that ends client ids and topics
    STAMP_SIZE = 16              # of the two words that start a payload
    MAGIC = 0xB7                 # first word, bits 56 to 63
    PUBLISHER_AT = 36            # first word, bits 36 to 55; the sequence is below
    PUBLISHER_MASK = 0xFFFFF
    SEQUENCE_MASK = 0xFFFFFFFFF
    LARGE_PACKET = 16_384        # a cut packet of this size and more is read into a buffer of its own
    EVENTS = 512                 # per epoll_wait
    SPIN_NS = 150_000            # a message that is due sooner is waited for without sleeping
    SECOND_NS = 1_000_000_000

STAMP_BYTES = STAMP_SIZE
NUMBER_DIGITS = DIGITS
MAX_PUBLISHERS = PUBLISHER_MASK + 1

cdef enum State:
    IDLE                         # no socket
    CONNECTING                   # TCP
    SHAKING                      # TLS and WebSocket agree with the other end
    GREETING                     # CONNECT sent
    SUBSCRIBING                  # SUBSCRIBE sent
    READY

cdef enum IdState:
    ID_FREE
    ID_PUBLISHED                 # waits for PUBACK or PUBREC
    ID_RELEASED                  # QoS 2: PUBREL sent, waits for PUBCOMP

# How a connection failed; the names are what statistics() shows.
cdef enum Failure:
    CONNECT_FAILED               # code: errno
    TRANSPORT_FAILED             # TLS or WebSocket; code: a text
    REFUSED                      # code: of CONNACK
    NOT_SUBSCRIBED               # code: of SUBACK
    NOT_TAKEN                    # code: of PUBACK, PUBREC, PUBCOMP; the connection stays
    DISCONNECTED                 # code: of DISCONNECT
    CLOSED                       # by the broker, without a word
    BROKEN                       # code: errno
    BAD_PACKET                   # code: MQTT reason code
    TIMED_OUT                    # no CONNACK, no SUBACK

FAILURES = (
    "connect_failed", "transport_failed", "refused", "not_subscribed", "not_taken", "disconnected", "closed", "broken",
    "bad_packet", "timed_out",
)

cdef struct Connection:
    int fd                       # -1: none
    State state
    bint is_publisher
    bint watches_out             # EPOLLOUT is asked for
    bint is_blocked              # the kernel took less than we had
    uint32_t number              # the digits of its client id and topic
    uint64_t opened_ns           # when connect() was called
    uint8_t* pending             # bytes that the kernel has not taken: of a cut packet, or of acks
    size_t pending_at            # first of them
    size_t pending_end
    size_t pending_room
    uint8_t* partial             # the start of a packet whose rest has not arrived
    size_t partial_size
    size_t partial_room
    size_t partial_wanted        # whole size of that packet when it is large, else 0
    uint64_t sequence            # publisher: of its next message, so also how many it has sent
    uint64_t limit               # publisher: how many it shall send
    uint16_t* free_ids           # publisher, QoS > 0: ring of `window` packet ids, the oldest freed is used first
    uint8_t* id_states           # by packet id
    uint32_t free_at             # place of the next id in the ring
    uint32_t free_count
    uint32_t window              # ids in use at most; the broker's Receive Maximum may lower it
    uint64_t first_stream        # subscriber: index of the stream of the first publisher that it hears
    uint32_t first_publisher
    uint32_t heard_publishers

cdef struct Template:
    uint8_t* data                # a whole packet, and 16 bytes more
    size_t size
    int64_t digits_at            # where the number is patched in; -1: nowhere

include "_loadgen_measure.pxi"


@cython.final
cdef class Engine:
    """See the head of this file. Made, configured and driven by tbmq/loadgen/worker.py, on one thread."""

    cdef int set                            # epoll
    cdef epoll_event* events
    cdef uint8_t* input
    cdef uint8_t* output
    cdef size_t read_bytes                  # per recv()
    cdef size_t chunk_bytes                 # of messages per send()
    cdef size_t output_room
    cdef sockaddr_storage target
    cdef socklen_t target_size
    cdef sockaddr_storage* sources          # local addresses, used in turn
    cdef uint32_t source_count
    cdef socklen_t source_size
    cdef int send_buffer_bytes            # 0: the kernel's choice
    cdef int level                          # protocol level, 4 or 5
    cdef int qos
    cdef Limits limits
    cdef Template connect_packet
    cdef Template subscribe_packet
    cdef Template publish_packet
    cdef size_t payload_at                  # in publish_packet, and what may be read of it by the short cut
    cdef size_t packet_id_at
    cdef bint is_stamped                    # payloads have room for the two words
    cdef uint64_t head_expected             # the first bytes of a packet that may take the short cut
    cdef uint64_t head_mask
    cdef object make_transport              # called for each connection, unless it is plain TCP
    cdef bint is_wrapped                    # there is one
    cdef list transports                    # by connection

    cdef Connection* connections
    cdef uint32_t publishers
    cdef uint32_t subscribers
    cdef uint32_t count                     # of connections
    cdef uint32_t first_publisher           # numbers of the first of ours
    cdef uint32_t all_publishers            # of all processes
    cdef Stream* streams
    cdef uint64_t stream_count
    cdef uint64_t* stream_bits
    cdef uint64_t stream_words              # per stream, a power of two

    cdef uint32_t* idle                     # stack of connections without a socket
    cdef uint32_t idle_count
    cdef uint32_t max_opening
    cdef uint32_t opening                   # sockets that are not ready yet
    cdef uint32_t ready
    cdef uint32_t next_number               # of the next client id when connections are recycled
    cdef bint is_recycling                  # scenario conn: close after CONNACK and open anew
    cdef double open_period_ns              # 0: as fast as possible
    cdef uint64_t open_start_ns
    cdef uint64_t open_limit
    cdef uint64_t opened
    cdef uint64_t connected                 # CONNACKs, in all
    cdef uint64_t timeout_ns                # for CONNACK and SUBACK
    cdef uint64_t keep_alive_s
    cdef uint64_t next_second_ns
    cdef uint32_t second

    cdef bint is_waiting_to_start           # start() was called, its time has not come
    cdef bint is_publishing
    cdef uint64_t start_ns
    cdef double period_ns                   # between two messages of all publishers; 0: saturation
    cdef uint64_t scheduled                 # messages of this process whose time has come
    cdef uint64_t sample_mask
    cdef uint64_t now_ns                    # when the current event was taken up

    cdef uint64_t sent
    cdef uint64_t acked
    cdef uint64_t received
    cdef uint64_t strays                    # messages that nobody here published
    cdef uint64_t redelivered               # with DUP
    cdef uint64_t short_cuts                # messages that took the short cut
    cdef uint64_t last_arrival_ns
    cdef uint64_t sent_bytes
    cdef uint64_t received_bytes
    cdef Histogram latency
    cdef dict failures                      # (Failure, code) -> how often

    def __cinit__(self):
        self.set = -1

    def __init__(
        self, *, str host, int port, int protocol_level, int qos, tuple connect_packet, tuple subscribe_packet,
        tuple publish_packet, size_t payload_at, list sources=None, int send_buffer_bytes=0,
        size_t read_bytes=131_072, size_t chunk_bytes=65_536, make_transport=None,
        double timeout_s=10.0, uint64_t keep_alive_s=0,
    ):
        """The three packets are pairs: bytes, and where the seven digits are (-1: none). `payload_at` is in PUBLISH."""
        self.latency = Histogram()
        self.failures = {}
        self.transports = []
        self.make_transport = make_transport
        self.is_wrapped = make_transport is not None
        self.level = protocol_level
        self.qos = qos
        self.limits = Limits(0xFFFF_FFFF, 65_535, 65_535)
        self.send_buffer_bytes = send_buffer_bytes
        self.timeout_ns = <uint64_t>(timeout_s * SECOND_NS)
        self.keep_alive_s = keep_alive_s
        self.read_bytes = read_bytes
        set_addresses(self, host, port, sources or [])
        set_template(&self.connect_packet, connect_packet)
        set_template(&self.subscribe_packet, subscribe_packet)
        set_template(&self.publish_packet, publish_packet)
        set_short_cut(self, payload_at)
        self.chunk_bytes = max(chunk_bytes, self.publish_packet.size)
        # Acks of one read stand before a chunk: an ack is never longer than the packet that it answers.
        self.output_room = self.read_bytes + LARGE_PACKET + self.chunk_bytes + 64
        self.input = <uint8_t*>malloc(self.read_bytes + LARGE_PACKET + 64)
        self.output = <uint8_t*>malloc(self.output_room)
        self.events = <epoll_event*>malloc(EVENTS * sizeof(epoll_event))
        if self.input == NULL or self.output == NULL or self.events == NULL:
            raise MemoryError()
        self.set = epoll_create1(EPOLL_CLOEXEC)
        if self.set < 0:
            raise OSError(errno, "epoll_create1 failed")

    def __dealloc__(self):
        cdef uint32_t i
        if self.connections != NULL:
            for i in range(self.count):
                if self.connections[i].fd >= 0:
                    close(self.connections[i].fd)
                free(self.connections[i].pending)
                free(self.connections[i].partial)
                free(self.connections[i].free_ids)
                free(self.connections[i].id_states)
        if self.set >= 0:
            close(self.set)
        free(self.connections)
        free(self.streams)
        free(self.stream_bits)
        free(self.idle)
        free(self.sources)
        free(self.connect_packet.data)
        free(self.subscribe_packet.data)
        free(self.publish_packet.data)
        free(self.input)
        free(self.output)
        free(self.events)

    def statistics(self):
        """What happened so far. `arrived` counts each message once per subscriber that shall hear it."""
        cdef uint64_t i, arrived = 0, duplicates = 0, late = 0, inflight = 0, sending = 0
        cdef uint32_t c
        for i in range(self.stream_count):
            arrived += self.streams[i].arrived
            duplicates += self.streams[i].duplicates
            late += self.streams[i].late
        for c in range(self.publishers):
            inflight += self.connections[c].window - self.connections[c].free_count if self.qos else 0
            sending += self.connections[c].fd >= 0 and self.connections[c].sequence < self.connections[c].limit
        return {
            "time_ns": loadgen_now(),
            "connections": self.count,
            "ready": self.ready,
            "opening": self.opening,
            "opened": self.opened,
            "connected": self.connected,
            "sending": sending if self.is_publishing or self.is_waiting_to_start else 0,
            "sent": self.sent,
            "acked": self.acked,
            "inflight": inflight,
            "received": self.received,
            "arrived": arrived,
            "duplicates": duplicates,
            "late": late,
            "strays": self.strays,
            "redelivered": self.redelivered,
            "short_cuts": self.short_cuts,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "last_arrival_ns": self.last_arrival_ns,
            "failures": [[FAILURES[kind], code, times] for (kind, code), times in self.failures.items()],
        }

    def histogram(self):
        return self.latency

    def sent_by_publisher(self):
        """How many messages each publisher of this process has sent."""
        return [self.connections[i].sequence for i in range(self.publishers)]

    def messages(self, uint32_t publisher, uint64_t count):
        """The next messages of a publisher as bytes, counted as sent: for tests, and for a peer that is no broker."""
        cdef Connection* c = &self.connections[publisher]
        if publisher >= self.publishers or (self.qos and count > c.free_count):
            raise ValueError("there is no such publisher, or its window is full")
        # fill() may write 15 bytes past the end.
        cdef bytes data = PyBytes_FromStringAndSize(NULL, count * self.publish_packet.size + 16)
        self.now_ns = loadgen_now()
        fill(self, c, <uint8_t*>PyBytes_AS_STRING(data), count)
        commit(self, c, count)
        return data[:count * self.publish_packet.size]

    # --- The loop ----------------------------------------------------------------------------------------------------

    def run(self, uint64_t until_ns):
        """Serves the connections until that time of CLOCK_MONOTONIC."""
        cdef int i, found
        with nogil:
            while True:
                self.now_ns = loadgen_now()
                if self.now_ns >= until_ns:
                    break
                every_second(self)
                open_due(self)
                if self.is_waiting_to_start and self.now_ns >= self.start_ns:
                    start_publishing(self)
                if self.is_publishing and self.period_ns:
                    send_due(self)
                found = wait(self, until_ns)
                for i in range(found):
                    handle(self, &self.connections[self.events[i].data.u32], self.events[i].events)

    def add(
        self, *, uint32_t publishers, uint32_t subscribers, uint32_t first_publisher, uint32_t first_subscriber,
        uint32_t all_publishers, str hears, uint32_t window=0, uint64_t stream_window=4096,
    ):
        """Makes the connections; to be called once.

        `hears` says which publishers a subscriber hears: "own" (that of its number), "all", or "group" (all, together
        with the other subscribers: a shared subscription).
        """
        if self.connections != NULL:
            raise RuntimeError("add() was called before")
        if all_publishers > PUBLISHER_MASK + 1:
            raise ValueError(f"more than {PUBLISHER_MASK + 1} publishers")
        if window > 65_535 or (self.qos and not window):
            raise ValueError("the window is 1 to 65535")
        self.publishers, self.subscribers, self.count = publishers, subscribers, publishers + subscribers
        self.first_publisher, self.all_publishers = first_publisher, all_publishers
        self.transports = [None] * self.count
        make_streams(self, hears == "own", hears == "group", stream_window)
        make_connections(self, first_subscriber, hears == "own", hears == "group", window)

    def open(
        self, *, uint32_t max_opening=64, double rate=0.0, uint64_t limit=0, bint recycle=False, uint32_t number=0,
        uint64_t at_ns=0,
    ):
        """Starts to connect at that time (0: now), `max_opening` at a time and at most `rate` per second (0: no limit).

        `recycle`: each connection is closed after its CONNACK and opened anew, under a client id of its own counted
        from `number`, until `limit` (0: none) have been opened.
        """
        self.max_opening = max_opening
        self.open_period_ns = SECOND_NS / rate if rate else 0.0
        self.open_start_ns = at_ns if at_ns else loadgen_now()
        self.open_limit = limit if limit else <uint64_t>-1
        self.is_recycling = recycle
        self.next_number = number

    def stop_opening(self):
        self.open_limit = self.opened

    def close(self):
        """Says goodbye on every connection and closes it."""
        cdef uint32_t i
        for i in range(self.count):
            if self.connections[i].fd >= 0:
                part(self, &self.connections[i])

    def start(self, *, uint64_t at_ns, double rate=0.0, uint64_t messages=0, uint64_t sample_every=1):
        """Publishing begins at that time, `rate` per second over all processes (0: saturation).

        It ends after `messages` in all (0: never). Every `sample_every`th message of a publisher, a power of two,
        carries the time; with a rate all of them do.
        """
        cdef uint32_t i
        cdef Connection* c
        if sample_every & (sample_every - 1) or not sample_every:
            raise ValueError("sample_every is a power of two")
        self.start_ns = at_ns
        self.period_ns = SECOND_NS / rate if rate else 0.0
        self.sample_mask = sample_every - 1
        self.is_waiting_to_start = True
        for i in range(self.publishers):
            c = &self.connections[i]
            c.limit = <uint64_t>-1
            if messages:
                c.limit = messages // self.all_publishers + (c.number < messages % self.all_publishers)

    def stop(self):
        """No new messages; acks and packets that were cut still go out."""
        cdef uint32_t i
        self.is_waiting_to_start = self.is_publishing = False
        for i in range(self.publishers):
            if self.connections[i].fd >= 0:
                self.connections[i].is_blocked = False
                watch(self, &self.connections[i])

    def begin_measuring(self):
        """Forgets the latencies so far: those of the warm-up."""
        self.latency.clear()


# --- The loop ------------------------------------------------------------------------------------------------------

cdef int wait(Engine self, uint64_t until_ns) noexcept nogil:
    """Fills `events`. Sleeps until something is due; a message that is due very soon is waited for awake."""
    cdef uint64_t due = min(until_ns, next_open_ns(self), next_message_ns(self))
    cdef uint64_t now
    cdef int found = epoll_wait(self.set, self.events, EVENTS, 0)
    if found == 0:
        now = loadgen_now()
        if due > now + SPIN_NS:
            loadgen_sleep(self.set, due - now - SPIN_NS // 2)
        found = epoll_wait(self.set, self.events, EVENTS, 0)
    return max(found, 0)


cdef void handle(Engine self, Connection* c, uint32_t events) noexcept nogil:
    if c.state == CONNECTING:
        finish_connect(self, c)
        return
    if events & ~<uint32_t>EPOLLOUT and c.fd >= 0:
        receive(self, c)
    if events & EPOLLOUT and c.fd >= 0:
        pump(self, c, 0)


cdef void watch(Engine self, Connection* c) noexcept nogil:
    """Asks for EPOLLOUT exactly while there is something to send that the kernel did not take."""
    cdef bint wants = c.is_blocked or c.pending_at < c.pending_end or is_saturating(self, c)
    if wants != c.watches_out:
        c.watches_out = wants
        loadgen_watch(
            self.set, EPOLL_CTL_MOD, c.fd, EPOLLIN | (EPOLLOUT if wants else 0), <uint32_t>(c - self.connections)
        )


cdef void note(Engine self, Failure kind, int code) noexcept with gil:
    key = (<int>kind, code)
    self.failures[key] = self.failures.get(key, 0) + 1


include "_loadgen_setup.pxi"
include "_loadgen_connect.pxi"
include "_loadgen_send.pxi"
include "_loadgen_receive.pxi"
