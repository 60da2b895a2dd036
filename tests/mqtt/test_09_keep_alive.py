"""Keep-alive: a silent client is closed after one and a half times its promise, and no other."""

import time

import pytest

from tbmq.packets import Publish, Will
from tbmq.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5
from tests.helpers import covers, each_level

LATE_S = 2.5
"""How much later than due the broker may notice."""


def expect_timeout(client, keep_alive_s, started):
    client.expect_disconnect(0x8D, timeout_s=keep_alive_s * 1.5 + LATE_S)
    assert time.monotonic() - started >= keep_alive_s * 1.5 - 0.1


@covers("MQTT-3.1.2-22", "MQTT-3.2.2-22", "v3:MQTT-3.1.2-24")
def test_a_silent_client_is_closed_as_if_its_line_had_failed(clients, topic):
    """One client of each level, all at the same time."""
    watcher = clients.connected()
    watcher.subscribe(topic)
    silent = [clients.connected(level, keep_alive_s=1, will=Will(topic, b"silent")) for level in (3, 4, 5)]
    started = time.monotonic()
    for client in silent:
        assert "server_keep_alive" not in client.connack.properties
        expect_timeout(client, 1, started)
        watcher.take_message(payload=b"silent")


@covers("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
@each_level
def test_any_packet_of_the_client_keeps_it_alive(clients, topic, level):
    pings, publishes = clients.connected(level, keep_alive_s=1), clients.connected(level, keep_alive_s=1)
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:
        pings.ping()
        publishes.send(Publish(topic, b"x"))
        time.sleep(0.5)  # the promise is a packet each second
    pings.ping()
    publishes.ping()


def test_what_a_client_receives_does_not_keep_it_alive(clients, topic):
    client, publisher = clients.connected(keep_alive_s=1), clients.connected()
    client.subscribe(topic)
    started = time.monotonic()
    while time.monotonic() - started < 1.4:
        publisher.publish(topic, b"x")
        client.expect(Publish)
        time.sleep(0.1)
    expect_timeout(client, 1, started)


def test_bytes_that_make_no_packet_do_not_keep_a_client_alive(clients, topic):
    client = clients.connected(keep_alive_s=1)
    started = time.monotonic()
    client.send(bytes([0x30, 100, 0, 1]))
    while time.monotonic() - started < 1.4:
        client.send(b"a")
        time.sleep(0.2)
    expect_timeout(client, 1, started)


@covers("v3:MQTT-4.1.0-2")
@each_level
def test_a_client_without_keep_alive_may_be_silent_and_keeps_its_session(clients, topic, level):
    """While another one, with a keep-alive, is closed."""
    silent, impatient = clients.connected(level, keep_alive_s=0), clients.connected(level, keep_alive_s=1)
    silent.subscribe(topic)
    expect_timeout(impatient, 1, time.monotonic())
    clients.connected(level).publish(topic, b"x")
    silent.expect(Publish, payload=b"x")


def test_a_session_outlives_a_keep_alive_timeout(clients, topic):
    client = clients.connected(persistent=True, keep_alive_s=1)
    client.subscribe(topic, qos=1)
    expect_timeout(client, 1, time.monotonic())
    clients.connected().publish(topic, b"x", qos=1)
    assert client.connect(persistent=True).session_present
    client.take_message(payload=b"x")


@covers("MQTT-3.1.2-21", "MQTT-3.2.2-21")
@pytest.mark.parametrize("wanted_s", [3, 65_535, 0])
def test_a_keep_alive_over_the_bound_of_the_broker_is_lowered_and_told(limited_clients, wanted_s):
    client = limited_clients.connected(keep_alive_s=wanted_s)
    assert client.connack.properties["server_keep_alive"] == 2
    if wanted_s == 65_535:
        expect_timeout(client, 2, time.monotonic())


def test_a_keep_alive_within_the_bound_is_taken(limited_clients):
    assert "server_keep_alive" not in limited_clients.connected(keep_alive_s=2).connack.properties


@pytest.mark.parametrize("level", [MQTT_3_1, MQTT_3_1_1])
@pytest.mark.parametrize("wanted_s", [3, 65_535, 0])
def test_an_older_client_that_wants_too_long_a_keep_alive_is_refused(limited_clients, level, wanted_s):
    """It cannot be told of the bound; and none at all is the longest."""
    client = limited_clients.new(level)
    client.connect(keep_alive_s=wanted_s, code=0x02)
    client.expect_closed()


@pytest.mark.parametrize("level", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("wanted_s", [65_535, 0])
def test_any_keep_alive_is_taken_when_the_broker_has_no_bound(clients, level, wanted_s):
    assert "server_keep_alive" not in clients.connected(level, keep_alive_s=wanted_s).connack.properties


@pytest.mark.parametrize("level", [MQTT_5])
def test_many_clients_time_out_together(clients, level):
    silent = [clients.connected(level, keep_alive_s=1) for _ in range(50)]
    started = time.monotonic()
    for client in silent:
        expect_timeout(client, 1, started - 0.5)
