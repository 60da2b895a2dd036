# cython: language_level=3
"""The C side of the codec: what the hot path uses without building Python objects. The contract is docs/codec.md."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from tbmq._wire cimport Cursor, Span

cdef enum PacketType:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15

cdef enum Sender:
    FROM_CLIENT = 0
    FROM_SERVER = 1

cdef struct Limits:
    uint32_t max_packet_bytes    # header and body together
    uint32_t max_topic_levels
    uint32_t max_properties      # per property section

cdef struct Header:
    uint8_t first                # type << 4 | flags
    uint32_t size                # bytes of the header itself, 2 to 5
    uint32_t body_bytes          # announced; the body need not be there yet

cdef struct PublishView:
    Span topic                   # empty when only the alias stands for it
    Span properties              # raw section without its length; empty below MQTT 5
    Span payload
    uint32_t expiry_s            # message expiry interval; meaningful with has_expiry
    uint16_t packet_id           # 0 exactly when qos is 0
    uint16_t topic_alias         # 0: none
    uint8_t qos
    bint retain
    bint dup
    bint has_expiry
    uint8_t payload_format       # 1: announced as UTF-8 text

cdef struct AckView:
    Span properties              # raw section without its length
    uint16_t packet_id
    uint8_t reason_code

cdef struct Property:
    uint8_t identifier
    uint32_t number              # BYTE, TWO_BYTES, FOUR_BYTES, VARINT
    Span data                    # STRING, BINARY, the name of a STRING_PAIR
    Span value                   # the value of a STRING_PAIR

cdef struct PropertySection:
    Cursor cursor
    uint64_t seen                # bit per identifier that has been read
    uint32_t count
    uint32_t max_count
    uint8_t packet               # PacketType, or 0 for the will
    uint8_t sender

# Reads the fixed header: 0, NEED_MORE, or a reason code. Judges it as early as the bytes allow; `fault` says why.
cdef int read_header(
    const uint8_t* data, size_t available, int level, Sender sender, uint32_t max_packet_bytes, Header* header,
    const char** fault
) noexcept nogil

# Each reads one whole body: 0, or a reason code with the text in cursor.fault. The views point into the body.
cdef int decode_publish(
    Cursor* body, uint8_t first, int level, Sender sender, const Limits* limits, PublishView* view
) noexcept nogil
cdef int decode_ack(
    Cursor* body, PacketType packet, int level, Sender sender, const Limits* limits, AckView* view
) noexcept nogil

# Walks a property section: 1 with `found` filled, 0 at the end, or a reason code (text in section.cursor.fault).
cdef int open_properties(
    Cursor* body, uint8_t packet, Sender sender, uint32_t max_properties, PropertySection* section
) noexcept nogil
cdef int next_property(PropertySection* section, Property* found) noexcept nogil


cdef class Decoder:
    cdef uint8_t* buffer          # bytes of a packet that is not complete yet; NULL when there are none
    cdef size_t size              # how many
    cdef size_t capacity          # at most twice of what has arrived
    cdef Sender sender            # the other side
    cdef Limits limits
    cdef int level                # 0: before CONNECT
    cdef int announced_level      # in which to refuse the last CONNECT; 0: it is not MQTT at all
    cdef int error_code           # 0 while the stream is fine
    cdef str error_detail

    cdef size_t decode_all(self, const uint8_t* data, size_t available, list found) except? 0
    cdef int keep(self, const uint8_t* data, size_t size) except -1
    cdef void forget(self, size_t used) noexcept
    # One whole body as a tbmq.packets object; raises PacketError. For callers that frame by themselves.
    cdef object read_body(self, const Header* header, Cursor* body)
    cdef dict read_properties(self, Cursor* body, uint8_t packet)
    cdef dict collect_properties(self, PropertySection* section)
    cdef dict read_view_properties(self, const Span* section_bytes, PacketType packet)
    cdef object read_publish(self, uint8_t first, Cursor* body)
    cdef object read_ack(self, PacketType packet, Cursor* body)
    cdef object read_connect(self, const Header* header, Cursor* body)
    cdef object read_will(self, int level, int qos, bint retain, Cursor* body)
    cdef object read_connack(self, Cursor* body)
    cdef object read_subscribe(self, Cursor* body)
    cdef object read_subscription(self, str topic_filter, int options)
    cdef object read_unsubscribe(self, Cursor* body)
    cdef object read_suback(self, Cursor* body)
    cdef object read_unsuback(self, Cursor* body)
    cdef list read_codes(self, Cursor* body, PacketType packet)
    cdef object read_disconnect(self, Cursor* body)
    cdef object read_auth(self, Cursor* body)
