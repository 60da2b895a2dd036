"""Bytes that no client should send: each is one named case, and the broker must answer it as said and live on.

Three parts: first bytes on a new connection, bytes on a connection that is open, and packets that are refused while the
connection stays. `code` is what a v5 client is told; below v5 the connection is just closed. A bystander is connected
all the while and must not notice anything. Abuse by quantity and slowness is in tests/adversity.
"""

import ssl
import time
from dataclasses import dataclass

import pytest

from tbmq.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription, Unsuback, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Closed, covers, each_level, raw_packet, raw_string
from tests.mqtt.bad_packets import connect, publish, subscribe, unsubscribe

ID = b"\x00\x01"
"""Packet id 1."""
NO_PROPERTIES = {MQTT_3_1_1: b"", MQTT_5: b"\x00"}


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    code: int
    covers: tuple[str, ...] = ()
    level: int = MQTT_5


def both(name, data_of, code, *statements):
    """The same case at both levels; `data_of(level)` makes the bytes."""
    return [
        Case(name, data_of(MQTT_5), code, tuple(s for s in statements if not s.startswith("v3:")), MQTT_5),
        Case(name, data_of(MQTT_3_1_1), code, tuple(s for s in statements if s.startswith("v3:")), MQTT_3_1_1),
    ]


def v5(name, data, code, *statements):
    return [Case(name, data, code, statements, MQTT_5)]


def v3(name, data, *statements):
    return [Case(name, data, 0, statements, MQTT_3_1_1)]


def table(*groups):
    """A parametrised test over these cases, that covers all their statements."""
    cases = [case for group in groups for case in group]

    def decorate(test):
        ids = [f"{case.name}-v{case.level}" for case in cases]
        statements = dict.fromkeys(statement for case in cases for statement in case.covers)
        return covers(*statements)(pytest.mark.parametrize("case", cases, ids=ids)(test))

    return decorate


@pytest.fixture(autouse=True)
def bystander(clients):
    """Whatever one client sends, the others are served."""
    client = clients.connected()
    yield client
    client.expect_nothing()


# --- on a new connection ----------------------------------------------------------------------------------------------

BAD_STRINGS = {
    "U+0000": b"a\x00b",
    "a surrogate": b"a\xed\xa0\x80",
    "an overlong form": b"a\xc0\xaf",
    "a cut character": b"a\xe4\xb8",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "a byte that is never UTF-8": b"\xff",
}
FIRST = {
    "PUBLISH": b"\x30\x05\x00\x01axy",
    "PUBACK": b"\x40\x02\x00\x01",
    "SUBSCRIBE": b"\x82\x06\x00\x01\x00\x01a\x00",
    "PINGREQ": b"\xc0\x00",
    "DISCONNECT": b"\xe0\x00",
    "AUTH": b"\xf0\x00",
    "CONNACK": b"\x20\x02\x00\x00",
    "type 0": b"\x00\x00",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@covers("MQTT-3.1.0-1", "MQTT-3.14.0-1", "v3:MQTT-3.1.0-1")
@pytest.mark.parametrize("data", FIRST.values(), ids=FIRST.keys())
def test_what_does_not_begin_with_connect_is_closed_without_a_word(clients, data):
    client = clients.new().open()
    client.send(data)
    client.expect_closed()


def test_a_tls_client_on_the_plain_port_is_closed_without_a_word(clients):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    client = clients.new().open()
    client.send(outgoing.read())
    client.expect_closed()


def connects(name, code, *statements, **fields):
    return both(name, lambda level: connect(level, **fields), code, *statements)


@table(
    both("length of five bytes", lambda level: b"\x10\xff\xff\xff\xff\x01", 0x81),
    both("256 MB announced", lambda level: b"\x10\xff\xff\xff\x7f\x00\x04MQTT" + bytes([level]), 0x95),
    both("no body", lambda level: b"\x10\x00", 0x81, "MQTT-3.1.4-1", "v3:MQTT-3.1.4-1"),
    both("a body of one byte", lambda level: b"\x10\x01\x00", 0x81),
    connects("flags of the fixed header", 0x81, "MQTT-2.1.3-1", "v3:MQTT-2.2.2-2", first_byte=0x11),
    connects("reserved flag", 0x81, "MQTT-3.1.2-3", "v3:MQTT-3.1.2-3", flags=0x03),
    connects("will QoS without will", 0x81, "MQTT-3.1.2-11", "v3:MQTT-3.1.2-11", "v3:MQTT-3.1.2-13", flags=0x0A),
    connects("will retain without will", 0x81, "MQTT-3.1.2-13", "v3:MQTT-3.1.2-15", flags=0x22),
    connects("will QoS 3", 0x81, "MQTT-3.1.2-12", "v3:MQTT-3.1.2-14", flags=0x1E, will=("t", b"x")),
    connects("will missing", 0x81, "MQTT-3.1.2-9", "v3:MQTT-3.1.2-9", flags=0x06),
    connects("will topic empty", 0x81, flags=0x06, will=("", b"x")),
    connects("will topic with a wildcard", 0x90, flags=0x06, will=("a/+", b"x")),
    connects("will topic of 200 levels", 0x90, flags=0x06, will=("/" * 199, b"x")),
    connects("no client id", 0x81, "MQTT-3.1.3-3", "v3:MQTT-3.1.3-3", client_id=None),
    connects("user name missing", 0x81, "MQTT-3.1.2-17", "v3:MQTT-3.1.2-19", flags=0x82),
    connects("password missing", 0x81, "MQTT-3.1.2-19", "v3:MQTT-3.1.2-21", flags=0xC2, rest=raw_string("name")),
    connects("user name without flag", 0x81, "MQTT-3.1.2-16", "v3:MQTT-3.1.2-18", rest=raw_string("name")),
    connects(
        "password without flag",
        0x81,
        "MQTT-3.1.2-18",
        "v3:MQTT-3.1.2-20",
        flags=0x82,
        rest=raw_string("name") + raw_string("word"),
    ),
    v3("password without user name", connect(4, flags=0x42, rest=raw_string("x")), "v3:MQTT-3.1.2-22"),
    *(
        connects(f"client id with {what}", 0x81, "MQTT-3.1.3-4", "v3:MQTT-3.1.3-4", client_id=bad)
        for what, bad in BAD_STRINGS.items()
    ),
    *(
        connects(f"user name with {what}", 0x81, "MQTT-3.1.3-12", "v3:MQTT-3.1.3-11", flags=0x82, rest=raw_string(bad))
        for what, bad in BAD_STRINGS.items()
    ),
    *(
        connects(f"will topic with {what}", 0x81, "MQTT-3.1.3-11", "v3:MQTT-3.1.3-10", flags=0x06, will=(bad, b"x"))
        for what, bad in BAD_STRINGS.items()
    ),
    v5("length in too many bytes", b"\x10\x93\x80\x00" + connect(5, client_id="longer")[2:], 0x81, "MQTT-1.5.5-1"),
    v5("property length of five bytes", connect(5, properties_raw=b"\xff\xff\xff\xff\x01"), 0x81),
    v5("property length in too many bytes", connect(5, properties_raw=b"\x80\x00"), 0x81, "MQTT-1.5.5-1"),
    v5("property length past the end", connect(5, properties_raw=b"\x50"), 0x81),
    v5("property unknown", connect(5, properties=b"\x7f\x00"), 0x81),
    v5("property of another packet", connect(5, properties=b"\x23\x00\x01"), 0x82),
    v5("property twice", connect(5, properties=b"\x21\x00\x01" * 2), 0x82),
    v5("property cut", connect(5, properties=b"\x21\x00"), 0x81),
    v5("receive maximum 0", connect(5, properties=b"\x21\x00\x00"), 0x82),
    v5("maximum packet size 0", connect(5, properties=b"\x27\x00\x00\x00\x00"), 0x82),
    v5("request problem information 2", connect(5, properties=b"\x17\x02"), 0x82),
    v5("authentication data without method", connect(5, properties=b"\x16\x00\x01x"), 0x82),
    v5("100,000 user properties", connect(5, properties=b"\x26\x00\x00\x00\x00" * 100_000), 0x95),
    v5("user property with U+0000", connect(5, properties=b"\x26\x00\x01\x00\x00\x00"), 0x81, "MQTT-1.5.7-1"),
)
def test_a_bad_connect_is_refused(clients, case):
    client = clients.new(case.level).open()
    client.send(case.data)
    expect_refused(client, case.code)


def expect_refused(client, code):
    """Below v5 the broker closes without a word [v3:MQTT-3.1.4-1]; a v5 client may be told why, by CONNACK."""
    if client.level == MQTT_5:
        try:
            answer = client.receive()
        except Closed:
            return
        assert answer == Connack(False, code, answer.properties), answer
    client.expect_closed()


@covers("MQTT-3.1.4-2", "MQTT-4.13.2-1")
@each_level
def test_a_will_to_a_topic_of_the_broker_is_refused(clients, level):
    client = clients.new(level)
    client.connect(will=Will("$SYS/forged", b"x"), code=0x87 if level == MQTT_5 else 0x05)
    client.expect_closed()


@pytest.mark.parametrize("data", [b"", b"\x10", b"\x10\x10\x00\x04MQ"], ids=["silence", "one byte", "half"])
def test_a_connect_that_does_not_come_in_time_is_not_waited_for(limited_clients, data):
    client = limited_clients.new().open()
    started = time.monotonic()
    client.send(data)
    client.expect_closed()
    assert 0.9 <= time.monotonic() - started < 4


@each_level
def test_a_connect_over_its_bound_is_refused_before_its_body_has_come(limited_clients, level):
    client = limited_clients.new(level).open()
    client.send(connect(level, client_id="x" * 1_100)[:20])
    expect_refused(client, 0x95)


# --- on an open connection --------------------------------------------------------------------------------------------


def flags(name, first_byte, *statements):
    body = {0x8: ID + b"\x00\x00\x01a\x00", 0xA: ID + b"\x00\x00\x01a"}.get(first_byte >> 4, ID)
    if first_byte >> 4 in (0xC, 0xE, 0xF):
        body = b""
    old = body.replace(b"\x00\x00\x01a", b"\x00\x01a") if len(body) > 2 else body
    return both(name, lambda level: raw_packet(first_byte, body if level == MQTT_5 else old), 0x81, *statements)


def strings(name, data_of, *statements):
    found = []
    for what, bad in BAD_STRINGS.items():
        found += both(f"{name} with {what}", lambda level, bad=bad: data_of(level, bad), 0x81, *statements)
    return found


UTF8 = ("MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-4.7.3-2", "v3:MQTT-1.5.3-1", "v3:MQTT-1.5.3-2", "v3:MQTT-4.7.3-2")
CLOSE = ("MQTT-4.13.1-1", "v3:MQTT-4.8.0-1")


@table(
    both("length of five bytes", lambda level: b"\xc0\x80\x80\x80\x80\x00", 0x81, *CLOSE),
    both("a second CONNECT", connect, 0x82, "MQTT-3.1.0-2", "v3:MQTT-3.1.0-2"),
    both("type 0", lambda level: b"\x00\x00", 0x81),
    flags("PUBACK flags", 0x41, "MQTT-2.1.3-1", "v3:MQTT-2.2.2-1", "v3:MQTT-2.2.2-2"),
    flags("PUBREC flags", 0x52),
    flags("PUBREL flags", 0x60, "MQTT-3.6.1-1", "v3:MQTT-3.6.1-1"),
    flags("PUBCOMP flags", 0x74),
    flags("SUBSCRIBE flags", 0x80, "MQTT-3.8.1-1", "v3:MQTT-3.8.1-1"),
    flags("UNSUBSCRIBE flags", 0xA0, "MQTT-3.10.1-1", "v3:MQTT-3.10.1-1"),
    flags("PINGREQ flags", 0xC8),
    flags("DISCONNECT flags", 0xE1, "MQTT-3.14.1-1", "v3:MQTT-3.14.1-1"),
    v5("AUTH flags", b"\xf1\x00", 0x81, "MQTT-3.15.1-1"),
    *(
        both(f"{name} from a client", lambda level, data=data: data, 0x82)
        for name, data in [
            ("CONNACK", b"\x20\x02\x00\x00"),
            ("PINGRESP", b"\xd0\x00"),
            ("SUBACK", b"\x90\x03\x00\x01\x00"),
            ("UNSUBACK", b"\xb0\x02\x00\x01"),
        ]
    ),
    v5("AUTH without a method", b"\xf0\x00", 0x82, "MQTT-4.12.0-7"),
    v5("AUTH with an unknown code", b"\xf0\x02\x01\x00", 0x82, "MQTT-3.15.2-1"),
    v5("AUTH with a method never agreed on", raw_packet(0xF0, b"\x19\x04\x15\x00\x01x"), 0x82, "MQTT-4.12.1-1"),
    v3("AUTH", b"\xf0\x00"),
    # fields that do not fit
    both("PINGREQ with a body", lambda level: b"\xc0\x01\x00", 0x81),
    both("PUBLISH without a body", lambda level: b"\x30\x00", 0x81),
    both("PUBLISH of one byte", lambda level: b"\x30\x01\x00", 0x81),
    both("PUBLISH topic past the end", lambda level: b"\x30\x04\x00\xffab", 0x81),
    both("PUBLISH without its id", lambda level: b"\x32\x03\x00\x01a", 0x81),
    both("PUBACK without its id", lambda level: b"\x40\x00", 0x81),
    both("PUBREL of one byte", lambda level: b"\x62\x01\x00", 0x81),
    v3("PUBACK too long", b"\x40\x03\x00\x01\x00"),
    v5("PUBACK with an unknown code", b"\x40\x03\x00\x01\x05", 0x82),
    v3("DISCONNECT with a body", b"\xe0\x01\x00", "v3:MQTT-3.14.1-1"),
    v5("DISCONNECT with an unknown code", b"\xe0\x01\x01", 0x82, "MQTT-3.14.2-1"),
    v5("DISCONNECT with bytes left over", b"\xe0\x03\x00\x00\x00", 0x81),
    both(
        "SUBSCRIBE cut in its filter", lambda level: raw_packet(0x82, ID + NO_PROPERTIES[level] + b"\x00\x09abc"), 0x81
    ),
    both("SUBSCRIBE without options", lambda level: raw_packet(0x82, ID + NO_PROPERTIES[level] + b"\x00\x01a"), 0x81),
    # packet ids
    both(
        "PUBLISH id 0", lambda level: publish(level, "a", qos=1, packet_id=0), 0x82, "MQTT-2.2.1-3", "v3:MQTT-2.3.1-1"
    ),
    both("SUBSCRIBE id 0", lambda level: subscribe(level, "a", packet_id=0), 0x82, "MQTT-2.2.1-3", "v3:MQTT-2.3.1-1"),
    both(
        "UNSUBSCRIBE id 0", lambda level: unsubscribe(level, "a", packet_id=0), 0x82, "MQTT-2.2.1-3", "v3:MQTT-2.3.1-1"
    ),
    both("PUBREL id 0", lambda level: b"\x62\x02\x00\x00", 0x82),
    # PUBLISH
    both("QoS 3", lambda level: publish(level, "a", first_byte=0x36), 0x81, "MQTT-3.3.1-4", "v3:MQTT-3.3.1-4"),
    both("QoS 0 with DUP", lambda level: publish(level, "a", first_byte=0x38), 0x81, "MQTT-3.3.1-2", "v3:MQTT-3.3.1-2"),
    both("topic with +", lambda level: publish(level, "a/+"), 0x90, "MQTT-3.3.2-2", "MQTT-4.7.0-1", "v3:MQTT-3.3.2-2"),
    both("topic with #", lambda level: publish(level, "#"), 0x90, "MQTT-3.3.2-2", "MQTT-4.7.0-1", "v3:MQTT-4.7.1-1"),
    both("topic empty", lambda level: publish(level, ""), 0x82, "MQTT-4.7.3-1", "v3:MQTT-4.7.3-1"),
    both("topic of 65,535 levels", lambda level: publish(level, "/" * 65_534), 0x90),
    both("topic of 129 levels", lambda level: publish(level, "/" * 128), 0x90),
    strings("topic", lambda level, bad: publish(level, bad), *UTF8, "MQTT-3.3.2-1", "v3:MQTT-3.3.2-1"),
    v5("alias 0", publish(5, "a", properties=b"\x23\x00\x00"), 0x94, "MQTT-3.3.2-8"),
    v5("alias over the bound", publish(5, "a", properties=b"\x23\xff\xff"), 0x94, "MQTT-3.2.2-17", "MQTT-3.3.2-9"),
    v5("alias never given", publish(5, "", properties=b"\x23\x00\x01"), 0x82),
    v5("subscription identifier", publish(5, "a", properties=b"\x0b\x01"), 0x82, "MQTT-3.3.4-6"),
    v5("response topic with +", publish(5, "a", properties=b"\x08" + raw_string("b/+")), 0x82, "MQTT-3.3.2-14"),
    v5("response topic not UTF-8", publish(5, "a", properties=b"\x08" + raw_string(b"\xff")), 0x81, "MQTT-3.3.2-13"),
    v5("content type not UTF-8", publish(5, "a", properties=b"\x03" + raw_string(b"\xff")), 0x81, "MQTT-3.3.2-19"),
    v5("user property not UTF-8", publish(5, "a", properties=b"\x26\x00\x00\x00\x01\xff"), 0x81, "MQTT-1.5.7-1"),
    v5("payload format 2", publish(5, "a", properties=b"\x01\x02"), 0x82),
    v5("property twice", publish(5, "a", properties=b"\x03\x00\x00" * 2), 0x82),
    v5("property of another packet", publish(5, "a", properties=b"\x21\x00\x01"), 0x82),
    v5("property unknown", publish(5, "a", properties=b"\x04\x00"), 0x81),
    v5("property cut", publish(5, "a", properties=b"\x02\x00"), 0x81),
    v5("property length past the end", raw_packet(0x30, b"\x00\x01a\x7f"), 0x81),
    v5("property length of five bytes", raw_packet(0x30, b"\x00\x01a\xff\xff\xff\xff\x01"), 0x81),
    v5("property length in too many bytes", raw_packet(0x30, b"\x00\x01a\x80\x00"), 0x81, "MQTT-1.5.5-1"),
    v5("remaining length in too many bytes", b"\xc0\x80\x00", 0x81, "MQTT-1.5.5-1"),
    v5("100,000 user properties", publish(5, "a", properties=b"\x26\x00\x00\x00\x00" * 100_000), 0x95),
    # SUBSCRIBE and UNSUBSCRIBE
    both(
        "no filter", lambda level: raw_packet(0x82, ID + NO_PROPERTIES[level]), 0x82, "MQTT-3.8.3-2", "v3:MQTT-3.8.3-3"
    ),
    both(
        "nothing to unsubscribe",
        lambda level: raw_packet(0xA2, ID + NO_PROPERTIES[level]),
        0x82,
        "MQTT-3.10.3-2",
        "v3:MQTT-3.10.3-2",
    ),
    both("option bit 6", lambda level: subscribe(level, "a", 0x40), 0x81, "MQTT-3.8.3-5", "v3:MQTT-3.8.3-4"),
    both("option bit 7", lambda level: subscribe(level, "a", 0x80), 0x81, "MQTT-3.8.3-5", "v3:MQTT-3.8.3-4"),
    both("option QoS 3", lambda level: subscribe(level, "a", 0x03), 0x81, "v3:MQTT-3.8.3-4"),
    v3("option bit 2", subscribe(4, "a", 0x04), "v3:MQTT-3.8.3-4"),
    v5("option retain handling 3", subscribe(5, "a", 0x30), 0x82),
    strings("filter", lambda level, bad: subscribe(level, bad), *UTF8, "MQTT-3.8.3-1", "v3:MQTT-3.8.3-1"),
    strings("filter to unsubscribe", lambda level, bad: unsubscribe(level, bad), "MQTT-3.10.3-1", "v3:MQTT-3.10.3-1"),
    v5("subscription identifier 0", subscribe(5, "a", properties=b"\x0b\x00"), 0x82),
    v5("subscription identifier twice", subscribe(5, "a", properties=b"\x0b\x01\x0b\x02"), 0x82),
)
def test_a_bad_packet_ends_the_connection(clients, case):
    client = clients.connected(case.level)
    client.send(case.data)
    client.expect_disconnect(case.code)


# --- refused, and the connection stays --------------------------------------------------------------------------------


@covers("v3:MQTT-3.3.5-2")
@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nobody_may_publish_to_a_topic_of_the_broker(clients, level, qos):
    client, watcher = clients.connected(level), clients.connected()
    watcher.try_subscribe(Subscription("$SYS/forged", 0, retain_handling=2))
    answer = client.publish("$SYS/forged", b"x", qos=qos, retain=True)
    if answer is not None:
        assert answer.reason_code == (0x87 if level == MQTT_5 else 0)
    watcher.try_subscribe(Subscription("$SYS/forged"))
    watcher.expect_nothing()
    client.ping()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_not_the_text_it_claims_to_be_is_refused(clients, topic, qos):
    client = clients.connected()
    client.subscribe(topic)
    answer = client.publish(topic, b"\xff\xfe", qos=qos, payload_format_indicator=1)
    if answer is not None:
        assert answer.reason_code == 0x99
    client.expect_nothing()


@each_level
@pytest.mark.parametrize("packet", [Puback(9), Pubcomp(9)], ids=["PUBACK", "PUBCOMP"])
def test_an_acknowledgement_of_nothing_is_ignored(clients, level, packet):
    client = clients.connected(level)
    client.send(packet)
    client.expect_nothing()


@each_level
def test_a_pubrec_and_a_pubrel_of_nothing_are_answered(clients, level):
    client = clients.connected(level)
    not_found = 0x92 if level == MQTT_5 else 0
    client.send(Pubrel(9))
    client.expect(Pubcomp, packet_id=9, reason_code=not_found)
    client.send(Pubrec(9))
    client.expect(Pubrel, packet_id=9, reason_code=not_found)
    client.expect_nothing()


@each_level
def test_a_qos_2_message_sent_again_and_again_holds_one_place(clients, topic, level):
    client = clients.connected(level)
    for _ in range(2_000):
        client.send(Publish(topic, b"x", 2, packet_id=1, dup=True))
    for _ in range(2_000):
        assert client.expect(Pubrec, packet_id=1).reason_code in (0x00, 0x10)
    client.send(Pubrel(1))
    client.expect(Pubcomp, packet_id=1, reason_code=0)


@each_level
@pytest.mark.parametrize("topic_filter", ["+/" * 10_000, "/" * 65_534, "a/" * 128 + "#"], ids=["+/+/", "////", "129"])
def test_a_filter_of_too_many_levels_is_refused(clients, level, topic_filter):
    client = clients.connected(level)
    codes = client.try_subscribe(Subscription(topic_filter)).reason_codes
    assert codes == [0x8F if level == MQTT_5 else 0x80]


@pytest.mark.parametrize("topic_filter", ["a/#/b", "", "+a"])
def test_an_invalid_filter_cannot_be_unsubscribed(clients, topic_filter):
    client = clients.connected()
    client.send(unsubscribe(5, topic_filter, packet_id=7))
    (code,) = client.expect(Unsuback, packet_id=7).reason_codes
    assert code in (0x11, 0x8F)


ODD_IDS = ["#", "+", "/", "a/b", "a\r\nb", "<script>", "{}", "%s%n", "../../x", "${clientid}", "\u202e", " ", "$SYS"]


@each_level
@pytest.mark.parametrize("client_id", ODD_IDS)
def test_an_odd_client_id_is_a_name_like_any_other(clients, topic, level, client_id):
    client = clients.connected(level, client_id)
    client.subscribe(topic)
    client.publish(topic, b"x")
    client.expect(Publish, payload=b"x")


def test_a_client_id_cannot_forge_a_line_of_the_log(clients, broker):
    client = clients.connected(client_id="x\r\n2026-01-01 INFO forged")
    client.send(b"\x00\x00")
    client.expect_disconnect(0x81)
    assert not any(line.startswith("2026-01-01 INFO forged") for line in broker.log().splitlines())


@each_level
def test_half_a_packet_and_then_the_end_hurts_nobody(clients, topic, level):
    watcher = clients.connected()
    watcher.subscribe(topic)
    for cut in range(1, 12, 2):
        client = clients.connected(level, will=Will(topic, b"will"))
        client.send(publish(level, topic, payload=b"x" * 20)[:cut])
        client.close()
        watcher.expect(Publish, payload=b"will")


@each_level
def test_good_packets_before_a_bad_one_count(clients, topic, level):
    watcher = clients.connected()
    watcher.subscribe(topic)
    client = clients.connected(level)
    client.send(Publish(topic, b"good", 1, packet_id=1), b"\x00\x00", Publish(topic, b"never"))
    watcher.expect(Publish, payload=b"good")
    client.expect_disconnect(0x81, may_come_before=Puback)  # whose PUBACK is lost may send again
    clients.connected().publish(topic, b"marker")
    watcher.expect(Publish, payload=b"marker")
