# cython: language_level=3
"""MQTT's primitive types over raw memory: bytes -> numbers, strings, lengths. No Python objects, no allocation.

    Cursor   at ----------------> end        what is left of a packet or of a property section
             [u16 length][bytes ...][u32]... `take_*` moves `at`; it never passes `end`

Every `take_*` answers 0, or the reason code of the violation after writing its text to `cursor.fault` (static memory).
Results point into the caller's buffer and live as long as it does. Inline, so that each module compiles its own copy.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    OK = 0
    NEED_MORE = -1  # "the bytes end here": not an error
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    UNSUPPORTED_VERSION = 0x84
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_TOO_LARGE = 0x95

cdef struct Cursor:
    const uint8_t* at     # next byte to read
    const uint8_t* end    # first byte that is not ours
    const char* fault     # what was wrong; set together with a reason code

cdef struct Span:
    const uint8_t* data   # into the caller's buffer
    uint32_t size


cdef inline int fail(Cursor* cursor, int reason_code, const char* fault) noexcept nogil:
    cursor.fault = fault
    return reason_code


cdef inline size_t left(const Cursor* cursor) noexcept nogil:
    return <size_t>(cursor.end - cursor.at)


cdef inline uint16_t load_u16(const uint8_t* data) noexcept nogil:
    return <uint16_t>((data[0] << 8) | data[1])


cdef inline uint32_t load_u32(const uint8_t* data) noexcept nogil:
    return (<uint32_t>data[0] << 24) | (<uint32_t>data[1] << 16) | (<uint32_t>data[2] << 8) | data[3]


cdef inline uint8_t* store_u16(uint8_t* out, uint16_t value) noexcept nogil:
    out[0] = <uint8_t>(value >> 8)
    out[1] = <uint8_t>(value & 0xFF)
    return out + 2


cdef inline uint8_t* store_u32(uint8_t* out, uint32_t value) noexcept nogil:
    out[0] = <uint8_t>(value >> 24)
    out[1] = <uint8_t>((value >> 16) & 0xFF)
    out[2] = <uint8_t>((value >> 8) & 0xFF)
    out[3] = <uint8_t>(value & 0xFF)
    return out + 4


cdef inline int varint_size(uint32_t value) noexcept nogil:
    """Bytes that `value` takes in its shortest form; at most 4 for what MQTT can carry."""
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4


cdef inline uint8_t* store_varint(uint8_t* out, uint32_t value) noexcept nogil:
    while value >= 128:
        out[0] = <uint8_t>(value | 0x80)
        out += 1
        value >>= 7
    out[0] = <uint8_t>value
    return out + 1


cdef inline int load_varint(const uint8_t* data, size_t available, uint32_t* value, int* size) noexcept nogil:
    """0 with `value` and the number of bytes in `size`; NEED_MORE; or MALFORMED when a fifth byte is announced."""
    cdef uint32_t result = 0
    cdef int i
    for i in range(4):
        if <size_t>i >= available:
            return NEED_MORE
        result |= <uint32_t>(data[i] & 0x7F) << (7 * i)
        if data[i] < 0x80:
            value[0] = result
            size[0] = i + 1
            return OK
    return MALFORMED


cdef inline int take_u8(Cursor* cursor, uint8_t* value) noexcept nogil:
    if cursor.at >= cursor.end:
        return fail(cursor, MALFORMED, "a field goes past the end of its packet")
    value[0] = cursor.at[0]
    cursor.at += 1
    return OK


cdef inline int take_u16(Cursor* cursor, uint16_t* value) noexcept nogil:
    if left(cursor) < 2:
        return fail(cursor, MALFORMED, "a field goes past the end of its packet")
    value[0] = load_u16(cursor.at)
    cursor.at += 2
    return OK


cdef inline int take_u32(Cursor* cursor, uint32_t* value) noexcept nogil:
    if left(cursor) < 4:
        return fail(cursor, MALFORMED, "a field goes past the end of its packet")
    value[0] = load_u32(cursor.at)
    cursor.at += 4
    return OK


cdef inline int take_varint(Cursor* cursor, uint32_t* value) noexcept nogil:
    """A variable byte integer inside a packet: complete and in its shortest form [MQTT-1.5.5-1]."""
    cdef int size = 0
    cdef int status = load_varint(cursor.at, left(cursor), value, &size)
    if status != OK:
        return fail(cursor, MALFORMED, "a variable byte integer is cut or has more than four bytes")
    if varint_size(value[0]) != size:
        return fail(cursor, MALFORMED, "a variable byte integer is longer than its shortest form")
    cursor.at += size
    return OK


cdef inline int take_binary(Cursor* cursor, Span* value) noexcept nogil:
    cdef uint16_t size = 0
    cdef int status = take_u16(cursor, &size)
    value.data, value.size = NULL, 0
    if status != OK:
        return status
    if left(cursor) < size:
        return fail(cursor, MALFORMED, "a field goes past the end of its packet")
    value.data = cursor.at
    value.size = size
    cursor.at += size
    return OK


cdef inline int take_string(Cursor* cursor, Span* value) noexcept nogil:
    cdef int status = take_binary(cursor, value)
    if status != OK:
        return status
    if not is_mqtt_utf8(value.data, value.size):
        return fail(cursor, MALFORMED, "a string is not well-formed UTF-8 or holds U+0000")
    return OK


# --- Text ------------------------------------------------------------------------------------------------------------
# Eight bytes at a time: a word is plain when no byte is 0 or above 127. The last, short word is filled up with 'a'.

cdef inline uint64_t load_word(const uint8_t* data, size_t size) noexcept nogil:
    cdef uint64_t word = 0x6161616161616161
    if size >= 8:
        memcpy(&word, data, 8)
    else:
        memcpy(&word, data, size)
    return word


cdef inline uint64_t zero_bytes(uint64_t word) noexcept nogil:
    """Non-zero exactly when one of the eight bytes is zero."""
    return (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL


cdef inline uint64_t bytes_equal(uint64_t word, uint64_t repeated) noexcept nogil:
    return zero_bytes(word ^ repeated)


cdef inline bint is_mqtt_utf8(const uint8_t* data, size_t size) noexcept nogil:
    """Well-formed UTF-8 without U+0000 [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
    return is_utf8(data, size, False)


cdef inline bint is_utf8(const uint8_t* data, size_t size, bint allow_null) noexcept nogil:
    """Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef size_t i = 0
    cdef uint64_t word
    cdef uint8_t lead, low, high
    cdef size_t more, k
    while i < size:
        word = load_word(data + i, size - i)
        if not ((word & 0x8080808080808080ULL) | zero_bytes(word)):
            i += 8
            continue
        lead = data[i]
        if lead < 0x80:
            if lead == 0 and not allow_null:
                return False
            i += 1
            continue
        low, high = 0x80, 0xBF  # what the second byte may be
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0  # else overlong
            elif lead == 0xED:
                high = 0x9F  # else a surrogate
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90  # else overlong
            elif lead == 0xF4:
                high = 0x8F  # else above U+10FFFF
        else:
            return False
        if size - i <= more or data[i + 1] < low or data[i + 1] > high:
            return False
        for k in range(2, more + 1):
            if data[i + k] < 0x80 or data[i + k] > 0xBF:
                return False
        i += more + 1
    return True


cdef inline bint has_wildcard(const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t i = 0
    cdef uint64_t word
    while i < size:
        word = load_word(data + i, size - i)
        if bytes_equal(word, 0x2B2B2B2B2B2B2B2B) | bytes_equal(word, 0x2323232323232323):  # '+', '#'
            return True
        i += 8
    return False


cdef inline bint has_more_levels(const uint8_t* data, size_t size, uint32_t limit) noexcept nogil:
    """True when the topic has more than `limit` levels. A short topic cannot, and is not looked at."""
    cdef size_t i
    cdef uint32_t levels = 1
    if size < limit:
        return False
    for i in range(size):
        levels += data[i] == c"/"
    return levels > limit


cdef inline int take_topic(Cursor* cursor, uint32_t max_levels, Span* value) noexcept nogil:
    """The topic of a PUBLISH or a will: a string without wildcards; may be empty here."""
    cdef int status = take_string(cursor, value)
    if status != OK:
        return status
    if has_wildcard(value.data, value.size):
        return fail(cursor, TOPIC_NAME_INVALID, "a topic holds a wildcard")
    if has_more_levels(value.data, value.size, max_levels):
        return fail(cursor, TOPIC_NAME_INVALID, "a topic has too many levels")
    return OK
