"""Clients that are slow, rude, too many, or die; and a worker that dies. Each test has a broker of its own.

TBMQ_FULL=1 runs the long form: 20,000 connections opened and dropped instead of 2,000.
"""

import contextlib
import itertools
import os
import signal
import time
import zlib

import pytest

from tbmq._codec import encode
from tbmq.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client, Closed, is_mosquitto, run_broker

IS_FULL = os.environ.get("TBMQ_FULL") == "1"
PATIENCE_S = 20.0
LINKS = 16
"""Descriptors that workers may open among themselves when they first need them; far fewer than any test's clients."""

one_and_three_workers = pytest.mark.parametrize("workers", [1] if is_mosquitto() else [1, 3])
ours_alone = pytest.mark.skipif(is_mosquitto(), reason="Mosquitto is one process")


@contextlib.contextmanager
def running(tmp_path, **fields):
    """A broker, and a function that makes clients of it: `make()`, `make(worker=1)`, ...; all closed at the end."""
    numbers, made = itertools.count(1), []
    with run_broker(tmp_path / "broker", **fields) as broker:

        def make(level=MQTT_5, worker=None):
            while True:
                client_id = f"c{next(numbers)}"
                if worker is None or zlib.crc32(client_id.encode()) % broker.workers == worker:
                    break
            made.append(Client(broker.address, client_id, level=level))
            return made[-1]

        try:
            yield broker, make
        finally:
            for client in made:
                client.close()


def wait_until(condition, what):
    """Polls until the condition holds; the deadline only bounds a failure."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def connected(client, **fields):
    client.connect(**fields)
    return client


@one_and_three_workers
def test_fifty_clients_send_everything_byte_by_byte(tmp_path, workers):
    with running(tmp_path, workers=workers) as (_, make):
        watcher = connected(make())
        watcher.subscribe("trickle")
        clients = [make(level).open() for level in (MQTT_3_1_1, MQTT_5) * 25]
        streams = [
            encode(Connect(client.client_id, client.level), client.level, client=True)
            + encode(Publish("trickle", client.client_id.encode()), client.level, client=True)
            + encode(Pingreq(), client.level, client=True)
            for client in clients
        ]
        for position in range(max(map(len, streams))):
            for client, stream in zip(clients, streams, strict=True):
                client.send(stream[position : position + 1])
        for client in clients:
            client.expect(Connack, reason_code=0)
            client.expect(Pingresp)
        got = sorted(watcher.expect(Publish).payload for _ in clients)
        assert got == sorted(client.client_id.encode() for client in clients)


@ours_alone
def test_half_connects_are_dropped_and_nobody_waits_for_them(tmp_path):
    with running(tmp_path, settings={"mqtt.connect_timeout_s": 1}) as (broker, make):
        before = broker.descriptors()
        halves = [make().open() for _ in range(300)]
        for n, client in enumerate(halves):
            client.send(encode(Connect(client.client_id), MQTT_5, client=True)[: n % 12])
        connected(make()).ping()
        for client in halves:
            client.expect_closed()
            client.close()
        wait_until(lambda: broker.descriptors() <= before + LINKS, "descriptors of dropped connections are closed")


@one_and_three_workers
def test_hundreds_of_clients_vanish_at_once(tmp_path, workers):
    with running(tmp_path, workers=workers) as (broker, make):
        watcher = connected(make())
        watcher.subscribe("wills/#", qos=1)
        before = broker.descriptors()
        clients = [connected(make(), will=Will(f"wills/{n}", b"", 1)) for n in range(400)]
        for n, client in enumerate(clients):
            client.subscribe(f"topic/{n}", "topic/all", qos=1)
        for client in clients:
            client.abort()
        topics = {watcher.take_message(timeout_s=PATIENCE_S).topic for _ in clients}
        assert topics == {f"wills/{n}" for n in range(400)}
        wait_until(lambda: broker.descriptors() <= before + LINKS, "descriptors of vanished clients are closed")
        watcher.publish("topic/all", b"to nobody", qos=1)
        again = connected(clients[7])
        again.subscribe("topic/all")
        watcher.publish("topic/all", b"x", qos=1)
        again.expect(Publish, payload=b"x")


@one_and_three_workers
def test_clients_that_never_acknowledge_stop_nobody(tmp_path, workers):
    with running(tmp_path, workers=workers) as (broker, make):
        mute = [connected(make()) for _ in range(20)]
        polite, publisher = connected(make()), connected(make())
        for client in [*mute, polite]:
            client.subscribe("t", qos=1)
        for start in range(0, 5_000, 20):
            for n in range(start, start + 20):
                publisher.send(Publish("t", b"%d" % n, 1, packet_id=n % 60_000 + 1))
            for _ in range(20):
                publisher.expect(Puback)
            for n in range(start, start + 20):
                polite.take_message(payload=b"%d" % n)
        for client in mute:
            client.expect(Publish, payload=b"0")
        memory = broker.memory_bytes()
        assert memory < (200 + 100 * workers) * 1_048_576, f"{memory} bytes"


@one_and_three_workers
def test_thousands_of_connections_are_opened_and_dropped(tmp_path, workers):
    """In every state that a connection can be dropped in; afterwards the broker is as it was."""
    count = 20_000 if IS_FULL else 2_000
    with running(tmp_path, workers=workers) as (broker, make):
        watcher = connected(make())
        watcher.subscribe("t")
        connected(make()).disconnect()
        before = broker.descriptors()
        memory = 0
        client = make()
        connect = encode(Connect(client.client_id), MQTT_5, client=True)
        for n in range(count):
            client.open()
            state = n % 6
            if state == 1:
                client.send(connect[: n % len(connect)])
            elif state >= 2:
                client.client_id = f"dropped-{n % 500}"
                client.send(Connect(client.client_id, clean_start=state != 3))
            if state >= 4:
                client.expect(Connack, reason_code=0)
            if state == 5:
                client.subscribe("t")
            client.abort() if n % 2 else client.close()
            if n == count // 2:
                memory = broker.memory_bytes()
        wait_until(lambda: broker.descriptors() <= before + LINKS, "descriptors of dropped connections are closed")
        grown = broker.memory_bytes() - memory
        assert grown < 16 * 1_048_576, f"{grown} bytes more after the second half"
        watcher.publish("t", b"still here")
        watcher.expect(Publish, payload=b"still here")


def test_a_broker_without_descriptors_serves_those_it_has_and_recovers(tmp_path):
    with running(tmp_path, max_descriptors=128) as (broker, make):
        first, second = connected(make()), connected(make())
        first.subscribe("t")
        crowd = [make().open() for _ in range(200)]  # the kernel accepts them; the broker cannot
        second.publish("t", b"under pressure", qos=1)
        first.expect(Publish, payload=b"under pressure")
        used = broker.cpu_s()
        started = time.monotonic()
        while time.monotonic() - started < 1.5:
            first.ping()
            time.sleep(0.05)
        assert broker.cpu_s() - used < 0.8, "the broker spins while it cannot accept"
        for client in crowd:
            client.close()

        def answers():
            client = make()
            client.timeout_s = 1.0
            try:
                client.connect()
            except (TimeoutError, Closed, OSError):
                return False
            finally:
                client.close()
            return True

        wait_until(answers, "new clients are accepted again")
        second.publish("t", b"after it", qos=1)
        first.expect(Publish, payload=b"after it")


def comes_back(client):
    try:
        client.connect()
    except (AssertionError, OSError):
        return False
    return True


# --- processes --------------------------------------------------------------------------------------------------------


@ours_alone
def test_only_the_clients_of_a_killed_worker_notice_and_they_come_back(tmp_path):
    with running(tmp_path, workers=3) as (broker, make):
        doomed = [connected(make(worker=0)) for _ in range(5)]
        others = [connected(make(worker=1 + n % 2)) for n in range(6)]
        victim = broker.process_of(doomed[0])
        assert victim != broker.process.pid
        assert {broker.process_of(client) for client in doomed} == {victim}
        assert victim not in {broker.process_of(client) for client in others}
        for client in [*doomed, *others]:
            client.subscribe("all")
        os.kill(victim, signal.SIGKILL)
        for n in range(200):  # traffic between the others runs on, whatever the supervisor does meanwhile
            others[n % 6].send(Publish("all", b"%d" % n, 1, packet_id=1))
            others[n % 6].take(Puback)
            for client in others:
                client.expect(Publish, payload=b"%d" % n)
        for client in doomed:
            with contextlib.suppress(Closed):
                while True:
                    client.receive()
        for client in doomed:
            wait_until(lambda client=client: comes_back(client), "a client of the killed worker comes back")
            client.subscribe("all")
        assert broker.process_of(doomed[0]) not in (victim, broker.process.pid)
        for publisher in (doomed[0], others[0]):  # and messages cross between old and new workers, both ways
            publisher.publish("all", b"together again", qos=1)
            for client in [*doomed, *others]:
                client.expect(Publish, payload=b"together again")


@ours_alone
def test_a_worker_that_is_killed_again_and_again_is_started_again(tmp_path):
    with running(tmp_path, workers=3) as (broker, make):
        watcher = connected(make(worker=1))
        watcher.subscribe("t")
        for n in range(3):
            client = make(worker=0)
            wait_until(lambda client=client: comes_back(client), "the worker serves")
            client.publish("t", b"%d" % n, qos=1)
            watcher.expect(Publish, payload=b"%d" % n)
            os.kill(broker.process_of(client), signal.SIGKILL)
            with contextlib.suppress(Closed):
                while True:
                    client.receive()
        watcher.ping()


@one_and_three_workers
def test_a_stopping_broker_says_goodbye(tmp_path, workers):
    """v5 clients are told that the server shuts down; all are closed; the exit is clean and in time."""
    with running(tmp_path, workers=workers, stops_cleanly=False) as (broker, make):
        clients = [connected(make(level), persistent=True) for level in (MQTT_3_1_1, MQTT_5) * 20]
        clients[0].subscribe("t", qos=1)
        clients[1].publish("t", b"just before", qos=1)
        clients[0].take_message(payload=b"just before")
        broker.stop()
        for client in clients:
            if client.level == MQTT_5:
                assert client.expect(Disconnect).reason_code == 0x8B
            client.expect_closed()


@ours_alone
def test_a_second_signal_or_a_busy_client_does_not_keep_the_broker_from_stopping(tmp_path):
    with running(tmp_path, workers=3, stops_cleanly=False) as (broker, make):
        reader = make().open(receive_buffer_bytes=4_096)
        reader.send(Connect(reader.client_id))
        reader.expect(Connack)
        reader.subscribe("t")
        publisher = connected(make())
        for _ in range(200):
            publisher.send(Publish("t", b"x" * 60_000))  # and nobody reads it
        publisher.ping()
        os.kill(broker.process.pid, signal.SIGTERM)
        broker.stop()


@ours_alone
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_very_first_message_between_two_workers_arrives(tmp_path, qos):
    """Of a fresh broker: for each pair of workers, and then after one of them was killed and came back."""
    with running(tmp_path, workers=3) as (broker, make):
        clients = [connected(make(worker=n)) for n in range(3)]
        for n, client in enumerate(clients):
            client.subscribe(f"to/{n}", qos=qos)
        for sender, receiver in itertools.permutations(range(3), 2):
            clients[sender].publish(f"to/{receiver}", b"first of %d" % sender, qos=qos)
            clients[receiver].take_message(payload=b"first of %d" % sender)
        os.kill(broker.process_of(clients[0]), signal.SIGKILL)
        wait_until(lambda: comes_back(clients[0]), "the worker serves again")
        clients[0].subscribe("to/0", qos=qos)
        for sender, receiver in ((0, 1), (1, 0), (2, 0), (0, 2), (1, 2), (2, 1)):
            clients[sender].publish(f"to/{receiver}", b"again from %d" % sender, qos=qos)
            clients[receiver].take_message(payload=b"again from %d" % sender)


@ours_alone
@pytest.mark.parametrize("victims", [1, 3])
def test_a_broker_whose_workers_have_just_died_stops_cleanly(tmp_path, victims):
    with running(tmp_path, workers=3, stops_cleanly=False) as (broker, make):
        clients = [connected(make(worker=n)) for n in range(3)]
        for pid in [broker.process_of(client) for client in clients[:victims]]:
            os.kill(pid, signal.SIGKILL)
        broker.stop()
