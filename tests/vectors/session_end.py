"""PINGREQ, PINGRESP, DISCONNECT, AUTH."""

from __future__ import annotations

from tbmq.packets import Auth, Disconnect, Pingreq, Pingresp
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, cut, good

# MQTT 5, table 3-10, and 0x8C, which section 2.4 lists for DISCONNECT too.
_DISCONNECT = (
    0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
    0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
)  # fmt: skip


def _disconnect_codes() -> list[Vector]:
    out = []
    for code in _DISCONNECT:
        out += good(f"DISCONNECT {code:02X}", 5, f"E0 01 {code:02X}", Disconnect(code), at="both")
    for code in (0x01, 0x02, 0x10, 0x11, 0x18, 0x7F, 0x84, 0x85, 0x86, 0x88, 0x8A, 0x91, 0x92, 0xA3, 0xFF):
        out += bad(f"DISCONNECT {code:02X}", 5, f"E0 01 {code:02X}", 0x82, at="both")
    return out


VECTORS: list[Vector] = [
    *good("PINGREQ", ALL_LEVELS, "C0 00", Pingreq()),
    *good("PINGRESP", ALL_LEVELS, "D0 00", Pingresp(), at="client"),
    *bad("PINGREQ with a body", ALL_LEVELS, "C0 01 00", 0x81, bad_input=12),
    *bad("PINGRESP with a body", ALL_LEVELS, "D0 01 00", 0x81, at="client", bad_input=12),
    *cut("PINGREQ that announces a body", ALL_LEVELS, "C0 01"),
    *good("three PINGREQ", ALL_LEVELS, "C0 00 C0 00 C0 00", Pingreq(), before=(Pingreq(), Pingreq()), canonical=False),
    *good("DISCONNECT", ALL_LEVELS, "E0 00", Disconnect()),
    *good("DISCONNECT", 5, "E0 00", Disconnect(), at="client"),
    *bad("DISCONNECT with a body", BELOW_5, "E0 01 00", 0x81, bad_input=12),
    *good("DISCONNECT with code 0 written out", 5, "E0 01 00", Disconnect(), at="both", canonical=False),
    *good("DISCONNECT with empty properties", 5, "E0 02 00 00", Disconnect(), at="both", canonical=False),
    *good("DISCONNECT 04 with empty properties", 5, "E0 02 04 00", Disconnect(4), at="both", canonical=False),
    *good("DISCONNECT with a reason string", 5, "E0 07 00 05 1F 0002 'hi'", Disconnect(0, {"reason_string": "hi"}),
          at="both"),
    *_disconnect_codes(),
    *bad("DISCONNECT with a byte left over", 5, "E0 03 00 00 00", 0x81, at="both", bad_input=12),
    *bad("DISCONNECT with properties past the end", 5, "E0 02 00 01", 0x81, at="both", bad_input=12),
    *bad("DISCONNECT code before the properties", 5, "E0 02 01 80", 0x82, at="both"),
    # AUTH: whether a method was agreed on is a matter of the session.
    *good("AUTH", 5, "F0 00", Auth(), at="both", bad_input=31),
    *good("AUTH with code 0 written out", 5, "F0 01 00", Auth(), at="both", canonical=False),
    *good("AUTH with empty properties", 5, "F0 02 00 00", Auth(), at="both", canonical=False),
    *good("AUTH 18", 5, "F0 06 18 04 15 0001 'm'", Auth(0x18, {"authentication_method": "m"}), at="both", bad_input=31),
    *good("AUTH 19", 5, "F0 0A 19 08 15 0001 'm' 16 0001 FF",
          Auth(0x19, {"authentication_method": "m", "authentication_data": b"\xff"}), at="both"),
    *good("AUTH 00 with a method", 5, "F0 06 00 04 15 0001 'm'", Auth(0, {"authentication_method": "m"}), at="both"),
    *bad("AUTH 18 without properties", 5, "F0 01 18", 0x82, at="both", bad_input=19),
    *bad("AUTH 19 with empty properties", 5, "F0 02 19 00", 0x82, at="both", bad_input=19),
    *bad("AUTH 18 with data and without method", 5, "F0 06 18 04 16 0001 FF", 0x82, at="both", bad_input=19),
    *bad("AUTH 00 with data and without method", 5, "F0 06 00 04 16 0001 FF", 0x82, at="both", bad_input=19),
    *bad("AUTH 00 with a reason string and without method", 5, "F0 06 00 04 1F 0001 'x'", 0x82, at="both",
         bad_input=19),
    *bad("AUTH 01", 5, "F0 06 01 04 15 0001 'm'", 0x82, at="both"),
    *bad("AUTH 1A", 5, "F0 06 1A 04 15 0001 'm'", 0x82, at="both"),
    *bad("AUTH 80", 5, "F0 01 80", 0x82, at="both"),
    *bad("AUTH with a byte left over", 5, "F0 07 18 04 15 0001 'm' 00", 0x81, at="both", bad_input=12),
    *bad("AUTH with a byte left over and without method", 5, "F0 03 18 00 00", 0x82, at="both", bad_input=12),
    *bad("AUTH with properties past the end", 5, "F0 06 18 05 15 0001 'm'", 0x81, at="both", bad_input=12),
]  # fmt: skip
