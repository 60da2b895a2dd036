"""First byte and remaining length: what is judged before a body has arrived."""

from __future__ import annotations

from tbmq.packets import Connect, Pingreq, Pingresp, Puback, Publish, Pubrel, Subscribe, Subscription, Unsubscribe
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, cut, good

_CONNECT_311 = "10 0D  0004 'MQTT' 04 02 000A  0001 'c'"
_CONNECTED_311 = Connect("c", 4, True, 10)

_TYPES = [
    # first byte with correct flags, who sends it
    ("CONNECT", 0x10, "client"),
    ("CONNACK", 0x20, "server"),
    ("PUBACK", 0x40, "both"),
    ("PUBREC", 0x50, "both"),
    ("PUBREL", 0x62, "both"),
    ("PUBCOMP", 0x70, "both"),
    ("SUBSCRIBE", 0x82, "client"),
    ("SUBACK", 0x90, "server"),
    ("UNSUBSCRIBE", 0xA2, "client"),
    ("UNSUBACK", 0xB0, "server"),
    ("PINGREQ", 0xC0, "client"),
    ("PINGRESP", 0xD0, "server"),
    ("DISCONNECT", 0xE0, "client"),
    ("AUTH", 0xF0, "both"),
]
_DECODED_AT = {"client": "server", "server": "client", "both": "both"}


def _not_connect_first() -> list[Vector]:
    """[MQTT-3.1.0-1]. Judged by one byte: the length need not be there."""
    out = bad("type 0 first", 0, "00", 0x81, bad_input=1)
    for name, first, _ in [*_TYPES, ("PUBLISH", 0x30, "both")]:
        if name != "CONNECT":
            out += bad(f"{name} first", 0, bytes([first, 0]), 0x82, bad_input=1, spec="MQTT-3.1.0-1")
    return out


def _wrong_flags() -> list[Vector]:
    """[MQTT-2.1.3-1]: every wrong value of the low four bits, for every packet type but PUBLISH."""
    out = []
    for name, first, sender in _TYPES:
        for flags in range(16):
            if flags == first & 0x0F:
                continue
            byte = bytes([first & 0xF0 | flags])
            fields = {"bad_input": 32 if name == "SUBSCRIBE" else 8, "spec": "MQTT-2.1.3-1"}
            if name == "CONNECT":
                out += bad(f"CONNECT flags {flags:04b}", 0, byte, 0x81, **fields)
                continue
            is_dup_of_31 = flags == 0b1010 and first & 0x0F == 0b0010
            levels = (5,) if name == "AUTH" else (4, 5) if is_dup_of_31 else ALL_LEVELS
            out += bad(f"{name} flags {flags:04b}", levels, byte, 0x81, at=_DECODED_AT[sender], **fields)
    for flags, why in ((0b0110, "QoS 3"), (0b0111, "QoS 3"), (0b1110, "QoS 3"), (0b1111, "QoS 3")):
        out += bad(f"PUBLISH {why} {flags:04b}", ALL_LEVELS, bytes([0x30 | flags]), 0x81, at="both", bad_input=20,
                   spec="MQTT-3.3.1-4")  # fmt: skip
    for flags in (0b1000, 0b1001):
        out += bad(f"PUBLISH QoS 0 with DUP {flags:04b}", ALL_LEVELS, bytes([0x30 | flags]), 0x81, at="both",
                   bad_input=20, spec="MQTT-3.3.1-2")  # fmt: skip
    return out


def _wrong_direction() -> list[Vector]:
    out = []
    for name, first, sender in _TYPES:
        if sender == "server":
            out += bad(f"{name} from a client", ALL_LEVELS, bytes([first]), 0x82, bad_input=30)
        if sender == "client" and name != "DISCONNECT":
            out += bad(f"{name} from a server", ALL_LEVELS, bytes([first]), 0x82, at="client")
    # MQTT 3.1 and 3.1.1 know DISCONNECT only from client to server.
    out += bad("DISCONNECT from a server", BELOW_5, "E0 00", 0x82, at="client")
    return out


VECTORS: list[Vector] = [
    *_not_connect_first(),
    *bad("type 0", ALL_LEVELS, "00 00", 0x81, at="both", bad_input=1),
    *bad("AUTH below MQTT 5", BELOW_5, "F0 00", 0x81, at="both", bad_input=31),
    *bad("a second CONNECT", ALL_LEVELS, _CONNECT_311, 0x82, bad_input=6, spec="MQTT-3.1.0-2"),
    *bad("two CONNECT in one piece", 0, _CONNECT_311 + _CONNECT_311, 0x82, before=(_CONNECTED_311,), bad_input=6,
         spec="MQTT-3.1.0-2"),
    *_wrong_direction(),
    *_wrong_flags(),
    # MQTT 3.1 marks repeated requests with DUP.
    *good("PUBREL with DUP", 3, "6A 02 0001", Pubrel(1), at="both", canonical=False),
    *good("SUBSCRIBE with DUP", 3, "8A 06 0001 0001 'a' 00", Subscribe(1, [Subscription("a")]), canonical=False),
    *good("UNSUBSCRIBE with DUP", 3, "AA 05 0001 0001 'a'", Unsubscribe(1, ["a"]), canonical=False),
    # Remaining length.
    *cut("nothing", ALL_LEVELS, "", at="both"),
    *cut("nothing before CONNECT", 0, ""),
    *cut("only a first byte", ALL_LEVELS, "30", at="both"),
    *cut("length with one byte of two", ALL_LEVELS, "30 80", at="both"),
    *cut("length with three bytes of four", ALL_LEVELS, "30 FF FF FF", at="both"),
    *cut("256 MB announced, within the default limit", ALL_LEVELS, "30 FF FF FF 7F", at="both", bad_input=3),
    *cut("body with one byte missing", ALL_LEVELS, "40 02 00", at="both"),
    *bad("length with a fifth byte", ALL_LEVELS, "30 FF FF FF FF", 0x81, at="both", bad_input=2, spec="MQTT-1.5.5-1"),
    *bad("length with a fifth byte, zeros", ALL_LEVELS, "30 80 80 80 80 00", 0x81, at="both", bad_input=2),
    *bad("CONNECT length with a fifth byte", 0, "10 80 80 80 80 01", 0x81, bad_input=2),
    *bad("length is not in its shortest form", 5, "C0 80 00", 0x81, spec="MQTT-1.5.5-1", bad_input=2),
    *bad("length is not in its shortest form", 5, "D0 80 80 80 00", 0x81, at="client", spec="MQTT-1.5.5-1"),
    *bad("length of 2 in two bytes", 5, "40 82 00 0001", 0x81, at="both", spec="MQTT-1.5.5-1"),
    *good("length of 0 in two bytes", BELOW_5, "C0 80 00", Pingreq(), canonical=False),
    *good("length of 0 in four bytes", BELOW_5, "D0 80 80 80 00", Pingresp(), at="client", canonical=False),
    *good("length of 4 in three bytes", BELOW_5, "30 84 80 00  0001 't' 'x'", Publish("t", b"x"), at="both",
          canonical=False),
    *good("CONNECT length in two bytes, MQTT 3.1.1", 0, "10 8D 00  0004 'MQTT' 04 02 000A  0001 'c'", _CONNECTED_311,
          canonical=False),
    *bad("CONNECT length in two bytes, MQTT 5", 0, "10 8E 00  0004 'MQTT' 05 02 000A 00  0001 'c'", 0x81,
         spec="MQTT-1.5.5-1"),
    *bad("CONNECT length in two bytes, unknown level", 0, "10 8E 00  0004 'MQTT' 06 02 000A 00  0001 'c'", 0x84),
    *good("127 bytes: one length byte", ALL_LEVELS[:2], "30 7F  0001 't' 78*124", Publish("t", b"x" * 124), at="both"),
    *good("128 bytes: two length bytes", BELOW_5, "30 80 01  0001 't' 78*125", Publish("t", b"x" * 125), at="both"),
    *good("16,383 bytes: two length bytes", BELOW_5, "30 FF 7F  0001 't' 78*16380", Publish("t", b"x" * 16380)),
    *good("16,384 bytes: three length bytes", BELOW_5, "30 80 80 01  0001 't' 78*16381", Publish("t", b"x" * 16381)),
    *good("128 bytes: two length bytes", 5, "30 80 01  0001 't' 00 78*124", Publish("t", b"x" * 124), at="both"),
    *good("16,384 bytes: three length bytes", 5, "30 80 80 01  0001 't' 00 78*16380", Publish("t", b"x" * 16380)),
    # The largest packet.
    *bad("256 MB announced", ALL_LEVELS, "30 FF FF FF 7F", 0x95, at="both", bad_input=3,
         limits={"max_packet_bytes": 1_048_576}),
    *bad("256 MB CONNECT announced", 0, "10 FF FF FF 7F", 0x95, bad_input=3, limits={"max_packet_bytes": 65_536}),
    *good("exactly the largest packet", ALL_LEVELS, "40 02 0001", Puback(1),
          at="both", limits={"max_packet_bytes": 4}),
    *bad("one byte over the largest packet", ALL_LEVELS, "40 02", 0x95, at="both", limits={"max_packet_bytes": 3}),
    *bad("a long form counts in full", BELOW_5, "40 82 00", 0x95, limits={"max_packet_bytes": 4}),
    *bad("long form comes before size", 5, "30 FF FF 80 00", 0x81, limits={"max_packet_bytes": 100}),
    *bad("size when the form is free", BELOW_5, "30 FF FF 80 00", 0x95, limits={"max_packet_bytes": 100}),
    *bad("CONNECT: size comes before the form", 0, "10 FF FF 80 00", 0x95, limits={"max_packet_bytes": 100}),
]  # fmt: skip
