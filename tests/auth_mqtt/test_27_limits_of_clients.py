"""How fast clients may connect, publish and be sent to, and how many sessions they may leave behind."""

from __future__ import annotations

import time

import pytest

from tbmq.packets import Connack, Connect, Publish
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Closed, each_level
from tests.helpers.client import Client
from tests.helpers.secured import Secured, connect, run_secured


def seconds_to_pass(
    publisher: Client, reader: Client, topic: str, count: int, payload: bytes = b"", qos: int = 1
) -> float:
    """From the first PUBLISH to the last delivery, all of them in order."""
    start = time.monotonic()
    publisher.send(*(Publish(topic, b"%d " % n + payload, qos, packet_id=n + 1 if qos else 0) for n in range(count)))
    for number in range(count):
        message = reader.take_message(30)
        assert int(message.payload.split()[0]) == number
    return time.monotonic() - start


def pair(secured: Secured, topic: str) -> tuple[Client, Client]:
    publisher, reader = secured.login(), secured.login()
    reader.subscribe(topic, qos=1)
    return publisher, reader


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("limit", "payload"), [("mqtt.client_rate_limit=20:1", b""), ("mqtt.client_bytes_rate_limit=20000:1", b"x" * 1_000)]
)
def test_client_is_slowed_down_and_nothing_lost_when_it_publishes_too_fast(tmp_path, workers, limit, payload):
    key, _, value = limit.partition("=")
    with run_secured(tmp_path, workers=workers, settings={key: value}) as secured:
        publisher, reader = pair(secured, "a")
        other, other_reader = pair(secured, "b")
        publisher.send(*(Publish("a", b"%d " % n + payload, 1, packet_id=n + 1) for n in range(60)))
        assert seconds_to_pass(other, other_reader, "b", 15, payload) < 1.5  # who is within the limit is not touched
        start = time.monotonic()
        for number in range(60):
            assert int(reader.take_message(30).payload.split()[0]) == number
        assert 60 / 20 - 1 - 1.5 < time.monotonic() - start < 10
        publisher.inbox.clear()
        assert seconds_to_pass(publisher, reader, "a", 50, payload) > 1.2  # 20 at once, 30 more at 20 a second


@pytest.mark.parametrize("workers", [1, 3])
def test_all_together_are_slowed_down_when_the_node_has_a_limit(tmp_path, workers):
    with run_secured(tmp_path, workers=workers, settings={"mqtt.total_rate_limit": "60:1"}) as secured:
        pairs = [pair(secured, f"t{number}") for number in range(3)]
        start = time.monotonic()
        for number, (publisher, _) in enumerate(pairs):
            publisher.send(*(Publish(f"t{number}", b"%d" % n, 1, packet_id=n + 1) for n in range(60)))
        for _, reader in pairs:
            for number in range(60):
                assert int(reader.take_message(30).payload) == number
        assert 1.2 < time.monotonic() - start < 15  # 180: 60 at once, 120 more at 60 a second


def test_qos_0_is_dropped_and_qos_1_waits_when_a_client_would_be_sent_too_much(tmp_path):
    with run_secured(tmp_path, settings={"mqtt.client_outgoing_rate_limit": "20:1"}) as secured:
        publisher, reader = pair(secured, "a")
        assert seconds_to_pass(publisher, reader, "a", 50) > 1.0
        publisher.inbox.clear()
        publisher.send(*(Publish("a", b"%d" % n) for n in range(200)))
        publisher.publish("a", b"end", qos=1)
        got = 0
        while reader.take_message(30).payload != b"end":
            got += 1
        assert got < 100


def test_connections_are_closed_at_once_when_they_come_too_fast(tmp_path):
    settings = {"listeners.tcp.connect_rate_limit": "30:60"}
    with run_secured(tmp_path, settings=settings) as secured:
        here = secured.login()
        accepted = 0
        for _ in range(60):
            client = secured.client().open()
            client.send(Connect(client.client_id))
            try:
                client.expect(Connack)
                accepted += 1
            except Closed:
                pass
        assert 10 <= accepted < 30
        here.ping()


@pytest.mark.parametrize("workers", [1, 3])
@each_level
def test_new_sessions_are_refused_when_there_are_too_many(tmp_path, workers, level):
    """The session bomb: ever new client ids that ask to be remembered for ever."""
    with run_secured(tmp_path, workers=workers, settings={"mqtt.max_sessions": 30}) as secured:
        secured.entities.add_basic(username="u", password="p")
        client = secured.client()
        client.connect(username="u", password=b"p", session_expiry_interval=0xFFFF_FFFF, clean=False)
        assert client.connack.properties["session_expiry_interval"] == 604_800
        client.disconnect()
        refused = 0
        for _ in range(60):
            other = secured.client(level=level).open()
            properties = {"session_expiry_interval": 0xFFFF_FFFF} if level == MQTT_5 else {}
            fields = {"username": "u", "password": b"p", "clean_start": False, "properties": properties}
            other.send(Connect(other.client_id, level, **fields))
            code = other.expect(Connack).reason_code
            assert code in (0, 0x97 if level == MQTT_5 else 3)
            refused += code != 0
            other.close()
        assert refused >= 30
        assert client.connect(
            username="u", password=b"p", clean=False, session_expiry_interval=600
        ).session_present  # who has a session comes back


@pytest.mark.parametrize("level", [MQTT_3_1_1, MQTT_5])
def test_limits_hold_from_the_first_message_when_a_client_comes_again(tmp_path, level):
    """A reconnect gives no new allowance beyond that of one connection; what was sent before it is not lost."""
    with run_secured(tmp_path, settings={"mqtt.client_rate_limit": "20:1"}) as secured:
        publisher, reader = secured.login(level=level), secured.login()
        reader.subscribe("a", qos=1)
        assert seconds_to_pass(publisher, reader, "a", 40) > 0.7
        connect(publisher)
        assert seconds_to_pass(publisher, reader, "a", 40) > 0.7
