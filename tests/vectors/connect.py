"""CONNECT, in all three levels."""

from __future__ import annotations

from tbmq.packets import Connect, Will
from tests.vectors.vector import Vector, bad, cut, good, wire

_V31 = "0006 'MQIsdp' 03"
_V311 = "0004 'MQTT' 04"
_V5 = "0004 'MQTT' 05"


def _flags(name: str, flags: str, tail: str = "", **fields: object) -> list[Vector]:
    """The same wrong flags in all three levels; the body is long enough, so that only the flags are wrong."""
    payload = f"0001 'c' {tail}"
    size = 7 + 1 + 2 + 3 + _size(tail)
    out = bad(f"{name}, MQTT 3.1.1", 0, f"10 {size:02X} {_V311} {flags} 003C {payload}", 0x81, **fields)
    out += bad(f"{name}, MQTT 3.1", 0, f"10 {size + 2:02X} {_V31} {flags} 003C {payload}", 0x81, **fields)
    out += bad(f"{name}, MQTT 5", 0, f"10 {size + 1:02X} {_V5} {flags} 003C 00 {payload}", 0x81, **fields)
    return out


def _size(tail: str) -> int:
    return len(wire(tail))


def _bad_string(name: str, raw: str, spec: str) -> list[Vector]:
    """The same ill-formed two to four bytes as client id, will topic and user name."""
    n = _size(raw)
    size = f"{n:04X}"
    fields = {"bad_input": 13, "spec": spec}
    return [
        *bad(f"client id {name}", 0, f"10 {12 + n:02X} {_V311} 02 003C {size} {raw}", 0x81, **fields),
        *bad(f"client id {name}, MQTT 5", 0, f"10 {13 + n:02X} {_V5} 02 003C 00 {size} {raw}", 0x81, **fields),
        *bad(f"will topic {name}", 0, f"10 {17 + n:02X} {_V311} 06 003C 0001 'c' {size} {raw} 0000", 0x81, **fields),
        *bad(f"user name {name}", 0, f"10 {15 + n:02X} {_V311} 82 003C 0001 'c' {size} {raw}", 0x81, **fields),
    ]


VECTORS: list[Vector] = [
    *good("smallest, MQTT 3.1", 0, f"10 0F {_V31} 02 0000  0001 'c'", Connect("c", 3)),
    *good("smallest, MQTT 3.1.1", 0, f"10 0D {_V311} 02 0000  0001 'c'", Connect("c", 4)),
    *good("smallest, MQTT 5", 0, f"10 0E {_V5} 02 0000 00  0001 'c'", Connect("c", 5)),
    *good("keeps its session", 0, f"10 0D {_V311} 00 FFFF  0001 'c'", Connect("c", 4, False, 65_535)),
    *good("everything, MQTT 3.1", 0,
          f"10 25 {_V31} F6 000A  0001 'c'  0003 'a/b' 0002 'hi'  0003 'bob' 0006 'secret'",
          Connect("c", 3, True, 10, Will("a/b", b"hi", 2, True), "bob", b"secret")),
    *good("everything, MQTT 3.1.1", 0,
          f"10 23 {_V311} EE 000A  0001 'c'  0003 'a/b' 0002 'hi'  0003 'bob' 0006 'secret'",
          Connect("c", 4, True, 10, Will("a/b", b"hi", 1, True), "bob", b"secret")),
    *good("everything, MQTT 5", 0,
          f"10 2F {_V5} C6 000A  05 11 0000003C  0001 'c'"
          "  05 18 00000005 0003 'a/b' 0002 'hi'  0003 'bob' 0006 'secret'",
          Connect("c", 5, True, 10, Will("a/b", b"hi", 0, False, {"will_delay_interval": 5}), "bob", b"secret",
                  {"session_expiry_interval": 60})),
    *good("will with an empty payload", 0, f"10 12 {_V311} 06 0000  0001 'c' 0001 't' 0000",
          Connect("c", 4, will=Will("t"))),
    *good("empty user name and password", 0, f"10 11 {_V311} C2 0000  0001 'c' 0000 0000",
          Connect("c", 4, username="", password=b"")),
    *good("password is binary", 0, f"10 14 {_V311} C2 0000  0001 'c' 0000 0003 00FF80",
          Connect("c", 4, username="", password=b"\x00\xff\x80")),
    *good("client id in several scripts", 0, f"10 16 {_V311} 02 0000  000A 'aé€😀'", Connect("aé€😀", 4)),
    *good("client id with a byte order mark", 0, f"10 10 {_V311} 02 0000  0004 EFBBBF 'c'", Connect("\ufeffc", 4),
          spec="MQTT-1.5.4-3"),
    *good("client id with control characters", 0, f"10 10 {_V311} 02 0000  0004 01 0A 7F 'c'",
          Connect("\x01\n\x7fc", 4),
          bad_input=13),
    *good("client id with a noncharacter", 0, f"10 0F {_V311} 02 0000  0003 EFBFBF", Connect("\uffff", 4)),
    *good("client id with the last code point", 0, f"10 10 {_V311} 02 0000  0004 F48FBFBF", Connect("\U0010ffff", 4)),
    *good("client id of 300 bytes", 0, f"10 B8 02 {_V311} 02 0000  012C 78*300", Connect("x" * 300, 4)),
    # Empty client id: the bytes are good, the session decides.
    *good("empty client id, MQTT 3.1", 0, f"10 0E {_V31} 02 0000  0000", Connect("", 3), bad_input=11),
    *good("empty client id and a kept session, MQTT 3.1.1", 0, f"10 0C {_V311} 00 0000  0000", Connect("", 4, False),
          bad_input=11, spec="MQTT-3.1.3-8"),
    *good("empty client id, MQTT 5", 0, f"10 0D {_V5} 00 0000 00  0000", Connect("", 5, False), bad_input=11),
    # MQTT 3.1: announced user name and password may be missing.
    *good("user name missing, MQTT 3.1", 0, f"10 0F {_V31} 82 0000  0001 'c'", Connect("c", 3), canonical=False),
    *good("user name and password missing, MQTT 3.1", 0, f"10 0F {_V31} C2 0000  0001 'c'", Connect("c", 3),
          canonical=False),
    *good("password missing, MQTT 3.1", 0, f"10 14 {_V31} C2 0000  0001 'c' 0003 'bob'",
          Connect("c", 3, username="bob"),
          canonical=False),
    *bad("user name cut, MQTT 3.1", 0, f"10 10 {_V31} 82 0000  0001 'c' 00", 0x81, bad_input=12),
    *bad("user name missing, MQTT 3.1.1", 0, f"10 0D {_V311} 82 0000  0001 'c'", 0x81, bad_input=12,
         spec="MQTT-3.1.2-19"),
    *bad("password missing, MQTT 3.1.1", 0, f"10 12 {_V311} C2 0000  0001 'c' 0003 'bob'", 0x81, bad_input=12),
    *bad("password missing, MQTT 5", 0, f"10 0E {_V5} 42 0000 00 0001 'c'", 0x81, bad_input=12),
    # Name and level.
    *bad("protocol MQTU", 0, "10 0D 0004 'MQTU' 04 02 0000  0001 'c'", 0x84, bad_input=7, spec="MQTT-3.1.2-1"),
    *bad("protocol mqtt in small letters", 0, "10 0D 0004 'mqtt' 04 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("empty protocol name", 0, "10 09 0000 04 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("level 6", 0, "10 0E 0004 'MQTT' 06 02 0000 00 0001 'c'", 0x84, bad_input=7, spec="MQTT-3.1.2-2"),
    *bad("level 3 with the name of 3.1.1", 0, "10 0D 0004 'MQTT' 03 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("level 4 with the name of 3.1", 0, "10 0F 0006 'MQIsdp' 04 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("level 5 with the name of 3.1", 0, "10 10 0006 'MQIsdp' 05 02 0000 00 0001 'c'", 0x84, bad_input=7),
    *bad("level 0", 0, "10 0D 0004 'MQTT' 00 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("level of a bridge", 0, "10 0D 0004 'MQTT' 84 02 0000  0001 'c'", 0x84, bad_input=7),
    *bad("unknown name although nothing follows", 0, "10 04 0002 'XX'", 0x84, bad_input=7),
    *bad("protocol name is not UTF-8", 0, "10 0D 0004 'MQT' FF 04 02 0000  0001 'c'", 0x81, bad_input=13),
    # Flags.
    *_flags("reserved flag", "03", bad_input=8, spec="MQTT-3.1.2-3"),
    *_flags("will QoS 1 without a will", "0A", bad_input=9, spec="MQTT-3.1.2-11"),
    *_flags("will QoS 2 without a will", "12", bad_input=9, spec="MQTT-3.1.2-11"),
    *_flags("will QoS 3 without a will", "1A", bad_input=9, spec="MQTT-3.1.2-11"),
    *_flags("will retain without a will", "22", bad_input=9, spec="MQTT-3.1.2-13"),
    *_flags("will QoS 3", "1E", "0001 't' 0000", bad_input=9, spec="MQTT-3.1.2-12"),
    *bad("password without user name, MQTT 3.1.1", 0, f"10 10 {_V311} 42 0000  0001 'c' 0001 'p'", 0x81, bad_input=10,
         spec="MQTT-3.1.2-22"),
    *bad("password without user name, MQTT 3.1", 0, f"10 12 {_V31} 42 0000  0001 'c' 0001 'p'", 0x81, bad_input=10),
    *good("password without user name, MQTT 5", 0, f"10 11 {_V5} 42 0000 00  0001 'c' 0001 'p'",
          Connect("c", 5, password=b"p"), bad_input=10),
    # Will.
    *bad("will topic missing", 0, f"10 0D {_V311} 06 0000  0001 'c'", 0x81, bad_input=9, spec="MQTT-3.1.2-9"),
    *bad("will payload missing", 0, f"10 10 {_V311} 06 0000  0001 'c' 0001 't'", 0x81, bad_input=9),
    *bad("will topic empty", 0, f"10 11 {_V311} 06 0000  0001 'c' 0000 0000", 0x81, bad_input=9),
    *bad("will topic empty, MQTT 5", 0, f"10 13 {_V5} 06 0000 00  0001 'c' 00 0000 0000", 0x81, bad_input=9),
    *bad("will topic with +", 0, f"10 14 {_V311} 06 0000  0001 'c' 0003 'a/+' 0000", 0x90, bad_input=22),
    *bad("will topic with #, MQTT 5", 0, f"10 14 {_V5} 06 0000 00  0001 'c' 00 0001 '#' 0000", 0x90, bad_input=22),
    *bad("will topic of 129 levels", 0, f"10 91 01 {_V311} 06 0000  0001 'c' 0080 2F*128 0000", 0x90, bad_input=34),
    *good("will topic of 128 levels", 0, f"10 90 01 {_V311} 06 0000  0001 'c' 007F 2F*127 0000",
          Connect("c", 4, will=Will("/" * 127))),
    *bad("will topic of 65,536 levels", 0, f"10 90 80 04 {_V311} 06 0000  0001 'c' FFFF 2F*65535 0000", 0x90,
         bad_input=34),
    *bad("will properties missing, MQTT 5", 0, f"10 0E {_V5} 06 0000 00  0001 'c'", 0x81, bad_input=12),
    # Fields that go past the end, and bytes left over.
    *bad("CONNECT without body", 0, "10 00", 0x81, bad_input=12),
    *bad("CONNECT of one byte", 0, "10 01 00", 0x81, bad_input=12),
    *bad("protocol name goes past the end", 0, "10 04 0004 'MQ'", 0x81, bad_input=12),
    *bad("level missing", 0, "10 06 0004 'MQTT'", 0x81, bad_input=12),
    *bad("flags missing", 0, f"10 07 {_V311}", 0x81, bad_input=12),
    *bad("keep-alive cut", 0, f"10 09 {_V311} 02 00", 0x81, bad_input=12),
    *bad("client id missing", 0, f"10 0A {_V311} 02 0000", 0x81, bad_input=12, spec="MQTT-3.1.3-3"),
    *bad("client id goes past the end", 0, f"10 0D {_V311} 02 0000 0002 'c'", 0x81, bad_input=12),
    *bad("properties missing, MQTT 5", 0, f"10 0A {_V5} 02 0000", 0x81, bad_input=12),
    *bad("properties go past the end, MQTT 5", 0, f"10 0E {_V5} 02 0000 04 0001 'c'", 0x81, bad_input=12),
    *bad("one byte left over, MQTT 3.1", 0, f"10 10 {_V31} 02 0000  0001 'c' 00", 0x81, bad_input=12),
    *bad("one byte left over, MQTT 3.1.1", 0, f"10 0E {_V311} 02 0000  0001 'c' 00", 0x81, bad_input=12),
    *bad("one byte left over, MQTT 5", 0, f"10 0F {_V5} 02 0000 00 0001 'c' 00", 0x81, bad_input=12),
    *bad("user name although not announced", 0, f"10 12 {_V311} 02 0000  0001 'c' 0003 'bob'", 0x81, bad_input=12,
         spec="MQTT-3.1.2-18"),
    *cut("body with one byte missing", 0, f"10 0D {_V311} 02 0000  0001"),
    # Order: the flags come before the cut, the name before the level.
    *bad("reserved flag and cut body", 0, f"10 08 {_V311} 01", 0x81),
    *bad("authentication data without method", 0, f"10 11 {_V5} 02 0000  03 16 0000  0001 'c'", 0x82, bad_input=19),
    *bad("authentication data without method, cut behind it", 0, f"10 0E {_V5} 02 0000  03 16 0000", 0x82,
         bad_input=19),
    *good("authentication data before its method", 0, f"10 17 {_V5} 02 0000  09 16 0002 DEAD 15 0001 'm'  0001 'c'",
          Connect("c", 5, properties={"authentication_data": b"\xde\xad", "authentication_method": "m"})),
    *_bad_string("with U+0000", "'a' 00", "MQTT-1.5.4-2"),
    *_bad_string("with U+0000 in two bytes", "C0 80", "MQTT-1.5.4-1"),
    *_bad_string("overlong in two bytes", "C1 81", "MQTT-1.5.4-1"),
    *_bad_string("overlong in three bytes", "E0 80 AF", "MQTT-1.5.4-1"),
    *_bad_string("overlong in four bytes", "F0 80 80 AF", "MQTT-1.5.4-1"),
    *_bad_string("with a high surrogate", "ED A0 80", "MQTT-1.5.4-1"),
    *_bad_string("with a low surrogate", "ED BF BF", "MQTT-1.5.4-1"),
    *_bad_string("above U+10FFFF", "F4 90 80 80", "MQTT-1.5.4-1"),
    *_bad_string("with a lead byte of five", "F8 88 80 80 80", "MQTT-1.5.4-1"),
    *_bad_string("with a lone continuation byte", "'a' 80", "MQTT-1.5.4-1"),
    *_bad_string("with a cut character", "'a' E2 82", "MQTT-1.5.4-1"),
    *_bad_string("with a character cut in its middle", "E2 'aa'", "MQTT-1.5.4-1"),
    *_bad_string("with FE", "FE", "MQTT-1.5.4-1"),
]  # fmt: skip
