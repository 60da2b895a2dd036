"""Every property in every packet: where it is allowed, where it is not, twice, cut, and out of range.

``ROWS`` and ``PLACES`` are typed from the specification (table 2-4 and chapter 3), not taken from ``tbmq.protocol``:
a mistake in that table is a failing vector here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tbmq.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from tests.vectors.vector import Vector, bad, good, wire

ACKS = "PUBACK PUBREC PUBREL PUBCOMP"


class Row(NamedTuple):
    identifier: int
    name: str
    sample: str  # a good value on the wire
    value: Any  # what it decodes to
    by_client: str  # packets that may carry it
    by_server: str
    out_of_range: tuple[tuple[str, int], ...] = ()  # bad values on the wire, and their reason codes


_NOT_A_FLAG = (("02", 0x82), ("FF", 0x82))

ROWS = [
    Row(0x01, "payload_format_indicator", "01", 1, "PUBLISH WILL", "PUBLISH", _NOT_A_FLAG),
    Row(0x02, "message_expiry_interval", "FFFFFFFF", 4_294_967_295, "PUBLISH WILL", "PUBLISH"),
    Row(0x03, "content_type", "0003 'a/b'", "a/b", "PUBLISH WILL", "PUBLISH", (("0001 00", 0x81), ("0001 FF", 0x81))),
    Row(0x08, "response_topic", "0003 'r/t'", "r/t", "PUBLISH WILL", "PUBLISH",
        (("0000", 0x82), ("0001 '#'", 0x82), ("0003 'a/+'", 0x82), ("0002 C0AF", 0x81))),
    Row(0x09, "correlation_data", "0003 00FF80", b"\x00\xff\x80", "PUBLISH WILL", "PUBLISH"),
    Row(0x0B, "subscription_identifier", "FFFFFF7F", 268_435_455, "SUBSCRIBE", "PUBLISH",
        (("00", 0x82), ("8000", 0x81), ("FFFFFFFF7F", 0x81))),
    Row(0x11, "session_expiry_interval", "00000000", 0, "CONNECT DISCONNECT", "CONNACK"),
    Row(0x12, "assigned_client_identifier", "0002 'id'", "id", "", "CONNACK"),
    Row(0x13, "server_keep_alive", "FFFF", 65_535, "", "CONNACK"),
    Row(0x15, "authentication_method", "0001 'm'", "m", "CONNECT AUTH", "CONNACK AUTH", (("0002 EDA0", 0x81),)),
    Row(0x16, "authentication_data", "0001 80", b"\x80", "CONNECT AUTH", "CONNACK AUTH"),
    Row(0x17, "request_problem_information", "00", 0, "CONNECT", "", _NOT_A_FLAG),
    Row(0x18, "will_delay_interval", "0000003C", 60, "WILL", ""),
    Row(0x19, "request_response_information", "01", 1, "CONNECT", "", _NOT_A_FLAG),
    Row(0x1A, "response_information", "0000", "", "", "CONNACK"),
    Row(0x1C, "server_reference", "0003 'b:1'", "b:1", "", "CONNACK DISCONNECT"),
    Row(0x1F, "reason_string", "0003 'why'", "why", f"{ACKS} DISCONNECT AUTH",
        f"{ACKS} CONNACK SUBACK UNSUBACK DISCONNECT AUTH", (("0002 'a' 00", 0x81),)),
    Row(0x21, "receive_maximum", "0001", 1, "CONNECT", "CONNACK", (("0000", 0x82),)),
    Row(0x22, "topic_alias_maximum", "0000", 0, "CONNECT", "CONNACK"),
    Row(0x23, "topic_alias", "000A", 10, "PUBLISH", "PUBLISH", (("0000", 0x94),)),
    Row(0x24, "maximum_qos", "01", 1, "", "CONNACK", _NOT_A_FLAG),
    Row(0x25, "retain_available", "00", 0, "", "CONNACK", _NOT_A_FLAG),
    Row(0x26, "user_property", "0001 'k' 0000", ("k", ""),
        f"{ACKS} CONNECT WILL PUBLISH SUBSCRIBE UNSUBSCRIBE DISCONNECT AUTH",
        f"{ACKS} CONNACK PUBLISH SUBACK UNSUBACK DISCONNECT AUTH", (("0001 00 0000", 0x81), ("0000 0001 80", 0x81))),
    Row(0x27, "maximum_packet_size", "00000001", 1, "CONNECT", "CONNACK", (("00000000", 0x82),)),
    Row(0x28, "wildcard_subscription_available", "00", 0, "", "CONNACK", _NOT_A_FLAG),
    Row(0x29, "subscription_identifier_available", "01", 1, "", "CONNACK", _NOT_A_FLAG),
    Row(0x2A, "shared_subscription_available", "01", 1, "", "CONNACK", _NOT_A_FLAG),
]  # fmt: skip

ROW_NUMBERS = {  # of the list of bad input, for values out of range
    "receive_maximum": 18,
    "maximum_packet_size": 18,
    "topic_alias": 24,
    "response_topic": 25,
    "payload_format_indicator": 26,
}


class Place(NamedTuple):
    """Where a property section stands: first byte, what is before and after it, the packet around it."""

    first: int
    before: str
    after: str
    build: Callable[[dict[str, Any]], Packet]
    by_client: bool
    by_server: bool


PLACES = {
    "CONNECT": Place(0x10, "0004 'MQTT' 05 02 0000", "0001 'c'", lambda p: Connect("c", properties=p), True, False),
    "WILL": Place(0x10, "0004 'MQTT' 05 06 0000 00 0001 'c'", "0001 't' 0000",
                  lambda p: Connect("c", will=Will("t", properties=p)), True, False),
    "CONNACK": Place(0x20, "00 00", "", lambda p: Connack(properties=p), False, True),
    "PUBLISH": Place(0x30, "0001 't'", "'x'", lambda p: Publish("t", b"x", properties=p), True, True),
    "PUBACK": Place(0x40, "0001 00", "", lambda p: Puback(1, 0, p), True, True),
    "PUBREC": Place(0x50, "0001 10", "", lambda p: Pubrec(1, 0x10, p), True, True),
    "PUBREL": Place(0x62, "0001 92", "", lambda p: Pubrel(1, 0x92, p), True, True),
    "PUBCOMP": Place(0x70, "0001 00", "", lambda p: Pubcomp(1, 0, p), True, True),
    "SUBSCRIBE": Place(0x82, "0001", "0001 'a' 00", lambda p: Subscribe(1, [Subscription("a")], p), True, False),
    "SUBACK": Place(0x90, "0001", "00", lambda p: Suback(1, [0], p), False, True),
    "UNSUBSCRIBE": Place(0xA2, "0001", "0001 'a'", lambda p: Unsubscribe(1, ["a"], p), True, False),
    "UNSUBACK": Place(0xB0, "0001", "00", lambda p: Unsuback(1, [0], p), False, True),
    "DISCONNECT": Place(0xE0, "00", "", lambda p: Disconnect(0, p), True, True),
    "AUTH": Place(0xF0, "18", "", lambda p: Auth(0x18, p), True, True),
}  # fmt: skip
_METHOD = "15 0001 'm'"


def _packet(place: Place, section: str) -> bytes:
    """The packet around a section. All are small: one byte holds each length."""
    raw = wire(section)
    body = wire(place.before) + bytes([len(raw)]) + raw + wire(place.after)
    assert len(raw) < 128 and len(body) < 128
    return bytes([place.first, len(body)]) + body


def _needs_method(row: Row, place_name: str) -> bool:
    """AUTH always wants a method, CONNECT does when there is data."""
    is_data_in_connect = place_name == "CONNECT" and row.name == "authentication_data"
    return row.name != "authentication_method" and (place_name == "AUTH" or is_data_in_connect)


def _is_repeatable(row: Row, place_name: str) -> bool:
    return row.name == "user_property" or (row.name == "subscription_identifier" and place_name == "PUBLISH")


def _at_place(row: Row, place_name: str, at: str, allowed: bool) -> list[Vector]:
    place = PLACES[place_name]
    level = 0 if place.first == 0x10 else 5
    name = f"{row.name} in {place_name}"
    one = f"{row.identifier:02X} {row.sample}"
    if not allowed:
        number = 25 if (row.identifier, place_name) == (0x0B, "PUBLISH") else 16
        return bad(name, level, _packet(place, one), 0x82, at=at, bad_input=number)

    method = {"authentication_method": "m"} if _needs_method(row, place_name) else {}
    tail = _METHOD if method else ""
    value = [row.value] if _is_repeatable(row, place_name) else row.value
    out = good(name, level, _packet(place, f"{one} {tail}"), place.build({row.name: value, **method}), at=at)
    if _is_repeatable(row, place_name):
        twice = place.build({row.name: [row.value, row.value], **method})
        out += good(f"{name} twice", level, _packet(place, f"{one} {one} {tail}"), twice, at=at)
    else:
        out += bad(f"{name} twice", level, _packet(place, f"{one} {one} {tail}"), 0x82, at=at, bad_input=16)
    # The section ends one byte before its property does, although the packet goes on.
    short = wire(one)[:-1].hex()
    out += bad(f"{name} cut", level, _packet(place, short), 0x81, at=at, bad_input=12)
    out += bad(f"{name} identifier only", level, _packet(place, f"{row.identifier:02X}"), 0x81, at=at, bad_input=12)
    for raw, code in row.out_of_range:
        data = _packet(place, f"{row.identifier:02X} {raw}")
        number = ROW_NUMBERS.get(row.name, 13 if code == 0x81 else None)
        out += bad(f"{name} with value {raw}", level, data, code, at=at, bad_input=number)
    return out


def _every_row_at_every_place() -> list[Vector]:
    out = []
    for row in ROWS:
        for place_name, place in PLACES.items():
            if place.by_client:  # so a server decodes it
                out += _at_place(row, place_name, "server", place_name in row.by_client.split())
            if place.by_server:
                out += _at_place(row, place_name, "client", place_name in row.by_server.split())
    return out


def _unknown() -> list[Vector]:
    """Every identifier below 128 that the specification does not know, and some above."""
    known = {row.identifier for row in ROWS}
    out = []
    for identifier in range(128):
        if identifier not in known:
            data = _packet(PLACES["PUBLISH"], f"{identifier:02X} 00")
            out += bad(f"unknown property {identifier:02X}", 5, data, 0x81, at="both", bad_input=16)
    for place_name, place in PLACES.items():
        at = "both" if place.by_client and place.by_server else "server" if place.by_client else "client"
        level = 0 if place.first == 0x10 else 5
        for name, section in (
            ("unknown property 2B", "2B 00"),
            ("identifier 128", "8001 00"),
            ("identifier 1 in two bytes", "8100 01"),
            ("identifier cut", "80"),
            ("identifier with a fifth byte", "FFFFFFFF7F"),
        ):
            out += bad(f"{name} in {place_name}", level, _packet(place, section), 0x81, at=at, bad_input=16)
    return out


def _many(count: int) -> bytes:
    """A PUBLISH with so many user properties of five bytes."""
    section = wire("26 0000 0000") * count
    body = wire("0001 't'") + _varint(len(section)) + section
    return b"\x30" + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


_PAIR = ("", "")
VECTORS: list[Vector] = [
    *_every_row_at_every_place(),
    *_unknown(),
    *good("1,024 user properties", 5, _many(1024), Publish("t", properties={"user_property": [_PAIR] * 1024}),
          at="both"),
    *bad("1,025 user properties", 5, _many(1025), 0x95, at="both", bad_input=17),
    *bad("100,000 user properties", 5, _many(100_000), 0x95, at="both", bad_input=17),
    *good("three properties within the limit", 5, _many(3), Publish("t", properties={"user_property": [_PAIR] * 3}),
          limits={"max_properties": 3}),
    *bad("four properties over the limit", 5, _many(4), 0x95, limits={"max_properties": 3}, bad_input=17),
    *bad("too many comes before unknown", 5, "30 06 0001 't' 02 7F 00", 0x95, limits={"max_properties": 0}),
    *bad("not allowed comes before twice", 5, "30 08 0001 't' 04 0B 01 0B 01", 0x82, bad_input=25),
    *bad("twice with another between", 5, "30 0D 0001 't' 09 01 01 02 0000000A 01 01", 0x82, at="both", bad_input=16),
    *bad("twice comes before its value", 5, "30 07 0001 't' 03 01 01 01", 0x82, at="both", bad_input=16),
    *bad("not allowed comes before its value", 5, "30 05 0001 't' 01 0B", 0x82, bad_input=25),
    *bad("range comes before the next property", 5, "30 08 0001 't' 04 23 0000 7F", 0x94, at="both", bad_input=24),
    # Each section of a CONNECT has its own count.
    *good("limits are per section", 0,
          "10 1E 0004 'MQTT' 05 06 0000  05 26 0000 0000  0001 'c'  05 26 0000 0000 0001 't' 0000",
          Connect("c", will=Will("t", properties={"user_property": [_PAIR]}), properties={"user_property": [_PAIR]}),
          limits={"max_properties": 1}),
]  # fmt: skip
