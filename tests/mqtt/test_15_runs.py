"""Bursts of QoS 0 on one topic in one write: the broker passes them on as one piece, and nobody may notice.

A `burst` is packets one behind the other. Whatever the subscribers are, and whatever stands in the middle of a burst or
behind it, they get what they would get of packets sent one by one.
"""

import itertools
import threading

import pytest

from tbmq._codec import encode
from tbmq.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from tbmq.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5
from tests.helpers import Client, each_level, is_mosquitto, raw_packet, raw_string, run_broker
from tests.helpers.node import running_nodes, take_numbers

LEVELS = (MQTT_3_1, MQTT_3_1_1, MQTT_5)
MEBIBYTE = 1_048_576


def burst(topic, payloads, level):
    return b"".join(encode(Publish(topic, payload), level, client=True) for payload in payloads)


def numbers(start, stop):
    return [b"%d" % n for n in range(start, stop)]


def payloads_of(client, count, **fields):
    return [client.expect(Publish, qos=0, retain=False, dup=False, **fields).payload for _ in range(count)]


# --- every kind of subscriber -----------------------------------------------------------------------------------------


@each_level
def test_thousands_in_one_write_reach_every_version_in_order_and_unchanged(clients, broker, topic, level):
    subscribers = [clients.connected(n, worker=w) for n in LEVELS for w in range(broker.workers)]
    for subscriber in subscribers:
        subscriber.subscribe(topic)
    payloads = [b"%d " % n + bytes(n % 256 for _ in range(n % 90)) for n in range(5_000)]
    publisher = clients.connected(level)
    publisher.send(burst(topic, payloads, level))
    for subscriber in subscribers:
        assert payloads_of(subscriber, 5_000, topic=topic, properties={}) == payloads
    publisher.expect_nothing()


@each_level
def test_subscription_identifiers_stand_in_every_packet_of_a_burst(clients, topic, level):
    one, two, plain, publisher = *(clients.connected() for _ in range(3)), clients.connected(level)
    leaf = f"{topic}/leaf"
    one.subscribe(leaf, subscription_identifier=7)
    two.subscribe(f"{topic}/#", subscription_identifier=268_435_455)
    two.subscribe(f"{topic}/+", subscription_identifier=1)
    plain.subscribe(leaf)
    publisher.send(burst(leaf, numbers(0, 1_000), level))
    assert payloads_of(one, 1_000, properties={"subscription_identifier": [7]}) == numbers(0, 1_000)
    for n in range(1_000):
        message = two.expect(Publish, payload=b"%d" % n)
        assert sorted(message.properties["subscription_identifier"]) == [1, 268_435_455]
    assert payloads_of(plain, 1_000, properties={}) == numbers(0, 1_000)


@each_level
def test_topic_aliases_are_used_in_a_burst(clients, topic, level):
    subscriber, publisher = clients.connected(topic_alias_maximum=2), clients.connected(level)
    subscriber.subscribe(f"{topic}/#")
    for n in range(3):  # one more than aliases
        publisher.send(burst(f"{topic}/{n}", numbers(0, 500), level))
    for n in range(3):
        alias = {"topic_alias": n + 1} if n < 2 else {}
        assert payloads_of(subscriber, 1, topic=f"{topic}/{n}", properties=alias) == [b"0"]
        rest = payloads_of(subscriber, 499, topic="" if alias else f"{topic}/{n}", properties=alias)
        assert rest == numbers(1, 500)


@each_level
def test_only_what_is_too_large_for_a_subscriber_is_left_out_of_its_burst(clients, topic, level):
    small, large = clients.connected(maximum_packet_size=200), clients.connected()
    publisher = clients.connected(level)
    for subscriber in (small, large):
        subscriber.subscribe(topic)
    size = 200 - len(encode(Publish(topic, b"x" * 150), MQTT_5)) + 150  # fits exactly
    payloads = [b"%d:" % n + b"x" * size for n in range(10)]
    payloads = [payload[: size + n % 3 - 1] for n, payload in enumerate(payloads * 50)]
    publisher.send(burst(topic, payloads, level))
    assert payloads_of(large, 500) == payloads
    fitting = [payload for payload in payloads if len(payload) <= size]
    assert payloads_of(small, len(fitting)) == fitting
    small.expect_nothing()


@each_level
def test_own_bursts_come_back_unless_no_local_is_asked_for(clients, topic, level):
    publisher, other = clients.connected(level), clients.connected()
    publisher.subscribe(topic)
    other.subscribe(topic)
    publisher.send(burst(topic, numbers(0, 1_000), level))
    assert payloads_of(publisher, 1_000) == numbers(0, 1_000)
    if level == MQTT_5:
        publisher.subscribe(Subscription(topic, 0, no_local=True, retain_handling=2))
        publisher.send(burst(topic, numbers(0, 1_000), level))
        publisher.expect_nothing()
        assert payloads_of(other, 2_000) == numbers(0, 1_000) * 2
        other.send(burst(topic, numbers(0, 10), MQTT_5))
        assert payloads_of(publisher, 10) == numbers(0, 10)


@each_level
def test_overlapping_subscriptions_get_a_burst_once(clients, topic, level):
    subscriber, publisher = clients.connected(), clients.connected(level)
    subscriber.subscribe(f"{topic}/leaf", f"{topic}/#", f"{topic}/+", qos=1)
    publisher.send(burst(f"{topic}/leaf", numbers(0, 1_000), level))
    assert payloads_of(subscriber, 1_000) == numbers(0, 1_000)
    subscriber.expect_nothing()


@each_level
def test_each_packet_of_a_burst_goes_to_one_member_of_each_group_and_to_everybody_else(clients, broker, topic, level):
    """Members of all versions on all workers, beside plain subscribers on the same topic."""
    workers = range(broker.workers)
    groups = {
        name: [clients.connected(n, worker=w) for n in (MQTT_3_1_1, MQTT_5) for w in workers] for name in ("g", "h")
    }
    plain = [clients.connected(worker=w) for w in workers]
    for name, members in groups.items():
        for member in members:
            member.subscribe(f"$share/{name}/{topic}")
    for subscriber in plain:
        subscriber.subscribe(topic)
    publisher = clients.connected(level)
    publisher.send(burst(topic, numbers(0, 3_000), level))
    for subscriber in plain:
        assert payloads_of(subscriber, 3_000) == numbers(0, 3_000)
    for members in groups.values():
        got = []
        share = 3_000 // len(members)
        for member in members:
            mine = [int(payload) for payload in payloads_of(member, share, topic=topic)]
            assert mine == sorted(mine)
            got += mine
            member.expect_nothing()
        assert sorted(got) == list(range(3_000))


# --- what may stand in the middle -------------------------------------------------------------------------------------


def other_topic(topic):
    return Publish(f"{topic}/other", b"between")


def longer_topic(topic):
    return Publish(f"{topic}x", b"between")


def qos_1(topic):
    return Publish(topic, b"between", 1, packet_id=1)


def qos_2(topic):
    return Publish(topic, b"between", 2, packet_id=1)


def retained(topic):
    return Publish(topic, b"between", 0, retain=True)


def properties(topic):
    return Publish(topic, b"between", properties={"content_type": "x", "user_property": [("a", "b")]})


def expiry(topic):
    return Publish(topic, b"between", properties={"message_expiry_interval": 100})


def alias(topic):
    return Publish(topic, b"between", properties={"topic_alias": 1})


BETWEEN = [other_topic, longer_topic, qos_1, qos_2, retained]
BETWEEN_OF_5 = [properties, expiry, alias]
CASES = [(n, make) for n in (MQTT_3_1_1, MQTT_5) for make in BETWEEN] + [(MQTT_5, make) for make in BETWEEN_OF_5]


@pytest.mark.parametrize(("level", "make"), CASES, ids=lambda value: getattr(value, "__name__", f"v{value}"))
def test_a_burst_keeps_its_order_with_another_publish_in_its_middle(clients, topic, level, make):
    """For subscribers of both versions; each QoS is passed on."""
    subscribers, publisher = [clients.connected(n) for n in (MQTT_3_1_1, MQTT_5)], clients.connected(level)
    for subscriber in subscribers:
        subscriber.subscribe("#", qos=2)
    between = make(topic)
    publisher.send(burst(topic, numbers(0, 200), level), between, burst(topic, numbers(200, 400), level))
    for subscriber in subscribers:
        assert of_topic(subscriber, topic, 200) == numbers(0, 200)
        (message,) = messages_of(subscriber, topic, 1)
        assert (message.topic, message.payload, message.qos) == (between.topic, b"between", between.qos)
        if level == subscriber.level == MQTT_5:
            sent = {name: value for name, value in between.properties.items() if name != "topic_alias"}
            assert message.properties == sent
        assert of_topic(subscriber, topic, 200) == numbers(200, 400)
    publisher.publish(topic, b"", retain=True)


def messages_of(client, topic, count):
    """So many messages below this test's topic: with `#` there may be retained ones of others before them."""
    found = []
    while len(found) < count:
        message = client.take_message()
        if message.topic.startswith(topic):
            found.append(message)
    return found


def of_topic(client, topic, count):
    messages = messages_of(client, topic, count)
    assert all(message.qos == 0 and not message.retain and message.topic == topic for message in messages)
    return [message.payload for message in messages]


@each_level
def test_a_ping_in_the_middle_of_a_burst_is_answered(clients, topic, level):
    subscriber, publisher = clients.connected(), clients.connected(level)
    subscriber.subscribe(topic)
    part = burst(topic, numbers(0, 50), level)
    publisher.send(part, Pingreq(), part, Pingreq(), Pingreq(), part)
    assert payloads_of(subscriber, 150) == numbers(0, 50) * 3
    for _ in range(3):
        publisher.expect(Pingresp)


@each_level
def test_a_subscribe_in_the_middle_of_ones_own_burst_takes_effect_there(clients, topic, level):
    subscriber, publisher = clients.connected(), clients.connected(level)
    subscriber.subscribe(topic)
    publisher.send(
        burst(topic, numbers(0, 300), level),
        Subscribe(1, [Subscription(topic, 0)]),
        burst(topic, numbers(300, 600), level),
    )
    publisher.expect(Suback, packet_id=1)
    assert payloads_of(publisher, 300) == numbers(300, 600)
    assert payloads_of(subscriber, 600) == numbers(0, 600)
    publisher.expect_nothing()


# --- what may stand behind --------------------------------------------------------------------------------------------


@each_level
@pytest.mark.parametrize("end", ["disconnect", "close", "take-over"])
def test_a_burst_arrives_when_its_publisher_leaves_directly_behind_it(clients, topic, level, end):
    subscriber, publisher = clients.connected(), clients.new(level)
    subscriber.subscribe(topic)
    for _ in range(5):
        publisher.connect()
        publisher.send(burst(topic, numbers(0, 3_000), level))
        if end == "disconnect":
            publisher.send(Disconnect())
        if end != "take-over":
            publisher.close()
        assert payloads_of(subscriber, 3_000) == numbers(0, 3_000)


def malformed(topic, level):
    """What directly follows the burst: each begins like a packet that would belong to it."""
    head = raw_string(topic) + (b"\0" if level == MQTT_5 else b"")
    found = {
        "reserved type": b"\0\0",
        "QoS 3": raw_packet(0x36, head + b"x"),
        "DUP with QoS 0": raw_packet(0x38, head + b"x"),
        "wildcard": raw_packet(0x30, raw_string(f"{topic}/+") + head[len(raw_string(topic)) :]),
        "cut topic": raw_packet(0x30, head[: len(topic)]),
        "length of five bytes": b"\x30\xff\xff\xff\xff\x01",
        "too large": b"\x30\xff\xff\xff\x7f" + head,
    }
    if level == MQTT_5:
        found["no property length"] = raw_packet(0x30, raw_string(topic))
        found["property length in two bytes"] = raw_packet(0x30, raw_string(topic) + b"\x80\x00" + b"x")
    return found


MALFORMED = [(level, name) for level in (MQTT_3_1_1, MQTT_5) for name in malformed("t", level)]


@pytest.mark.parametrize(("level", "name"), MALFORMED)
def test_a_burst_arrives_when_something_malformed_follows_it(clients, topic, level, name):
    subscriber, publisher = clients.connected(), clients.connected(level)
    subscriber.subscribe(f"{topic}/#")
    behind = malformed(topic, level)[name]
    publisher.send(burst(topic, numbers(0, 500), level) + behind + burst(topic, numbers(500, 600), level))
    assert payloads_of(subscriber, 500) == numbers(0, 500)
    code = 0x95 if name == "too large" else 0x81
    if name == "wildcard":
        code = 0x90
    publisher.expect_disconnect(code)
    subscriber.expect_nothing()


# --- cuts, sizes ------------------------------------------------------------------------------------------------------


@each_level
def test_a_burst_may_be_cut_at_every_byte(clients, topic, level):
    """In two writes, with a round trip of another client of that worker between them, so that they are two reads."""
    subscriber, other = clients.connected(worker=1), clients.connected(worker=0)
    publisher = clients.connected(level, worker=0)
    subscriber.subscribe(topic)
    stream = burst(topic, [b"", b"one", b"x" * 130, b"", b"four"], level)
    for cut in range(1, len(stream)):
        if 30 + len(topic) < cut < len(stream) - 30 - len(topic) and cut % 16:
            continue  # inside of the large one
        publisher.send(stream[:cut])
        other.ping()
        publisher.send(stream[cut:])
        assert payloads_of(subscriber, 5) == [b"", b"one", b"x" * 130, b"", b"four"], f"cut at {cut}"


@each_level
def test_a_burst_of_nothing_arrives(clients, topic, level):
    subscribers, publisher = [clients.connected(n) for n in LEVELS], clients.connected(level)
    for subscriber in subscribers:
        subscriber.subscribe(topic)
    publisher.send(burst(topic, [b""] * 5_000 + [b"end"], level))
    for subscriber in subscribers:
        assert payloads_of(subscriber, 5_001, topic=topic) == [b""] * 5_000 + [b"end"]


@each_level
def test_a_topic_of_65535_bytes_arrives_in_a_burst(clients, topic, level):
    subscribers, publisher = [clients.connected(n) for n in LEVELS], clients.connected(level)
    long = topic + "/" + "x" * (65_534 - len(topic))
    aliased = clients.connected(topic_alias_maximum=1)
    for subscriber in [*subscribers, aliased]:
        subscriber.subscribe(f"{topic}/#")
    publisher.send(burst(long, numbers(0, 40), level))
    for subscriber in subscribers:
        assert payloads_of(subscriber, 40, topic=long) == numbers(0, 40)
    assert payloads_of(aliased, 40) == numbers(0, 40)


SIZES = {
    "one large": [1_000_000],
    "many large": [1_000_000] * 12,
    "around the read buffer": [262_144 + n for n in range(-20, 20, 3)],
    "mixed": [5, 900_000, 0, 70_000, 5, 5, 300_000, 1, 262_144, 10, 65_530, 65_536, 3, 3, 3, 5_000_000, 0, 2],
}


@pytest.mark.skipif(is_mosquitto(), reason="the read buffer is ours")
@pytest.mark.parametrize("workers", [1, 3])
def test_bursts_larger_than_the_read_buffer_arrive(tmp_path, workers):
    with run_broker(tmp_path / "broker", workers=workers, settings={"mqtt.max_packet_bytes": 8 * MEBIBYTE}) as broker:
        made = [Client(broker.address, f"c{n}", level=level, timeout_s=30) for n, level in enumerate(LEVELS * 3)]
        for client in made:
            client.connect()
        *subscribers, first, second = made
        for subscriber in subscribers:
            subscriber.subscribe("t")
        for publisher, sizes in itertools.product((first, second), SIZES.values()):
            payloads = [b"%08d" % n + bytes([n]) * size for n, size in enumerate(sizes)]
            sender = threading.Thread(target=publisher.send, args=[burst("t", payloads, publisher.level)])
            sender.start()
            try:
                read_in_turn(subscribers, payloads)
            finally:
                sender.join(30)
        for client in made:
            client.close()


def read_in_turn(subscribers, payloads):
    """One message of each, so that nobody is slow."""
    for payload in payloads:
        for subscriber in subscribers:
            message = subscriber.expect(Publish, topic="t", qos=0)
            assert message.payload == payload, f"{subscriber}: other bytes than those of {payload[:8]!r}"


# --- order, slow readers ----------------------------------------------------------------------------------------------


@each_level
def test_bursts_and_qos_1_of_one_publisher_keep_their_common_order(clients, broker, topic, level):
    subscribers = [clients.connected(n, worker=w) for n in (MQTT_3_1_1, MQTT_5) for w in range(broker.workers)]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=1)
    publisher = clients.connected(level)
    pieces, number = [], itertools.count()
    for n in range(300):
        pieces.append(burst(topic, [b"%d" % next(number) for _ in range(n % 7)], level))
        pieces.append(encode(Publish(topic, b"%d" % next(number), 1, packet_id=n + 1), level, client=True))
    publisher.send(b"".join(pieces))
    count = next(number)
    for subscriber in subscribers:
        assert take_numbers(subscriber, count) == list(range(count))
    assert [publisher.expect(Puback).packet_id for _ in range(300)] == list(range(1, 301))


@each_level
def test_a_reader_that_does_not_read_costs_little_and_stops_nobody(clients, broker, topic, level):
    """80 MB in bursts, for one client that reads nothing and two that read all."""
    slow = clients.new().open(receive_buffer_bytes=4_096)
    slow.send(Connect(slow.client_id))
    slow.expect(Connack)
    slow.subscribe(topic)
    quick, publisher = [clients.connected(n) for n in (MQTT_3_1_1, MQTT_5)], clients.connected(level)
    for subscriber in quick:
        subscriber.subscribe(topic)
    count = 40_000
    got = [[] for _ in quick]

    def read(subscriber, into):
        into.extend(int(subscriber.expect(Publish, timeout_s=30).payload[:8]) for _ in range(count))

    readers = [threading.Thread(target=read, args=pair) for pair in zip(quick, got, strict=True)]
    for reader in readers:
        reader.start()
    before, most = broker.memory_bytes(), 0
    for start in range(0, count, 500):
        publisher.send(burst(topic, [b"%08d" % n + b"x" * 2_000 for n in range(start, start + 500)], level))
        most = max(most, broker.memory_bytes() - before)
    for reader in readers:
        reader.join(60)
    assert got == [list(range(count))] * 2
    assert most < (48 + 32 * broker.workers) * MEBIBYTE, f"{most} bytes held"
    slow.send(Pingreq())
    seen = []
    while isinstance(packet := slow.receive(), Publish):
        seen.append(int(packet.payload[:8]))
    assert packet == Pingresp()
    assert seen and len(seen) < count and seen == sorted(set(seen))


@each_level
def test_what_a_slow_reader_misses_of_bursts_is_counted(level):
    """In an engine of our own: what it got and what was counted as dropped is what was sent."""
    with running_nodes() as start:
        node, make = start(slow_after_ms=100, max_output_bytes=2 * MEBIBYTE)
        slow, quick, publisher = make(), make(), make(level)
        for subscriber in (slow, quick):
            subscriber.subscribe("t")
        reader = threading.Thread(target=lambda: take_numbers(quick, 60_000))
        reader.start()
        for start in range(0, 60_000, 1_000):
            publisher.send(burst("t", [b"%0500d" % n for n in range(start, start + 1_000)], level))
        reader.join(30)
        assert not reader.is_alive()
        publisher.ping()
        slow.ping()
        dropped = node.dropped("slow_reader")
        assert dropped > 0
        assert len(slow.inbox) == 60_000 - dropped
        assert node.statistics()["messages_out"][0] == 120_000 - dropped
