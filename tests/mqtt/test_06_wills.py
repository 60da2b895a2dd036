"""Wills: when they are published, when they are not, and what of them arrives."""

import time

import pytest

from tbmq.packets import Publish, Subscription, Will
from tbmq.protocol import MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1


@pytest.fixture
def watcher(clients, topic):
    """Sees the will and, with retain as published, whether it was retained."""
    watcher = clients.connected()
    watcher.subscribe(Subscription(f"{topic}/#", 2, retain_as_published=True))
    return watcher


def marker(clients, watcher, topic):
    """Only the marker has come, so nothing was published before it."""
    clients.connected().publish(f"{topic}/marker", b"x", qos=1)
    watcher.take_message(topic=f"{topic}/marker")


@covers("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-14", "v3:MQTT-3.1.2-8", "v3:MQTT-3.1.2-16")
@each_level_with_3_1
@pytest.mark.parametrize("ending", ["close", "abort"])
def test_the_will_is_published_when_the_connection_breaks(clients, watcher, topic, level, ending):
    client = clients.connected(level, will=Will(topic, b"\x00\xff will"))
    getattr(client, ending)()
    watcher.take_message(topic=topic, payload=b"\x00\xff will", qos=0, retain=False, properties={})
    marker(clients, watcher, topic)


@covers("MQTT-3.1.2-8", "v3:MQTT-3.1.2-8")
@each_level
@pytest.mark.parametrize(
    "error", [b"\x80\x00", b"\xc0\x80\x80\x80\x80\x01", b"\x10\x00"], ids=["flags", "length", "connect"]
)
def test_the_will_is_published_after_a_protocol_error(clients, watcher, topic, level, error):
    client = clients.connected(level, will=Will(topic, b"will"))
    client.send(error)
    watcher.take_message(payload=b"will")


@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_has_its_qos(clients, watcher, topic, level, qos):
    clients.connected(level, will=Will(topic, b"will", qos)).abort()
    watcher.take_message(payload=b"will", qos=qos)


@each_level
def test_an_empty_will_is_a_message(clients, watcher, topic, level):
    clients.connected(level, will=Will(topic, b"")).abort()
    watcher.take_message(topic=topic, payload=b"")


@covers("MQTT-3.1.2-14", "MQTT-3.1.2-15", "v3:MQTT-3.1.2-16", "v3:MQTT-3.1.2-17")
@each_level
@pytest.mark.parametrize("retain", [False, True], ids=["not retained", "retained"])
def test_the_will_is_retained_when_it_says_so(clients, watcher, topic, level, retain):
    clients.connected(level, will=Will(topic, b"will", 1, retain)).abort()
    watcher.take_message(payload=b"will", retain=retain)
    late = clients.connected()
    late.subscribe(topic)
    if retain:
        deadline = time.monotonic() + late.timeout_s
        while not late.inbox:  # a will has no acknowledgement that says when it is stored
            assert time.monotonic() < deadline, "the will was not retained"
            late.subscribe(topic)
            late.ping()
        late.expect(Publish, payload=b"will", retain=True)
    else:
        watcher.publish(topic, b"marker", qos=1)
        late.expect(Publish, payload=b"marker")


@covers("MQTT-3.1.2-10", "MQTT-3.14.4-3", "v3:MQTT-3.1.2-10", "v3:MQTT-3.14.4-3")
@each_level_with_3_1
def test_no_will_is_published_after_disconnect(clients, watcher, topic, level):
    clients.connected(level, will=Will(topic, b"will", 1, True)).disconnect()
    marker(clients, watcher, topic)


@covers("MQTT-3.1.2-8")
@pytest.mark.parametrize("reason_code", [0x04, 0x80])
def test_the_will_is_published_after_a_disconnect_that_asks_for_it(clients, watcher, topic, reason_code):
    clients.connected(will=Will(topic, b"will")).disconnect(reason_code)
    watcher.take_message(payload=b"will")


@covers("MQTT-3.1.2-10", "v3:MQTT-3.1.2-10", "v3:MQTT-3.1.2-12")
@each_level
def test_a_will_belongs_to_one_connection(clients, watcher, topic, level):
    """Neither is it kept for the next connection of the session, nor published twice."""
    client = clients.connected(level, persistent=True, will=Will(topic, b"first", 1))
    client.abort()
    watcher.take_message(payload=b"first")
    client.connect(persistent=True)
    client.abort()
    client.connect(persistent=True, will=Will(topic, b"second", 1))
    client.abort()
    watcher.take_message(payload=b"second")
    marker(clients, watcher, topic)


@covers("MQTT-3.1.2-8", "v3:MQTT-3.1.2-8")
@each_level
def test_a_take_over_publishes_the_will_of_the_old_connection(clients, watcher, topic, level):
    old = clients.connected(level, will=Will(topic, b"old", 1))
    new = clients.connected(level, old.client_id, will=Will(topic, b"new", 1))
    watcher.take_message(payload=b"old")
    new.disconnect()
    marker(clients, watcher, topic)


@covers("MQTT-3.1.3-10", "MQTT-3.3.2-17", "MQTT-3.3.2-18")
def test_the_properties_of_a_will_arrive_unchanged_and_in_order(clients, watcher, topic):
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\x00\xff",
        "user_property": [("z", "1"), ("a", "2"), ("z", "1"), ("", "")],
    }
    clients.connected(will=Will(topic, b"will", 1, False, properties)).abort()
    watcher.take_message(payload=b"will", properties=properties)


def test_the_will_expires_like_a_message(clients, watcher, topic):
    will = Will(topic, b"will", 1, False, {"message_expiry_interval": 100})
    clients.connected(will=will).abort()
    left = watcher.take_message(payload=b"will").properties["message_expiry_interval"]
    assert 90 <= left <= 100


@each_level
def test_the_will_waits_for_an_absent_subscriber(clients, topic, level):
    subscriber = clients.connected(level, persistent=True)
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    watcher = clients.connected(level)
    watcher.subscribe(topic, qos=1)
    clients.connected(level, will=Will(topic, b"will", 1)).abort()
    watcher.take_message(payload=b"will")
    subscriber.connect(persistent=True)
    subscriber.take_message(payload=b"will")


# --- will delay -------------------------------------------------------------------------------------------------------


def delayed(topic, delay_s, payload=b"will"):
    return Will(topic, payload, 1, False, {"will_delay_interval": delay_s})


@covers("MQTT-3.1.2-8")
def test_the_will_is_published_when_its_delay_has_passed(clients, watcher, topic):
    client = clients.connected(persistent=True, will=delayed(topic, 1))
    started = time.monotonic()
    client.abort()
    watcher.take_message(payload=b"will", properties={})
    assert 0.9 <= time.monotonic() - started < 4
    marker(clients, watcher, topic)


@covers("MQTT-3.1.2-8")
def test_the_will_is_published_when_the_session_ends_before_the_delay(clients, watcher, topic):
    client = clients.connected(session_expiry_interval=1, will=delayed(topic, 100))
    started = time.monotonic()
    client.abort()
    watcher.take_message(payload=b"will")
    assert 0.9 <= time.monotonic() - started < 4


@covers("MQTT-3.1.2-8")
def test_a_delay_does_not_count_when_the_session_ends_with_the_connection(clients, watcher, topic):
    clients.connected(will=delayed(topic, 100)).abort()
    watcher.take_message(payload=b"will", timeout_s=2)


@covers("MQTT-3.1.2-8")
def test_a_disconnect_that_ends_the_session_publishes_the_will_at_once(clients, watcher, topic):
    client = clients.connected(persistent=True, will=delayed(topic, 100))
    client.disconnect(0x04, session_expiry_interval=0)
    watcher.take_message(payload=b"will", timeout_s=2)


@covers("MQTT-3.1.3-9")
def test_coming_back_within_the_delay_cancels_the_will(clients, watcher, topic):
    """A second client's will with the same delay, started later, tells when the first one is overdue."""
    client = clients.connected(persistent=True, will=delayed(topic, 1, b"must not come"))
    client.abort()
    assert client.connect(persistent=True).session_present
    clients.connected(persistent=True, will=delayed(topic, 1, b"overdue")).abort()
    watcher.take_message(payload=b"overdue")
    marker(clients, watcher, topic)


@covers("MQTT-3.1.3-9")
def test_a_take_over_within_the_delay_cancels_the_will(clients, watcher, topic):
    old = clients.connected(persistent=True, will=delayed(topic, 1, b"must not come"))
    clients.connected(client_id=old.client_id, persistent=True)
    clients.connected(persistent=True, will=delayed(topic, 1, b"overdue")).abort()
    watcher.take_message(payload=b"overdue")
    marker(clients, watcher, topic)


@covers("MQTT-3.1.2-8")
def test_a_clean_start_within_the_delay_ends_the_session_and_publishes_the_will(clients, watcher, topic):
    client = clients.connected(persistent=True, will=delayed(topic, 100))
    client.abort()
    client.connect(clean=True)
    watcher.take_message(payload=b"will", timeout_s=2)


@pytest.mark.parametrize("level", [MQTT_5])
def test_wills_of_many_clients_arrive(clients, watcher, topic, level):
    doomed = [clients.connected(level, will=Will(f"{topic}/{n}", b"%d" % n, n % 3)) for n in range(30)]
    for client in doomed:
        client.abort()
    got = sorted(int(watcher.take_message().payload) for _ in doomed)
    assert got == list(range(30))
