"""Packets to bytes, slow and obvious: the other half of ``tests/reference/codec.py``.

The writer does not repeat the decoder's rules. It writes the bytes, then lets the strict decoder of the other side read
them: a packet that would be refused there, or that would not come back equal, cannot be written.
"""

from __future__ import annotations

from typing import Any

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
    Unsuback,
    Unsubscribe,
)
from tbmq.protocol import (
    MAX_REMAINING_LENGTH,
    MQTT_5,
    PROPERTIES,
    PROTOCOL_NAMES,
    REPEATABLE_PROPERTIES,
    WILL,
    PacketType,
    PropertyKind,
)
from tests.reference.codec import ReferenceDecoder

RULES = {rule.name: rule for rule in PROPERTIES}


def reference_encode(packet: Packet, protocol_level: int, *, client: bool = False) -> bytes:
    """The packet as a server sends it; with ``client`` as a client does. ValueError for what cannot be written."""
    if protocol_level not in PROTOCOL_NAMES:
        raise ValueError("unknown protocol level")
    if isinstance(packet, Connect) and packet.protocol_level != protocol_level:
        raise ValueError("CONNECT has another protocol level")
    first_byte, body = write(packet, protocol_level)
    if len(body) > MAX_REMAINING_LENGTH:
        raise ValueError("packet is too large")
    data = bytes([first_byte]) + varint(len(body)) + body
    peer = ReferenceDecoder(
        client=not client,
        protocol_level=0 if isinstance(packet, Connect) else protocol_level,
        max_topic_levels=65_536,
        max_properties=MAX_REMAINING_LENGTH,
    )
    try:
        returned = peer.feed(data)
    except PacketError as error:
        raise ValueError(f"the peer would refuse it: {error}") from error
    if returned != [packet]:
        raise ValueError("the peer would read something else: a field that this level or this packet does not have")
    return data


def number(value: int, size: int) -> bytes:
    if not 0 <= value < 1 << 8 * size:
        raise ValueError("a number does not fit its field")
    return value.to_bytes(size, "big")


def varint(value: int) -> bytes:
    if not 0 <= value <= MAX_REMAINING_LENGTH:
        raise ValueError("a number does not fit a variable byte integer")
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def binary(value: bytes) -> bytes:
    if len(value) > 0xFFFF:
        raise ValueError("a string or binary field is longer than 65,535 bytes")
    return number(len(value), 2) + value


def string(value: str) -> bytes:
    return binary(value.encode("utf-8", "strict"))


def property_value(kind: PropertyKind, value: Any) -> bytes:
    match kind:
        case PropertyKind.BYTE:
            return number(value, 1)
        case PropertyKind.TWO_BYTES:
            return number(value, 2)
        case PropertyKind.FOUR_BYTES:
            return number(value, 4)
        case PropertyKind.VARINT:
            return varint(value)
        case PropertyKind.STRING:
            return string(value)
        case PropertyKind.BINARY:
            return binary(value)
        case PropertyKind.STRING_PAIR:
            name, text = value
            return string(name) + string(text)


def property_section(properties: Properties, packet: int, level: int) -> bytes:
    """In the order of the mapping; the values of a repeated property stand together."""
    if level < MQTT_5:
        if properties:
            raise ValueError("properties below MQTT 5")
        return b""
    section = b""
    for name, value in properties.items():
        if name not in RULES:
            raise ValueError(f"unknown property {name!r}")
        rule = RULES[name]
        for one in value if packet in REPEATABLE_PROPERTIES.get(name, ()) else [value]:
            section += varint(rule.identifier) + property_value(rule.kind, one)
    return varint(len(section)) + section


def optional_tail(reason_code: int, properties: Properties, packet: int, level: int) -> bytes:
    """The shortest form: nothing, only the reason code, or both."""
    if properties:
        return number(reason_code, 1) + property_section(properties, packet, level)
    return number(reason_code, 1) if reason_code else b""


def connect_body(packet: Connect, level: int) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    body = string(PROTOCOL_NAMES[level]) + number(level, 1) + number(flags, 1) + number(packet.keep_alive_s, 2)
    body += property_section(packet.properties, PacketType.CONNECT, level) + string(packet.client_id)
    if will is not None:
        body += property_section(will.properties, WILL, level) + string(will.topic) + binary(will.payload)
    if packet.username is not None:
        body += string(packet.username)
    if packet.password is not None:
        body += binary(packet.password)
    return body


def publish_body(packet: Publish, level: int) -> bytes:
    packet_id = number(packet.packet_id, 2) if packet.qos else b""
    return string(packet.topic) + packet_id + property_section(packet.properties, 3, level) + packet.payload


def subscribe_body(packet: Subscribe, level: int) -> bytes:
    body = number(packet.packet_id, 2) + property_section(packet.properties, PacketType.SUBSCRIBE, level)
    for line in packet.subscriptions:
        options = line.qos | line.no_local << 2 | line.retain_as_published << 3 | line.retain_handling << 4
        body += string(line.topic_filter) + number(options, 1)
    return body


def write(packet: Packet, level: int) -> tuple[int, bytes]:
    """First byte and body."""
    match packet:
        case Connect():
            return 0x10, connect_body(packet, level)
        case Connack():
            head = number(packet.session_present, 1) + number(packet.reason_code, 1)
            return 0x20, head + property_section(packet.properties, PacketType.CONNACK, level)
        case Publish():
            if not 0 <= packet.qos <= 2:
                raise ValueError("QoS is not 0, 1 or 2")
            return 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, publish_body(packet, level)
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            packet_type = PacketType[type(packet).__name__.upper()]
            tail = optional_tail(packet.reason_code, packet.properties, packet_type, level)
            return packet_type << 4 | (0b0010 if isinstance(packet, Pubrel) else 0), number(packet.packet_id, 2) + tail
        case Subscribe():
            return 0x82, subscribe_body(packet, level)
        case Suback() | Unsuback():
            packet_type = PacketType[type(packet).__name__.upper()]
            codes = b"".join(number(code, 1) for code in packet.reason_codes)
            return packet_type << 4, (
                number(packet.packet_id, 2) + property_section(packet.properties, packet_type, level) + codes
            )
        case Unsubscribe():
            head = number(packet.packet_id, 2) + property_section(packet.properties, PacketType.UNSUBSCRIBE, level)
            return 0xA2, head + b"".join(string(topic_filter) for topic_filter in packet.topic_filters)
        case Pingreq():
            return 0xC0, b""
        case Pingresp():
            return 0xD0, b""
        case Disconnect():
            return 0xE0, optional_tail(packet.reason_code, packet.properties, PacketType.DISCONNECT, level)
        case Auth():
            return 0xF0, optional_tail(packet.reason_code, packet.properties, PacketType.AUTH, level)
        case _:
            raise ValueError("not an MQTT packet")
