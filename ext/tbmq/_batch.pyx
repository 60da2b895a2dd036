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

@cython.final
cdef class BatchWriter:
    """Collects messages into one batch; reusable: `finish` and `reset` start the next one in the same memory.

    `max_bytes` bounds the batch, header included. A message that no batch of this writer could hold is a BatchError; a
    message for which there is no room left is refused, and belongs into the next batch.
    """

    def __cinit__(self, max_bytes=None):
        if max_bytes is None:
            max_bytes = MAX_BATCH_BYTES
        if not HEADER_SIZE + RECORD_SIZE < max_bytes <= MAX_BATCH_BYTES:
            raise ValueError(f"max_bytes is {max_bytes}; a batch with a message has "
                             f"{HEADER_BYTES + RECORD_BYTES + 1} to {MAX_BATCH_BYTES} bytes")
        self.max_bytes = max_bytes
        self.size = HEADER_SIZE

    def __dealloc__(self):
        free(self._data)

    cdef uint8_t* reserve(self, const MessageView* message) except? NULL nogil:
        """Add a record with the sizes and numbers of `message` and return where its bytes go.

        The caller writes publisher, topic, properties and payload there, one directly after the other, before it calls
        this writer again; the pointers in `message` are not looked at. NULL without an exception: no room (bytes, or
        more than 49 days after the first message); start a new batch. BatchError: no batch can hold this message.
        """
        cdef uint64_t record_bytes = (<uint64_t>RECORD_SIZE + message.publisher_bytes + message.topic_bytes
                                      + message.properties_bytes + message.payload_bytes)
        cdef uint64_t delta_ms = 0
        cdef uint8_t* record
        cdef uint8_t flags

        if message.qos > 2 or message.topic_bytes == 0 or message.time_ms >> TIME_BITS:
            raise_unwritable(message)
        if record_bytes > self.max_bytes - self.size:
            if self.count == 0:
                raise_too_large(record_bytes, self.max_bytes)
            return NULL
        if self.count == 0:
            self._base_time_ms = message.time_ms
        elif message.time_ms > self._base_time_ms:      # a clock that was set back gives delta 0
            delta_ms = message.time_ms - self._base_time_ms
            if delta_ms >> DELTA_BITS:
                return NULL
        if record_bytes > self._capacity - self.size or self._data == NULL:
            self._grow(self.size + <size_t>record_bytes)

        flags = message.qos
        if message.retain:
            flags |= RETAIN_FLAG
        if message.dup:
            flags |= DUP_FLAG
        if message.has_expiry:
            flags |= EXPIRY_FLAG
        record = self._data + self.size
        store_u32(record + RECORD_BYTES_AT, <uint32_t>record_bytes)
        record[FLAGS_AT] = flags
        record[RESERVED_AT] = 0
        store_u16(record + TOPIC_BYTES_AT, message.topic_bytes)
        store_u16(record + PUBLISHER_BYTES_AT, message.publisher_bytes)
        store_u16(record + PACKET_ID_AT, message.packet_id if message.qos else 0)
        store_u32(record + PROPERTIES_BYTES_AT, message.properties_bytes)
        store_u32(record + TIME_DELTA_AT, <uint32_t>delta_ms)
        store_u32(record + EXPIRY_AT, message.expiry_s if message.has_expiry else 0)
        self.size += <size_t>record_bytes
        self.count += 1
        return record + RECORD_SIZE

    cdef int append_message(self, const MessageView* message) except -1 nogil:
        """Copy one message in. 1: done; 0: no room, start a new batch; BatchError: no batch can hold it."""
        cdef uint8_t* to = self.reserve(message)
        if to == NULL:
            return 0
        copy_piece(to, message.publisher, message.publisher_bytes)
        to += message.publisher_bytes
        copy_piece(to, message.topic, message.topic_bytes)
        to += message.topic_bytes
        copy_piece(to, message.properties, message.properties_bytes)
        to += message.properties_bytes
        copy_piece(to, message.payload, message.payload_bytes)
        return 1

    cdef const uint8_t* seal(self, size_t* size) except NULL nogil:
        """Fill in the header and give the batch where it lies: valid until the next call of this writer.

        The writer is unchanged: call reset() when the bytes have gone out, or append more and seal again.
        """
        cdef uint8_t* data
        if self._data == NULL:
            self._grow(HEADER_SIZE)
        data = self._data
        memcpy(data + MAGIC_AT, MAGIC_BYTES, 4)
        data[VERSION_AT] = FORMAT_VERSION
        data[HEADER_FLAGS_AT] = 0
        store_u16(data + HEADER_BYTES_AT, HEADER_SIZE)
        store_u32(data + COUNT_AT, self.count)
        store_u32(data + BODY_BYTES_AT, <uint32_t>(self.size - HEADER_SIZE))
        store_u64(data + BASE_TIME_AT, self._base_time_ms)
        store_u32(data + BODY_CRC_AT, crc32c_update(0, data + HEADER_SIZE, self.size - HEADER_SIZE))
        store_u32(data + HEADER_CRC_AT, crc32c_update(0, data, HEADER_CRC_AT))
        size[0] = self.size
        return data

    cpdef bint full(self, size_t limit_bytes) noexcept nogil:
        """Whether the batch has reached `limit_bytes`: the caller's mark for sending it, softer than max_bytes."""
        return self.size >= limit_bytes

    cpdef void reset(self) noexcept nogil:
        """Forget the messages; keep the memory unless it is unusually large."""
        if self._capacity > KEPT_BYTES:
            free(self._data)
            self._data = NULL
            self._capacity = 0
        self.size = HEADER_SIZE
        self.count = 0
        self._base_time_ms = 0

    cdef int _grow(self, size_t needed) except -1 nogil:
        # Doubling, so that appending stays linear; what is needed now is never more than what the caller already has.
        cdef size_t capacity = self._capacity * 2
        cdef uint8_t* data
        if capacity < FIRST_BYTES:
            capacity = FIRST_BYTES
        if capacity > self.max_bytes:
            capacity = self.max_bytes
        if capacity < needed:
            capacity = needed
        data = <uint8_t*>realloc(self._data, capacity)
        if data == NULL:
            with gil:
                raise MemoryError(f"no memory for a batch of {needed} bytes")
        self._data = data
        self._capacity = capacity
        return 0

    def __len__(self):
        return self.count

    def append(self, const uint8_t[::1] topic not None, const uint8_t[::1] payload not None, *, time_ms,
               const uint8_t[::1] publisher not None = b"", qos=0, retain=False, dup=False, packet_id=0, expiry_s=None,
               const uint8_t[::1] properties not None = b""):
        """Add one message. ValueError: an argument that the layout cannot hold; BatchError: no room in this batch."""
        cdef MessageView message
        check_range("topic bytes", topic.shape[0], 1, 0xFFFF)
        check_range("payload bytes", payload.shape[0], 0, 0xFFFFFFFF)
        check_range("publisher bytes", publisher.shape[0], 0, 0xFFFF)
        check_range("properties bytes", properties.shape[0], 0, 0xFFFFFFFF)
        check_range("qos", qos, 0, 2)
        check_range("packet_id", packet_id, 0, 0xFFFF if qos else 0)
        check_range("time_ms", time_ms, 0, MAX_TIME_MS)
        check_range("expiry_s", 0 if expiry_s is None else expiry_s, 0, 0xFFFFFFFF)
        memset(&message, 0, sizeof(message))
        message.topic = first_byte(topic)
        message.topic_bytes = <uint16_t>topic.shape[0]
        message.payload = first_byte(payload)
        message.payload_bytes = <uint32_t>payload.shape[0]
        message.publisher = first_byte(publisher)
        message.publisher_bytes = <uint16_t>publisher.shape[0]
        message.properties = first_byte(properties)
        message.properties_bytes = <uint32_t>properties.shape[0]
        message.qos = qos
        message.retain = bool(retain)
        message.dup = bool(dup)
        message.packet_id = packet_id
        message.time_ms = time_ms
        if expiry_s is not None:
            message.has_expiry = True
            message.expiry_s = expiry_s
        if not self.append_message(&message):
            raise BatchError(f"no room in this batch ({self.count} messages, {self.size} of {self.max_bytes} bytes, "
                             f"or over 49 days after its first message): finish it and start a new one")

    def finish(self):
        """The batch as bytes; the writer then starts a new one."""
        cdef size_t size
        cdef const uint8_t* data = self.seal(&size)
        batch = PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size)
        self.reset()
        return batch


cdef inline const uint8_t* first_byte(const uint8_t[::1] view) noexcept:
    return &view[0] if view.shape[0] else NULL


cdef int check_range(str name, value, lowest, highest) except -1:
    if not lowest <= value <= highest:
        raise ValueError(f"{name}: {value} is not in {lowest}..{highest}")
    return 0


cdef int raise_unwritable(const MessageView* message) except -1 with gil:
    if message.qos > 2:
        raise BatchError(f"a message with QoS {message.qos} cannot be written: QoS is 0, 1 or 2")
    if message.topic_bytes == 0:
        raise BatchError("a message without a topic cannot be written: resolve the topic alias first")
    raise BatchError(f"a message with time {message.time_ms} ms cannot be written: the limit is {MAX_TIME_MS}")


cdef int raise_too_large(uint64_t record_bytes, uint64_t max_bytes) except -1 with gil:
    raise BatchError(f"a message of {record_bytes} bytes with its head is too large for any batch of this writer, "
                     f"which has {max_bytes} bytes with {HEADER_BYTES} of header")


# Reading

@cython.final
cdef class BatchReader:
    """Reads one batch in place, from any contiguous buffer object, which it keeps alive.

    With `verify` (the default) a batch is accepted whole or not at all: checksum and every record are checked before
    the constructor returns. Without it, for memory that this node wrote itself, the body's checksum is skipped and each
    record is checked when it is reached. Bytes after the batch are an error in both; see `split`.
    """

    def __cinit__(self, buffer=None, *, bint verify=True):
        # Without a buffer: C callers, who call open().
        if buffer is None:
            return
        PyObject_GetBuffer(buffer, &self._view, PyBUF_SIMPLE)
        self.open(<const uint8_t*>self._view.buf, <size_t>self._view.len, verify)

    def __init__(self, buffer, *, verify=True):
        if buffer is None:
            raise TypeError("a batch is read from a bytes-like object, not None")

    def __dealloc__(self):
        PyBuffer_Release(&self._view)       # does nothing when no buffer is held

    cdef int open(self, const uint8_t* data, size_t size, bint verify) except -1 nogil:
        """Read the batch at `data`, which the caller keeps alive and unchanged until the next open() or the end.

        For C callers with memory that is no Python object; make the reader with new_reader() and use it again and
        again. After an error nothing is open and next() gives no message.
        """
        cdef uint32_t body_crc
        self._data = NULL
        self.size = 0
        self.count = 0
        self.rewind()
        check_header(data, 0, size)
        if HEADER_SIZE + <uint64_t>load_u32(data + BODY_BYTES_AT) != size:
            raise_trailing(load_u32(data + BODY_BYTES_AT), size)
        if verify:
            body_crc = crc32c_update(0, data + HEADER_SIZE, size - HEADER_SIZE)
            if body_crc != load_u32(data + BODY_CRC_AT):
                raise_crc("body", BODY_CRC_AT, load_u32(data + BODY_CRC_AT), body_crc)
        self._data = data
        self.size = size
        self.count = load_u32(data + COUNT_AT)
        self.base_time_ms = load_u64(data + BASE_TIME_AT)
        if verify:
            self._check_records()
        return 0

    cdef int next(self, MessageView* message) except -1 nogil:
        """The next message into `message`. 1: there is one; 0: the batch is read to its end; BatchError: damaged."""
        if not self._read(&self._offset, self._index, message):
            return 0
        self._index += 1
        return 1

    cdef void rewind(self) noexcept nogil:
        """Let next() start at the first message again."""
        self._offset = HEADER_SIZE
        self._index = 0

    cdef int _read(self, size_t* offset, uint32_t index, MessageView* message) except -1 nogil:
        # Message `index`, which starts at `offset`; moves `offset` past it. Results as next().
        cdef const uint8_t* record
        cdef size_t left
        cdef uint32_t record_bytes, properties_bytes, expiry_s
        cdef uint16_t topic_bytes, publisher_bytes, packet_id
        cdef uint64_t pieces
        cdef uint8_t flags

        if index >= self.count:
            if self._data != NULL and offset[0] != self.size:
                raise_after_last(offset[0], self.size, self.count)
            return 0
        left = self.size - offset[0]        # offset never passes size: it starts in the header, records end within
        record = self._data + offset[0]
        if left < RECORD_SIZE:
            raise_record(self._data, offset[0], left, index)
        record_bytes = load_u32(record + RECORD_BYTES_AT)
        flags = record[FLAGS_AT]
        topic_bytes = load_u16(record + TOPIC_BYTES_AT)
        publisher_bytes = load_u16(record + PUBLISHER_BYTES_AT)
        packet_id = load_u16(record + PACKET_ID_AT)
        properties_bytes = load_u32(record + PROPERTIES_BYTES_AT)
        expiry_s = load_u32(record + EXPIRY_AT)
        pieces = <uint64_t>RECORD_SIZE + publisher_bytes + topic_bytes + properties_bytes
        # raise_record() has the same conditions, one by one, with words.
        if (record_bytes > left or pieces > record_bytes or topic_bytes == 0
                or flags & UNKNOWN_FLAGS or record[RESERVED_AT] or flags & QOS_MASK == QOS_MASK
                or (packet_id and not flags & QOS_MASK) or (expiry_s and not flags & EXPIRY_FLAG)):
            raise_record(self._data, offset[0], left, index)

        message.publisher = record + RECORD_SIZE
        message.topic = message.publisher + publisher_bytes
        message.properties = message.topic + topic_bytes
        message.payload = message.properties + properties_bytes
        message.time_ms = self.base_time_ms + load_u32(record + TIME_DELTA_AT)
        message.properties_bytes = properties_bytes
        message.payload_bytes = <uint32_t>(record_bytes - pieces)
        message.expiry_s = expiry_s
        message.publisher_bytes = publisher_bytes
        message.topic_bytes = topic_bytes
        message.packet_id = packet_id
        message.qos = flags & QOS_MASK
        message.retain = (flags & RETAIN_FLAG) != 0
        message.dup = (flags & DUP_FLAG) != 0
        message.has_expiry = (flags & EXPIRY_FLAG) != 0
        offset[0] += record_bytes
        return 1

    cdef int _check_records(self) except -1 nogil:
        cdef MessageView message
        while self.next(&message):
            pass
        self.rewind()
        return 0

    def __len__(self):
        return self.count

    def __iter__(self):
        """The messages from the first on, as BatchMessage; each loop has its own place."""
        cdef BatchIterator iterator = BatchIterator.__new__(BatchIterator)
        iterator.reader = self
        iterator.offset = HEADER_SIZE
        return iterator

    @staticmethod
    def batch_bytes(buffer, Py_ssize_t offset=0):
        """Size of the batch that starts at `offset` of `buffer`; its header is checked, and that all of it is there."""
        cdef Py_buffer view
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            check_header(<const uint8_t*>view.buf, <size_t>offset, <size_t>view.len)
            return HEADER_SIZE + <uint64_t>load_u32(<const uint8_t*>view.buf + offset + BODY_BYTES_AT)
        finally:
            PyBuffer_Release(&view)

    @staticmethod
    def split(buffer):
        """The batches of a concatenation, one after the other, each as a memoryview for BatchReader.

        Only headers are read. What is no batch is a BatchError when it is reached, after the good ones before it.
        """
        whole = memoryview(buffer).cast("B")
        offset = 0
        while offset < len(whole):
            size = BatchReader.batch_bytes(whole, offset)
            yield whole[offset:offset + size]
            offset += size


@cython.final
cdef class BatchIterator:
    """One loop over the messages of a reader."""
    cdef BatchReader reader
    cdef size_t offset
    cdef uint32_t index

    def __iter__(self):
        return self

    def __next__(self):
        cdef MessageView m
        if self.offset > self.reader.size:      # open() was called on the reader during this loop
            raise BatchError("the reader was opened on another batch during the loop")
        if not self.reader._read(&self.offset, self.index, &m):
            raise StopIteration
        self.index += 1
        return BatchMessage(
            PyBytes_FromStringAndSize(<const char*>m.publisher, m.publisher_bytes),
            PyBytes_FromStringAndSize(<const char*>m.topic, m.topic_bytes),
            PyBytes_FromStringAndSize(<const char*>m.payload, m.payload_bytes),
            m.qos,
            bool(m.retain),
            bool(m.dup),
            m.packet_id,
            m.time_ms,
            m.expiry_s if m.has_expiry else None,
            PyBytes_FromStringAndSize(<const char*>m.properties, m.properties_bytes),
        )


cdef BatchReader new_reader():
    """A reader with nothing open, for C callers of open()."""
    return BatchReader.__new__(BatchReader)


cdef int check_header(const uint8_t* buffer, size_t offset, size_t size) except -1 nogil:
    # The batch that starts at `offset` of `size` bytes: its header is whole and sound, its body is there.
    cdef size_t left = size - offset if offset < size else 0
    cdef const uint8_t* header
    cdef uint32_t header_crc
    if left < HEADER_SIZE:
        raise_cut("header", offset, left, HEADER_SIZE)
    header = buffer + offset
    # Magic and version come first: the rest of an unknown version may lie elsewhere.
    if memcmp(header + MAGIC_AT, MAGIC_BYTES, 4) != 0:
        raise_magic(header + MAGIC_AT, offset)
    if header[VERSION_AT] != FORMAT_VERSION:
        raise_version(header[VERSION_AT], offset + VERSION_AT)
    header_crc = crc32c_update(0, header, HEADER_CRC_AT)
    if header_crc != load_u32(header + HEADER_CRC_AT):
        raise_crc("header", offset + HEADER_CRC_AT, load_u32(header + HEADER_CRC_AT), header_crc)
    if header[HEADER_FLAGS_AT] != 0:
        raise_field("header flags", header[HEADER_FLAGS_AT], "must be 0 in version 1", offset + HEADER_FLAGS_AT)
    if load_u16(header + HEADER_BYTES_AT) != HEADER_SIZE:
        raise_field("header bytes", load_u16(header + HEADER_BYTES_AT), "must be 32 in version 1",
                    offset + HEADER_BYTES_AT)
    if load_u64(header + BASE_TIME_AT) >> TIME_BITS:
        raise_field("base time", load_u64(header + BASE_TIME_AT), "must be below 2**48", offset + BASE_TIME_AT)
    if <uint64_t>load_u32(header + COUNT_AT) * RECORD_SIZE > load_u32(header + BODY_BYTES_AT):
        raise_field("message count", load_u32(header + COUNT_AT), "does not fit into the body", offset + COUNT_AT)
    if load_u32(header + BODY_BYTES_AT) > left - HEADER_SIZE:
        raise_cut("body", offset + HEADER_SIZE, left - HEADER_SIZE, load_u32(header + BODY_BYTES_AT))
    return 0


# What is wrong, and where. Offsets count from the start of the buffer that was given.

cdef int raise_cut(str part, size_t offset, size_t left, uint64_t wanted) except -1 with gil:
    raise BatchError(f"batch is cut: the {part} at offset {offset} has {wanted} bytes, but only {left} are there")


cdef int raise_magic(const uint8_t* magic, size_t offset) except -1 with gil:
    raise BatchError(f"no batch at offset {offset}: it starts with {magic[:4]!r} instead of {MAGIC!r}")


cdef int raise_version(uint8_t version, size_t offset) except -1 with gil:
    raise BatchError(f"batch version {version} at offset {offset} is unknown: this program reads version {VERSION}; "
                     f"read it with the release that wrote it or a later one")


cdef int raise_crc(str part, size_t offset, uint32_t stored, uint32_t computed) except -1 with gil:
    raise BatchError(f"batch is damaged: {part} checksum at offset {offset} is 0x{stored:08X}, "
                     f"its bytes give 0x{computed:08X}")


cdef int raise_field(str name, uint64_t value, str rule, size_t offset) except -1 with gil:
    raise BatchError(f"batch is malformed: {name} at offset {offset} is {value} but {rule}")


cdef int raise_trailing(uint32_t body_bytes, size_t size) except -1 with gil:
    end = HEADER_BYTES + body_bytes
    raise BatchError(f"{size - end} bytes after the batch, which ends at offset {end}: "
                     f"use BatchReader.split for several batches in one buffer")


cdef int raise_after_last(size_t offset, size_t size, uint32_t count) except -1 with gil:
    raise BatchError(f"batch is malformed: {size - offset} bytes at offset {offset} after the last of {count} messages")


cdef int raise_record(const uint8_t* data, size_t offset, size_t left, uint32_t index) except -1 with gil:
    cdef const uint8_t* record = data + offset
    cdef uint8_t flags
    where = f"batch is malformed: message {index} at offset {offset}"
    if left < RECORD_SIZE:
        raise BatchError(f"{where} needs {RECORD_BYTES} bytes for its head, but only {left} are left in the body")
    record_bytes = load_u32(record + RECORD_BYTES_AT)
    if record_bytes > left:
        raise BatchError(f"{where} has {record_bytes} bytes, but only {left} are left in the body")
    pieces = (RECORD_BYTES + load_u16(record + PUBLISHER_BYTES_AT) + load_u16(record + TOPIC_BYTES_AT)
              + load_u32(record + PROPERTIES_BYTES_AT))
    if pieces > record_bytes:
        raise BatchError(f"{where} has {record_bytes} bytes, but head, publisher, topic and properties need {pieces}")
    if load_u16(record + TOPIC_BYTES_AT) == 0:
        raise BatchError(f"{where} has no topic")
    flags = record[FLAGS_AT]
    if flags & UNKNOWN_FLAGS:
        raise BatchError(f"{where} has reserved flag bits set: 0x{flags:02X}")
    if record[RESERVED_AT]:
        raise BatchError(f"{where} has {record[RESERVED_AT]} in its reserved byte, which must be 0")
    if flags & QOS_MASK == QOS_MASK:
        raise BatchError(f"{where} has QoS 3")
    if load_u16(record + PACKET_ID_AT) and not flags & QOS_MASK:
        raise BatchError(f"{where} has packet id {load_u16(record + PACKET_ID_AT)} with QoS 0, which has none")
    raise BatchError(f"{where} has an expiry of {load_u32(record + EXPIRY_AT)} s without the expiry flag")


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
