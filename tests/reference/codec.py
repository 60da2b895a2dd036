"""The MQTT codec as the specification tells it: slow, obvious, and the judge of the compiled one.

Read it from top to bottom, it is ordered like the bytes on the wire:

    primitives   numbers, variable byte integers, strings     ``Reader``
    properties   the section that MQTT 5 puts in most packets  ``read_properties``
    bodies       one function per packet type                  ``read_connect`` ... ``read_auth``
    framing      first byte, remaining length, body            ``ReferenceDecoder``

The other direction is in ``tests/reference/encoder.py``.

The order of the checks is the contract of docs/codec.md: the first violation from left to right decides the reason
code, so the order of the lines below matters. It shares the tables of ``tbmq.protocol`` with the compiled codec, and
no code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tbmq.errors import PacketError
from tbmq.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tbmq.protocol import (
    CONNACK_RETURN_CODES_V3,
    MQTT_3_1,
    MQTT_5,
    PROPERTIES,
    PROTOCOL_NAMES,
    REASON_CODES,
    REPEATABLE_PROPERTIES,
    SENT_BY_CLIENT,
    SENT_BY_SERVER,
    SUBACK_RETURN_CODES_V3,
    WILL,
    PacketType,
    PropertyKind,
    ReasonCode,
)

MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL_ERROR = ReasonCode.PROTOCOL_ERROR
TOO_LARGE = ReasonCode.PACKET_TOO_LARGE
BAD_TOPIC = ReasonCode.TOPIC_NAME_INVALID
BAD_VERSION = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

RULE_BY_IDENTIFIER = {rule.identifier: rule for rule in PROPERTIES}


class Context(NamedTuple):
    """What a body's meaning depends on besides its own bytes."""

    level: int
    from_client: bool
    max_topic_levels: int
    max_properties: int


def fail(reason_code: int, detail: str) -> NoReturn:
    raise PacketError(reason_code, detail)


def has_wildcard(topic: str) -> bool:
    return "+" in topic or "#" in topic


# --- Primitives ------------------------------------------------------------------------------------------------------


class Reader:
    """Reads fields one after the other and never past its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            fail(MALFORMED, "a field goes past the end")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        """Seven bits per byte, the lowest first; the top bit says that more follow; at most four bytes."""
        value = 0
        for i in range(4):
            byte = self.number(1)
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if byte == 0 and i > 0:
                    fail(MALFORMED, "a variable byte integer is not in its shortest form")  # [MQTT-1.5.5-1]
                return value
        fail(MALFORMED, "a variable byte integer has a fifth byte")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def string(self) -> str:
        try:
            text = self.binary().decode("utf-8", "strict")  # refuses overlong forms and surrogates [MQTT-1.5.4-1]
        except UnicodeDecodeError:
            fail(MALFORMED, "a string is not UTF-8")
        if "\0" in text:
            fail(MALFORMED, "a string holds U+0000")  # [MQTT-1.5.4-2]
        return text

    def topic(self, context: Context) -> str:
        topic = self.string()
        if has_wildcard(topic):
            fail(BAD_TOPIC, "a topic holds a wildcard")  # [MQTT-3.3.2-2]
        if topic.count("/") + 1 > context.max_topic_levels:
            fail(BAD_TOPIC, "a topic has too many levels")
        return topic

    def packet_id(self) -> int:
        packet_id = self.number(2)
        if packet_id == 0:
            fail(PROTOCOL_ERROR, "packet id is zero")  # [MQTT-2.2.1-3]
        return packet_id

    def string_pair(self) -> tuple[str, str]:
        return self.string(), self.string()


# --- Properties ------------------------------------------------------------------------------------------------------

READ_VALUE: dict[PropertyKind, Callable[[Reader], Any]] = {
    PropertyKind.BYTE: lambda section: section.number(1),
    PropertyKind.TWO_BYTES: lambda section: section.number(2),
    PropertyKind.FOUR_BYTES: lambda section: section.number(4),
    PropertyKind.VARINT: Reader.varint,
    PropertyKind.STRING: Reader.string,
    PropertyKind.BINARY: Reader.binary,
    PropertyKind.STRING_PAIR: Reader.string_pair,
}


def is_repeatable(name: str, packet: int) -> bool:
    return packet in REPEATABLE_PROPERTIES.get(name, ())


def read_properties(body: Reader, packet: int, context: Context) -> Properties:
    if context.level < MQTT_5:
        return {}
    section = Reader(body.take(body.varint()))
    properties: Properties = {}
    count = 0
    while section.left:
        count += 1
        if count > context.max_properties:
            fail(TOO_LARGE, "too many properties")
        rule = RULE_BY_IDENTIFIER.get(section.varint())
        if rule is None:
            fail(MALFORMED, "unknown property")
        if packet not in (rule.from_client if context.from_client else rule.from_server):
            fail(PROTOCOL_ERROR, "a property is not allowed in this packet")
        if rule.name in properties and not is_repeatable(rule.name, packet):
            fail(PROTOCOL_ERROR, "a property stands twice")
        value = READ_VALUE[rule.kind](section)
        if isinstance(value, int) and not rule.minimum <= value <= rule.maximum:
            fail(rule.range_error, "the value of a property is out of range")
        if rule.name == "response_topic" and (not value or has_wildcard(value)):
            fail(PROTOCOL_ERROR, "response topic is empty or holds a wildcard")  # [MQTT-3.3.2-14]
        if is_repeatable(rule.name, packet):
            properties.setdefault(rule.name, []).append(value)
        else:
            properties[rule.name] = value
    return properties


# --- Bodies ----------------------------------------------------------------------------------------------------------


def read_connect(body: Reader, context: Context, length_is_shortest: bool) -> Connect:
    name = body.string()
    if name not in PROTOCOL_NAMES.values():
        fail(BAD_VERSION, "unknown protocol name")
    level = body.number(1)
    if PROTOCOL_NAMES.get(level) != name:
        fail(BAD_VERSION, "unknown protocol level")
    if level == MQTT_5 and not length_is_shortest:
        fail(MALFORMED, "remaining length is not in its shortest form")
    context = context._replace(level=level)

    flags = body.number(1)
    clean_start, has_will, will_retain = bool(flags & 0x02), bool(flags & 0x04), bool(flags & 0x20)
    has_password, has_username = bool(flags & 0x40), bool(flags & 0x80)
    will_qos = flags >> 3 & 3
    if flags & 0x01:
        fail(MALFORMED, "reserved flag is set")  # [MQTT-3.1.2-3]
    if not has_will and (will_qos or will_retain):
        fail(MALFORMED, "will QoS or will retain without a will")  # [MQTT-3.1.2-11, MQTT-3.1.2-13]
    if will_qos == 3:
        fail(MALFORMED, "will QoS is 3")  # [MQTT-3.1.2-12]
    if has_password and not has_username and level < MQTT_5:
        fail(MALFORMED, "password without user name")  # MQTT 3.1.1: [MQTT-3.1.2-22]

    keep_alive_s = body.number(2)
    properties = read_properties(body, PacketType.CONNECT, context)
    if "authentication_data" in properties and "authentication_method" not in properties:
        fail(PROTOCOL_ERROR, "authentication data without method")
    client_id = body.string()

    will = None
    if has_will:
        will_properties = read_properties(body, WILL, context)
        will_topic = body.topic(context)
        if not will_topic:
            fail(MALFORMED, "will topic is empty")
        will = Will(will_topic, body.binary(), will_qos, will_retain, will_properties)

    # MQTT 3.1 allows a packet to end before the user name or the password that its flags announce.
    username = password = None
    if has_username and not (level == MQTT_3_1 and body.left == 0):
        username = body.string()
    if has_password and not (level == MQTT_3_1 and body.left == 0):
        password = body.binary()
    return Connect(client_id, level, clean_start, keep_alive_s, will, username, password, properties)


def read_connack(body: Reader, flags: int, context: Context) -> Connack:
    acknowledge_flags = body.number(1)
    if acknowledge_flags & 0xFE:
        fail(MALFORMED, "reserved bits of the acknowledge flags are set")  # [MQTT-3.2.2-1]
    session_present = bool(acknowledge_flags)
    reason_code = read_reason_code(body, PacketType.CONNACK, context, CONNACK_RETURN_CODES_V3)
    if session_present and reason_code != 0:
        fail(PROTOCOL_ERROR, "session present in a refusal")  # [MQTT-3.2.2-6]
    return Connack(session_present, reason_code, read_properties(body, PacketType.CONNACK, context))


def read_reason_code(
    body: Reader, packet: PacketType, context: Context, below_mqtt_5: frozenset[int] = frozenset()
) -> int:
    reason_code = body.number(1)
    if reason_code not in (REASON_CODES[packet] if context.level >= MQTT_5 else below_mqtt_5):
        fail(PROTOCOL_ERROR, "this packet cannot carry this reason code")
    return reason_code


def read_publish(body: Reader, flags: int, context: Context) -> Publish:
    qos = flags >> 1 & 3
    topic = body.topic(context)
    packet_id = body.packet_id() if qos else 0
    properties = read_properties(body, PacketType.PUBLISH, context)
    if not topic and "topic_alias" not in properties:
        fail(PROTOCOL_ERROR, "neither topic nor topic alias")
    return Publish(topic, body.take(body.left), qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


def read_ack(body: Reader, packet: PacketType, context: Context) -> tuple[int, int, Properties]:
    """PUBACK, PUBREC, PUBREL, PUBCOMP: 2 bytes; MQTT 5 may add a reason code; and then properties."""
    packet_id = body.packet_id()
    reason_code, properties = read_optional_tail(body, packet, context)
    return packet_id, reason_code, properties


def read_optional_tail(body: Reader, packet: PacketType, context: Context) -> tuple[int, Properties]:
    """Reason code and properties where MQTT 5 lets a sender leave off both, or the properties."""
    if context.level < MQTT_5 or body.left == 0:
        return 0, {}
    reason_code = read_reason_code(body, packet, context)
    return reason_code, read_properties(body, packet, context) if body.left else {}


def read_subscribe(body: Reader, flags: int, context: Context) -> Subscribe:
    packet_id = body.packet_id()
    properties = read_properties(body, PacketType.SUBSCRIBE, context)
    subscriptions = []
    while body.left:
        topic_filter = body.string()
        options = body.number(1)
        qos, no_local, retain_as_published = options & 3, bool(options & 4), bool(options & 8)
        retain_handling = options >> 4 & 3
        reserved = 0xC0 if context.level >= MQTT_5 else 0xFC
        if options & reserved or qos == 3:
            fail(MALFORMED, "reserved subscription options or QoS 3")  # [MQTT-3.8.3-5]
        if retain_handling == 3:
            fail(PROTOCOL_ERROR, "retain handling is 3")
        if no_local and topic_filter.startswith("$share/"):
            fail(PROTOCOL_ERROR, "no local on a shared subscription")  # [MQTT-3.8.3-4]
        subscriptions.append(Subscription(topic_filter, qos, no_local, retain_as_published, retain_handling))
    if not subscriptions:
        fail(PROTOCOL_ERROR, "no topic filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, subscriptions, properties)


def read_unsubscribe(body: Reader, flags: int, context: Context) -> Unsubscribe:
    packet_id = body.packet_id()
    properties = read_properties(body, PacketType.UNSUBSCRIBE, context)
    topic_filters = []
    while body.left:
        topic_filters.append(body.string())
    if not topic_filters:
        fail(PROTOCOL_ERROR, "no topic filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, topic_filters, properties)


def read_suback(body: Reader, flags: int, context: Context) -> Suback:
    packet_id = body.packet_id()
    properties = read_properties(body, PacketType.SUBACK, context)
    return Suback(packet_id, read_reason_codes(body, PacketType.SUBACK, context, SUBACK_RETURN_CODES_V3), properties)


def read_unsuback(body: Reader, flags: int, context: Context) -> Unsuback:
    packet_id = body.packet_id()
    if context.level < MQTT_5:
        return Unsuback(packet_id)
    properties = read_properties(body, PacketType.UNSUBACK, context)
    return Unsuback(packet_id, read_reason_codes(body, PacketType.UNSUBACK, context), properties)


def read_reason_codes(
    body: Reader, packet: PacketType, context: Context, below_mqtt_5: frozenset[int] = frozenset()
) -> list[int]:
    codes = []
    while body.left:
        codes.append(read_reason_code(body, packet, context, below_mqtt_5))
    if not codes:
        fail(PROTOCOL_ERROR, "no reason code")
    return codes


def read_auth(body: Reader, flags: int, context: Context) -> Auth:
    auth = Auth(*read_optional_tail(body, PacketType.AUTH, context))
    if (auth.reason_code or auth.properties) and "authentication_method" not in auth.properties:
        fail(PROTOCOL_ERROR, "AUTH without authentication method")
    return auth


READ_BODY: dict[PacketType, Callable[[Reader, int, Context], Packet]] = {
    PacketType.CONNACK: read_connack,
    PacketType.PUBLISH: read_publish,
    PacketType.PUBACK: lambda body, flags, context: Puback(*read_ack(body, PacketType.PUBACK, context)),
    PacketType.PUBREC: lambda body, flags, context: Pubrec(*read_ack(body, PacketType.PUBREC, context)),
    PacketType.PUBREL: lambda body, flags, context: Pubrel(*read_ack(body, PacketType.PUBREL, context)),
    PacketType.PUBCOMP: lambda body, flags, context: Pubcomp(*read_ack(body, PacketType.PUBCOMP, context)),
    PacketType.SUBSCRIBE: read_subscribe,
    PacketType.SUBACK: read_suback,
    PacketType.UNSUBSCRIBE: read_unsubscribe,
    PacketType.UNSUBACK: read_unsuback,
    PacketType.PINGREQ: lambda body, flags, context: Pingreq(),
    PacketType.PINGRESP: lambda body, flags, context: Pingresp(),
    PacketType.DISCONNECT: lambda body, flags, context: Disconnect(
        *read_optional_tail(body, PacketType.DISCONNECT, context)
    ),
    PacketType.AUTH: read_auth,
}


# --- Framing ---------------------------------------------------------------------------------------------------------


class ReferenceDecoder:
    """Bytes in, packets out; the same interface as ``tbmq._codec.Decoder``."""

    def __init__(
        self,
        *,
        client: bool = False,
        protocol_level: int = 0,
        max_packet_bytes: int = 268_435_460,
        max_topic_levels: int = 128,
        max_properties: int = 1024,
    ) -> None:
        if (client or protocol_level) and protocol_level not in PROTOCOL_NAMES:
            raise ValueError("unknown protocol level")
        self.protocol_level = protocol_level
        self.max_packet_bytes = max_packet_bytes
        self._from_client = not client
        self._max_topic_levels = max_topic_levels
        self._max_properties = max_properties
        self._buffer = bytearray()
        self._error: PacketError | None = None

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Packet]:
        """All packets that these bytes complete. An error waits until a call that has no packet to return."""
        if self._error is not None:
            raise self._error
        self._buffer += data
        packets: list[Packet] = []
        try:
            while (packet := self._next_packet()) is not None:
                packets.append(packet)
        except PacketError as error:
            self._error = error
            if not packets:
                raise
        return packets

    def _next_packet(self) -> Packet | None:
        """The next packet if it is complete. What is there of an incomplete one is judged all the same."""
        if not self._buffer:
            return None
        packet_type, flags = self._judge_first_byte(self._buffer[0])

        body_bytes = 0
        for i in range(4):
            if len(self._buffer) < 2 + i:
                return None
            byte = self._buffer[1 + i]
            body_bytes |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                break
        else:
            fail(MALFORMED, "remaining length has a fifth byte")
        header_bytes = 2 + i
        length_is_shortest = not (byte == 0 and i > 0)
        if self.protocol_level >= MQTT_5 and not length_is_shortest:
            fail(MALFORMED, "remaining length is not in its shortest form")  # [MQTT-1.5.5-1]
        if header_bytes + body_bytes > self.max_packet_bytes:
            fail(TOO_LARGE, "packet is larger than allowed")
        if len(self._buffer) < header_bytes + body_bytes:
            return None

        body = Reader(bytes(self._buffer[header_bytes : header_bytes + body_bytes]))
        context = Context(self.protocol_level, self._from_client, self._max_topic_levels, self._max_properties)
        if packet_type == PacketType.CONNECT:
            packet: Packet = read_connect(body, context, length_is_shortest)
        else:
            packet = READ_BODY[packet_type](body, flags, context)
        if body.left:
            fail(MALFORMED, "bytes are left over")
        if isinstance(packet, Connect):
            self.protocol_level = packet.protocol_level
        del self._buffer[: header_bytes + body_bytes]
        return packet

    def _judge_first_byte(self, byte: int) -> tuple[PacketType, int]:
        level, flags = self.protocol_level, byte & 0x0F
        if byte >> 4 == 0:
            fail(MALFORMED, "packet type 0")
        packet_type = PacketType(byte >> 4)
        if self._from_client:
            if level == 0 and packet_type != PacketType.CONNECT:
                fail(PROTOCOL_ERROR, "the first packet is not CONNECT")  # [MQTT-3.1.0-1]
            if level != 0 and packet_type == PacketType.CONNECT:
                fail(PROTOCOL_ERROR, "a second CONNECT")  # [MQTT-3.1.0-2]
        if packet_type not in (SENT_BY_CLIENT if self._from_client else SENT_BY_SERVER):
            fail(PROTOCOL_ERROR, "only the other side sends this packet")
        if packet_type == PacketType.DISCONNECT and not self._from_client and level < MQTT_5:
            fail(PROTOCOL_ERROR, "below MQTT 5 only clients send DISCONNECT")
        if packet_type == PacketType.AUTH and level < MQTT_5:
            fail(MALFORMED, "packet type 15 below MQTT 5")

        if packet_type == PacketType.PUBLISH:
            qos, dup = flags >> 1 & 3, flags & 8
            if qos == 3 or (qos == 0 and dup):
                fail(MALFORMED, "QoS 3, or DUP with QoS 0")  # [MQTT-3.3.1-4, MQTT-3.3.1-2]
        elif packet_type in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
            if flags != 0b0010 and not (flags == 0b1010 and level == MQTT_3_1):  # MQTT 3.1 knows DUP here
                fail(MALFORMED, "flags are not 0010")  # [MQTT-3.6.1-1, MQTT-3.8.1-1, MQTT-3.10.1-1]
        elif flags != 0:
            fail(MALFORMED, "flags are not 0000")  # [MQTT-2.1.3-1]
        return packet_type, flags
