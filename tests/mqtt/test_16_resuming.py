"""A session is taken up again with much in flight: that comes again, in its order, as fast as the client allows.

The broker of these tests has a window of 4,000 messages, so that thousands can be in flight at once.
"""

import contextlib
import itertools
import time
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbmq.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tbmq.protocol import MQTT_5
from tests.helpers import Client, each_level, is_mosquitto, run_broker

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="the window is ours")
MEBIBYTE = 1_048_576
CHUNK = 100
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def wide(request, tmp_path_factory):
    settings = {"mqtt.max_inflight": 4_000}
    with run_broker(tmp_path_factory.mktemp("wide"), workers=request.param, settings=settings) as running:
        yield running


class Makes:
    """Clients of the wide broker, on different workers, one after the other."""

    def __init__(self, broker):
        self.broker, self.made = broker, []

    def __call__(self, level=MQTT_5):
        while True:
            client_id = f"r{next(NUMBERS)}"
            if zlib.crc32(client_id.encode()) % self.broker.workers == len(self.made) % self.broker.workers:
                break
        self.made.append(Client(self.broker.address, client_id, level=level, timeout_s=15))
        return self.made[-1]

    def connected(self, level=MQTT_5, **fields):
        client = self(level)
        client.connect(**fields)
        return client

    def close(self):
        for client in self.made:
            client.close()


@pytest.fixture
def make(wide):
    start = wide.log_bytes()
    with contextlib.closing(Makes(wide)) as made:
        yield made
    wide.assert_healthy(since=start)


@pytest.fixture
def topic():
    return f"resuming{next(NUMBERS)}"


def publish_numbers(publisher, topic, numbers, *, qos=1, size=0):
    """Numbered messages, a chunk at a time, all of them acknowledged."""
    numbers = list(numbers)
    for start in range(0, len(numbers), CHUNK):
        chunk = numbers[start : start + CHUNK]
        for packet_id, number in enumerate(chunk, 1):
            publisher.send(Publish(topic, b"%08d" % number + b"x" * size, qos, packet_id=packet_id))
        for packet_id, _ in enumerate(chunk, 1):
            assert publisher.expect(Puback if qos == 1 else Pubrec).packet_id == packet_id
        if qos == 2:
            publisher.send(*(Pubrel(packet_id) for packet_id, _ in enumerate(chunk, 1)))
            for _ in chunk:
                publisher.expect(Pubcomp)


def expect_number(client, number, **fields):
    message = client.expect(Publish, **fields)
    assert int(message.payload[:8]) == number, f"{client}: expected {number}, got {message.payload[:8]!r}"
    return message


def left_in_flight(make, topic, level, count, *, qos=1, size=0, **fields):
    """A session with so many messages that were sent and not acknowledged: (its client, the publisher, their ids)."""
    subscriber, publisher = make.connected(level, persistent=True, **fields), make.connected()
    subscriber.subscribe(topic, qos=qos)
    packet_ids = []
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        publish_numbers(publisher, topic, range(start, stop), qos=qos, size=size)
        packet_ids += [expect_number(subscriber, n, dup=False, qos=qos).packet_id for n in range(start, stop)]
    assert len(set(packet_ids)) == count
    return subscriber, publisher, packet_ids


# --- thousands of large ones ------------------------------------------------------------------------------------------


def test_a_smaller_receive_maximum_paces_what_is_sent_again(make, wide, topic):
    """2,000 messages of 20 KB, ten at a time; what is published meanwhile comes after them, and no copy is made."""
    subscriber, publisher, packet_ids = left_in_flight(make, topic, MQTT_5, 2_000, size=20_000)
    subscriber.disconnect()
    before, most = wide.memory_bytes(), 0
    assert subscriber.connect(persistent=True, receive_maximum=10).session_present
    publish_numbers(publisher, topic, range(2_000, 2_100))
    for n in range(10):
        expect_number(subscriber, n, dup=True, packet_id=packet_ids[n])
    subscriber.expect_nothing()
    for n in range(2_100):
        if n % 100 == 0:
            most = max(most, wide.memory_bytes() - before)
        subscriber.send(Puback(packet_ids[n]))
        if n + 10 < 2_000:
            expect_number(subscriber, n + 10, dup=True, packet_id=packet_ids[n + 10])
        elif n + 10 < 2_100:
            packet_ids.append(expect_number(subscriber, n + 10, dup=False).packet_id)
            assert packet_ids[-1] not in packet_ids[n + 1 : -1], "an id is used that is still in flight"
    subscriber.expect_nothing()
    assert most < 8 * MEBIBYTE, f"{most} bytes more while they are sent again"


@each_level
def test_what_is_sent_again_to_a_slow_reader_stays_where_it_is(make, wide, topic, level):
    """2,000 messages of 20 KB for a client without a limit that does not read: its output holds a part of them."""
    subscriber, publisher, packet_ids = left_in_flight(make, topic, level, 2_000, size=20_000)
    subscriber.disconnect()
    before = wide.memory_bytes()
    subscriber.open(receive_buffer_bytes=4_096)
    expiry = {"session_expiry_interval": 600} if level == MQTT_5 else {}
    subscriber.send(Connect(subscriber.client_id, level, clean_start=False, properties=expiry))
    publish_numbers(publisher, topic, range(2_000, 2_050))
    time.sleep(2)  # it does not read for longer than a subscriber may hold its publishers
    publish_numbers(publisher, topic, range(2_050, 2_100))
    grown = wide.memory_bytes() - before
    assert grown < 12 * MEBIBYTE, f"{grown} bytes more for a client that does not read"
    subscriber.expect(Connack, session_present=True, reason_code=0)
    for n in range(2_000):
        expect_number(subscriber, n, dup=True, packet_id=packet_ids[n])
        subscriber.send(Puback(packet_ids[n]))
    for n in range(2_000, 2_100):
        subscriber.send(Puback(expect_number(subscriber, n, dup=False).packet_id))
    subscriber.expect_nothing()


# --- interrupted, again and again -------------------------------------------------------------------------------------


@each_level
def test_an_interrupted_redelivery_begins_anew_with_what_is_left(make, topic, level):
    """Each connection acknowledges seven of what it gets; one ends orderly, one by a reset, one by a take-over."""
    subscriber, publisher, packet_ids = left_in_flight(make, topic, level, 100)
    limit = {"receive_maximum": 9} if level == MQTT_5 else {}
    published = 100
    for connection in range(10):
        if connection % 3 == 0:
            subscriber.disconnect()
        elif connection % 3 == 1:
            subscriber.abort()
        subscriber.connect(persistent=True, **limit)
        publish_numbers(publisher, topic, range(published, published + 5))
        published += 5
        first = connection * 7
        for n in range(first, first + 9):
            expect_number(subscriber, n, dup=True, packet_id=packet_ids[n])
        subscriber.send(*(Puback(packet_ids[n]) for n in range(first, first + 7)))
        for n in range(first + 9, min(first + 16, 100)):
            expect_number(subscriber, n, dup=True, packet_id=packet_ids[n])
        subscriber.ping()
        subscriber.inbox.clear()
    subscriber.connect(persistent=True)
    for n in range(70, published):
        message = expect_number(subscriber, n)
        assert message.dup or n >= 100
        subscriber.send(Puback(message.packet_id))
    subscriber.expect_nothing()


def test_acks_for_what_was_not_sent_again_yet_change_nothing(make, topic):
    subscriber, _, packet_ids = left_in_flight(make, topic, MQTT_5, 50)
    subscriber.disconnect()
    subscriber.connect(persistent=True, receive_maximum=2)
    subscriber.send(*(Puback(packet_id) for packet_id in packet_ids[10:]), *map(Pubrec, packet_ids[10:12]))
    for n in range(50):
        message = next(packet for packet in iter(subscriber.receive, None) if not isinstance(packet, Pubrel))
        assert int(message.payload[:8]) == n and message.dup
        subscriber.send(Puback(message.packet_id))
    subscriber.expect_nothing()


@each_level
def test_a_clean_start_in_the_middle_of_a_redelivery_ends_it(make, topic, level):
    subscriber, publisher, packet_ids = left_in_flight(make, topic, level, 500)
    subscriber.disconnect()
    subscriber.connect(persistent=True, **({"receive_maximum": 5} if level == MQTT_5 else {}))
    for n in range(5):
        expect_number(subscriber, n, dup=True, packet_id=packet_ids[n])
    assert not subscriber.connect(clean=True).session_present
    subscriber.subscribe(topic, qos=1)
    publish_numbers(publisher, topic, [7_777])
    expect_number(subscriber, 7_777, dup=False)
    subscriber.expect_nothing()


def test_what_has_become_too_large_for_the_client_is_left_out_of_the_redelivery(make, topic):
    subscriber, publisher = make.connected(persistent=True), make.connected()
    subscriber.subscribe(topic, qos=1)
    for n in range(60):
        publish_numbers(publisher, topic, [n], size=500 * (n % 2))
        expect_number(subscriber, n)
    subscriber.disconnect()
    subscriber.connect(persistent=True, maximum_packet_size=300, receive_maximum=3)
    for n in range(0, 60, 2):
        subscriber.send(Puback(expect_number(subscriber, n, dup=True).packet_id))
    publish_numbers(publisher, topic, [60])
    expect_number(subscriber, 60, dup=False)
    subscriber.expect_nothing()


# --- QoS 2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [3, 12, 1_000])
def test_every_step_of_qos_2_is_repeated(make, topic, quota):
    """Of 40: five complete, ten released and not complete, 25 only sent. All count against Receive Maximum."""
    subscriber, publisher, packet_ids = left_in_flight(make, topic, MQTT_5, 40, qos=2)
    subscriber.send(*map(Pubrec, packet_ids[:15]))
    assert [subscriber.expect(Pubrel).packet_id for _ in range(15)] == packet_ids[:15]
    subscriber.send(*map(Pubcomp, packet_ids[:5]))
    subscriber.ping()
    subscriber.disconnect()
    publish_numbers(publisher, topic, [40], qos=2)
    subscriber.connect(persistent=True, receive_maximum=quota)
    released, under_way, next_one = packet_ids[5:15], [], 15
    packets = [subscriber.expect(Pubrel) for _ in released]
    assert [packet.packet_id for packet in packets] == released
    complete = 5
    while complete < 41:
        while next_one < 41 and len(released) + len(under_way) < quota:
            again = {"dup": True, "packet_id": packet_ids[next_one]} if next_one < 40 else {"dup": False}
            under_way.append(expect_number(subscriber, next_one, qos=2, **again).packet_id)
            next_one += 1
        subscriber.expect_nothing()
        if released:
            subscriber.send(Pubcomp(released.pop(0)))
        else:
            packet_id = under_way.pop(0)
            subscriber.send(Pubrec(packet_id))
            assert subscriber.expect(Pubrel).packet_id == packet_id
            subscriber.send(Pubcomp(packet_id))
        complete += 1
    subscriber.expect_nothing()


# --- any sequence -----------------------------------------------------------------------------------------------------

step = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 30)),
    st.tuples(st.just("acknowledge"), st.integers(1, 30)),  # so many, the newest first when the number is even
    st.tuples(st.sampled_from(["resume", "resume after a while", "take over"]), st.sampled_from([1, 2, 7, 100])),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(step, max_size=14))
def test_any_sequence_of_publishing_acknowledging_and_resuming_keeps_the_order(wide, steps):
    """The model: messages that are not acknowledged, in order; the first ones, up to the quota, are in flight."""
    topic = f"steps{next(NUMBERS)}"
    with contextlib.closing(Makes(wide)) as make:
        subscriber, publisher = make.connected(persistent=True, receive_maximum=7), make.connected()
        subscriber.subscribe(topic, qos=1)
        quota, published = 7, 0
        waiting = []  # numbers that were not sent on this connection
        in_flight = []  # numbers that were
        packet_ids = {}  # of numbers that were ever sent and are not acknowledged
        for what, value in [*steps, ("resume", 100), ("acknowledge", 1_001)]:
            if what == "publish":
                publish_numbers(publisher, topic, range(published, published + value))
                waiting += range(published, published + value)
                published += value
            elif what == "acknowledge":
                done = in_flight[-value:][::-1] if value % 2 == 0 else in_flight[:value]
                in_flight = [n for n in in_flight if n not in done]
                subscriber.send(*(Puback(packet_ids.pop(n)) for n in done))
            else:
                if what != "take over":
                    subscriber.disconnect()
                if what == "resume after a while":
                    publish_numbers(publisher, topic, range(published, published + 3))
                    waiting += range(published, published + 3)
                    published += 3
                quota = value
                subscriber.connect(persistent=True, receive_maximum=quota)
                waiting = sorted(waiting + in_flight)
                in_flight = []
            while waiting and len(in_flight) < quota:
                in_flight.append(waiting.pop(0))
                message = expect_number(subscriber, in_flight[-1], dup=in_flight[-1] in packet_ids)
                assert packet_ids.setdefault(in_flight[-1], message.packet_id) == message.packet_id
            assert len({packet_ids[n] for n in in_flight}) == len(in_flight)
            subscriber.expect_nothing()


# --- what waited has aged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_shared", [False, True], ids=["plain", "shared"])
def test_the_expiry_that_is_forwarded_is_the_time_that_is_left(make, topic, is_shared, qos):
    """For a client that was away, and for a group without any member, wherever it was published."""
    subscriber = make.connected(persistent=True)
    subscriber.subscribe(f"$share/g/{topic}" if is_shared else topic, qos=qos)
    subscriber.disconnect()
    publishers = [make.connected() for _ in range(3)]
    started = time.monotonic()
    for publisher in publishers:
        publisher.publish(topic, b"short", qos=qos, message_expiry_interval=1)
        publisher.publish(topic, b"long", qos=qos, message_expiry_interval=100)
        publisher.publish(topic, b"for ever", qos=qos)
    time.sleep(2.2)
    waited = int(time.monotonic() - started)
    subscriber.connect(persistent=True)
    got = [subscriber.take_message(qos=qos) for _ in range(6)]
    subscriber.expect_nothing()
    assert sorted(message.payload for message in got) == [b"for ever"] * 3 + [b"long"] * 3
    for message in got:
        left = message.properties.get("message_expiry_interval")
        assert left is None if message.payload == b"for ever" else 100 - waited - 3 <= left <= 98, message
