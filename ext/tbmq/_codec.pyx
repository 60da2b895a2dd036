# cython: language_level=3
"""The MQTT codec: bytes to packets and back, for 3.1, 3.1.1 and 5.0, for both ends of a connection.

    bytes ──read_header──▶ Header ──decode_publish / decode_ack──▶ views (C structs into the bytes)   hot path
                             └─────── _codec_read.pxi ───────────▶ tbmq.packets objects               everything else
    tbmq.packets objects ─── _codec_write.pxi ──▶ bytes

It does no I/O and knows no policy. "Need more data" is a return value; a violation is a reason code in C and a
`PacketError` in Python. What is judged, and in which order, stands in docs/codec.md; the tables come from
tbmq/protocol.py when the module is imported. Nothing is allocated for what a header merely announces: a decoder keeps
only bytes that have arrived.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from tbmq._wire cimport (
    MALFORMED,
    NEED_MORE,
    OK,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    UNSUPPORTED_VERSION,
    fail,
    has_wildcard,
    left,
    load_varint,
    store_u16,
    store_u32,
    store_varint,
    take_binary,
    take_string,
    take_topic,
    take_u8,
    take_u16,
    take_u32,
    take_varint,
    varint_size,
)

cdef extern from *:
    """
    #ifdef TBMQ_ASAN
    #define TBMQ_IS_ASAN 1
    #else
    #define TBMQ_IS_ASAN 0
    #endif
    """
    const bint ASAN "TBMQ_IS_ASAN"  # built for AddressSanitizer

from typing import NamedTuple

from tbmq import packets, protocol
from tbmq.errors import PacketError

# --- Tables, filled from tbmq/protocol.py --------------------------------------------------------------------------

cdef enum Kind:
    BYTE = 0
    TWO_BYTES = 1
    FOUR_BYTES = 2
    VARINT = 3
    STRING = 4
    BINARY = 5
    STRING_PAIR = 6

cdef struct Rule:
    bint known
    Kind kind
    uint16_t allowed[2]      # by Sender: bit per packet type, bit 0 is the will
    uint16_t repeatable      # same bits
    uint32_t minimum
    uint32_t maximum
    uint8_t range_error

cdef enum:
    RULES = 64               # property identifiers are below; `seen` in PropertySection has a bit for each
    RESPONSE_TOPIC = 0x08
    MESSAGE_EXPIRY = 0x02
    PAYLOAD_FORMAT = 0x01
    TOPIC_ALIAS = 0x23
    HIGHEST_LEVEL = 5

cdef Rule rules[RULES]
cdef uint8_t reason_allowed[16][256]                        # by packet type; MQTT 5
cdef uint8_t first_byte_verdict[2][HIGHEST_LEVEL + 1][256]  # by Sender and level; level 0: before CONNECT
cdef list property_names = [None] * RULES                   # identifier -> name
cdef dict property_identifiers = {}                         # name -> identifier


cdef uint16_t packet_bits(types):
    cdef uint16_t bits = 0
    for packet_type in types:
        bits |= <uint16_t>(1 << packet_type)
    return bits


def _fill_tables():
    cdef int sender, level, first
    memset(rules, 0, sizeof(rules))
    memset(reason_allowed, 0, sizeof(reason_allowed))
    for row in protocol.PROPERTIES:
        assert 0 < row.identifier < RULES and not rules[row.identifier].known, row
        rules[row.identifier] = Rule(
            known=True,
            kind=<Kind><int>row.kind,
            allowed=[packet_bits(row.from_client), packet_bits(row.from_server)],
            repeatable=packet_bits(protocol.REPEATABLE_PROPERTIES.get(row.name, ())),
            minimum=row.minimum,
            maximum=row.maximum,
            range_error=row.range_error,
        )
        property_names[row.identifier] = row.name
        property_identifiers[row.name] = row.identifier
    for packet_type, codes in protocol.REASON_CODES.items():
        for code in codes:
            reason_allowed[packet_type][code] = True
    for sender, sent in ((FROM_CLIENT, protocol.SENT_BY_CLIENT), (FROM_SERVER, protocol.SENT_BY_SERVER)):
        for level in range(HIGHEST_LEVEL + 1):
            for first in range(256):
                first_byte_verdict[sender][level][first] = _judge_first_byte(sender, level, first, sent)


def _judge_first_byte(sender, level, first, sent):
    """The rows "first byte" of docs/codec.md, computed once for every byte."""
    packet_type, flags = first >> 4, first & 0x0F
    if packet_type == 0:
        return MALFORMED
    if sender == FROM_CLIENT and (packet_type == CONNECT) != (level == 0):
        return PROTOCOL_ERROR  # [MQTT-3.1.0-1], [MQTT-3.1.0-2]
    if packet_type not in sent:
        return PROTOCOL_ERROR
    if packet_type == DISCONNECT and sender == FROM_SERVER and level < 5:
        return PROTOCOL_ERROR
    if packet_type == AUTH and level < 5:
        return MALFORMED
    if packet_type == PUBLISH:
        qos, dup = (flags >> 1) & 3, flags & 8
        return MALFORMED if qos == 3 or (qos == 0 and dup) else OK  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
    if packet_type in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        return OK if flags == 0b0010 or (level == 3 and flags == 0b1010) else MALFORMED
    return OK if flags == 0 else MALFORMED


_fill_tables()


# --- Header --------------------------------------------------------------------------------------------------------

cdef int read_header(
    const uint8_t* data, size_t available, int level, Sender sender, uint32_t max_packet_bytes, Header* header,
    const char** fault
) noexcept nogil:
    cdef int size = 0
    cdef int status
    cdef uint8_t verdict
    if available < 1:
        return NEED_MORE
    verdict = first_byte_verdict[<int>sender][level][data[0]]
    if verdict != OK:
        fault[0] = "a packet type or its flags are not allowed here"
        return verdict
    status = load_varint(data + 1, available - 1, &header.body_bytes, &size)
    if status == NEED_MORE:
        return NEED_MORE
    if status != OK:
        fault[0] = "the remaining length has more than four bytes"
        return MALFORMED
    if level == 5 and varint_size(header.body_bytes) != size:
        fault[0] = "the remaining length is longer than its shortest form"
        return MALFORMED
    header.first = data[0]
    header.size = 1 + size
    if header.body_bytes + header.size > max_packet_bytes:
        fault[0] = "a packet is larger than allowed"
        return PACKET_TOO_LARGE
    return OK


# --- Properties ----------------------------------------------------------------------------------------------------

cdef int open_properties(
    Cursor* body, uint8_t packet, Sender sender, uint32_t max_properties, PropertySection* section
) noexcept nogil:
    """Reads the section's length, hands the section to `section` and moves `body` behind it."""
    cdef uint32_t size = 0
    cdef int status = take_varint(body, &size)
    if status != OK:
        return status
    if left(body) < size:
        return fail(body, MALFORMED, "the properties go past the end of their packet")
    section.cursor.at = body.at
    section.cursor.end = body.at + size
    section.cursor.fault = NULL
    section.seen = 0
    section.count = 0
    section.max_count = max_properties
    section.packet = packet
    section.sender = <uint8_t>sender
    body.at += size
    return OK


cdef int next_property(PropertySection* section, Property* found) noexcept nogil:
    cdef Cursor* cursor = &section.cursor
    cdef uint32_t identifier = 0
    cdef uint8_t byte = 0
    cdef uint16_t two = 0
    cdef int status
    cdef const Rule* rule
    cdef uint64_t bit
    cdef uint16_t packet_bit = <uint16_t>(1 << section.packet)
    if cursor.at >= cursor.end:
        return 0
    section.count += 1
    if section.count > section.max_count:
        return fail(cursor, PACKET_TOO_LARGE, "a packet has too many properties")
    status = take_varint(cursor, &identifier)
    if status != OK:
        return status
    if identifier >= RULES or not rules[identifier].known:
        return fail(cursor, MALFORMED, "a property is unknown")
    rule = &rules[identifier]
    if not rule.allowed[section.sender] & packet_bit:
        return fail(cursor, PROTOCOL_ERROR, "a property is not allowed in this packet")
    bit = <uint64_t>1 << identifier
    if section.seen & bit and not rule.repeatable & packet_bit:
        return fail(cursor, PROTOCOL_ERROR, "a property stands twice")
    section.seen |= bit
    found.identifier = <uint8_t>identifier
    if rule.kind == STRING:
        status = take_string(cursor, &found.data)
    elif rule.kind == BINARY:
        status = take_binary(cursor, &found.data)
    elif rule.kind == STRING_PAIR:
        status = take_string(cursor, &found.data)
        if status == OK:
            status = take_string(cursor, &found.value)
    else:
        if rule.kind == BYTE:
            status = take_u8(cursor, &byte)
            found.number = byte
        elif rule.kind == TWO_BYTES:
            status = take_u16(cursor, &two)
            found.number = two
        elif rule.kind == FOUR_BYTES:
            status = take_u32(cursor, &found.number)
        else:
            status = take_varint(cursor, &found.number)
        if status == OK and not rule.minimum <= found.number <= rule.maximum:
            return fail(cursor, rule.range_error, "the value of a property is out of range")
    if status != OK:
        return status
    if identifier == RESPONSE_TOPIC and (found.data.size == 0 or has_wildcard(found.data.data, found.data.size)):
        return fail(cursor, PROTOCOL_ERROR, "the response topic is empty or holds a wildcard")
    return 1


# --- Hot packets ---------------------------------------------------------------------------------------------------

cdef int decode_publish(
    Cursor* body, uint8_t first, int level, Sender sender, const Limits* limits, PublishView* view
) noexcept nogil:
    cdef PropertySection section
    cdef Property found
    cdef int status = take_topic(body, limits.max_topic_levels, &view.topic)
    if status != OK:
        return status
    view.qos = (first >> 1) & 3
    view.retain = first & 1
    view.dup = (first >> 3) & 1
    view.packet_id = 0
    view.topic_alias = 0
    view.has_expiry = False
    view.payload_format = 0
    view.properties.data = NULL
    view.properties.size = 0
    if view.qos:
        status = take_u16(body, &view.packet_id)
        if status != OK:
            return status
        if view.packet_id == 0:
            return fail(body, PROTOCOL_ERROR, "a packet id is 0")
    if level == 5:
        if body.at < body.end and body.at[0] == 0:  # no properties: the common case
            body.at += 1
        else:
            status = open_properties(body, PUBLISH, sender, limits.max_properties, &section)
            if status != OK:
                return status
            view.properties.data = section.cursor.at
            view.properties.size = <uint32_t>left(&section.cursor)
            while True:
                status = next_property(&section, &found)
                if status == 0:
                    break
                if status != 1:
                    return fail(body, status, section.cursor.fault)
                if found.identifier == TOPIC_ALIAS:
                    view.topic_alias = <uint16_t>found.number
                elif found.identifier == MESSAGE_EXPIRY:
                    view.has_expiry = True
                    view.expiry_s = found.number
                elif found.identifier == PAYLOAD_FORMAT:
                    view.payload_format = <uint8_t>found.number
    if view.topic.size == 0 and view.topic_alias == 0:
        return fail(body, PROTOCOL_ERROR, "a topic is empty and has no alias")
    view.payload.data = body.at
    view.payload.size = <uint32_t>left(body)
    return OK


cdef int decode_ack(
    Cursor* body, PacketType packet, int level, Sender sender, const Limits* limits, AckView* view
) noexcept nogil:
    cdef PropertySection section
    cdef Property found
    cdef int status = take_u16(body, &view.packet_id)
    if status != OK:
        return status
    if view.packet_id == 0:
        return fail(body, PROTOCOL_ERROR, "a packet id is 0")
    view.reason_code = 0
    view.properties.data = NULL
    view.properties.size = 0
    if level == 5 and body.at < body.end:
        view.reason_code = body.at[0]
        body.at += 1
        if not reason_allowed[<int>packet][view.reason_code]:
            return fail(body, PROTOCOL_ERROR, "a reason code is not allowed in this packet")
        if body.at < body.end:
            status = open_properties(body, <uint8_t>packet, sender, limits.max_properties, &section)
            if status != OK:
                return status
            view.properties.data = section.cursor.at
            view.properties.size = <uint32_t>left(&section.cursor)
            status = 1
            while status == 1:
                status = next_property(&section, &found)
            if status != 0:
                return fail(body, status, section.cursor.fault)
    if body.at != body.end:
        return fail(body, MALFORMED, "a packet has bytes left over")
    return OK


class ScanResult(NamedTuple):
    """What `scan` counted."""

    packets: int
    publishes: int
    payload_bytes: int
    consumed_bytes: int


def scan(data, int protocol_level, *, bint client=False):
    """Counts the whole packets at the start of `data` in C, decoding PUBLISH and acks in full, the others by header.

    `client` says on which side we are, as for `Decoder`. Raises PacketError.
    """
    cdef Py_buffer view
    cdef Cursor cursor, body
    cdef Header header
    cdef PublishView publish
    cdef AckView ack
    cdef Sender sender = FROM_SERVER if client else FROM_CLIENT
    cdef Limits limits = Limits(0xFFFF_FFFF, 128, 1024)
    cdef uint64_t n_packets = 0, n_publishes = 0, payload_bytes = 0
    cdef int status = OK
    cdef int packet_type
    check_level(protocol_level)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        cursor.at = <const uint8_t*>view.buf
        cursor.end = cursor.at + view.len
        with nogil:
            while True:
                status = read_header(
                    cursor.at, left(&cursor), protocol_level, sender, limits.max_packet_bytes, &header, &cursor.fault
                )
                if status != OK or left(&cursor) < header.size + <size_t>header.body_bytes:
                    break
                body.at = cursor.at + header.size
                body.end = body.at + header.body_bytes
                packet_type = header.first >> 4
                if packet_type == PUBLISH:
                    status = decode_publish(&body, header.first, protocol_level, sender, &limits, &publish)
                    n_publishes += 1
                    payload_bytes += publish.payload.size
                elif PUBACK <= packet_type <= PUBCOMP:
                    status = decode_ack(&body, <PacketType>packet_type, protocol_level, sender, &limits, &ack)
                if status != OK:
                    cursor.fault = body.fault
                    break
                n_packets += 1
                cursor.at += header.size + header.body_bytes
        if status > 0:
            raise PacketError(status, cursor.fault.decode())
        return ScanResult(n_packets, n_publishes, payload_bytes, cursor.at - <const uint8_t*>view.buf)
    finally:
        PyBuffer_Release(&view)


cdef int check_level(int level) except -1:
    if not 3 <= level <= HIGHEST_LEVEL:
        raise ValueError(f"protocol level {level} is not known: use 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5 (MQTT 5.0)")
    return 0


include "_codec_read.pxi"
include "_codec_write.pxi"
