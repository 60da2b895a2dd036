"""Packets written by hand, byte by byte, so that a test can spoil any part of them."""

from tbmq.protocol import MQTT_5
from tests.helpers import raw_packet, raw_string


def varint(value: int) -> bytes:
    digits = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        digits.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(digits)


def connect(
    level: int,
    *,
    first_byte: int = 0x10,
    flags: int = 0x02,
    properties: bytes = b"",
    properties_raw: bytes | None = None,
    client_id: str | bytes | None = "c",
    will: tuple[str | bytes, bytes] | None = None,
    rest: bytes = b"",
) -> bytes:
    """CONNECT; `properties_raw` stands for the property section with its length, `rest` for user name and password."""
    body = raw_string("MQTT") + bytes([level, flags, 0, 0])
    if level == MQTT_5:
        body += varint(len(properties)) + properties if properties_raw is None else properties_raw
    if client_id is not None:
        body += raw_string(client_id)
    if will is not None:
        body += (b"\x00" if level == MQTT_5 else b"") + raw_string(will[0]) + raw_string(will[1])
    return raw_packet(first_byte, body + rest)


def publish(
    level: int,
    topic: str | bytes,
    *,
    first_byte: int | None = None,
    qos: int = 0,
    packet_id: int = 1,
    properties: bytes = b"",
    payload: bytes = b"x",
) -> bytes:
    first_byte = 0x30 | qos << 1 if first_byte is None else first_byte
    body = raw_string(topic)
    if first_byte & 0x06:
        body += packet_id.to_bytes(2, "big")
    if level == MQTT_5:
        body += varint(len(properties)) + properties
    return raw_packet(first_byte, body + payload)


def subscribe(
    level: int, topic_filter: str | bytes, options: int = 0, *, packet_id: int = 1, properties: bytes = b""
) -> bytes:
    section = varint(len(properties)) + properties if level == MQTT_5 else b""
    return raw_packet(0x82, packet_id.to_bytes(2, "big") + section + raw_string(topic_filter) + bytes([options]))


def unsubscribe(level: int, topic_filter: str | bytes, *, packet_id: int = 1) -> bytes:
    section = b"\x00" if level == MQTT_5 else b""
    return raw_packet(0xA2, packet_id.to_bytes(2, "big") + section + raw_string(topic_filter))
