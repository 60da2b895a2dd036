"""Encoding: what cannot be written is refused, what can be comes back equal, and both codecs write the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbmq.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.reference.implementations import CODECS, NATIVE, REFERENCE, Codec, decode
from tests.vectors.strategies import packets_of, sent_packet_types

codecs = pytest.mark.parametrize("codec", CODECS, ids=str)
KINDS = [
    (packet_type, level, client)
    for level in (3, 4, 5)
    for client in (False, True)
    for packet_type in sent_packet_types(level, client)
]
LONG = "x" * 65_536
ONE = Subscription("a")

# name, packet, level, does a client send it
REFUSED: list[tuple[str, Any, int, bool]] = [
    ("not a packet", object(), 5, True),
    ("will is not a packet", Will("t"), 5, True),
    ("level 0", Pingreq(), 0, True),
    ("level 2", Pingreq(), 2, True),
    ("level 6", Pingreq(), 6, True),
    # Strings and binary data.
    ("topic over 65,535 bytes", Publish(LONG), 4, True),
    ("topic over 65,535 bytes in fewer characters", Publish("é" * 32_768), 4, True),
    ("topic with U+0000", Publish("a\0b"), 4, True),
    ("topic with a surrogate", Publish("a\ud800"), 4, True),
    ("client id over 65,535 bytes", Connect(LONG, 4), 4, True),
    ("client id with U+0000", Connect("\0", 4), 4, True),
    ("user name with a surrogate", Connect("c", 4, username="\udfff"), 4, True),
    ("password over 65,535 bytes", Connect("c", 5, password=LONG.encode()), 5, True),
    ("will payload over 65,535 bytes", Connect("c", 4, will=Will("t", LONG.encode())), 4, True),
    ("filter over 65,535 bytes", Subscribe(1, [Subscription(LONG)]), 4, True),
    ("filter with U+0000", Unsubscribe(1, ["\0"]), 4, True),
    # CONNECT.
    ("CONNECT of another level", Connect("c", 4), 5, True),
    ("CONNECT of level 5 as 3.1.1", Connect("c", 5), 4, True),
    ("CONNECT from a server", Connect("c", 4), 4, False),
    ("keep-alive over 65,535", Connect("c", 4, keep_alive_s=65_536), 4, True),
    ("keep-alive below 0", Connect("c", 4, keep_alive_s=-1), 4, True),
    ("password without user name below MQTT 5", Connect("c", 4, password=b"p"), 4, True),
    ("password without user name in MQTT 3.1", Connect("c", 3, password=b"p"), 3, True),
    ("will QoS 3", Connect("c", 4, will=Will("t", qos=3)), 4, True),
    ("will QoS -1", Connect("c", 4, will=Will("t", qos=-1)), 4, True),
    ("will QoS 5", Connect("c", 4, will=Will("t", qos=5)), 4, True),
    ("will without topic", Connect("c", 4, will=Will("")), 4, True),
    ("will topic with a wildcard", Connect("c", 4, will=Will("a/#")), 4, True),
    ("will properties below MQTT 5", Connect("c", 4, will=Will("t", properties={"will_delay_interval": 1})), 4, True),
    ("will property in CONNECT", Connect("c", properties={"will_delay_interval": 1}), 5, True),
    ("CONNECT property in the will", Connect("c", will=Will("t", properties={"receive_maximum": 1})), 5, True),
    ("authentication data without method", Connect("c", properties={"authentication_data": b"x"}), 5, True),
    # CONNACK.
    ("CONNACK from a client", Connack(), 5, True),
    ("CONNACK code of MQTT 5 below it", Connack(False, 0x87), 4, False),
    ("CONNACK return code in MQTT 5", Connack(False, 5), 5, False),
    ("CONNACK code 256", Connack(False, 256), 5, False),
    ("session present in a refusal", Connack(True, 0x87), 5, False),
    ("session present in a refusal below MQTT 5", Connack(True, 5), 4, False),
    # PUBLISH.
    ("QoS 3", Publish("t", qos=3, packet_id=1), 5, True),
    ("QoS -1", Publish("t", qos=-1), 5, True),
    ("QoS 4", Publish("t", qos=4, packet_id=1), 5, True),
    ("packet id 0 with QoS 1", Publish("t", qos=1), 4, True),
    ("packet id 65,536", Publish("t", qos=1, packet_id=65_536), 4, True),
    ("packet id -1", Publish("t", qos=2, packet_id=-1), 4, True),
    ("packet id with QoS 0", Publish("t", packet_id=1), 4, True),
    ("DUP with QoS 0", Publish("t", dup=True), 4, True),
    ("topic with +", Publish("a/+"), 5, True),
    ("topic with #", Publish("#"), 3, False),
    ("empty topic below MQTT 5", Publish(""), 4, True),
    ("empty topic without alias", Publish(""), 5, False),
    # Properties.
    ("properties below MQTT 5", Publish("t", properties={"content_type": "x"}), 4, True),
    ("properties of an ack below MQTT 5", Puback(1, 0, {"reason_string": "x"}), 3, True),
    ("unknown property", Publish("t", properties={"no_such_property": 1}), 5, True),
    ("subscription identifier in PUBLISH of a client", Publish("t", properties={"subscription_identifier": [1]}), 5,
     True),
    ("session expiry in DISCONNECT of a server", Disconnect(0, {"session_expiry_interval": 1}), 5, False),
    ("server reference in DISCONNECT of a client", Disconnect(0, {"server_reference": "x"}), 5, True),
    ("payload format 2", Publish("t", properties={"payload_format_indicator": 2}), 5, True),
    ("payload format -1", Publish("t", properties={"payload_format_indicator": -1}), 5, True),
    ("expiry of 2^32", Publish("t", properties={"message_expiry_interval": 1 << 32}), 5, True),
    ("expiry below 0", Publish("t", properties={"message_expiry_interval": -1}), 5, True),
    ("expiry of 2^70", Publish("t", properties={"message_expiry_interval": 1 << 70}), 5, True),
    ("alias 0", Publish("t", properties={"topic_alias": 0}), 5, True),
    ("alias 65,536", Publish("t", properties={"topic_alias": 65_536}), 5, True),
    ("receive maximum 0", Connect("c", properties={"receive_maximum": 0}), 5, True),
    ("receive maximum 65,536", Connect("c", properties={"receive_maximum": 65_536}), 5, True),
    ("maximum packet size 0", Connect("c", properties={"maximum_packet_size": 0}), 5, True),
    ("subscription identifier 0", Subscribe(1, [ONE], {"subscription_identifier": 0}), 5, True),
    ("subscription identifier of 2^28", Subscribe(1, [ONE], {"subscription_identifier": 1 << 28}), 5, True),
    ("empty response topic", Publish("t", properties={"response_topic": ""}), 5, True),
    ("response topic with a wildcard", Publish("t", properties={"response_topic": "a/+"}), 5, True),
    ("string property over 65,535 bytes", Publish("t", properties={"content_type": LONG}), 5, True),
    ("binary property over 65,535 bytes", Publish("t", properties={"correlation_data": LONG.encode()}), 5, True),
    ("user property with U+0000", Publish("t", properties={"user_property": [("a", "\0")]}), 5, True),
    ("user property with one part", Publish("t", properties={"user_property": [("a",)]}), 5, True),
    # Acks.
    ("packet id 0 in an ack", Puback(0), 4, True),
    ("packet id 65,536 in an ack", Pubrel(65_536), 5, True),
    ("reason code of an ack below MQTT 5", Puback(1, 0x10), 4, True),
    ("reason code that is not of this ack", Pubrel(1, 0x10), 5, True),
    ("reason code 256", Puback(1, 256), 5, True),
    ("reason code -1", Puback(1, -1), 5, True),
    # SUBSCRIBE and the like.
    ("SUBSCRIBE from a server", Subscribe(1, [ONE]), 5, False),
    ("SUBSCRIBE with packet id 0", Subscribe(0, [ONE]), 4, True),
    ("SUBSCRIBE without lines", Subscribe(1, []), 4, True),
    ("subscription QoS 3", Subscribe(1, [Subscription("a", 3)]), 4, True),
    ("subscription QoS 4", Subscribe(1, [Subscription("a", 4)]), 5, True),
    ("no local below MQTT 5", Subscribe(1, [Subscription("a", no_local=True)]), 4, True),
    ("retain as published below MQTT 5", Subscribe(1, [Subscription("a", retain_as_published=True)]), 4, True),
    ("retain handling below MQTT 5", Subscribe(1, [Subscription("a", retain_handling=1)]), 4, True),
    ("retain handling 3", Subscribe(1, [Subscription("a", retain_handling=3)]), 5, True),
    ("retain handling 4", Subscribe(1, [Subscription("a", retain_handling=4)]), 5, True),
    ("no local on a shared subscription", Subscribe(1, [Subscription("$share/g/t", no_local=True)]), 5, True),
    ("SUBACK from a client", Suback(1, [0]), 5, True),
    ("SUBACK without codes", Suback(1, []), 5, False),
    ("SUBACK code 3", Suback(1, [3]), 5, False),
    ("SUBACK code of MQTT 5 below it", Suback(1, [0x87]), 4, False),
    ("UNSUBSCRIBE without filters", Unsubscribe(1, []), 4, True),
    ("UNSUBSCRIBE with packet id 0", Unsubscribe(0, ["a"]), 5, True),
    ("UNSUBACK without codes", Unsuback(1), 5, False),
    ("UNSUBACK codes below MQTT 5", Unsuback(1, [0]), 4, False),
    ("PINGREQ from a server", Pingreq(), 4, False),
    ("PINGRESP from a client", Pingresp(), 4, True),
    ("DISCONNECT code below MQTT 5", Disconnect(4), 4, True),
    ("DISCONNECT from a server below MQTT 5", Disconnect(), 4, False),
    ("DISCONNECT code that it cannot carry", Disconnect(0x92), 5, False),
    ("AUTH below MQTT 5", Auth(), 4, True),
    ("AUTH without method", Auth(0x18), 5, True),
    ("AUTH with data and without method", Auth(0, {"authentication_data": b"x"}), 5, True),
    ("AUTH code that it cannot carry", Auth(0x80, {"authentication_method": "m"}), 5, True),
]  # fmt: skip

# A mistake of the caller: it may be a TypeError, but never bytes that say something else.
WRONG_TYPES: list[tuple[str, Any]] = [
    ("payload is a number", Publish("t", 5)),  # type: ignore[arg-type]
    ("payload is text", Publish("t", "text")),  # type: ignore[arg-type]
    ("payload is None", Publish("t", None)),  # type: ignore[arg-type]
    ("topic is bytes", Publish(b"t")),  # type: ignore[arg-type]
    ("topic is None", Publish(None)),  # type: ignore[arg-type]
    ("qos is text", Publish("t", qos="1")),  # type: ignore[arg-type]
    ("packet id is None", Publish("t", qos=1, packet_id=None)),  # type: ignore[arg-type]
    ("client id is None", Connect(None)),  # type: ignore[arg-type]
    ("password is text", Connect("c", password="p")),  # type: ignore[arg-type]
    ("properties are None", Publish("t", properties=None)),  # type: ignore[arg-type]
    ("binary property is a number", Publish("t", properties={"correlation_data": 5})),
    ("binary property is text", Publish("t", properties={"correlation_data": "x"})),
    ("string property is bytes", Publish("t", properties={"content_type": b"x"})),
    ("number property is text", Publish("t", properties={"topic_alias": "1"})),
    ("number property is a fraction", Publish("t", properties={"topic_alias": 1.0})),
    ("user property is one pair", Publish("t", properties={"user_property": ("k", "v")})),
    ("user property is a mapping", Publish("t", properties={"user_property": {"id": "7"}})),
    ("user property pair is text of two characters", Publish("t", properties={"user_property": ["kv"]})),
    ("filter is bytes", Subscribe(1, [Subscription(b"a")])),  # type: ignore[arg-type]
    ("filters are None", Unsubscribe(1, None)),  # type: ignore[arg-type]
    ("packet is None", None),
]


@codecs
@pytest.mark.parametrize(("name", "packet", "level", "client"), REFUSED, ids=[row[0] for row in REFUSED])
def test_packet_is_refused_when_it_cannot_be_written(
    codec: Codec, name: str, packet: Packet, level: int, client: bool
) -> None:
    with pytest.raises(ValueError) as refusal:
        codec.encode(packet, level, client=client)
    assert str(refusal.value)


@codecs
@pytest.mark.parametrize(("name", "packet"), WRONG_TYPES, ids=[row[0] for row in WRONG_TYPES])
def test_packet_is_refused_when_a_field_has_the_wrong_type(codec: Codec, name: str, packet: Packet) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        codec.encode(packet, 5, client=True)


@codecs
def test_field_of_65535_bytes_is_written(codec: Codec) -> None:
    longest = "x" * 65_535
    for packet in (Publish(longest), Publish("t", properties={"correlation_data": longest.encode()})):
        data = codec.encode(packet, 5, client=True)
        assert decode(codec.decoder(protocol_level=5), [data]).packets == [packet]


@codecs
def test_shortest_form_is_written_when_there_is_nothing_to_say(codec: Codec) -> None:
    method = {"authentication_method": "m"}
    for packet, data in [
        (Puback(1), "40020001"),
        (Puback(1, 0x10), "4003000110"),
        (Puback(1, 0, {"reason_string": ""}), "4007000100031f0000"),
        (Pubrel(1), "62020001"),
        (Disconnect(), "e000"),
        (Disconnect(0x04), "e00104"),
        (Disconnect(0, {"reason_string": ""}), "e00500031f0000"),
        (Auth(), "f000"),
        (Auth(0x18, method), "f00618041500016d"),
    ]:
        assert codec.encode(packet, 5, client=True).hex() == data


@codecs
def test_properties_are_written_in_the_order_of_the_mapping(codec: Codec) -> None:
    properties = {"user_property": [("a", "b"), ("a", "c")], "payload_format_indicator": 1}
    data = codec.encode(Publish("t", properties=properties), 5)
    assert data.hex() == "3014" + "000174" + "10" + "260001610001622600016100016301" + "01"
    swapped = dict(reversed(properties.items()))
    assert codec.encode(Publish("t", properties=swapped), 5).hex() == (
        "3014" + "000174" + "10" + "0101" + "2600016100016226000161000163"
    )


@codecs
def test_encoding_leaves_the_packet_as_it_was(codec: Codec) -> None:
    packet = Publish("t", b"x", properties={"user_property": [("a", "b")]})
    before = replace(packet, properties={"user_property": [("a", "b")]})
    codec.encode(packet, 5)
    assert packet == before


@pytest.mark.parametrize(
    ("packet_type", "level", "client"), KINDS, ids=lambda value: getattr(value, "name", str(value))
)
def test_both_codecs_write_the_same_and_read_it_back(packet_type: Any, level: int, client: bool) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(packets_of(packet_type, level, client))
    def check(packet: Packet) -> None:
        data = NATIVE.encode(packet, level, client=client)
        assert data.hex() == REFERENCE.encode(packet, level, client=client).hex()
        start = 0 if isinstance(packet, Connect) else level
        for reader in CODECS:
            read = decode(reader.decoder(client=not client, protocol_level=start), [data])
            assert repr(read.packets) == repr([packet]), f"read by {reader}"

    check()


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_stream_of_packets_comes_back_when_cut_at_random(data: st.DataObject) -> None:
    level, client = data.draw(st.sampled_from([(level, client) for level in (3, 4, 5) for client in (False, True)]))
    kinds = [kind for kind in sent_packet_types(level, client) if kind.name != "CONNECT"]
    packets = data.draw(
        st.lists(st.sampled_from(kinds).flatmap(lambda kind: packets_of(kind, level, client)), max_size=6)
    )
    stream = b"".join(NATIVE.encode(packet, level, client=client) for packet in packets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for reader in CODECS:
        assert decode(reader.decoder(client=not client, protocol_level=level), chunks).packets == packets
