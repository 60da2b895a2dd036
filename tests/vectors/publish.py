"""PUBLISH from both sides."""

from __future__ import annotations

from tbmq.packets import Puback, Publish
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, cut, good, wire

_BAD_TEXT = [
    ("with U+0000", "00"),
    ("with U+0000 in the middle of a word", "'abcdefg' 00 'hijklmnop'"),
    ("overlong slash", "C0 AF"),
    ("with a surrogate", "ED A0 80"),
    ("above U+10FFFF", "F4 90 80 80"),
    ("cut at its end", "'abcdefgh' E2 82"),
    ("Latin-1", "'caf' E9"),
]


def _bad_topics() -> list[Vector]:
    out = []
    for name, raw in _BAD_TEXT:
        topic = wire(raw)
        head = len(topic).to_bytes(2, "big") + topic
        for levels, body in ((BELOW_5, head + b"x"), ((5,), head + b"\0x")):
            data = bytes([0x30, len(body)]) + body
            out += bad(f"topic {name}", levels, data, 0x81, at="both", bad_input=13, spec="MQTT-1.5.4-1")
    for topic_text in ("+", "#", "a/+/b", "a/#", "a+", "long/topic/with/a/wildcard/at/its/end#"):
        topic = topic_text.encode()
        body = len(topic).to_bytes(2, "big") + topic + b"\0"
        out += bad(f"topic {topic_text}", ALL_LEVELS, bytes([0x30, len(body)]) + body, 0x90, at="both", bad_input=22,
                   spec="MQTT-3.3.2-2")  # fmt: skip
    return out


VECTORS: list[Vector] = [
    *good("QoS 0", BELOW_5, "30 05 0001 't' 'hi'", Publish("t", b"hi"), at="both"),
    *good("QoS 0", 5, "30 06 0001 't' 00 'hi'", Publish("t", b"hi"), at="both"),
    *good("QoS 1", BELOW_5, "32 07 0001 't' 0001 'hi'", Publish("t", b"hi", 1, packet_id=1), at="both"),
    *good("QoS 1", 5, "32 08 0001 't' FFFF 00 'hi'", Publish("t", b"hi", 1, packet_id=65_535), at="both"),
    *good("QoS 2", BELOW_5, "34 07 0001 't' 0100 'hi'", Publish("t", b"hi", 2, packet_id=256), at="both"),
    *good("QoS 2", 5, "34 08 0001 't' 0001 00 'hi'", Publish("t", b"hi", 2, packet_id=1), at="both"),
    *good("retain", BELOW_5, "31 03 0001 't'", Publish("t", retain=True), at="both"),
    *good("DUP, QoS 1, retain", BELOW_5, "3B 05 0001 't' 0001", Publish("t", b"", 1, True, True, 1), at="both"),
    *good("DUP, QoS 2", 5, "3C 06 0001 't' 0001 00", Publish("t", b"", 2, False, True, 1), at="both"),
    *good("payload with every kind of byte", BELOW_5, "30 07 0001 't' 00FFC080", Publish("t", b"\x00\xff\xc0\x80"),
          at="both"),
    *good("topic in several scripts", BELOW_5, "30 0C 000A 'aé€😀'", Publish("aé€😀"), at="both"),
    *good("topic with spaces and empty levels", BELOW_5, "30 07 0005 '/ //$'", Publish("/ //$"), at="both"),
    *good("topic with control characters", BELOW_5, "30 05 0003 01 0D 0A", Publish("\x01\r\n"), at="both",
          bad_input=13),
    *good("properties of 128 bytes: two length bytes", 5,
          "30 85 01 0001 't' 8001 03 007D 78*125", Publish("t", properties={"content_type": "x" * 125}), at="both"),
    *good("several properties", 5,
          "30 19 0001 't' 13 01 01 02 0000000A 26 0001 'a' 0001 'b' 26 0000 0000 'hi'",
          Publish("t", b"hi", properties={"payload_format_indicator": 1, "message_expiry_interval": 10,
                                          "user_property": [("a", "b"), ("", "")]}), at="both"),
    *good("repeated user properties with one between", 5,
          "30 13 0001 't' 0F 26 0001 'a' 0001 'b' 01 00 26 0001 'a' 0000",
          Publish("t", b"", properties={"user_property": [("a", "b"), ("a", "")], "payload_format_indicator": 0}),
          at="both", canonical=False),
    *good("two subscription identifiers", 5, "30 09 0001 't' 05 0B 01 0B 8001",
          Publish("t", properties={"subscription_identifier": [1, 128]}), at="client"),
    *good("alias and empty topic", 5, "30 06 0000 03 23 0001", Publish("", properties={"topic_alias": 1}), at="both"),
    *good("alias and topic", 5, "30 07 0001 't' 03 23 FFFF", Publish("t", properties={"topic_alias": 65_535}),
          at="both"),
    # $delayed is a matter of the session; its many digits are good bytes.
    *good("delayed without a number", BELOW_5, "30 10 000E '$delayed/abc/t'", Publish("$delayed/abc/t"), bad_input=44),
    *good("delayed by 5,000 digits", BELOW_5, "30 95 27 1393 '$delayed/' 39*5000 '/t'",
          Publish("$delayed/" + "9" * 5000 + "/t"), bad_input=44),
    # Topics.
    *_bad_topics(),
    *bad("empty topic", BELOW_5, "30 02 0000", 0x82, at="both", bad_input=22),
    *bad("empty topic without alias", 5, "30 03 0000 00", 0x82, at="both", bad_input=22),
    *bad("empty topic, other property", 5, "30 05 0000 02 01 00", 0x82, at="both", bad_input=22),
    *bad("empty topic comes after the packet id", ALL_LEVELS, "32 05 0000 0000 00", 0x82, at="both", bad_input=21),
    *bad("empty topic comes after the properties", 5, "30 05 0000 02 01 02", 0x82, at="both"),
    *bad("empty topic and cut properties", 5, "30 04 0000 02 01", 0x81, at="both"),
    *good("topic of 128 levels", BELOW_5, "30 81 01 007F 2F*127", Publish("/" * 127), at="both"),
    *bad("topic of 129 levels", BELOW_5, "30 82 01 0080 2F*128", 0x90, at="both", bad_input=34),
    *bad("topic of 129 levels", 5, "30 83 01 0080 2F*128 00", 0x90, at="both", bad_input=34),
    *bad("topic of 65,536 levels", ALL_LEVELS, "30 82 80 04 FFFF 2F*65535 00", 0x90, at="both", bad_input=34),
    *bad("filter a/#/b as topic", ALL_LEVELS, "30 08 0005 'a/#/b' 00", 0x90, at="both", bad_input=33),
    *bad("filter of 10,000 + as topic", ALL_LEVELS, "30 A2 9C 01 4E1F '+' '/+'*9999 00", 0x90, at="both", bad_input=33),
    *good("topic of 2 levels within the limit", BELOW_5, "30 05 0003 'a/b'", Publish("a/b"),
          limits={"max_topic_levels": 2}),
    *bad("topic of 3 levels over the limit", BELOW_5, "30 07 0005 'a/b/c'", 0x90, limits={"max_topic_levels": 2}),
    *bad("wildcard and bad UTF-8", ALL_LEVELS, "30 05 0002 '#' FF 00", 0x81, at="both"),
    # Packet id.
    *bad("packet id 0, QoS 1", ALL_LEVELS, "32 06 0001 't' 0000 00", 0x82, at="both", bad_input=21,
         spec="MQTT-2.2.1-3"),
    *bad("packet id 0, QoS 2", ALL_LEVELS, "34 06 0001 't' 0000 00", 0x82, at="both", bad_input=21,
         spec="MQTT-2.2.1-3"),
    *bad("packet id missing", ALL_LEVELS, "32 03 0001 't'", 0x81, at="both", bad_input=12),
    *bad("packet id cut", ALL_LEVELS, "32 04 0001 't' 00", 0x81, at="both", bad_input=12),
    # Lengths.
    *bad("PUBLISH without body", ALL_LEVELS, "30 00", 0x81, at="both", bad_input=23),
    *bad("PUBLISH of one byte", ALL_LEVELS, "30 01 00", 0x81, at="both", bad_input=23),
    *bad("topic goes past the end", ALL_LEVELS, "30 03 0002 't'", 0x81, at="both", bad_input=23),
    *bad("topic of 65,535 bytes in a small packet", ALL_LEVELS, "30 04 FFFF 'tt'", 0x81, at="both", bad_input=23),
    *bad("PUBLISH without properties", 5, "30 03 0001 't'", 0x81, at="both", bad_input=12),
    *bad("properties go past the end", 5, "30 04 0001 't' 01", 0x81, at="both", bad_input=12),
    *bad("property length with a fifth byte", 5, "30 09 0001 't' FFFFFFFF 7F 'x'", 0x81, at="both", bad_input=2),
    *bad("property length is cut", 5, "30 04 0001 't' 80", 0x81, at="both", bad_input=2),
    *bad("property length is not in its shortest form", 5, "30 05 0001 't' 80 00", 0x81, at="both",
         spec="MQTT-1.5.5-1"),
    *bad("property length of 256 MB", 5, "30 07 0001 't' FFFFFF7F", 0x81, at="both", bad_input=3),
    *cut("payload cut", BELOW_5, "30 05 0001 't' 'h'", at="both"),
    *cut("bad body that is not complete is not judged", ALL_LEVELS, "30 05 0001 '#'", at="both"),
    *cut("second packet cut", BELOW_5, "30 03 0001 't' 30 03 00", at="both", before=(Publish("t"),)),
    *good("two packets", BELOW_5, "30 03 0001 't'  30 03 0001 'u'", Publish("u"), before=(Publish("t"),), at="both",
          canonical=False),
    *bad("one good packet and a bad one", ALL_LEVELS, "40 02 0001  30 04 0001 '#' 00", 0x90, at="both",
         before=(Puback(1),)),
]  # fmt: skip
