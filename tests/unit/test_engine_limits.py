"""How much a client may publish and get. Rates are given per tenth of a second, so that a test sees many windows go by.

What may pass in T seconds is limit * (1 + T / window). What must pass is bounded by the patience of the clients alone:
a slow machine fails nothing.
"""

import sys
import time

import pytest

from tbmq._engine import Engine
from tbmq.packets import Pingreq, Pingresp, Puback, Publish
from tbmq.protocol import MQTT_3_1_1
from tests.helpers import each_level
from tests.helpers.node import memory_bytes, numbered, running_nodes, take_numbers, wait_until


@pytest.fixture
def start():
    with running_nodes() as start_node:
        yield start_node


# --- rates ------------------------------------------------------------------------------------------------------------


def passes_at_most(limit, window_s, elapsed_s):
    """What a bucket lets pass in that time, see the head of this file; one more for the clock's millisecond."""
    return limit * (1 + elapsed_s / window_s) + 1


@each_level
@pytest.mark.parametrize("qos", [0, 1])
def test_publishes_over_the_rate_are_delayed_and_none_is_lost(start, level, qos):
    node, make = start(rates={"client_messages": [(20, 0.1)]}, receive_maximum=65_535)
    subscriber, publisher = make(), make(level)
    subscriber.subscribe("t", qos=qos)
    started = time.monotonic()
    publisher.send(numbered("t", 200, qos, level))
    got = []
    while len(got) < 200:
        got.append(int(subscriber.take_message().payload))
        assert len(got) <= passes_at_most(20, 0.1, time.monotonic() - started)
    assert got == list(range(200))
    if qos:
        assert [publisher.expect(Puback).packet_id for _ in range(200)] == list(range(1, 201))
    assert node.statistics()["throttles"] > 0
    publisher.ping()
    assert node.statistics()["throttled"] == 0


def test_who_stays_within_the_rate_is_never_delayed(start):
    node, make = start(rates={"client_messages": [(50, 0.1), (1_000, 60)], "client_bytes": [(100_000, 1)]})
    publisher = make()
    for n in range(20):
        publisher.publish("t", b"%d" % n, qos=1)
    assert node.statistics()["throttles"] == 0


def test_one_who_is_over_the_rate_delays_nobody_else(start):
    node, make = start(rates={"client_messages": [(20, 10)]})
    subscriber, greedy, modest = make(), make(), make()
    subscriber.subscribe("modest")
    greedy.send(numbered("greedy", 10_000))
    for n in range(15):
        modest.publish("modest", b"%d" % n, qos=1)
    assert take_numbers(subscriber, 15) == list(range(15))
    assert node.statistics()["throttled"] == 1


def test_the_keep_alive_does_not_end_a_client_that_is_not_read(start):
    """All of its packets were sent at once; with a keep-alive of one second the last is read after four."""
    node, make = start(rates={"client_messages": [(10, 0.4)]})
    subscriber, publisher = make(), make(keep_alive_s=1)
    subscriber.subscribe("t")
    started = time.monotonic()
    publisher.send(numbered("t", 110))
    assert take_numbers(subscriber, 110) == list(range(110))
    assert time.monotonic() - started > 3.5
    publisher.ping()
    assert node.timed_out == []


def test_the_keep_alive_does_not_end_a_client_when_it_was_the_engine_that_did_not_listen(start):
    """A machine that sleeps, a process that is stopped: what the client said meanwhile is in its socket."""
    node, make = start()
    client = make(keep_alive_s=1)
    with node.lock:
        for _ in range(6):
            client.send(Pingreq())
            time.sleep(0.5)
        node.engine.tick()
    for _ in range(6):
        client.expect(Pingresp)
    assert node.timed_out == []


def test_bytes_over_the_rate_are_delayed(start):
    node, make = start(rates={"client_bytes": [(10_000, 0.1)]})
    subscriber, publisher = make(), make()
    subscriber.subscribe("t")
    started = time.monotonic()
    publisher.send(*(Publish("t", b"%04d" % n + b"x" * 996) for n in range(60)))
    for n in range(60):
        assert subscriber.take_message().payload[:4] == b"%04d" % n
        # The last packet that passes may leave a debt of its own size.
        assert 1_005 * n <= passes_at_most(10_000, 0.1, time.monotonic() - started) + 1_005
    assert node.statistics()["throttles"] > 0


def test_a_packet_larger_than_the_rate_of_bytes_passes_and_leaves_a_debt(start):
    _, make = start(rates={"client_bytes": [(1_000, 0.1)]})
    subscriber, publisher = make(), make()
    subscriber.subscribe("t")
    started = time.monotonic()
    publisher.send(*(Publish("t", b"%d" % n + b"x" * 4_999) for n in range(3)))
    for n in range(3):
        assert subscriber.take_message().payload[:1] == b"%d" % n
    assert time.monotonic() - started >= 0.8  # two debts of 4,000


def test_every_window_of_a_rate_holds(start):
    _, make = start(rates={"client_messages": [(1_000, 0.1), (30, 1)]})
    subscriber, publisher = make(), make()
    subscriber.subscribe("t")
    started = time.monotonic()
    publisher.send(numbered("t", 60))
    assert take_numbers(subscriber, 60) == list(range(60))
    assert time.monotonic() - started >= 0.95


def test_the_total_rate_holds_over_all_clients(start):
    node, make = start(rates={"total": [(20, 0.1)]}, receive_maximum=65_535)
    subscriber, publishers = make(), [make(), make(MQTT_3_1_1)]
    subscriber.subscribe("#")
    started = time.monotonic()
    for publisher in publishers:
        publisher.send(numbered(publisher.client_id, 100, 1, publisher.level))
    got = {publisher.client_id: [] for publisher in publishers}
    for count in range(1, 201):
        message = subscriber.take_message()
        got[message.topic].append(int(message.payload))
        assert count <= passes_at_most(20, 0.1, time.monotonic() - started)
    assert list(got.values()) == [list(range(100))] * 2
    assert node.statistics()["throttles"] > 0


def test_the_total_rate_is_shared_by_those_who_want_it(start):
    """Three greedy clients, each with more than it can ever send: none of them starves."""
    _, make = start(rates={"total": [(10, 0.1)]})
    subscriber, publishers = make(), [make(), make(), make()]
    subscriber.subscribe("#")
    for publisher in publishers:
        publisher.send(numbered(publisher.client_id, 5_000))
    got = dict.fromkeys((publisher.client_id for publisher in publishers), 0)
    for _ in range(200):
        got[subscriber.take_message().topic] += 1
    assert min(got.values()) >= 20, got


@each_level
def test_a_burst_with_the_end_of_the_connection_behind_it_arrives(start, level):
    """What a client that is gone has sent is not thrown away for its rate."""
    node, make = start(rates={"client_messages": [(10, 1)]})
    subscriber, publisher = make(), make(level)
    subscriber.subscribe("t")
    publisher.send(numbered("t", 500, level=level))
    publisher.close()
    assert take_numbers(subscriber, 500) == list(range(500))
    wait_until(lambda: node.statistics()["connections"] == 1)


def test_a_client_that_ends_while_it_is_delayed_leaves_nothing_behind(start):
    node, make = start(rates={"client_messages": [(10, 3_600)], "client_out": [(1, 3_600)]})
    subscriber = make()
    subscriber.subscribe("t", qos=1)
    for _ in range(20):
        publisher = make()
        publisher.send(numbered("t", 50, qos=1))
        publisher.abort()
    subscriber.abort()
    wait_until(lambda: node.statistics()["connections"] == 0)
    wait_until(lambda: node.statistics()["throttled"] == 0)


def test_a_flood_over_the_rate_is_left_in_the_socket(start):
    """64 MiB offered at ten messages a second: the engine holds what one read brings, not what is offered."""
    node, make = start(rates={"client_messages": [(10, 1)]})
    publisher = make()
    block = numbered("t", 20_000)
    connection = publisher._open_socket()
    before = memory_bytes()
    sent, last = 0, time.monotonic()
    connection.setblocking(False)
    while sent < 64 * 1_048_576 and time.monotonic() - last < 1.0:  # twenty ticks without any progress: it is full
        try:
            sent += connection.send(block[sent % len(block) :])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.005)
    grown = memory_bytes() - before
    assert grown < 8 * 1_048_576, f"{grown} bytes are held of {sent} offered"


# --- the outgoing rate ------------------------------------------------------------------------------------------------


@each_level
def test_qos_0_over_the_outgoing_rate_is_dropped_and_counted(start, level):
    node, make = start(rates={"client_out": [(50, 3_600)]})
    subscriber, publisher = make(level), make()
    subscriber.subscribe("t")
    publisher.send(numbered("t", 300))  # as a run
    publisher.ping()
    for n in range(300):
        publisher.send(Publish("t", b"%d" % n, properties={"content_type": "x"}))  # one by one
    publisher.ping()
    assert take_numbers(subscriber, 50) == list(range(50))
    subscriber.expect_nothing()
    assert node.dropped("rate_limit") == 550
    assert node.dropped("slow_reader") == 0


@each_level
def test_qos_1_over_the_outgoing_rate_is_delayed_and_none_is_lost(start, level):
    _, make = start(rates={"client_out": [(20, 0.1)]}, receive_maximum=65_535)
    subscriber, publisher = make(level), make()
    subscriber.subscribe("t", qos=1)
    started = time.monotonic()
    publisher.send(numbered("t", 200, qos=1))
    got = []
    for count in range(1, 201):
        got.append(int(subscriber.take_message(dup=False).payload))
        assert count <= passes_at_most(20, 0.1, time.monotonic() - started)
    assert got == list(range(200))


def test_the_outgoing_rate_is_of_each_client(start):
    node, make = start(rates={"client_out": [(100, 3_600)]})
    subscribers, publisher = [make(), make(MQTT_3_1_1)], make()
    for subscriber in subscribers:
        subscriber.subscribe("t")
    publisher.send(numbered("t", 100))
    publisher.ping()
    for subscriber in subscribers:
        assert take_numbers(subscriber, 100) == list(range(100))
    assert node.dropped("rate_limit") == 0


def test_pings_and_acks_have_no_rate(start):
    _, make = start(rates={"client_messages": [(1, 3_600)], "client_out": [(1, 3_600)], "client_bytes": [(1, 3_600)]})
    client = make()
    client.publish("t", b"the only one", qos=1)
    client.send(b"\xc0\x00" * 1_000)
    for _ in range(1_000):
        client.expect(Pingresp)
    client.subscribe("t")


# --- what is no rate --------------------------------------------------------------------------------------------------


@pytest.fixture
def unraisable(monkeypatch):
    """What Python could only print, since nobody could catch it."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: found.append(what.exc_value))
    return found


@pytest.mark.parametrize("rates", [{"client_messages": [(1, 1)] * 5}, {"nonsense": [(1, 1)]}])
def test_a_wrong_rate_is_refused_cleanly(unraisable, rates):
    with pytest.raises(ValueError):
        Engine(object(), rates=rates)
    assert unraisable == []
