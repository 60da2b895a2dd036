# What an engine is made of: addresses, templates, connections, streams. Part of _loadgen.pyx.


cdef int set_template(Template* template, tuple packet_and_digits) except -1:
    cdef bytes packet = packet_and_digits[0]
    cdef int64_t digits_at = packet_and_digits[1]
    cdef size_t size = PyBytes_GET_SIZE(packet)
    if digits_at >= 0 and digits_at + DIGITS > <int64_t>size:
        raise ValueError("the digits go past the end of the packet")
    template.data = <uint8_t*>calloc(size + 16, 1)
    if template.data == NULL:
        raise MemoryError()
    memcpy(template.data, PyBytes_AS_STRING(packet), size)
    template.size = size
    template.digits_at = digits_at
    return 0


cdef inline void number_template(Template* template, uint32_t number) noexcept nogil:
    cdef int i
    if template.digits_at < 0:
        return
    for i in range(DIGITS):
        template.data[template.digits_at + DIGITS - 1 - i] = c"0" + number % 10
        number //= 10


cdef int set_addresses(Engine self, str host, int port, sources) except -1:
    cdef int i
    self.target_size = loadgen_address(&self.target, host.encode(), port)
    if not self.target_size:
        raise ValueError(f"{host} is not a numeric address")
    self.source_count = len(sources)
    self.sources = <sockaddr_storage*>calloc(max(1, len(sources)), sizeof(sockaddr_storage))
    for i, source in enumerate(sources):
        self.source_size = loadgen_address(&self.sources[i], source.encode(), 0)
        if self.source_size != self.target_size:
            raise ValueError(f"the source {source} is not a numeric address of the same family as {host}")
    return 0


cdef int set_short_cut(Engine self, size_t payload_at) except -1:
    """The head of our PUBLISH up to the length of its topic: 5 to 7 bytes that decide where everything else is."""
    cdef const uint8_t* data = self.publish_packet.data
    cdef size_t header = 2
    while data[header - 1] >= 0x80:
        header += 1
    cdef size_t head_bytes = header + 2
    cdef size_t payload_bytes = self.publish_packet.size - payload_at
    if payload_at > self.publish_packet.size or self.publish_packet.size < 8:
        raise ValueError("the PUBLISH template is too short")
    memcpy(&self.head_expected, data, 8)
    self.head_mask = <uint64_t>0
    memset(&self.head_mask, 0xFF, head_bytes)
    self.head_expected &= self.head_mask
    self.payload_at = payload_at
    self.packet_id_at = header + 2 + load_u16(data + header)
    self.is_stamped = payload_bytes >= STAMP_SIZE
    return 0


cdef int make_streams(Engine self, bint hears_own, bint is_group, uint64_t window) except -1:
    cdef uint64_t i
    self.stream_words = words_for(window)
    self.stream_count = self.subscribers * <uint64_t>(1 if hears_own else self.all_publishers)
    if is_group:
        self.stream_count = self.all_publishers
    self.streams = <Stream*>calloc(max(<uint64_t>1, self.stream_count), sizeof(Stream))
    self.stream_bits = <uint64_t*>calloc(max(<uint64_t>1, self.stream_count * self.stream_words), 8)
    if self.streams == NULL or self.stream_bits == NULL:
        raise MemoryError()
    for i in range(self.stream_count):
        self.streams[i].bits = self.stream_bits + i * self.stream_words
    return 0


cdef int make_connections(
    Engine self, uint32_t first_subscriber, bint hears_own, bint is_group, uint32_t window
) except -1:
    cdef uint32_t i
    cdef Connection* c
    self.connections = <Connection*>calloc(max(<uint32_t>1, self.count), sizeof(Connection))
    self.idle = <uint32_t*>calloc(max(<uint32_t>1, self.count), sizeof(uint32_t))
    if self.connections == NULL or self.idle == NULL:
        raise MemoryError()
    for i in range(self.count):
        c = &self.connections[i]
        c.fd = -1
        c.is_publisher = i < self.publishers
        self.idle[self.count - 1 - i] = i  # a stack: the first one is on top
        if c.is_publisher:
            c.number = self.first_publisher + i
            if self.qos:
                set_window(c, window)
        else:
            c.number = first_subscriber + i - self.publishers
            c.first_publisher = c.number if hears_own else 0
            c.heard_publishers = 1 if hears_own else self.all_publishers
            c.first_stream = 0 if is_group else (i - self.publishers) * <uint64_t>c.heard_publishers
    self.idle_count = self.count
    return 0


cdef int set_window(Connection* c, uint32_t window) noexcept nogil:
    """All ids free. -1 when there is no memory."""
    cdef uint32_t i
    free(c.free_ids)
    free(c.id_states)
    c.free_ids = <uint16_t*>malloc(window * sizeof(uint16_t))
    c.id_states = <uint8_t*>calloc(window + 1, 1)
    if c.free_ids == NULL or c.id_states == NULL:
        return -1
    for i in range(window):
        c.free_ids[i] = <uint16_t>(i + 1)
    c.free_at = 0
    c.free_count = c.window = window
    return 0
