# Reading a batch: everything in it is judged before it is used. Part of _batch.pyx.


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
