"""Retained messages: which are kept, who gets them, and when."""

from collections import Counter

import pytest

from tbmq.packets import Puback, Publish, Subscription
from tbmq.protocol import MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1


@covers(
    "MQTT-3.3.1-5",
    "MQTT-3.3.1-9",
    "v3:MQTT-3.3.1-5",
    "v3:MQTT-3.3.1-6",
    "v3:MQTT-3.3.1-8",
)
@each_level_with_3_1
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_new_subscription_gets_the_retained_message(clients, topic, level, granted, published):
    clients.connected(level).publish(topic, b"kept", qos=published, retain=True)
    subscriber = clients.connected(level)
    subscriber.subscribe(topic, qos=granted)
    subscriber.take_message(topic=topic, payload=b"kept", qos=min(granted, published), retain=True, dup=False)
    subscriber.expect_nothing()


@covers("MQTT-3.3.1-5", "v3:MQTT-3.3.1-5", "v3:MQTT-3.3.1-7")
@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_retained_message_replaces_the_one_before(clients, topic, level, qos):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    publisher.publish(topic, b"old", qos=1, retain=True)
    publisher.publish(topic, b"new", qos=qos, retain=True)
    publisher.publish(f"{topic}/marker", b"x", qos=1, retain=True)
    subscriber.subscribe(f"{topic}/#", qos=2)
    got = {(message.topic, message.payload) for message in (subscriber.take_message() for _ in range(2))}
    assert got == {(topic, b"new"), (f"{topic}/marker", b"x")}


@covers("MQTT-3.3.1-6", "MQTT-3.3.1-7", "v3:MQTT-3.3.1-10", "v3:MQTT-3.3.1-11")
@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_deletes_and_is_passed_on_but_not_kept(clients, topic, level, qos):
    publisher, live, late = (clients.connected(level) for _ in range(3))
    publisher.publish(topic, b"kept", qos=1, retain=True)
    live.subscribe(topic, qos=2)
    live.take_message(payload=b"kept", retain=True)
    publisher.publish(topic, b"", qos=qos, retain=True)
    live.take_message(payload=b"", retain=False)
    late.subscribe(topic)
    publisher.publish(topic, b"marker")
    late.expect(Publish, payload=b"marker")


@covers("MQTT-3.3.1-8", "v3:MQTT-3.3.1-12")
@each_level
def test_a_message_without_the_flag_leaves_the_retained_one_alone(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.publish(topic, b"passing", qos=1)
    publisher.publish(topic, b"", qos=1)
    publisher.publish(f"{topic}/never", b"passing", qos=1)
    subscriber.subscribe(f"{topic}/#")
    subscriber.expect(Publish, topic=topic, payload=b"kept", retain=True)
    subscriber.expect_nothing()


@covers("MQTT-3.3.1-12", "v3:MQTT-3.3.1-9")
@each_level
def test_an_established_subscription_gets_the_message_without_the_flag(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic)
    publisher.publish(topic, b"live", qos=1, retain=True)
    subscriber.expect(Publish, payload=b"live", retain=False)


@covers("MQTT-3.3.1-13")
def test_the_flag_is_passed_on_when_retain_as_published_is_asked_for(clients, topic):
    publisher, subscriber = clients.connected(), clients.connected()
    subscriber.subscribe(Subscription(topic, 1, retain_as_published=True))
    for retain in (True, False, True):
        publisher.publish(topic, b"x", qos=1, retain=retain)
        subscriber.take_message(retain=retain)


@covers("MQTT-3.3.1-9", "MQTT-3.8.4-4", "v3:MQTT-3.8.4-3")
@each_level
def test_subscribing_again_sends_the_retained_message_again(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    for qos in (0, 1, 1):
        subscriber.subscribe(topic, qos=qos)
        subscriber.take_message(payload=b"kept", qos=qos, retain=True)


@covers("MQTT-3.3.1-10")
def test_retain_handling_1_sends_only_to_a_new_subscription(clients, topic):
    publisher, subscriber = clients.connected(), clients.connected(persistent=True)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    line = Subscription(topic, 1, retain_handling=1)
    subscriber.subscribe(line)
    subscriber.take_message(payload=b"kept", retain=True)
    subscriber.subscribe(line)
    subscriber.expect_nothing()
    subscriber.disconnect()
    subscriber.connect(persistent=True)
    subscriber.subscribe(line)  # known from the session
    subscriber.expect_nothing()
    subscriber.unsubscribe(topic)
    subscriber.subscribe(line)
    subscriber.take_message(payload=b"kept", retain=True)


@covers("MQTT-3.3.1-11")
def test_retain_handling_2_sends_nothing(clients, topic):
    publisher, subscriber = clients.connected(), clients.connected()
    publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber.subscribe(Subscription(topic, 1, retain_handling=2))
    publisher.publish(topic, b"live", qos=1)
    subscriber.take_message(payload=b"live", retain=False)


@each_level
def test_each_filter_of_a_subscribe_gets_its_own_retained_messages(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    for n in range(6):
        publisher.publish(f"{topic}/{n}", b"%d" % n, qos=1, retain=True)
    subscriber.subscribe(f"{topic}/0", f"{topic}/1", f"{topic}/nobody")
    assert sorted(subscriber.expect(Publish).payload for _ in range(2)) == [b"0", b"1"]
    subscriber.subscribe(f"{topic}/+")
    assert sorted(subscriber.expect(Publish).payload for _ in range(6)) == [b"%d" % n for n in range(6)]
    subscriber.expect_nothing()


@each_level
def test_a_wildcard_finds_five_hundred_retained_messages(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    topics = [f"{topic}/{n % 7}/{n}" for n in range(500)]
    for name in topics:
        publisher.send(Publish(name, name.encode(), retain=True))
    publisher.publish(f"{topic}/last", b"x", qos=1, retain=True)
    subscriber.subscribe(f"{topic}/+/#", qos=1)
    got = []
    for _ in range(501):
        got.append(subscriber.take_message(retain=True).topic)
    assert sorted(got) == sorted([*topics, f"{topic}/last"])
    subscriber.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("properties", [{}, {"receive_maximum": 1}], ids=["wide", "narrow"])
def test_every_retained_message_arrives_when_they_are_large(clients, topic, qos, properties):
    """Sixty of 400 KB are three times what may wait for a client; none is dropped, and none comes twice."""
    publisher, subscriber = clients.connected(), clients.connected(**properties)
    for n in range(60):
        publisher.publish(f"{topic}/{n}", b"%d:" % n + b"x" * 400_000, qos=1, retain=True)
    subscriber.subscribe(f"{topic}/+", qos=qos)
    got = [int(subscriber.take_message(retain=True).payload.partition(b":")[0]) for _ in range(60)]
    assert sorted(got) == list(range(60))
    subscriber.expect_nothing()
    for n in range(60):  # the broker serves other tests, too
        publisher.publish(f"{topic}/{n}", b"", qos=1, retain=True)


def test_a_replay_starts_anew_when_the_filter_is_subscribed_again_and_ends_when_it_is_unsubscribed(clients, topic):
    publisher, subscriber = clients.connected(), clients.connected(receive_maximum=1)
    for n in range(300):
        publisher.send(Publish(f"{topic}/{n}", b"x", 1, True, packet_id=n + 1))
        publisher.expect(Puback)
    subscriber.subscribe(f"{topic}/#", qos=1)
    subscriber.take_message()
    subscriber.subscribe(f"{topic}/+", qos=1)
    subscriber.subscribe(f"{topic}/#", qos=1)
    got = Counter()
    while len(got) < 300 or min(got.values()) < 2:
        got[subscriber.take_message(retain=True).topic] += 1
    assert set(got.values()) <= {2, 3}  # once for each filter, and what had come before it was subscribed again
    subscriber.subscribe(f"{topic}/#", qos=1)
    subscriber.unsubscribe(f"{topic}/#", f"{topic}/+")
    publisher.publish(f"{topic}/0", b"", qos=1, retain=True)
    subscriber.subscribe(f"{topic}/1", qos=1)
    while subscriber.take_message().topic != f"{topic}/1":
        pass  # of the page that was on its way


@covers("v3:MQTT-3.1.2-7")
@each_level
def test_a_retained_message_outlives_the_session_of_its_publisher(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.disconnect()
    publisher.connect(clean=True)
    publisher.disconnect()
    subscriber.subscribe(topic)
    subscriber.expect(Publish, payload=b"kept", retain=True)


@covers("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
def test_a_retained_message_keeps_its_properties(clients, topic):
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": f"{topic}/answer",
        "correlation_data": b"\x00\x01",
        "user_property": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    clients.connected().publish(topic, b"kept", qos=1, retain=True, **properties)
    subscriber = clients.connected()
    subscriber.subscribe(topic, subscription_identifier=7)
    subscriber.expect(Publish, payload=b"kept", properties=properties | {"subscription_identifier": [7]})


@covers("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_a_retained_message_expires(clients, topic):
    """The second one says when a second has passed: it is delivered with less than it was given."""
    publisher = clients.connected()
    publisher.publish(topic, b"short", qos=1, retain=True, message_expiry_interval=1)
    publisher.publish(f"{topic}/long", b"long", qos=1, retain=True, message_expiry_interval=100)
    left = 100
    while left > 98:
        subscriber = clients.connected()
        subscriber.subscribe(f"{topic}/long")
        left = subscriber.expect(Publish, payload=b"long").properties["message_expiry_interval"]
        subscriber.close()
    assert left == 98
    subscriber = clients.connected()
    subscriber.subscribe(topic)
    publisher.publish(topic, b"marker")
    subscriber.expect(Publish, payload=b"marker")


@pytest.mark.parametrize("level", [MQTT_5])
def test_a_shared_subscription_gets_no_retained_messages(clients, topic, level):
    publisher, subscriber = clients.connected(level), clients.connected(level)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    subscriber.subscribe(f"$share/group/{topic}")
    publisher.publish(topic, b"live", qos=1)
    subscriber.expect(Publish, payload=b"live")


@each_level
def test_a_retained_message_waits_for_an_absent_client_like_any_other(clients, topic, level):
    """Published while the client is away it is an ordinary message to its subscription."""
    publisher, subscriber = clients.connected(level), clients.connected(level, persistent=True)
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher.publish(topic, b"x", qos=1, retain=True)
    subscriber.connect(persistent=True)
    subscriber.take_message(payload=b"x", retain=False)
    subscriber.expect_nothing()
