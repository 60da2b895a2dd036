"""PUBACK, PUBREC, PUBREL, PUBCOMP from both sides; SUBACK and UNSUBACK from a server."""

from __future__ import annotations

from tbmq.packets import Puback, Pubcomp, Pubrec, Pubrel, Suback, Unsuback
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, cut, good

_OF_PUBLISH = (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)  # MQTT 5, tables 3-4 and 3-5
_OF_ACK = (0x00, 0x92)  # tables 3-6 and 3-7
_SUBACK = (0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)  # table 3-8
_UNSUBACK = (0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)  # table 3-9


def _ack(first: str, ack: type[Puback | Pubrec | Pubrel | Pubcomp], codes: tuple[int, ...]) -> list[Vector]:
    name = ack.__name__.upper()
    out = [
        *good(f"{name}", ALL_LEVELS, f"{first} 02 0001", ack(1), at="both"),
        *good(f"{name} of packet 65,535", ALL_LEVELS, f"{first} 02 FFFF", ack(65_535), at="both"),
        *good(f"{name} with code 0 written out", 5, f"{first} 03 0001 00", ack(1), at="both", canonical=False),
        *good(f"{name} with empty properties", 5, f"{first} 04 0001 00 00", ack(1), at="both", canonical=False),
        *good(f"{name} with a reason string", 5, f"{first} 0A 0001 00 06 1F 0003 'why'",
              ack(1, 0, {"reason_string": "why"}), at="both"),
        *bad(f"{name} of packet 0", ALL_LEVELS, f"{first} 02 0000", 0x82, at="both", spec="MQTT-2.2.1-3", bad_input=21),
        *bad(f"{name} without body", ALL_LEVELS, f"{first} 00", 0x81, at="both", bad_input=12),
        *bad(f"{name} with half an id", ALL_LEVELS, f"{first} 01 00", 0x81, at="both", bad_input=12),
        *bad(f"{name} with a byte left over", BELOW_5, f"{first} 03 0001 00", 0x81, at="both", bad_input=12),
        *bad(f"{name} with a byte left over", 5, f"{first} 05 0001 00 00 00", 0x81, at="both", bad_input=12),
        *bad(f"{name} with properties past the end", 5, f"{first} 04 0001 00 01", 0x81, at="both", bad_input=12),
        *bad(f"{name} id before the code", 5, f"{first} 03 0000 FF", 0x82, at="both"),
        *bad(f"{name} code before the properties", 5, f"{first} 04 0001 FF 80", 0x82, at="both"),
        *cut(f"{name} cut", ALL_LEVELS, f"{first} 02 00", at="both"),
    ]  # fmt: skip
    for code in codes:
        if code:
            out += good(f"{name} {code:02X}", 5, f"{first} 03 0001 {code:02X}", ack(1, code), at="both")
            out += good(f"{name} {code:02X} with empty properties", 5, f"{first} 04 0001 {code:02X} 00", ack(1, code),
                        at="both", canonical=False)  # fmt: skip
    for code in (0x01, 0x7F, 0x81, 0x82, 0x9A, 0xFF, 0x92 if codes is _OF_PUBLISH else 0x10):
        out += bad(f"{name} {code:02X}", 5, f"{first} 03 0001 {code:02X}", 0x82, at="both")
    return out


def _list_of_codes() -> list[Vector]:
    out = []
    for code in _SUBACK:
        out += good(f"SUBACK {code:02X}", 5, f"90 04 0001 00 {code:02X}", Suback(1, [code]), at="client")
    for code in (0x00, 0x01, 0x02, 0x80):
        out += good(f"SUBACK {code:02X}", BELOW_5, f"90 03 0001 {code:02X}", Suback(1, [code]), at="client")
    for code in _UNSUBACK:
        out += good(f"UNSUBACK {code:02X}", 5, f"B0 04 0001 00 {code:02X}", Unsuback(1, [code]), at="client")
    for code in (0x03, 0x04, 0x11, 0x7F, 0x81, 0x92, 0xFF):
        out += bad(f"SUBACK {code:02X}", 5, f"90 04 0001 00 {code:02X}", 0x82, at="client")
    for code in (0x03, 0x7F, 0x81, 0x87, 0xFF):
        out += bad(f"SUBACK {code:02X}", BELOW_5, f"90 03 0001 {code:02X}", 0x82, at="client", spec="MQTT-3.9.3-2")
    for code in (0x01, 0x02, 0x10, 0x82, 0x97, 0xFF):
        out += bad(f"UNSUBACK {code:02X}", 5, f"B0 04 0001 00 {code:02X}", 0x82, at="client")
    return out


VECTORS: list[Vector] = [
    *_ack("40", Puback, _OF_PUBLISH),
    *_ack("50", Pubrec, _OF_PUBLISH),
    *_ack("62", Pubrel, _OF_ACK),
    *_ack("70", Pubcomp, _OF_ACK),
    *_list_of_codes(),
    *good("SUBACK of four", BELOW_5, "90 06 0001 00 01 02 80", Suback(1, [0, 1, 2, 0x80]), at="client"),
    *good("SUBACK of four", 5, "90 07 0001 00 00 01 02 A2", Suback(1, [0, 1, 2, 0xA2]), at="client"),
    *bad("SUBACK with a wrong code last", 5, "90 05 0001 00 00 03", 0x82, at="client"),
    *bad("SUBACK of packet 0", ALL_LEVELS, "90 04 0000 00 00", 0x82, at="client"),
    *bad("SUBACK without codes", BELOW_5, "90 02 0001", 0x82, at="client"),
    *bad("SUBACK without codes", 5, "90 03 0001 00", 0x82, at="client"),
    *bad("SUBACK without properties", 5, "90 02 0001", 0x81, at="client", bad_input=12),
    *bad("SUBACK without body", ALL_LEVELS, "90 00", 0x81, at="client", bad_input=12),
    *good("UNSUBACK", BELOW_5, "B0 02 0001", Unsuback(1), at="client"),
    *good("UNSUBACK of two", 5, "B0 05 0001 00 00 11", Unsuback(1, [0, 0x11]), at="client"),
    *bad("UNSUBACK of packet 0", ALL_LEVELS, "B0 04 0000 00 00", 0x82, at="client"),
    *bad("UNSUBACK with a byte left over", BELOW_5, "B0 03 0001 00", 0x81, at="client", bad_input=12),
    *bad("UNSUBACK without codes", 5, "B0 03 0001 00", 0x82, at="client"),
    *bad("UNSUBACK without properties", 5, "B0 02 0001", 0x81, at="client", bad_input=12),
    *bad("UNSUBACK without body", ALL_LEVELS, "B0 00", 0x81, at="client", bad_input=12),
]  # fmt: skip
