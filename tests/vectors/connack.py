"""CONNACK: what a client accepts from a server."""

from __future__ import annotations

from tbmq.packets import Connack
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, good

# MQTT 5, table 3-1; below it six return codes.
_CODES_5 = [0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A,
            0x9B, 0x9C, 0x9D, 0x9F]  # fmt: skip


def _codes() -> list[Vector]:
    out = []
    for code in range(6):
        out += good(f"CONNACK {code}", BELOW_5, f"20 02 00 {code:02X}", Connack(reason_code=code), at="client")
    for code in _CODES_5:
        out += good(f"CONNACK {code:02X}", 5, f"20 03 00 {code:02X} 00", Connack(reason_code=code), at="client")
    for code in (0x06, 0x80, 0x84, 0xFF):
        out += bad(f"CONNACK {code:02X}", BELOW_5, f"20 02 00 {code:02X}", 0x82, at="client")
    for code in (0x01, 0x05, 0x7F, 0x8B, 0x8D, 0x98, 0x9E, 0xA0, 0xFF):
        out += bad(f"CONNACK {code:02X}", 5, f"20 03 00 {code:02X} 00", 0x82, at="client")
    return out


VECTORS: list[Vector] = [
    *_codes(),
    *good("CONNACK session present", BELOW_5, "20 02 01 00", Connack(True), at="client"),
    *good("CONNACK session present", 5, "20 03 01 00 00", Connack(True), at="client"),
    *bad("CONNACK session present in a refusal", BELOW_5, "20 02 01 05", 0x82, at="client", spec="MQTT-3.2.2-4"),
    *bad("CONNACK session present in a refusal", 5, "20 03 01 87 00", 0x82, at="client", spec="MQTT-3.2.2-6"),
    *bad("CONNACK reserved flag", ALL_LEVELS, "20 02 02 00", 0x81, at="client", spec="MQTT-3.2.2-1"),
    *bad("CONNACK all flags", ALL_LEVELS, "20 02 FF 00", 0x81, at="client", spec="MQTT-3.2.2-1"),
    *bad("CONNACK without body", ALL_LEVELS, "20 00", 0x81, at="client", bad_input=12),
    *bad("CONNACK without code", ALL_LEVELS, "20 01 00", 0x81, at="client", bad_input=12),
    *bad("CONNACK without properties", 5, "20 02 00 00", 0x81, at="client", bad_input=12),
    *bad("CONNACK with a byte left over", BELOW_5, "20 03 00 00 00", 0x81, at="client", bad_input=12),
    *bad("CONNACK with a byte left over", 5, "20 04 00 00 00 00", 0x81, at="client", bad_input=12),
    *bad("CONNACK wrong code before the missing properties", 5, "20 02 00 01", 0x82, at="client"),
]  # fmt: skip
