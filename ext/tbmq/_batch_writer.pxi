# Writing a batch. Part of _batch.pyx.


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
