# tbmq.packets objects to bytes. Part of _codec.pyx.
#
# A body is written into one growing buffer and then gets its header. What cannot be written is a ValueError that names
# the field: a wrong packet is our own mistake, not the peer's.


@cython.final
cdef class _Body:
    """A growing buffer for one packet's body."""

    cdef uint8_t* data
    cdef size_t size
    cdef size_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t* reserve(self, size_t more) except NULL:
        """Room for `more` bytes, already counted; the caller fills them."""
        cdef size_t needed = self.size + more
        cdef uint8_t* grown
        cdef uint8_t* place
        if needed > self.capacity or self.data == NULL:
            grown = <uint8_t*>realloc(self.data, max(needed, 2 * self.capacity, <size_t>64))
            if grown == NULL:
                raise MemoryError()
            self.capacity = max(needed, 2 * self.capacity, <size_t>64)
            self.data = grown
        place = self.data + self.size
        self.size = needed
        return place

    cdef int put_byte(self, int value) except -1:
        self.reserve(1)[0] = <uint8_t>value
        return 0

    cdef int put_two_bytes(self, int value) except -1:
        store_u16(self.reserve(2), <uint16_t>value)
        return 0

    cdef int put_varint(self, uint32_t value) except -1:
        store_varint(self.reserve(varint_size(value)), value)
        return 0

    cdef int put_raw(self, const void* data, size_t size) except -1:
        if size:
            memcpy(self.reserve(size), data, size)
        return 0

    cdef int put_string(self, str value, str what) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* data
        if "\0" in value:
            raise ValueError(f"{what} holds U+0000, which MQTT forbids")
        data = PyUnicode_AsUTF8AndSize(value, &size)  # raises UnicodeEncodeError, a ValueError, for surrogates
        self.check_length(size, what)
        self.put_two_bytes(<int>size)
        return self.put_raw(data, size)

    cdef int put_binary(self, bytes value, str what) except -1:
        self.check_length(len(value), what)
        self.put_two_bytes(<int>len(value))
        return self.put_raw(PyBytes_AS_STRING(value), len(value))

    cdef int check_length(self, Py_ssize_t size, str what) except -1:
        if size > 0xFFFF:
            raise ValueError(f"{what} has {size} bytes; MQTT allows 65,535")
        return 0

    cdef bytes with_header(self, int first):
        cdef int length_bytes = varint_size(<uint32_t>self.size)
        cdef bytes packet
        cdef uint8_t* out
        if self.size > protocol.MAX_REMAINING_LENGTH:
            raise ValueError(f"a packet body of {self.size} bytes is larger than MQTT allows (268,435,455)")
        packet = PyBytes_FromStringAndSize(NULL, 1 + length_bytes + self.size)
        out = <uint8_t*>PyBytes_AS_STRING(packet)
        out[0] = <uint8_t>first
        out = store_varint(out + 1, <uint32_t>self.size)
        if self.size:
            memcpy(out, self.data, self.size)
        return packet


cdef long in_range(value, long minimum, long maximum, str what) except -1:
    if not isinstance(value, int) or not minimum <= value <= maximum:
        raise ValueError(f"{what} is {value!r}; it must be a whole number from {minimum} to {maximum}")
    return value


cdef bytes as_bytes(value, str what):
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(f"{what} is a {type(value).__name__}; it must be bytes")
    return bytes(value)


cdef int put_property(_Body body, int identifier, value) except -1:
    cdef const Rule* rule = &rules[identifier]
    cdef str name = property_names[identifier]
    cdef str what = f"property {name}"
    cdef long number
    body.put_varint(identifier)
    if rule.kind == STRING:
        body.put_string(value, what)
        if identifier == RESPONSE_TOPIC and (not value or "+" in value or "#" in value):
            raise ValueError("property response_topic is empty or holds a wildcard")
    elif rule.kind == BINARY:
        body.put_binary(as_bytes(value, what), what)
    elif rule.kind == STRING_PAIR:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"{what} is {value!r}; it must be a pair of texts")
        key, item = value
        body.put_string(key, what)
        body.put_string(item, what)
    elif rule.kind == BYTE:
        body.put_byte(in_range(value, rule.minimum, min(rule.maximum, <uint32_t>0xFF), what))
    elif rule.kind == TWO_BYTES:
        body.put_two_bytes(in_range(value, rule.minimum, min(rule.maximum, <uint32_t>0xFFFF), what))
    elif rule.kind == FOUR_BYTES:
        number = in_range(value, rule.minimum, rule.maximum, what)
        store_u32(body.reserve(4), <uint32_t>number)
    else:
        body.put_varint(in_range(value, rule.minimum, rule.maximum, what))
    return 0


cdef int put_properties(_Body body, dict properties, int packet, Sender sender) except -1:
    """Writes the whole section. `packet` is the packet type, 0 for the will."""
    cdef _Body section = _Body()
    put_property_list(section, properties, packet, sender)
    body.put_varint(<uint32_t>in_range(section.size, 0, protocol.MAX_REMAINING_LENGTH, "the size of the properties"))
    return body.put_raw(section.data, section.size)


cdef int put_property_list(_Body section, dict properties, int packet, Sender sender) except -1:
    cdef int identifier
    cdef uint16_t bit = <uint16_t>(1 << packet)
    for name, value in properties.items():
        if name not in property_identifiers:
            raise ValueError(f"property {name!r} is not known; see tbmq.protocol.PROPERTIES")
        identifier = property_identifiers[name]
        if not rules[identifier].allowed[<int>sender] & bit:
            where = protocol.PacketType(packet).name if packet else "a will"
            who = "client" if sender == FROM_CLIENT else "server"
            raise ValueError(f"property {name} is not allowed in {where} from a {who}")
        if rules[identifier].repeatable & bit:
            if not isinstance(value, (tuple, list)):
                raise ValueError(f"property {name} is {value!r}; it must be a list, as it may be repeated")
            for item in value:
                put_property(section, identifier, item)
        else:
            put_property(section, identifier, value)
    return 0


cdef int put_packet_id(_Body body, packet_id) except -1:
    return body.put_two_bytes(in_range(packet_id, 1, 0xFFFF, "packet_id"))


cdef int put_reason_code(_Body body, PacketType packet, code) except -1:
    if not isinstance(code, int) or not 0 <= code <= 255 or not reason_allowed[<int>packet][<int>code]:
        raise ValueError(f"reason code {code!r} is not allowed in {protocol.PacketType(packet).name}")
    return body.put_byte(code)


cdef int put_code_and_properties(_Body body, PacketType packet, code, dict properties, Sender sender) except -1:
    """The tail of acks, DISCONNECT and AUTH in its shortest form."""
    if code or properties:
        put_reason_code(body, packet, code)
        if properties:
            put_properties(body, properties, packet, sender)
    return 0


cdef int put_topic(_Body body, str topic) except -1:
    if "+" in topic or "#" in topic:
        raise ValueError("a topic holds a wildcard")
    return body.put_string(topic, "topic")


def encode(packet, int protocol_level, *, bint client=False) -> bytes:
    """The bytes of one packet, as a server sends it, or with `client=True` as a client does.

    Raises ValueError for what the protocol level cannot express.
    """
    cdef _Body body = _Body()
    cdef Sender sender = FROM_CLIENT if client else FROM_SERVER
    cdef int first
    check_level(protocol_level)
    writer = WRITERS.get(type(packet))
    if writer is None:
        raise ValueError(f"{type(packet).__name__} is not an MQTT packet")
    if protocol_level < 5 and getattr(packet, "properties", None):
        raise ValueError("properties need MQTT 5")
    first = writer(body, packet, protocol_level, <int>sender)
    if (first >> 4) not in (protocol.SENT_BY_CLIENT if client else protocol.SENT_BY_SERVER):
        raise ValueError(f"{type(packet).__name__} is not sent by a {'client' if client else 'server'}")
    return body.with_header(first)


# One writer per packet type: fills the body, answers the first byte of the header.

def _write_connect(_Body body, packet, int level, int sender):
    cdef int flags = 0
    will = packet.will
    if packet.protocol_level != level:
        raise ValueError(f"this CONNECT has protocol level {packet.protocol_level}, not {level}")
    if level < 5 and packet.password is not None and packet.username is None:
        raise ValueError("a password without a user name needs MQTT 5")
    flags |= 0x02 if packet.clean_start else 0
    if will is not None:
        flags |= 0x04 | in_range(will.qos, 0, 2, "will qos") << 3 | (0x20 if will.retain else 0)
    flags |= 0x80 if packet.username is not None else 0
    flags |= 0x40 if packet.password is not None else 0
    body.put_string(protocol.PROTOCOL_NAMES[level], "protocol name")
    body.put_byte(level)
    body.put_byte(flags)
    body.put_two_bytes(in_range(packet.keep_alive_s, 0, 0xFFFF, "keep_alive_s"))
    if level == 5:
        if "authentication_data" in packet.properties and "authentication_method" not in packet.properties:
            raise ValueError("authentication_data needs authentication_method")
        put_properties(body, packet.properties, CONNECT, <Sender>sender)
    body.put_string(packet.client_id, "client_id")
    if will is not None:
        if level == 5:
            put_properties(body, will.properties, 0, <Sender>sender)
        elif will.properties:
            raise ValueError("will properties need MQTT 5")
        if not will.topic:
            raise ValueError("the will topic is empty")
        put_topic(body, will.topic)
        body.put_binary(will.payload, "will payload")
    if packet.username is not None:
        body.put_string(packet.username, "username")
    if packet.password is not None:
        body.put_binary(packet.password, "password")
    return CONNECT << 4


def _write_connack(_Body body, packet, int level, int sender):
    if packet.session_present and packet.reason_code:
        raise ValueError("a refused connection has no session")
    body.put_byte(1 if packet.session_present else 0)
    if level == 5:
        put_reason_code(body, CONNACK, packet.reason_code)
        put_properties(body, packet.properties, CONNACK, <Sender>sender)
    else:
        body.put_byte(in_range(packet.reason_code, 0, 5, "return code"))
    return CONNACK << 4


def _write_publish(_Body body, packet, int level, int sender):
    cdef int qos = in_range(packet.qos, 0, 2, "qos")
    if packet.dup and not qos:
        raise ValueError("dup needs qos 1 or 2")
    if not packet.topic and "topic_alias" not in packet.properties:
        raise ValueError("an empty topic needs a topic_alias")
    put_topic(body, packet.topic)
    if qos:
        put_packet_id(body, packet.packet_id)
    elif packet.packet_id:
        raise ValueError("a packet_id needs qos 1 or 2")
    if level == 5:
        put_properties(body, packet.properties, PUBLISH, <Sender>sender)
    payload = as_bytes(packet.payload, "payload")
    body.put_raw(PyBytes_AS_STRING(payload), len(payload))
    return PUBLISH << 4 | (8 if packet.dup else 0) | qos << 1 | (1 if packet.retain else 0)


cdef int write_ack(_Body body, packet, PacketType packet_type, int level, int sender) except -1:
    put_packet_id(body, packet.packet_id)
    if level == 5:
        put_code_and_properties(body, packet_type, packet.reason_code, packet.properties, <Sender>sender)
    elif packet.reason_code:
        raise ValueError("a reason code in an ack needs MQTT 5")
    return packet_type << 4


def _write_puback(_Body body, packet, int level, int sender):
    return write_ack(body, packet, PUBACK, level, sender)


def _write_pubrec(_Body body, packet, int level, int sender):
    return write_ack(body, packet, PUBREC, level, sender)


def _write_pubrel(_Body body, packet, int level, int sender):
    return write_ack(body, packet, PUBREL, level, sender) | 0b0010


def _write_pubcomp(_Body body, packet, int level, int sender):
    return write_ack(body, packet, PUBCOMP, level, sender)


def _write_subscribe(_Body body, packet, int level, int sender):
    cdef int options
    put_packet_id(body, packet.packet_id)
    if level == 5:
        put_properties(body, packet.properties, SUBSCRIBE, <Sender>sender)
    if not packet.subscriptions:
        raise ValueError("SUBSCRIBE needs at least one subscription")
    for line in packet.subscriptions:
        options = in_range(line.qos, 0, 2, "qos")
        options |= (4 if line.no_local else 0) | (8 if line.retain_as_published else 0)
        options |= in_range(line.retain_handling, 0, 2, "retain_handling") << 4
        if level < 5 and options > 2:
            raise ValueError("subscription options need MQTT 5")
        if line.no_local and line.topic_filter.startswith("$share/"):
            raise ValueError("no_local is not allowed on a shared subscription")
        body.put_string(line.topic_filter, "topic_filter")
        body.put_byte(options)
    return SUBSCRIBE << 4 | 0b0010


def _write_suback(_Body body, packet, int level, int sender):
    put_packet_id(body, packet.packet_id)
    if level == 5:
        put_properties(body, packet.properties, SUBACK, <Sender>sender)
    if not packet.reason_codes:
        raise ValueError("SUBACK needs at least one reason code")
    for code in packet.reason_codes:
        if level == 5:
            put_reason_code(body, SUBACK, code)
        elif code in protocol.SUBACK_RETURN_CODES_V3:
            body.put_byte(code)
        else:
            raise ValueError(f"return code {code!r} needs MQTT 5")
    return SUBACK << 4


def _write_unsubscribe(_Body body, packet, int level, int sender):
    put_packet_id(body, packet.packet_id)
    if level == 5:
        put_properties(body, packet.properties, UNSUBSCRIBE, <Sender>sender)
    if not packet.topic_filters:
        raise ValueError("UNSUBSCRIBE needs at least one topic filter")
    for topic_filter in packet.topic_filters:
        body.put_string(topic_filter, "topic_filter")
    return UNSUBSCRIBE << 4 | 0b0010


def _write_unsuback(_Body body, packet, int level, int sender):
    put_packet_id(body, packet.packet_id)
    if level < 5:
        if packet.reason_codes:
            raise ValueError("reason codes in UNSUBACK need MQTT 5")
        return UNSUBACK << 4
    put_properties(body, packet.properties, UNSUBACK, <Sender>sender)
    if not packet.reason_codes:
        raise ValueError("UNSUBACK needs at least one reason code")
    for code in packet.reason_codes:
        put_reason_code(body, UNSUBACK, code)
    return UNSUBACK << 4


def _write_pingreq(_Body body, packet, int level, int sender):
    return PINGREQ << 4


def _write_pingresp(_Body body, packet, int level, int sender):
    return PINGRESP << 4


def _write_disconnect(_Body body, packet, int level, int sender):
    if level < 5 and sender == FROM_SERVER:
        raise ValueError("DISCONNECT from a server needs MQTT 5")
    if level == 5:
        put_code_and_properties(body, DISCONNECT, packet.reason_code, packet.properties, <Sender>sender)
    elif packet.reason_code:
        raise ValueError("a reason code in DISCONNECT needs MQTT 5")
    return DISCONNECT << 4


def _write_auth(_Body body, packet, int level, int sender):
    if level < 5:
        raise ValueError("AUTH needs MQTT 5")
    if (packet.reason_code or packet.properties) and "authentication_method" not in packet.properties:
        raise ValueError("AUTH needs authentication_method")
    put_code_and_properties(body, AUTH, packet.reason_code, packet.properties, <Sender>sender)
    return AUTH << 4


cdef dict WRITERS = {
    packets.Connect: _write_connect,
    packets.Connack: _write_connack,
    packets.Publish: _write_publish,
    packets.Puback: _write_puback,
    packets.Pubrec: _write_pubrec,
    packets.Pubrel: _write_pubrel,
    packets.Pubcomp: _write_pubcomp,
    packets.Subscribe: _write_subscribe,
    packets.Suback: _write_suback,
    packets.Unsubscribe: _write_unsubscribe,
    packets.Unsuback: _write_unsuback,
    packets.Pingreq: _write_pingreq,
    packets.Pingresp: _write_pingresp,
    packets.Disconnect: _write_disconnect,
    packets.Auth: _write_auth,
}


def encode_properties(dict properties not None, int packet) -> bytes:
    """A property section without its length, as a client writes it into this packet type (0: the will)."""
    cdef _Body body = _Body()
    put_property_list(body, properties, packet, FROM_CLIENT)
    return PyBytes_FromStringAndSize(<char*>body.data, body.size)
