"""Batches as docs/batch-format.md tells it: slow, obvious, and the judge of the compiled reader and writer.

Shares no code with them; it only raises the same error. `read` gives all messages or raises, `write` takes what it is
told, wrong values too, so that tests can make batches with sound checksums and unsound fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tbmq.errors import BatchError

HEADER = struct.Struct("<4sBBHIIQI")  # and the checksum of these 28 bytes
RECORD = struct.Struct("<IBBHHHIII")
HEADER_BYTES = 32


class Message(NamedTuple):
    publisher: bytes = b""
    topic: bytes = b"t"
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    time_ms: int = 0
    expiry_s: int | None = None
    properties: bytes = b""


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


CRC_TABLE = [_crc_of_byte(value) for value in range(256)]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def write(messages: list[Message]) -> bytes:
    base_time_ms = messages[0].time_ms if messages else 0
    body = b"".join(write_record(message, base_time_ms) for message in messages)
    return write_header(len(messages), base_time_ms, body) + body


def write_header(count: int, base_time_ms: int, body: bytes) -> bytes:
    return seal_header(HEADER.pack(b"TBMB", 1, 0, HEADER_BYTES, count, len(body), base_time_ms, crc32c(body)))


def seal_header(first_28_bytes: bytes) -> bytes:
    return first_28_bytes + struct.pack("<I", crc32c(first_28_bytes))


def write_record(message: Message, base_time_ms: int) -> bytes:
    pieces = message.publisher + message.topic + message.properties + message.payload
    flags = message.qos
    flags |= 0x04 if message.retain else 0
    flags |= 0x08 if message.dup else 0
    flags |= 0x10 if message.expiry_s is not None else 0
    head = RECORD.pack(
        RECORD.size + len(pieces),
        flags,
        0,
        len(message.topic),
        len(message.publisher),
        message.packet_id,
        len(message.properties),
        max(0, message.time_ms - base_time_ms),
        message.expiry_s or 0,
    )
    return head + pieces


def read(batch: bytes, *, verify: bool = True) -> list[Message]:
    count, base_time_ms, body_crc = read_header(batch)
    body = batch[HEADER_BYTES:]
    if verify and crc32c(body) != body_crc:
        raise BatchError("body checksum")
    messages = []
    for _ in range(count):
        message, body = read_record(body, base_time_ms)
        messages.append(message)
    if body:
        raise BatchError("bytes after the last message")
    return messages


def read_header(batch: bytes) -> tuple[int, int, int]:
    if len(batch) < HEADER_BYTES:
        raise BatchError("cut header")
    magic, version, flags, header_bytes, count, body_bytes, base_time_ms, body_crc = HEADER.unpack(batch[:28])
    if magic != b"TBMB":
        raise BatchError("magic")
    if version != 1:
        raise BatchError("version")
    if struct.pack("<I", crc32c(batch[:28])) != batch[28:32]:
        raise BatchError("header checksum")
    if flags != 0 or header_bytes != HEADER_BYTES:
        raise BatchError("header flags or size")
    if base_time_ms >= 2**48:
        raise BatchError("base time")
    if count * RECORD.size > body_bytes:
        raise BatchError("count")
    if HEADER_BYTES + body_bytes != len(batch):
        raise BatchError("body size")
    return count, base_time_ms, body_crc


def read_record(body: bytes, base_time_ms: int) -> tuple[Message, bytes]:
    if len(body) < RECORD.size:
        raise BatchError("cut head of a record")
    size, flags, reserved, topic_bytes, publisher_bytes, packet_id, properties_bytes, delta_ms, expiry_s = (
        RECORD.unpack(body[: RECORD.size])
    )
    topic_at = RECORD.size + publisher_bytes
    properties_at = topic_at + topic_bytes
    payload_at = properties_at + properties_bytes
    if not payload_at <= size <= len(body):
        raise BatchError("sizes of a record")
    if topic_bytes == 0:
        raise BatchError("no topic")
    if flags & 0xE0 or reserved:
        raise BatchError("reserved bits")
    qos = flags & 0x03
    has_expiry = bool(flags & 0x10)
    if qos == 3:
        raise BatchError("QoS 3")
    if qos == 0 and packet_id != 0:
        raise BatchError("packet id with QoS 0")
    if expiry_s != 0 and not has_expiry:
        raise BatchError("expiry without its flag")
    message = Message(
        publisher=body[RECORD.size : topic_at],
        topic=body[topic_at:properties_at],
        payload=body[payload_at:size],
        qos=qos,
        retain=bool(flags & 0x04),
        dup=bool(flags & 0x08),
        packet_id=packet_id,
        time_ms=base_time_ms + delta_ms,
        expiry_s=expiry_s if has_expiry else None,
        properties=body[properties_at:payload_at],
    )
    return message, body[size:]
