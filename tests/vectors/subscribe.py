"""SUBSCRIBE and UNSUBSCRIBE. Whether a filter is well-formed is judged per line elsewhere: here any string is good."""

from __future__ import annotations

from tbmq.packets import Subscribe, Subscription, Unsubscribe
from tests.vectors.vector import ALL_LEVELS, BELOW_5, Vector, bad, cut, good


def _one(topic_filter: str, qos: int = 0, **options: bool | int) -> Subscribe:
    return Subscribe(1, [Subscription(topic_filter, qos, **options)])  # type: ignore[arg-type]


def _every_option() -> list[Vector]:
    """All 256 option bytes of one filter, judged by the bits that the specification names."""
    out = []
    for options in range(256):
        qos, handling = options & 3, options >> 4 & 3
        no_local, as_published = bool(options & 4), bool(options & 8)
        name, data = f"options {options:02X}", f"82 07 0001 00 0001 'a' {options:02X}"
        if options & 0xC0 or qos == 3:
            out += bad(name, 5, data, 0x81, bad_input=32, spec="MQTT-3.8.3-5")
        elif handling == 3:
            out += bad(name, 5, data, 0x82, bad_input=32)
        else:
            subscription = Subscription("a", qos, no_local, as_published, handling)
            out += good(name, 5, data, Subscribe(1, [subscription]))
        data = f"82 06 0001 0001 'a' {options:02X}"
        if options <= 2:
            out += good(name, BELOW_5, data, _one("a", options))
        else:
            out += bad(name, BELOW_5, data, 0x81, bad_input=32, spec="MQTT-3.8.3-4")
    return out


def _filters_judged_elsewhere() -> list[Vector]:
    """Strings that are no good filters, or that look dangerous: the codec hands them on."""
    out = []
    for topic_filter in ("", "a/#/b", "a#", "+a", "$share//t", "$share/g", "$share/+/t", "\x01", "#", "+/+"):
        raw = topic_filter.encode()
        line = len(raw).to_bytes(2, "big") + raw
        row = 33 if topic_filter in ("a/#/b", "a#", "+a") else None
        for level, section in ((3, b""), (4, b""), (5, b"\0")):
            body = b"\0\1" + section + line + b"\0"
            data = bytes([0x82, len(body)]) + body
            out += good(f"SUBSCRIBE {topic_filter!r}", level, data, _one(topic_filter), bad_input=row)
            body = b"\0\1" + section + line
            data = bytes([0xA2, len(body)]) + body
            out += good(f"UNSUBSCRIBE {topic_filter!r}", level, data, Unsubscribe(1, [topic_filter]), bad_input=row)
    return out


VECTORS: list[Vector] = [
    *_every_option(),
    *_filters_judged_elsewhere(),
    *good("three lines", BELOW_5, "82 12 FFFF 0003 'a/b' 00 0001 '#' 01 0003 '+/c' 02",
          Subscribe(65_535, [Subscription("a/b"), Subscription("#", 1), Subscription("+/c", 2)])),
    *good("three lines", 5, "82 13 0100 00 0003 'a/b' 00 0001 '#' 2D 0003 '+/c' 1A",
          Subscribe(256, [Subscription("a/b"), Subscription("#", 1, True, True, 2),
                          Subscription("+/c", 2, False, True, 1)])),
    *good("the same filter twice", BELOW_5, "82 0A 0001 0001 'a' 00 0001 'a' 01",
          Subscribe(1, [Subscription("a"), Subscription("a", 1)])),
    *good("shared", 5, "82 10 0001 00 000A '$share/g/t' 01", _one("$share/g/t", 1)),
    *bad("no local on a shared subscription", 5, "82 10 0001 00 000A '$share/g/t' 05", 0x82, spec="MQTT-3.8.3-4"),
    *bad("no local on the bare prefix", 5, "82 0D 0001 00 0007 '$share/' 04", 0x82, spec="MQTT-3.8.3-4"),
    *good("no local on something like the prefix", 5, "82 0C 0001 00 0006 '$share' 04", _one("$share", no_local=True)),
    *good("filter of 65,536 levels, judged elsewhere", BELOW_5, "82 84 80 04 0001 FFFF 2F*65535 00", _one("/" * 65_535),
          bad_input=34),
    *good("filter of 10,000 +, judged elsewhere", BELOW_5, "82 A4 9C 01 0001 4E1F '+' '/+'*9999 00",
          _one("+" + "/+" * 9999), bad_input=33),
    *bad("packet id 0", ALL_LEVELS, "82 07 0000 00 0001 'a' 00", 0x82, bad_input=21, spec="MQTT-2.2.1-3"),
    *bad("no lines", BELOW_5, "82 02 0001", 0x82, bad_input=32, spec="MQTT-3.8.3-3"),
    *bad("no lines", 5, "82 03 0001 00", 0x82, bad_input=32, spec="MQTT-3.8.3-2"),
    *bad("SUBSCRIBE without properties", 5, "82 02 0001", 0x81, bad_input=12),
    *bad("SUBSCRIBE without body", ALL_LEVELS, "82 00", 0x81, bad_input=12),
    *bad("half a packet id", ALL_LEVELS, "82 01 00", 0x81, bad_input=12),
    *bad("options missing", BELOW_5, "82 05 0001 0001 'a'", 0x81, bad_input=12),
    *bad("options missing", 5, "82 06 0001 00 0001 'a'", 0x81, bad_input=12),
    *bad("filter goes past the end", BELOW_5, "82 06 0001 0003 'a' 00", 0x81, bad_input=12),
    *bad("filter length cut", BELOW_5, "82 07 0001 0001 'a' 00 00", 0x81, bad_input=12),
    *bad("filter with U+0000", BELOW_5, "82 07 0001 0002 'a' 00 00", 0x81, bad_input=13, spec="MQTT-1.5.4-2"),
    *bad("filter is not UTF-8", 5, "82 08 0001 00 0002 'a' FF 00", 0x81, bad_input=13, spec="MQTT-3.8.3-1"),
    *bad("second line is bad", BELOW_5, "82 0A 0001 0001 'a' 00 0001 'b' 03", 0x81, bad_input=32),
    *bad("first of two violations decides", 5, "82 0B 0001 00 0001 'a' 30 0001 'b' 03", 0x82, bad_input=32),
    *bad("reserved bits before retain handling 3", 5, "82 07 0001 00 0001 'a' 70", 0x81, bad_input=32),
    *bad("retain handling 3 before no local", 5, "82 10 0001 00 000A '$share/g/t' 34", 0x82, bad_input=32),
    *cut("line cut", ALL_LEVELS, "82 09 0001 00 0001 'a' 00"),
    *good("UNSUBSCRIBE two", BELOW_5, "A2 0A 0001 0003 'a/b' 0001 '#'", Unsubscribe(1, ["a/b", "#"])),
    *good("UNSUBSCRIBE two", 5, "A2 0B 0001 00 0003 'a/b' 0001 '#'", Unsubscribe(1, ["a/b", "#"])),
    *bad("UNSUBSCRIBE packet id 0", ALL_LEVELS, "A2 06 0000 00 0001 'a'", 0x82, bad_input=21, spec="MQTT-2.2.1-3"),
    *bad("UNSUBSCRIBE without filters", BELOW_5, "A2 02 0001", 0x82, spec="MQTT-3.10.3-2"),
    *bad("UNSUBSCRIBE without filters", 5, "A2 03 0001 00", 0x82, spec="MQTT-3.10.3-2"),
    *bad("UNSUBSCRIBE without properties", 5, "A2 02 0001", 0x81, bad_input=12),
    *bad("UNSUBSCRIBE without body", ALL_LEVELS, "A2 00", 0x81, bad_input=12),
    *bad("UNSUBSCRIBE filter goes past the end", BELOW_5, "A2 05 0001 0002 'a'", 0x81, bad_input=12),
    *bad("UNSUBSCRIBE filter with a surrogate", BELOW_5, "A2 07 0001 0003 EDA080", 0x81, bad_input=13,
         spec="MQTT-3.10.3-1"),
]  # fmt: skip
