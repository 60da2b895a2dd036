"""Thousands of messages: their order, large ones, many clients, and readers that do not read."""

import contextlib
import threading
from collections import defaultdict

import pytest

from tbmq._codec import encode
from tbmq.packets import Connack, Connect, Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.helpers import Closed, covers, each_level

CHUNK = 20
"""Messages in flight at once; below every receive maximum."""


def publish_all(publishers, topics, count, qos):
    """Each publisher sends `count` numbered messages over all topics, a chunk at a time; flows are completed."""
    for start in range(0, count, CHUNK):
        for index, publisher in enumerate(publishers):
            for n in range(start, start + CHUNK):
                packet_id = n % 1_000 + 1 if qos else 0
                publisher.send(Publish(topics[n % len(topics)], b"%d %d" % (index, n), qos, packet_id=packet_id))
        for publisher in publishers:
            if qos == 1:
                ids = [publisher.expect(Puback).packet_id for _ in range(CHUNK)]
            elif qos == 2:
                ids = [publisher.expect(Pubrec).packet_id for _ in range(CHUNK)]
                publisher.send(*map(Pubrel, ids))
                assert [publisher.expect(Pubcomp).packet_id for _ in range(CHUNK)] == ids
            else:
                publisher.ping()
                continue
            assert ids == [n % 1_000 + 1 for n in range(start, start + CHUNK)]
        yield


def drain(subscriber, count, qos, into):
    """Takes `count` messages and completes their flows, whatever crosses them."""
    done = 0
    while done < count:
        packet = subscriber.receive()
        if isinstance(packet, Pubrel):
            subscriber.send(Pubcomp(packet.packet_id))
            done += 1
            continue
        assert isinstance(packet, Publish) and packet.qos == qos and not packet.dup, packet
        into.append((packet.topic, *map(int, packet.payload.split())))
        if qos == 2:
            subscriber.send(Pubrec(packet.packet_id))
        else:
            done += 1
            if qos == 1:
                subscriber.send(Puback(packet.packet_id))


@covers("MQTT-4.6.0-5", "MQTT-4.6.0-6", "v3:MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_publisher_keep_their_order(clients, topic, level, qos):
    """Two publishers, three topics, three subscribers, 2,000 messages each way; none lost, none twice."""
    publishers = [clients.connected(level) for _ in range(2)]
    subscribers = [clients.connected(level) for _ in range(3)]
    topics = [f"{topic}/{n}" for n in range(3)]
    for subscriber in subscribers:
        subscriber.subscribe(f"{topic}/#", qos=qos)
    got = [[] for _ in subscribers]
    for _ in publish_all(publishers, topics, 1_000, qos):
        for subscriber, messages in zip(subscribers, got, strict=True):
            drain(subscriber, CHUNK * len(publishers), qos, messages)
    for messages in got:
        streams = defaultdict(list)
        for name, publisher, number in messages:
            streams[publisher, name].append(number)
        for (_, name), numbers in streams.items():
            assert numbers == list(range(topics.index(name), 1_000, 3))
        assert len(messages) == 2_000


@each_level
def test_a_queue_of_thousands_is_delivered_in_order_to_a_client_that_comes_back(clients, topic, level):
    subscriber, publisher = clients.connected(level, persistent=True), clients.connected(level)
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    for _ in publish_all([publisher], [topic], 3_000, 1):
        pass
    subscriber.connect(persistent=True)
    got = []
    drain(subscriber, 3_000, 1, got)
    assert [number for _, _, number in got] == list(range(3_000))
    subscriber.expect_nothing()


@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_of_a_megabyte_arrives(clients, topic, level, qos):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=qos)
    payload = bytes(range(256)) * 3_906
    for n in range(3):
        publisher.publish(topic, payload + b"%d" % n, qos=qos)
        message = subscriber.take_message(topic=topic, qos=qos)
        assert message.payload == payload + b"%d" % n


def test_large_and_small_messages_keep_their_order(clients, topic):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(topic, qos=1)
    sizes = [10, 900_000, 0, 70_000, 5, 5, 300_000, 1]
    for n, size in enumerate(sizes):
        publisher.publish(topic, b"%d:" % n + b"x" * size, qos=n % 2)
    for n, size in enumerate(sizes):
        message = subscriber.take_message()
        assert message.payload == b"%d:" % n + b"x" * size


@each_level
@pytest.mark.parametrize("piece", [1, 3, 7, 1_000])
def test_packets_may_be_cut_anywhere(clients, topic, level, piece):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic)
    stream = b"".join(
        encode(Publish(topic, b"%d" % n * (n % 50), n % 2, packet_id=n + 1 if n % 2 else 0), level, client=True)
        for n in range(40)
    )
    for start in range(0, len(stream), piece):
        publisher.send(stream[start : start + piece])
    for n in range(40):
        subscriber.expect(Publish, payload=b"%d" % n * (n % 50))
    assert [publisher.expect(Puback).packet_id for _ in range(20)] == list(range(2, 41, 2))


def test_thousands_of_topics_reach_one_wildcard(clients, topic):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(f"{topic}/+/x/#")
    for n in range(3_000):
        publisher.send(Publish(f"{topic}/{n}/x/{n % 3}", b"%d" % n))
    for n in range(3_000):
        subscriber.expect(Publish, topic=f"{topic}/{n}/x/{n % 3}", payload=b"%d" % n)


def test_many_clients_talk_in_a_ring(clients, topic):
    ring = [clients.connected() for _ in range(150)]
    for n, client in enumerate(ring):
        client.subscribe(f"{topic}/{n}", qos=1)
    for n, client in enumerate(ring):
        client.send(Publish(f"{topic}/{(n + 1) % len(ring)}", b"%d" % n, 1, packet_id=1))
    for n, client in enumerate(ring):
        packets = [client.receive(), client.receive()]
        assert sorted(type(packet).__name__ for packet in packets) == ["Puback", "Publish"]
        (message,) = (packet for packet in packets if isinstance(packet, Publish))
        assert message.payload == b"%d" % ((n - 1) % len(ring))


def test_one_publisher_reaches_many_subscribers(clients, topic):
    subscribers = [clients.connected() for _ in range(150)]
    for subscriber in subscribers:
        subscriber.subscribe(topic)
    publisher = clients.connected()
    for n in range(20):
        publisher.send(Publish(topic, b"%d" % n))
    for subscriber in subscribers:
        for n in range(20):
            subscriber.expect(Publish, payload=b"%d" % n)


def test_a_reader_that_does_not_read_stops_nobody_and_costs_little(clients, broker, topic):
    """96 MB for a client that takes none of it: others get all, the broker keeps a bounded part, drops the rest."""
    slow = clients.new()
    slow.open(receive_buffer_bytes=4_096)
    slow.send(Connect(slow.client_id))
    slow.expect(Connack)
    slow.subscribe(topic)
    quick, publisher = clients.connected(), clients.connected()
    quick.subscribe(topic)
    count, size = 3_000, 32_768
    before = broker.memory_bytes()
    got = []

    def read():
        got.extend(int(quick.expect(Publish, timeout_s=30).payload[:8]) for _ in range(count))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(count):
        publisher.send(Publish(topic, b"%08d" % n + b"x" * size))
        if n % 100 == 99:
            publisher.ping()
    grown = broker.memory_bytes() - before
    reader.join(60)
    assert got == list(range(count))
    assert grown < 64 * 1_048_576, f"{grown} bytes held for a client that does not read"
    numbers = []
    with contextlib.suppress(Closed):  # disconnecting it is the other good answer
        slow.send(Pingreq())
        while isinstance(packet := slow.receive(), Publish):
            numbers.append(int(packet.payload[:8]))
        assert packet == Pingresp()
    assert numbers and numbers == sorted(set(numbers))
