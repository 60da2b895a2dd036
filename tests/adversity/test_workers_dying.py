"""A worker dies, or stops for seconds, while others wait for it: whoever is well loses nothing and waits in bounds.

A worker is stopped by SIGSTOP, so that what is sent to it stays unconfirmed for as long as the test wants; then it is
killed, or goes on. tests/adversity/test_connections.py has what happens to the clients of the killed worker itself.
"""

import contextlib
import itertools
import os
import resource
import select
import signal
import threading
import time
import zlib
from pathlib import Path

import pytest

from tbmq._codec import encode
from tbmq.packets import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client, Closed, each_level, is_mosquitto, run_broker
from tests.reference.batch import crc32c

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="Mosquitto is one process")
PATIENCE_S = 20.0
SOON_S = 5.0
"""Until everybody knows that a worker is dead; a fraction of it is enough."""
STOPPED_S = 3.0
MEBIBYTE = 1_048_576
BAD, GOOD = 2, (0, 1)
"""The worker that is stopped or killed, and the others."""


class Node:
    """A broker of three workers, and its clients."""

    def __init__(self, broker):
        self.broker, self.made, self.numbers = broker, [], itertools.count(1)
        self.is_stopped = False
        self.bad_pid = broker.process_of(self.make(BAD))

    def make(self, worker, level=MQTT_5, **fields):
        """A connected client of this worker."""
        while True:
            client_id = f"c{next(self.numbers)}"
            if zlib.crc32(client_id.encode()) % self.broker.workers == worker:
                break
        self.made.append(Client(self.broker.address, client_id, level=level, timeout_s=PATIENCE_S))
        self.made[-1].connect(**fields)
        return self.made[-1]

    def stop_worker(self):
        os.kill(self.bad_pid, signal.SIGSTOP)
        self.is_stopped = True

    def continue_worker(self):
        if self.is_stopped:
            os.kill(self.bad_pid, signal.SIGCONT)
            self.is_stopped = False

    def kill_worker(self):
        os.kill(self.bad_pid, signal.SIGKILL)
        self.is_stopped = False

    def memory_of_good_bytes(self):
        pids = set(self.broker.processes()) - {self.broker.process.pid, self.bad_pid}
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        return max(pages) * resource.getpagesize()

    def close(self):
        self.continue_worker()
        for client in self.made:
            client.close()


@pytest.fixture
def node(tmp_path):
    with run_broker(tmp_path / "broker", workers=3) as broker, contextlib.closing(Node(broker)) as running:
        yield running


def numbered(topic, numbers, qos, level=MQTT_5):
    return b"".join(encode(Publish(topic, b"%d" % n, qos, packet_id=n + 1), level, client=True) for n in numbers)


def take_streams(subscriber, count):
    """So many messages `topic: number`, acknowledged; the numbers of each topic in order of arrival."""
    streams = {}
    for _ in range(count):
        message = subscriber.take_message()
        streams.setdefault(message.topic, []).append(int(message.payload))
    return streams


# --- killed -----------------------------------------------------------------------------------------------------------


@each_level
@pytest.mark.parametrize("qos", [1, 2])
def test_acks_that_wait_for_a_worker_come_when_it_dies(node, level, qos):
    """Publishers on both other workers have 500 messages each under way to it; none of their acks may be stuck."""
    publishers = [node.make(worker, level) for worker in GOOD]
    subscribers = [node.make(worker) for worker in (*GOOD, BAD)]
    for subscriber in subscribers:
        subscriber.subscribe("t/#", qos=qos)
    node.stop_worker()
    for n, publisher in enumerate(publishers):
        publisher.send(numbered(f"t/{n}", range(500), qos, level))
    for publisher in publishers:
        publisher.expect_nothing()  # but the ping: the acks wait
    expected = {"t/0": list(range(500)), "t/1": list(range(500))}
    for subscriber in subscribers[:2]:
        assert take_streams(subscriber, 1_000) == expected, "the others have it already"
    node.kill_worker()
    started = time.monotonic()
    for publisher in publishers:
        kind = Puback if qos == 1 else Pubrec
        assert [publisher.expect(kind).packet_id for _ in range(500)] == list(range(1, 501))
    assert time.monotonic() - started < SOON_S
    for n, publisher in enumerate(publishers):  # and everything goes on, without it
        if qos == 2:
            publisher.send(*map(Pubrel, range(1, 501)))
            assert [publisher.expect(Pubcomp).packet_id for _ in range(500)] == list(range(1, 501))
        publisher.publish(f"t/{n}", b"500", qos=qos)
    for subscriber in subscribers[:2]:
        assert take_streams(subscriber, 2) == {"t/0": [500], "t/1": [500]}


def test_a_violation_that_waits_for_acks_ends_when_the_worker_dies(node):
    publisher, subscriber = node.make(0), node.make(BAD)
    subscriber.subscribe("t", qos=1)
    node.stop_worker()
    publisher.send(numbered("t", range(10), 1), b"\0\0")
    node.kill_worker()
    for n in range(10):
        publisher.expect(Puback, packet_id=n + 1)
    publisher.expect_disconnect(0x81)


def test_a_subscribe_that_waits_for_a_worker_is_granted_when_it_dies(node):
    subscriber, publisher = node.make(0), node.make(1)
    node.stop_worker()
    subscriber.send(Subscribe(1, [Subscription("t", 1)]))
    publisher.ping()
    node.kill_worker()
    subscriber.expect(Suback, SOON_S, packet_id=1, reason_codes=[1])
    publisher.publish("t", b"x", qos=1)
    subscriber.take_message(payload=b"x")


def test_retained_messages_whose_keeper_dies_are_acknowledged_and_delivered(node):
    """And kept again by the worker that takes its place."""
    topics = [f"t/{n}" for n in range(60) if crc32c(b"t/%d" % n) % 3 == BAD]
    publisher, subscriber = node.make(0), node.make(1)
    subscriber.subscribe("t/#", qos=1)
    node.stop_worker()
    publisher.send(*(Publish(t, b"lost", 1, retain=True, packet_id=n + 1) for n, t in enumerate(topics)))
    publisher.expect_nothing()
    node.kill_worker()
    for n, topic in enumerate(topics):
        publisher.expect(Puback, SOON_S, packet_id=n + 1)
        subscriber.take_message(topic=topic, payload=b"lost")
    again = wait_until_it_serves(node, BAD)
    wait_until(lambda: publisher.publish(topics[0], b"kept", qos=1, retain=True) and replayed(again, topics[0]))
    assert replayed(again, topics[0]) == b"kept"


def replayed(client, topic):
    client.subscribe(Subscription(topic))
    client.ping()
    found = [packet.payload for packet in client.inbox if isinstance(packet, Publish) and packet.retain]
    client.inbox.clear()
    return found[0] if found else None


def wait_until_it_serves(node, worker):
    """A client of a worker that was killed."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return node.make(worker)
        except (Closed, OSError):
            assert time.monotonic() < deadline, f"worker {worker} does not serve"
            time.sleep(0.02)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_members_of_a_group_get_everything_after_one_of_them_has_died(node):
    publisher, members, doomed = node.make(0), [node.make(0), node.make(1)], node.make(BAD)
    for member in (*members, doomed):
        member.subscribe("$share/g/t", qos=1)
    node.kill_worker()
    with contextlib.suppress(Closed):
        while True:
            doomed.receive()
    publisher.publish("t", b"to whomever", qos=1)  # its ack says that the worker knows
    publisher.publish("t", b"to whomever", qos=1)
    wait_until(lambda: publisher.publish("t", b"probe", qos=1).reason_code == 0 and all_ready(members))
    for n in range(200):
        publisher.publish("t", b"%d" % n, qos=1)
    got = []
    for member in members:
        member.ping()
        got += [int(packet.payload) for packet in member.inbox if packet.payload.isdigit()]
    assert sorted(got) == list(range(200))


def all_ready(members):
    """Each of them has got a message."""
    for member in members:
        member.ping()
    return all(member.inbox for member in members)


def test_a_worker_that_dies_again_and_again_under_traffic_costs_the_others_nothing(node):
    """QoS 1 with 100 in flight, between the good workers and to the bad one, over several deaths of it."""
    publishers = [node.make(worker) for worker in GOOD]
    subscribers = [node.make(worker) for worker in GOOD]
    for subscriber in subscribers:
        subscriber.subscribe("t/#", qos=1)
    is_over = threading.Event()
    sent = [0, 0]
    failures = []

    def publish(index):
        publisher = publishers[index]
        try:
            while not is_over.is_set():
                publisher.send(
                    *(Publish(f"t/{index}", b"%d" % (sent[index] + n), 1, packet_id=n + 1) for n in range(100))
                )
                for n in range(100):
                    publisher.expect(Puback, SOON_S, packet_id=n + 1)
                sent[index] += 100
        except Exception as error:
            failures.append(error)

    got = [{"t/0": [], "t/1": []} for _ in subscribers]

    def receive(index):
        try:
            ends = 0
            while ends < len(publishers):
                message = subscribers[index].take_message()
                if message.payload == b"end":
                    ends += 1
                else:
                    got[index][message.topic].append(int(message.payload))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[n]) for work in (publish, receive) for n in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            doomed = wait_until_it_serves(node, BAD)
            doomed.subscribe("t/#", qos=1)
            doomed.take_message()
            node.bad_pid = node.broker.process_of(doomed)
            node.kill_worker()
            with contextlib.suppress(Closed):
                while True:
                    doomed.receive()
    finally:
        is_over.set()
        for thread in threads[:2]:
            thread.join(PATIENCE_S)
    for n, publisher in enumerate(publishers):
        publisher.publish(f"t/{n}", b"end", qos=1)
    for thread in threads[2:]:
        thread.join(PATIENCE_S)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert min(sent) > 0
    for streams in got:
        assert streams["t/0"] == list(range(sent[0]))
        missing = sent[1] - len(streams["t/1"])  # the end came from the other publisher
        assert streams["t/1"] == list(range(sent[1])) or missing >= 0


# --- stopped ----------------------------------------------------------------------------------------------------------


@each_level
def test_nothing_of_qos_1_is_lost_when_a_worker_stops_and_goes_on(node, level):
    """Two publishers offer 40 MB each, as fast as they are read, for one client there and one elsewhere."""
    publishers = [node.make(worker, MQTT_3_1_1) for worker in GOOD]
    there, elsewhere = node.make(BAD, level), node.make(1, level)
    for subscriber in (there, elsewhere):
        subscriber.subscribe("t/#", qos=1)
    count, size = 2_000, 20_000
    before, most = node.memory_of_good_bytes(), 0
    node.stop_worker()
    acks = [[], []]

    def publish(index):
        stream = b"".join(
            encode(Publish(f"t/{index}", b"%08d" % n + b"x" * size, 1, packet_id=n + 1), MQTT_3_1_1, client=True)
            for n in range(count)
        )
        publishers[index].send(stream)
        acks[index] += [publishers[index].expect(Puback).packet_id for _ in range(count)]

    got = {there: [], elsewhere: []}

    def receive(subscriber):
        for _ in range(2 * count):
            message = subscriber.take_message(dup=False)
            got[subscriber].append((message.topic, int(message.payload[:8])))

    threads = [threading.Thread(target=publish, args=[n]) for n in (0, 1)]
    threads += [threading.Thread(target=receive, args=[client]) for client in got]
    for client in (*publishers, *got):
        client.timeout_s = 30
    for thread in threads:
        thread.start()
    stopped_at = time.monotonic()
    while time.monotonic() - stopped_at < STOPPED_S:
        most = max(most, node.memory_of_good_bytes() - before)
        time.sleep(0.05)
    assert not got[there] and acks == [[], []], "nothing can be confirmed"
    node.continue_worker()
    for thread in threads:
        thread.join(60)
    assert acks == [list(range(1, count + 1))] * 2
    for messages in got.values():
        for topic in ("t/0", "t/1"):
            assert [n for name, n in messages if name == topic] == list(range(count))
    assert most < 48 * MEBIBYTE, f"{most} bytes more in one worker while it waits"


def test_bursts_of_qos_0_wait_for_a_stopped_worker(node):
    """QoS 0 may be lost; but a worker that is slow for a moment is no reason: publishers wait for it."""
    publisher, there = node.make(0), node.make(BAD)
    there.subscribe("t")
    count = 40_000
    before, most = node.memory_of_good_bytes(), 0
    node.stop_worker()
    stream = b"".join(encode(Publish("t", b"%08d" % n + b"x" * 1_000), MQTT_5, client=True) for n in range(count))
    sender = threading.Thread(target=publisher.send, args=[stream])
    publisher.timeout_s = 30
    publisher._open_socket().settimeout(30)
    sender.start()
    stopped_at = time.monotonic()
    while time.monotonic() - stopped_at < STOPPED_S:
        most = max(most, node.memory_of_good_bytes() - before)
        time.sleep(0.05)
    assert sender.is_alive(), "the publisher is not read"
    node.continue_worker()
    numbers = [int(there.expect(Publish).payload[:8]) for _ in range(count)]
    sender.join(30)
    assert numbers == list(range(count))
    assert most < 32 * MEBIBYTE, f"{most} bytes more"


def keep_pinging(client, seconds):
    """As a good client does that has nothing to say: a PINGREQ every half second, answered or not."""
    pings = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        client.send(Pingreq())
        pings += 1
        select.select([], [], [], 0.5)
    return pings


def expect_pings(client, pings):
    """All of them were answered, whatever came in between."""
    for _ in range(pings):
        client.take(Pingresp)


def test_a_publisher_that_waits_for_a_worker_is_not_taken_for_dead(node):
    """It is not read while it waits, and its keep-alive is a second."""
    publisher, there = node.make(0, keep_alive_s=1), node.make(BAD)
    there.subscribe("t")
    node.stop_worker()
    for _ in range(150):
        publisher.send(Publish("t", b"x" * 20_000))
    pings = keep_pinging(publisher, STOPPED_S)
    node.continue_worker()
    expect_pings(publisher, pings)
    for _ in range(150):
        there.expect(Publish)


def test_a_subscriber_that_waits_for_its_suback_is_not_taken_for_dead(node):
    subscriber = node.make(0, keep_alive_s=1)
    node.stop_worker()
    subscriber.send(Subscribe(1, [Subscription("t", 1)]))
    pings = keep_pinging(subscriber, STOPPED_S)
    node.continue_worker()
    subscriber.expect(Suback, packet_id=1)
    expect_pings(subscriber, pings)
