"""Batches: N published messages in one contiguous buffer, the unit that crosses every boundary (mesh, Kafka, journal).

    0          32                                                      size
    +----------+--------------------+--------------------+-----+
    | header   | record 0           | record 1           | ... |         all numbers little-endian
    +----------+--------------------+--------------------+-----+
                |
                +-- 24 fixed bytes | publisher | topic | properties | payload

docs/batch-format.md has the bytes, field by field; the constants below carry the same offsets. When you change one,
change the other, tests/reference/batch.py and VERSION.

Records have a fixed-width head and no padding: variable-length integers and alignment were left out because the
bytes must be readable by thirty lines in any language, and unaligned loads cost nothing on the processors we run on.

Memory: a writer owns one buffer that grows by doubling and is used again for the next batch. A reader owns nothing; it
points into the caller's buffer. Bytes are copied once on the way in (append) and once when a `bytes` object is asked
for (finish); reading copies only when Python objects are built.

Trust: nothing in a batch is believed. Every length is checked against the bytes that are really there before it is
used, with or without the checksum, and nothing is allocated by an announced number.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from collections import namedtuple

from tbmq.errors import BatchError

cdef extern from "crc32c.h" nogil:
    int crc32c_has_hardware
    void crc32c_init()
    uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t size)
    uint32_t crc32c_by_table(uint32_t crc, const uint8_t* data, size_t size)

crc32c_init()

# The header of a batch: offsets of its fields.
cdef enum:
    MAGIC_AT = 0
    VERSION_AT = 4
    HEADER_FLAGS_AT = 5         # reserved, 0
    HEADER_BYTES_AT = 6
    COUNT_AT = 8
    BODY_BYTES_AT = 12
    BASE_TIME_AT = 16
    BODY_CRC_AT = 24
    HEADER_CRC_AT = 28          # over the bytes before it
    HEADER_SIZE = 32

# The head of a record: offsets of its fields from the start of the record.
cdef enum:
    RECORD_BYTES_AT = 0         # the whole record
    FLAGS_AT = 4
    RESERVED_AT = 5             # 0
    TOPIC_BYTES_AT = 6
    PUBLISHER_BYTES_AT = 8
    PACKET_ID_AT = 10
    PROPERTIES_BYTES_AT = 12
    TIME_DELTA_AT = 16          # milliseconds since the batch's base time
    EXPIRY_AT = 20
    RECORD_SIZE = 24

cdef enum:
    QOS_MASK = 0x03
    RETAIN_FLAG = 0x04
    DUP_FLAG = 0x08
    EXPIRY_FLAG = 0x10
    UNKNOWN_FLAGS = 0xE0

cdef enum:
    FORMAT_VERSION = 1
    TIME_BITS = 48              # of a base time: enough to the year 10889, and base + delta fits any signed 64-bit type
    DELTA_BITS = 32
    FIRST_BYTES = 4096          # of a writer's buffer
    KEPT_BYTES = 1 << 20        # a larger buffer is given back after its batch

cdef const char* MAGIC_BYTES = b"TBMB"

MAGIC = b"TBMB"
VERSION = FORMAT_VERSION
HEADER_BYTES = HEADER_SIZE
RECORD_BYTES = RECORD_SIZE
MAX_BATCH_BYTES = HEADER_SIZE + <uint64_t>0xFFFFFFFF
MAX_TIME_MS = (<uint64_t>1 << TIME_BITS) - 1
CRC32C_HARDWARE = bool(crc32c_has_hardware)

BatchMessage = namedtuple(
    "BatchMessage",
    "publisher topic payload qos retain dup packet_id time_ms expiry_s properties",
    module="tbmq._batch",
)


# Numbers. Written byte by byte so that they hold on any machine; the compiler makes one load or store of each.

cdef inline uint16_t load_u16(const uint8_t* p) noexcept nogil:
    return <uint16_t>(p[0] | (<uint16_t>p[1] << 8))


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)


cdef inline uint64_t load_u64(const uint8_t* p) noexcept nogil:
    return <uint64_t>load_u32(p) | (<uint64_t>load_u32(p + 4) << 32)


cdef inline void store_u16(uint8_t* p, uint16_t value) noexcept nogil:
    p[0] = <uint8_t>value
    p[1] = <uint8_t>(value >> 8)


cdef inline void store_u32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>value
    p[1] = <uint8_t>(value >> 8)
    p[2] = <uint8_t>(value >> 16)
    p[3] = <uint8_t>(value >> 24)


cdef inline void store_u64(uint8_t* p, uint64_t value) noexcept nogil:
    store_u32(p, <uint32_t>value)
    store_u32(p + 4, <uint32_t>(value >> 32))


cdef inline void copy_piece(uint8_t* to, const uint8_t* piece, size_t size) noexcept nogil:
    # memcpy wants a valid pointer even for no bytes; an absent piece may be NULL.
    if size:
        memcpy(to, piece, size)


# Writing


include "_batch_writer.pxi"
include "_batch_reader.pxi"


# The checksum, for tests and tools

def crc32c(const uint8_t[::1] data not None, uint32_t crc=0):
    """CRC-32C of `data`, continued from `crc`; by the processor's instruction where there is one."""
    return crc32c_update(crc, first_byte(data), data.shape[0])


def crc32c_table(const uint8_t[::1] data not None, uint32_t crc=0):
    """The same by tables, as on processors without the instruction."""
    return crc32c_by_table(crc, first_byte(data), data.shape[0])


# Loops for bench/test_batch.py: the C interface without the price of a Python call per message

def append_many(BatchWriter writer not None, uint32_t count, const uint8_t[::1] publisher not None,
                const uint8_t[::1] topic not None, const uint8_t[::1] payload not None):
    """Append one QoS 0 message `count` times; how many had room."""
    cdef MessageView message
    cdef uint64_t start_ms = 1_700_000_000_000
    cdef uint32_t done = 0
    check_range("topic bytes", topic.shape[0], 1, 0xFFFF)
    check_range("publisher bytes", publisher.shape[0], 0, 0xFFFF)
    check_range("payload bytes", payload.shape[0], 0, 0xFFFFFFFF)
    memset(&message, 0, sizeof(message))
    message.publisher = first_byte(publisher)
    message.publisher_bytes = <uint16_t>publisher.shape[0]
    message.topic = first_byte(topic)
    message.topic_bytes = <uint16_t>topic.shape[0]
    message.payload = first_byte(payload)
    message.payload_bytes = <uint32_t>payload.shape[0]
    with nogil:
        while done < count:
            message.time_ms = start_ms + done
            if not writer.append_message(&message):
                break
            done += 1
    return done


def iterate_all(BatchReader reader not None):
    """Read every message with next(); how many, and the bytes of their payloads."""
    cdef MessageView message
    cdef uint64_t count = 0, payload_bytes = 0
    with nogil:
        reader.rewind()
        while reader.next(&message):
            count += 1
            payload_bytes += message.payload_bytes
    return count, payload_bytes
