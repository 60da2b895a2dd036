"""Inputs for the codec fuzzer: vectors and generated packets, damaged in ways that reach deep into a decoder.

Plain damage (flipped bits, other bytes, cuts, copies) mostly dies at the first length field. So more than half of the
mutations keep lengths consistent: they take a packet apart, change its body, and give it a fitting remaining length
again; or they change a string or a property section together with the length in front of it.

Everything comes from one ``random.Random``: the same seed and block give the same inputs on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tbmq.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from tbmq.protocol import PROPERTIES, REASON_CODES, REPEATABLE_PROPERTIES, WILL, PacketType, PropertyKind
from tests.reference.encoder import property_value, reference_encode, varint
from tests.vectors import ALL

MAX_SEED_BYTES = 300  # larger vectors are tested elsewhere; small inputs find more per second
GENERATED_PER_KIND = 150
INTERESTING = (
    0x00,
    0x01,
    0x02,
    0x03,
    0x04,
    0x7F,
    0x80,
    0x81,
    0xC0,
    0xC2,
    0xE0,
    0xED,
    0xF0,
    0xF4,
    0xFE,
    0xFF,
    0x23,
    0x2B,
    0x2F,
)
FIRST_BYTES = tuple(kind << 4 | flags for kind in range(16) for flags in (0, 2, 3, 4, 8, 10))
SMALL_LIMITS = (
    {"max_packet_bytes": 64, "max_topic_levels": 3, "max_properties": 2},
    {"max_packet_bytes": 131, "max_topic_levels": 2, "max_properties": 3},  # 131: the first body with two length bytes
)


class Input(NamedTuple):
    """Bytes and the state of the decoder that gets them."""

    level: int
    client: bool
    data: bytes
    limits: dict[str, int]

    @property
    def decoder_arguments(self) -> dict[str, Any]:
        return {"client": self.client, "protocol_level": self.level, **self.limits}


# --- Good packets ----------------------------------------------------------------------------------------------------

_TEXTS = ("", "a", "a/b", "$SYS/x", "é", "€/😀", "/", "//", "abcdefgh", "a" * 20, "$share/g/t")


def random_text(rng: random.Random) -> str:
    return rng.choice(_TEXTS)


def random_topic(rng: random.Random) -> str:
    return rng.choice(_TEXTS[1:])


def random_value(rng: random.Random, rule: Any) -> Any:
    match rule.kind:
        case PropertyKind.STRING:
            return random_topic(rng) if rule.name == "response_topic" else random_text(rng)
        case PropertyKind.BINARY:
            return rng.randbytes(rng.randrange(5))
        case PropertyKind.STRING_PAIR:
            return random_text(rng), random_text(rng)
        case kind:
            size = {PropertyKind.BYTE: 0xFF, PropertyKind.TWO_BYTES: 0xFFFF}.get(kind, 0xFFFF_FFFF)
            return rng.choice(
                (rule.minimum, min(rule.maximum, size), rng.randint(rule.minimum, min(rule.maximum, size)))
            )


@cache
def _allowed(place: int, client: bool) -> list[Any]:
    return [rule for rule in PROPERTIES if place in (rule.from_client if client else rule.from_server)]


def random_properties(rng: random.Random, place: int, level: int, client: bool) -> dict[str, Any]:
    if level < 5 or rng.random() < 0.3:
        return {}
    properties: dict[str, Any] = {}
    allowed = _allowed(place, client)
    for rule in rng.sample(allowed, rng.randrange(min(4, len(allowed) + 1))):
        if place in REPEATABLE_PROPERTIES.get(rule.name, ()):
            properties[rule.name] = [random_value(rng, rule) for _ in range(rng.randint(1, 3))]
        else:
            properties[rule.name] = random_value(rng, rule)
    return properties


def random_packet(rng: random.Random, kind: PacketType, level: int, client: bool) -> Packet:
    """Nearly always good; what the reference encoder refuses is not used."""
    properties = random_properties(rng, kind, level, client)
    packet_id = rng.choice((1, 255, 65_535))
    code = rng.choice(sorted(REASON_CODES[kind])) if level == 5 and kind in REASON_CODES else 0
    match kind:
        case PacketType.CONNECT:
            will = None
            if rng.random() < 0.5:
                will_properties = random_properties(rng, WILL, level, True)
                will = Will(random_topic(rng), rng.randbytes(2), rng.randrange(3), rng.random() < 0.5, will_properties)
            username, password = rng.choice(((None, None), ("u", None), ("u", b"p"), ("", b"\0")))
            return Connect(random_text(rng), level, rng.random() < 0.5, 60, will, username, password, properties)
        case PacketType.CONNACK:
            return Connack(rng.random() < 0.3, code if level == 5 else rng.randrange(6), properties)
        case PacketType.PUBLISH:
            qos = rng.randrange(3)
            topic = "" if "topic_alias" in properties and rng.random() < 0.5 else random_topic(rng)
            payload = rng.randbytes(rng.choice((0, 1, 5, 130)))
            return Publish(topic, payload, qos, rng.random() < 0.5, qos > 0 and rng.random() < 0.5,
                           packet_id if qos else 0, properties)  # fmt: skip
        case PacketType.PUBACK:
            return Puback(packet_id, code, properties)
        case PacketType.PUBREC:
            return Pubrec(packet_id, code, properties)
        case PacketType.PUBREL:
            return Pubrel(packet_id, code, properties)
        case PacketType.PUBCOMP:
            return Pubcomp(packet_id, code, properties)
        case PacketType.SUBSCRIBE:
            lines = []
            for _ in range(rng.randint(1, 3)):
                options = (rng.random() < 0.3, rng.random() < 0.3, rng.randrange(3)) if level == 5 else ()
                lines.append(Subscription(random_text(rng), rng.randrange(3), *options))
            return Subscribe(packet_id, lines, properties)
        case PacketType.SUBACK:
            return Suback(
                packet_id, [code if level == 5 else rng.choice((0, 1, 2, 0x80))] * rng.randint(1, 3), properties
            )
        case PacketType.UNSUBSCRIBE:
            return Unsubscribe(packet_id, [random_text(rng) for _ in range(rng.randint(1, 3))], properties)
        case PacketType.UNSUBACK:
            return Unsuback(packet_id, [code] * rng.randint(1, 3) if level == 5 else [], properties)
        case PacketType.PINGREQ:
            return Pingreq()
        case PacketType.PINGRESP:
            return Pingresp()
        case PacketType.DISCONNECT:
            return Disconnect(code, properties)
        case PacketType.AUTH:
            return Auth(code, properties)


@cache
def corpus() -> tuple[dict[tuple[int, bool], list[bytes]], list[tuple[int, bool]]]:
    """The good and bad packets to start from, by level and side of the decoder; the same in every process."""
    seeds: dict[tuple[int, bool], list[bytes]] = {}
    for vector in ALL:
        if 0 < len(vector.data) <= MAX_SEED_BYTES:
            seeds.setdefault((vector.level, vector.client), []).append(vector.data)
    rng = random.Random("corpus")
    for level in (3, 4, 5):
        for client in (False, True):
            for kind in PacketType:
                for _ in range(GENERATED_PER_KIND if level == 5 else GENERATED_PER_KIND // 5):
                    try:
                        data = reference_encode(random_packet(rng, kind, level, client), level, client=client)
                    except ValueError:
                        continue
                    seeds[0 if kind == PacketType.CONNECT else level, not client].append(data)
    # A server before CONNECT and MQTT 5 have the most to judge.
    return seeds, [(0, False)] * 3 + [(5, False)] * 4 + [(5, True)] * 3 + [(4, False), (4, True), (3, False), (3, True)]


# --- Damage that keeps no length -------------------------------------------------------------------------------------


def position(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data)) if data else 0


def flip_bit(rng: random.Random, data: bytearray) -> None:
    if data:
        data[position(rng, data)] ^= 1 << rng.randrange(8)


def set_byte(rng: random.Random, data: bytearray) -> None:
    if data:
        data[position(rng, data)] = rng.choice(INTERESTING)


def add_to_byte(rng: random.Random, data: bytearray) -> None:
    if data:
        at = position(rng, data)
        data[at] = (data[at] + rng.choice((-2, -1, 1, 2))) & 0xFF


def insert_bytes(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = bytes(rng.choice(INTERESTING) for _ in range(rng.choice((1, 1, 2, 4))))


def delete_bytes(rng: random.Random, data: bytearray) -> None:
    at = position(rng, data)
    del data[at : at + rng.choice((1, 1, 2, 4))]


def duplicate_slice(rng: random.Random, data: bytearray) -> None:
    start = position(rng, data)
    piece = data[start : start + rng.randint(1, 12)]
    at = rng.choice((start, rng.randint(0, len(data))))
    data[at:at] = piece


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[position(rng, data) :]


def grow_string(rng: random.Random, data: bytearray) -> None:
    """Takes two bytes for the length of a string, and changes the string together with them."""
    if len(data) < 2:
        return
    at = rng.randrange(len(data) - 1)
    size = data[at] << 8 | data[at + 1]
    if at + 2 + size > len(data):
        return
    piece = rng.choice((b"", b"+", b"#", b"\0", b"/", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82",
                        b"\xef\xbb\xbf", b"/" * 130, b"x" * 9))  # fmt: skip
    where = at + 2 + rng.choice((0, size))
    data[where:where] = piece
    size += len(piece)
    data[at : at + 2] = size.to_bytes(2, "big")


def grow_properties(rng: random.Random, data: bytearray) -> None:
    """Takes one byte for the length of a property section, and puts one more property into the section."""
    if not data:
        return
    at = position(rng, data)
    size = data[at]
    if size > 127 or at + 1 + size > len(data):
        return
    rule = rng.choice(PROPERTIES)
    extra = bytes([rule.identifier]) + property_value(rule.kind, random_value(rng, rule))
    if size + len(extra) < 128:
        where = at + 1 + rng.choice((0, size))
        data[where:where] = extra
        data[at] = size + len(extra)


BYTE_DAMAGE = (flip_bit, set_byte, set_byte, add_to_byte, insert_bytes, delete_bytes, duplicate_slice, truncate)
BODY_DAMAGE: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *BYTE_DAMAGE, grow_string, grow_string, grow_string, grow_properties, grow_properties, grow_properties,
)  # fmt: skip


# --- Whole inputs ----------------------------------------------------------------------------------------------------


def split_packet(data: bytes) -> tuple[int, bytes] | None:
    """First byte and the rest behind the remaining length, if there is one."""
    for at in range(1, min(5, len(data))):
        if data[at] < 0x80:
            return data[0], data[at + 1 :]
    return None


def remaining_length(rng: random.Random, size: int) -> bytes:
    """Mostly right and in its shortest form."""
    choice = rng.random()
    if choice < 0.9:
        return varint(size)
    if choice < 0.95:
        return varint(max(0, size + rng.choice((-2, -1, 1, 2, 128))))
    shortest = varint(size)
    return shortest[:-1] + bytes([shortest[-1] | 0x80]) + b"\x80" * rng.randrange(4) + b"\0"  # too long a form


def damage(rng: random.Random, data: bytes) -> bytes:
    parts = split_packet(data) if rng.random() < 0.65 else None
    if parts is None:
        raw = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(BYTE_DAMAGE)(rng, raw)
        return bytes(raw)
    first, rest = parts
    body = bytearray(rest)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        rng.choice(BODY_DAMAGE)(rng, body)
    if rng.random() < 0.05:
        first = rng.choice(FIRST_BYTES)
    return bytes([first]) + remaining_length(rng, len(body)) + bytes(body)


def splice(rng: random.Random, one: bytes, other: bytes) -> bytes:
    return one[: rng.randint(0, len(one))] + other[rng.randint(0, len(other)) :]


def random_input(rng: random.Random) -> Input:
    seeds, weights = corpus()
    level, client = rng.choice(weights)
    members = seeds[level, client]
    # After CONNECT come packets of its level: the decoder learns it, so take any level.
    followers = seeds[rng.choice((3, 4, 5)), client] if level == 0 else members
    choice = rng.random()
    if choice < 0.70:
        data = damage(rng, rng.choice(members))
    elif choice < 0.78:
        data = splice(rng, rng.choice(members), rng.choice(followers))
    elif choice < 0.80:
        data = rng.choice(members)
    else:
        pieces = [rng.choice(members), *(rng.choice(followers) for _ in range(rng.randint(1, 3)))]
        which = rng.randrange(len(pieces))
        pieces[which] = damage(rng, pieces[which])
        data = b"".join(pieces)
    return Input(level, client, data, rng.choice(SMALL_LIMITS) if rng.random() < 0.2 else {})
