# Bytes to tbmq.packets objects. Part of _codec.pyx.
#
# `take_*` here are the raising twins of those in _wire.pxd: they return Python values and raise PacketError. Each
# `read_<packet>` reads one whole body in the order of docs/codec.md.


cdef raise_fault(int reason_code, const Cursor* cursor):
    raise PacketError(reason_code, cursor.fault.decode())


cdef inline int check(int reason_code, const Cursor* cursor) except -1:
    if reason_code != OK:
        raise_fault(reason_code, cursor)
    return 0


cdef inline str text(const Span* span):
    return PyUnicode_DecodeUTF8(<const char*>span.data, span.size, NULL)


cdef inline bytes raw(const Span* span):
    return PyBytes_FromStringAndSize(<const char*>span.data, span.size)


cdef inline int byte_of(Cursor* body) except -1:
    cdef uint8_t value = 0
    check(take_u8(body, &value), body)
    return value


cdef inline int two_bytes_of(Cursor* body) except -1:
    cdef uint16_t value = 0
    check(take_u16(body, &value), body)
    return value


cdef inline str string_of(Cursor* body):
    cdef Span span
    check(take_string(body, &span), body)
    return text(&span)


cdef inline bytes binary_of(Cursor* body):
    cdef Span span
    check(take_binary(body, &span), body)
    return raw(&span)


cdef int packet_id_of(Cursor* body) except -1:
    cdef int packet_id = two_bytes_of(body)
    if packet_id == 0:
        raise PacketError(PROTOCOL_ERROR, "a packet id is 0")  # [MQTT-2.2.1-3]
    return packet_id


cdef int reason_code_of(Cursor* body, PacketType packet) except -1:
    cdef int code = byte_of(body)
    if not reason_allowed[<int>packet][code]:
        raise PacketError(PROTOCOL_ERROR, "a reason code is not allowed in this packet")
    return code


cdef int expect_end(const Cursor* body) except -1:
    if body.at != body.end:
        raise PacketError(MALFORMED, "a packet has bytes left over")
    return 0


@cython.final
cdef class Decoder:
    """Turns a stream of bytes into packets, however it is cut.

    Server side (the default): the first packet must be CONNECT, and the decoder learns the protocol level from it; a
    `protocol_level` given means that CONNECT has been read already. Client side (`client=True`): reads what servers
    send; the level must be given.

    `feed` returns the packets completed by its bytes. After a violation the packets before it are still returned; the
    call that has none to return, and every later one, raises the same PacketError.
    """

    def __cinit__(self, *, bint client=False, int protocol_level=0, uint32_t max_packet_bytes=268_435_460,
                  uint32_t max_topic_levels=128, uint32_t max_properties=1024):
        if client or protocol_level:
            check_level(protocol_level)
        self.sender = FROM_SERVER if client else FROM_CLIENT
        self.level = protocol_level
        self.limits = Limits(max_packet_bytes, max_topic_levels, max_properties)

    def __dealloc__(self):
        free(self.buffer)

    @property
    def protocol_level(self):
        return self.level

    @protocol_level.setter
    def protocol_level(self, int value):
        check_level(value)
        self.level = value

    @property
    def max_packet_bytes(self):
        """Writable: what an unknown peer may send in CONNECT is less than what it may send afterwards."""
        return self.limits.max_packet_bytes

    @max_packet_bytes.setter
    def max_packet_bytes(self, uint32_t value):
        self.limits.max_packet_bytes = value

    @property
    def pending_bytes(self):
        """Bytes kept of a packet that is not complete yet."""
        return self.size

    def feed(self, data) -> list:
        cdef Py_buffer view
        cdef list found = []
        cdef size_t used
        if self.error_code == OK:
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            try:
                if self.size == 0:
                    used = self.decode_all(<const uint8_t*>view.buf, view.len, found)
                    self.keep(<const uint8_t*>view.buf + used, view.len - used)
                else:
                    self.keep(<const uint8_t*>view.buf, view.len)
                    self.forget(self.decode_all(self.buffer, self.size, found))
            finally:
                PyBuffer_Release(&view)
        if self.error_code != OK and not found:
            raise PacketError(self.error_code, self.error_detail)
        return found

    cdef size_t decode_all(self, const uint8_t* data, size_t available, list found) except? 0:
        """Appends the complete packets at `data` to `found`; answers how many bytes they took. A violation is noted."""
        cdef size_t used = 0
        cdef Header header
        cdef Cursor body
        cdef int status
        while True:
            status = read_header(
                data + used, available - used, self.level, self.sender, self.limits.max_packet_bytes, &header,
                &body.fault
            )
            if status == NEED_MORE:
                return used
            if status != OK:
                self.error_code, self.error_detail = status, body.fault.decode()
                return used
            if available - used < header.size + <size_t>header.body_bytes:
                return used
            body.at = data + used + header.size
            body.end = body.at + header.body_bytes
            try:
                found.append(self.read_body(&header, &body))
            except PacketError as error:
                self.error_code, self.error_detail = error.reason_code, error.detail
                return used
            used += header.size + header.body_bytes

    cdef int keep(self, const uint8_t* data, size_t size) except -1:
        cdef size_t needed = self.size + size
        cdef uint8_t* grown
        if size == 0 or self.error_code != OK:
            return 0
        if needed > self.capacity:
            # Under AddressSanitizer exactly what is needed, so that a read past the last byte is seen.
            self.capacity = needed if ASAN else max(needed, 2 * self.size)
            grown = <uint8_t*>realloc(self.buffer, self.capacity)
            if grown == NULL:
                self.capacity = self.size
                raise MemoryError()
            self.buffer = grown
        memcpy(self.buffer + self.size, data, size)
        self.size = needed
        return 0

    cdef void forget(self, size_t used) noexcept:
        if used == self.size or self.error_code != OK:
            free(self.buffer)
            self.buffer = NULL
            self.size = self.capacity = 0
        elif used:
            self.size -= used
            memmove(self.buffer, self.buffer + used, self.size)

    cdef object read_body(self, const Header* header, Cursor* body):
        cdef int packet_type = header.first >> 4
        cdef object packet
        if packet_type == PUBLISH:
            return self.read_publish(header.first, body)
        if PUBACK <= packet_type <= PUBCOMP:
            return self.read_ack(<PacketType>packet_type, body)
        if packet_type == CONNECT:
            packet = self.read_connect(header, body)
        elif packet_type == CONNACK:
            packet = self.read_connack(body)
        elif packet_type == SUBSCRIBE:
            packet = self.read_subscribe(body)
        elif packet_type == SUBACK:
            packet = self.read_suback(body)
        elif packet_type == UNSUBSCRIBE:
            packet = self.read_unsubscribe(body)
        elif packet_type == UNSUBACK:
            packet = self.read_unsuback(body)
        elif packet_type == PINGREQ:
            packet = packets.Pingreq()
        elif packet_type == PINGRESP:
            packet = packets.Pingresp()
        elif packet_type == DISCONNECT:
            packet = self.read_disconnect(body)
        else:
            packet = self.read_auth(body)
        expect_end(body)
        if packet_type == CONNECT:
            self.level = packet.protocol_level
        return packet

    cdef dict read_properties(self, Cursor* body, uint8_t packet):
        cdef PropertySection section
        check(open_properties(body, packet, self.sender, self.limits.max_properties, &section), body)
        return self.collect_properties(&section)

    cdef dict collect_properties(self, PropertySection* section):
        cdef Property found
        cdef dict result = {}
        cdef int status = next_property(section, &found)
        cdef const Rule* rule
        cdef object value
        while status == 1:
            rule = &rules[found.identifier]
            name = property_names[found.identifier]
            if rule.kind == STRING:
                value = text(&found.data)
            elif rule.kind == BINARY:
                value = raw(&found.data)
            elif rule.kind == STRING_PAIR:
                value = (text(&found.data), text(&found.value))
            else:
                value = found.number
            if rule.repeatable & (1 << section.packet):
                if name in result:
                    (<list>result[name]).append(value)
                else:
                    result[name] = [value]
            else:
                result[name] = value
            status = next_property(section, &found)
        check(status, &section.cursor)
        return result

    cdef dict read_view_properties(self, const Span* section_bytes, PacketType packet):
        """Properties that a view has checked already, now as objects."""
        cdef PropertySection section
        if section_bytes.size == 0:
            return {}
        section.cursor.at = section_bytes.data
        section.cursor.end = section_bytes.data + section_bytes.size
        section.seen = section.count = 0
        section.max_count = self.limits.max_properties
        section.packet = <uint8_t>packet
        section.sender = <uint8_t>self.sender
        return self.collect_properties(&section)

    cdef object read_publish(self, uint8_t first, Cursor* body):
        cdef PublishView view
        check(decode_publish(body, first, self.level, self.sender, &self.limits, &view), body)
        return packets.Publish(
            text(&view.topic),
            raw(&view.payload),
            view.qos,
            bool(view.retain),
            bool(view.dup),
            view.packet_id,
            self.read_view_properties(&view.properties, PUBLISH),
        )

    cdef object read_ack(self, PacketType packet, Cursor* body):
        cdef AckView view
        check(decode_ack(body, packet, self.level, self.sender, &self.limits, &view), body)
        return ACK_CLASSES[<int>packet - PUBACK](
            view.packet_id, view.reason_code, self.read_view_properties(&view.properties, packet)
        )

    cdef object read_connect(self, const Header* header, Cursor* body):
        cdef str name
        cdef int level, flags, keep_alive_s, will_qos
        self.announced_level = 0
        name = string_of(body)
        if name != "MQTT" and name != "MQIsdp":
            raise PacketError(UNSUPPORTED_VERSION, "the protocol name is not known")
        level = byte_of(body)
        self.announced_level = 4  # every version can read a 3.1.1 refusal
        if protocol.PROTOCOL_NAMES.get(level) != name:
            raise PacketError(UNSUPPORTED_VERSION, f"protocol level {level} of {name} is not known")
        self.announced_level = level
        if level == 5 and 1 + varint_size(header.body_bytes) != <int>header.size:
            raise PacketError(MALFORMED, "the remaining length is longer than its shortest form")
        flags = byte_of(body)
        will_qos = (flags >> 3) & 3
        if flags & 0x01:
            raise PacketError(MALFORMED, "the reserved connect flag is set")  # [MQTT-3.1.2-3]
        if not flags & 0x04 and flags & 0x38:
            raise PacketError(MALFORMED, "there is a will QoS or will retain without a will")  # [MQTT-3.1.2-11]
        if will_qos == 3:
            raise PacketError(MALFORMED, "the will QoS is 3")  # [MQTT-3.1.2-12]
        if level < 5 and flags & 0x40 and not flags & 0x80:
            raise PacketError(MALFORMED, "there is a password without a user name")  # 3.1.1: [MQTT-3.1.2-22]
        keep_alive_s = two_bytes_of(body)
        properties = {}
        if level == 5:
            properties = self.read_properties(body, CONNECT)
            if "authentication_data" in properties and "authentication_method" not in properties:
                raise PacketError(PROTOCOL_ERROR, "there is authentication data without a method")
        client_id = string_of(body)
        will = self.read_will(level, will_qos, bool(flags & 0x20), body) if flags & 0x04 else None
        username = password = None
        if flags & 0x80 and not (level == 3 and body.at == body.end):
            username = string_of(body)
        if flags & 0x40 and not (level == 3 and body.at == body.end):
            password = binary_of(body)
        return packets.Connect(
            client_id, level, bool(flags & 0x02), keep_alive_s, will, username, password, properties
        )

    cdef object read_will(self, int level, int qos, bint retain, Cursor* body):
        cdef Span topic
        properties = self.read_properties(body, 0) if level == 5 else {}
        check(take_topic(body, self.limits.max_topic_levels, &topic), body)
        if topic.size == 0:
            raise PacketError(MALFORMED, "the will topic is empty")
        return packets.Will(text(&topic), binary_of(body), qos, bool(retain), properties)

    cdef object read_connack(self, Cursor* body):
        cdef int flags = byte_of(body)
        cdef int code
        if flags & 0xFE:
            raise PacketError(MALFORMED, "a reserved flag of CONNACK is set")  # [MQTT-3.2.2-1]
        if self.level == 5:
            code = reason_code_of(body, CONNACK)
        else:
            code = byte_of(body)
            if code not in protocol.CONNACK_RETURN_CODES_V3:
                raise PacketError(PROTOCOL_ERROR, "a return code is not known")
        if flags and code:
            raise PacketError(PROTOCOL_ERROR, "a refused connection claims a session")  # [MQTT-3.2.2-6]
        properties = self.read_properties(body, CONNACK) if self.level == 5 else {}
        return packets.Connack(bool(flags), code, properties)

    cdef object read_subscribe(self, Cursor* body):
        cdef int packet_id = packet_id_of(body)
        cdef dict properties = self.read_properties(body, SUBSCRIBE) if self.level == 5 else {}
        cdef list subscriptions = []
        while body.at != body.end or not subscriptions:
            if body.at == body.end:
                raise PacketError(PROTOCOL_ERROR, "SUBSCRIBE has no topic filter")  # [MQTT-3.8.3-2]
            topic_filter = string_of(body)
            subscriptions.append(self.read_subscription(topic_filter, byte_of(body)))
        return packets.Subscribe(packet_id, subscriptions, properties)

    cdef object read_subscription(self, str topic_filter, int options):
        cdef int retain_handling = (options >> 4) & 3
        cdef bint no_local = (options >> 2) & 1
        if options & (0xC0 if self.level == 5 else 0xFC):
            raise PacketError(MALFORMED, "a reserved subscription option is set")  # [MQTT-3.8.3-5]
        if options & 3 == 3:
            raise PacketError(MALFORMED, "a requested QoS is 3")
        if retain_handling == 3:
            raise PacketError(PROTOCOL_ERROR, "Retain Handling is 3")
        if no_local and topic_filter.startswith("$share/"):
            raise PacketError(PROTOCOL_ERROR, "No Local on a shared subscription")  # [MQTT-3.8.3-4]
        return packets.Subscription(
            topic_filter, options & 3, bool(no_local), bool(options & 8), retain_handling
        )

    cdef object read_unsubscribe(self, Cursor* body):
        cdef int packet_id = packet_id_of(body)
        cdef dict properties = self.read_properties(body, UNSUBSCRIBE) if self.level == 5 else {}
        cdef list topic_filters = []
        while body.at != body.end:
            topic_filters.append(string_of(body))
        if not topic_filters:
            raise PacketError(PROTOCOL_ERROR, "UNSUBSCRIBE has no topic filter")  # [MQTT-3.10.3-2]
        return packets.Unsubscribe(packet_id, topic_filters, properties)

    cdef object read_suback(self, Cursor* body):
        cdef int packet_id = packet_id_of(body)
        cdef dict properties = self.read_properties(body, SUBACK) if self.level == 5 else {}
        return packets.Suback(packet_id, self.read_codes(body, SUBACK), properties)

    cdef object read_unsuback(self, Cursor* body):
        cdef int packet_id = packet_id_of(body)
        if self.level < 5:
            return packets.Unsuback(packet_id)
        properties = self.read_properties(body, UNSUBACK)
        return packets.Unsuback(packet_id, self.read_codes(body, UNSUBACK), properties)

    cdef list read_codes(self, Cursor* body, PacketType packet):
        cdef list codes = []
        cdef int code
        while body.at != body.end:
            if self.level == 5:
                code = reason_code_of(body, packet)
            else:
                code = byte_of(body)
                if code not in protocol.SUBACK_RETURN_CODES_V3:
                    raise PacketError(PROTOCOL_ERROR, "a return code is not known")
            codes.append(code)
        if not codes:
            raise PacketError(PROTOCOL_ERROR, "there is no reason code")
        return codes

    cdef object read_disconnect(self, Cursor* body):
        cdef int code = 0
        cdef dict properties = {}
        if self.level == 5 and body.at != body.end:
            code = reason_code_of(body, DISCONNECT)
            if body.at != body.end:
                properties = self.read_properties(body, DISCONNECT)
        return packets.Disconnect(code, properties)

    cdef object read_auth(self, Cursor* body):
        cdef int code = 0
        cdef dict properties = {}
        if body.at != body.end:
            code = reason_code_of(body, AUTH)
            if body.at != body.end:
                properties = self.read_properties(body, AUTH)
        if (code or properties) and "authentication_method" not in properties:
            raise PacketError(PROTOCOL_ERROR, "AUTH has no authentication method")
        return packets.Auth(code, properties)


cdef tuple ACK_CLASSES = (packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp)
