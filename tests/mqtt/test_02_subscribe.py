"""SUBSCRIBE, UNSUBSCRIBE, and which topics a filter matches."""

import pytest

from tbmq.packets import Puback, Publish, Subscription, Unsubscribe
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1


@covers(
    "MQTT-2.2.1-6",
    "MQTT-3.8.4-1",
    "MQTT-3.8.4-2",
    "MQTT-3.8.4-5",
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
    "v3:MQTT-2.3.1-7",
    "v3:MQTT-3.8.4-1",
    "v3:MQTT-3.8.4-2",
    "v3:MQTT-3.8.4-4",
    "v3:MQTT-3.8.4-5",
    "v3:MQTT-3.9.3-1",
    "v3:MQTT-3.9.3-2",
)
@each_level_with_3_1
def test_suback_grants_each_filter_in_order(clients, topic, level):
    client = clients.connected(level)
    lines = [Subscription(f"{topic}/{n}", n % 3) for n in range(7)]
    client._packet_id = 65_534
    assert client.try_subscribe(*lines).reason_codes == [0, 1, 2, 0, 1, 2, 0]  # packet id 65535
    assert client.try_subscribe(lines[2]).reason_codes == [2]  # packet id 1
    for line in lines:
        client.publish(line.topic_filter, b"x", qos=2)
        client.take_message(topic=line.topic_filter, qos=line.qos)


def test_a_thousand_filters_fit_into_one_packet(clients, topic):
    client = clients.connected()
    client.subscribe(*(f"{topic}/{n}" for n in range(1_000)))
    client.publish(f"{topic}/999", b"last")
    client.expect(Publish, payload=b"last")


MATCHES = [
    ("a/b", "a/b"),
    ("+", "a"),
    ("+", ""),
    ("#", "a"),
    ("#", "a/b/c"),
    ("a/#", "a"),
    ("a/#", "a/b"),
    ("a/#", "a/b/c"),
    ("a/#", "a/"),
    ("a/+", "a/b"),
    ("a/+", "a/"),
    ("+/b", "a/b"),
    ("+/+", "a/b"),
    ("+/+", "/b"),
    ("+/+/+", "//"),
    ("a/+/c", "a/b/c"),
    ("a/+/+/#", "a/b/c/d/e"),
    ("a/+/#", "a/b"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("/", "/"),
    ("a ü七\U0001f600", "a ü七\U0001f600"),
    ("\ufeffa", "\ufeffa"),
    ("$a", "$a"),
    ("+/a", "$b/a"),
    ("a\tb", "a\tb"),
]
DIFFERS = [
    ("a", "A"),
    ("a", "a/"),
    ("a", "/a"),
    ("a", "ab"),
    ("ab", "a"),
    ("+", "a/b"),
    ("+/+", "a"),
    ("a/+", "a"),
    ("a/+", "a/b/c"),
    ("a/#", "ab"),
    ("a/#", "b"),
    ("a/+/c", "a/b/d"),
    ("a//b", "a/b"),
    ("a/b", "a//b"),
    ("\ufeffa", "a"),
    ("a", "\ufeffa"),
    ("\u00fc", "u\u0308"),  # the same letter in two normal forms
]


@covers(
    "MQTT-1.5.4-3",
    "MQTT-3.3.2-3",
    "MQTT-4.5.0-1",
    "MQTT-4.7.1-1",
    "MQTT-4.7.1-2",
    "MQTT-4.7.3-4",
    "v3:MQTT-1.5.3-3",
    "v3:MQTT-3.3.2-3",
    "v3:MQTT-4.5.0-1",
    "v3:MQTT-4.7.1-2",
    "v3:MQTT-4.7.1-3",
    "v3:MQTT-4.7.3-4",
)
@each_level
@pytest.mark.parametrize(("topic_filter", "name"), MATCHES)
def test_a_filter_matches(clients, topic, level, topic_filter, name):
    """All below one unique level, so that tests do not see each other's messages."""
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(f"{topic}/{topic_filter}")
    publisher.publish(f"{topic}/{name}", b"x")
    subscriber.expect(Publish, topic=f"{topic}/{name}")


@covers("MQTT-3.3.2-3", "MQTT-4.7.3-4", "v3:MQTT-3.3.2-3", "v3:MQTT-4.7.3-4", "v3:MQTT-1.5.3-3", "MQTT-1.5.4-3")
@pytest.mark.parametrize(("topic_filter", "name"), DIFFERS)
def test_a_filter_does_not_match(clients, topic, topic_filter, name):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(f"{topic}/{topic_filter}", f"{topic}/marker")
    publisher.publish(f"{topic}/{name}", b"x")
    publisher.publish(f"{topic}/marker", b"x")
    subscriber.expect(Publish, topic=f"{topic}/marker")


@pytest.mark.parametrize("topic_filter", ["/+/{}", "+/{}", "/#", "#"])
def test_a_filter_that_starts_with_a_wildcard_or_slash_matches(clients, topic, topic_filter):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(Subscription(topic_filter.format(topic), retain_handling=2))
    name = f"/a/{topic}" if topic_filter[0] == "/" else f"a/{topic}"
    publisher.publish(name, b"x")
    subscriber.expect(Publish, topic=name)


@covers("MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
@each_level
@pytest.mark.parametrize("topic_filter", ["#", "+/{}", "+/#", "+/+"])
def test_a_leading_wildcard_never_matches_a_dollar_topic(clients, topic, level, topic_filter):
    curious, initiate, publisher = (clients.connected(level) for _ in range(3))
    name = f"$internal/{topic}"
    curious.subscribe(topic_filter.format(topic))
    initiate.subscribe("$internal/#")
    publisher.publish(name, b"live", qos=1, retain=True)
    initiate.expect(Publish, topic=name)
    curious.subscribe(topic_filter.format(topic))  # nor as a retained message
    publisher.publish(f"public/{topic}", b"marker")
    while (message := curious.expect(Publish)).topic != f"public/{topic}":
        assert message.topic[0] != "$"  # other tests' retained messages may match "#"
    publisher.publish(name, b"", qos=1, retain=True)


@covers("MQTT-3.8.4-8", "v3:MQTT-3.8.4-6")
@each_level
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_goes_out_at_the_lower_qos(clients, topic, level, granted, published):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=granted)
    publisher.publish(topic, b"x", qos=published)
    subscriber.take_message(qos=min(granted, published))
    subscriber.expect_nothing()


@covers("MQTT-3.8.4-3", "v3:MQTT-3.8.4-3")
@each_level
def test_an_identical_filter_replaces_the_subscription(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    for qos in (2, 0, 1):
        subscriber.subscribe(topic, qos=qos)
        publisher.publish(topic, b"x", qos=2)
        subscriber.take_message(qos=qos)
    publisher.publish(topic, b"marker")
    subscriber.expect(Publish, payload=b"marker")


def test_the_last_of_two_identical_filters_in_one_packet_counts(clients, topic):
    subscriber = clients.connected()
    codes = subscriber.try_subscribe(Subscription(topic, 2), Subscription(topic, 1)).reason_codes
    assert codes == [2, 1]
    subscriber.publish(topic, b"x", qos=2)
    subscriber.take_message(qos=1)
    subscriber.expect_nothing()


@covers("MQTT-3.8.4-4", "v3:MQTT-3.8.4-3")
@each_level
def test_no_message_is_lost_or_doubled_while_a_subscription_is_replaced(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=0)
    for n in range(200):
        publisher.send(Publish(topic, b"%d" % n, qos=1, packet_id=n + 1))
        if n % 10 == 0:
            subscriber.subscribe(topic, qos=0)
    for n in range(200):
        publisher.expect(Puback, packet_id=n + 1)
        subscriber.expect(Publish, payload=b"%d" % n)


@covers("MQTT-3.3.4-2", "v3:MQTT-3.3.5-1")
@each_level
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos(clients, topic, level, order):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    filters = [f"{topic}/#", f"{topic}/a", f"{topic}/+"]
    subscriber.subscribe(*(Subscription(f, qos) for f, qos in zip(filters, order, strict=True)))
    publisher.publish(f"{topic}/a", b"x", qos=2)
    publisher.publish(f"{topic}/a", b"marker")
    subscriber.take_message(payload=b"x", qos=2)
    subscriber.take_message(payload=b"marker", qos=0)


INVALID_FILTERS = ["", "a/#/b", "a#", "a/b#", "#/a", "+a", "a+", "a/b+/c", "++", "##", "$share/g", "$share//t"]


@covers("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "v3:MQTT-4.7.1-2", "v3:MQTT-4.7.1-3", "v3:MQTT-4.7.3-1")
@each_level
@pytest.mark.parametrize("topic_filter", INVALID_FILTERS)
def test_an_invalid_filter_is_refused_and_its_neighbours_granted(clients, topic, level, topic_filter):
    client = clients.connected(level)
    lines = [Subscription(topic, 1), Subscription(topic_filter, 1), Subscription(f"{topic}/x", 2)]
    refusal = 0x8F if level == MQTT_5 else 0x80
    assert client.try_subscribe(*lines).reason_codes == [1, refusal, 2]
    client.publish(topic, b"x", qos=1)
    client.take_message(payload=b"x")


@covers(
    "MQTT-3.10.4-1",
    "MQTT-3.10.4-2",
    "MQTT-3.10.4-4",
    "v3:MQTT-3.10.4-1",
    "v3:MQTT-3.10.4-2",
    "v3:MQTT-3.10.4-4",
)
@each_level_with_3_1
def test_nothing_more_comes_after_unsuback(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, f"{topic}/marker")
    publisher.publish(topic, b"before")
    subscriber.expect(Publish, payload=b"before")
    unsuback = subscriber.unsubscribe(topic)
    assert unsuback.reason_codes == ([0x00] if level == MQTT_5 else [])
    publisher.publish(topic, b"after")
    publisher.publish(f"{topic}/marker", b"x")
    subscriber.expect(Publish, topic=f"{topic}/marker")


@covers("MQTT-3.10.4-1", "v3:MQTT-3.10.4-1")
def test_a_filter_is_compared_by_its_characters_when_unsubscribing(clients, topic):
    subscriber = clients.connected()
    subscriber.subscribe(f"{topic}/+")
    for other in ("a", "#", "+/", "+/#"):
        assert subscriber.unsubscribe(f"{topic}/{other}").reason_codes == [0x11]
    subscriber.publish(f"{topic}/a", b"x")
    subscriber.expect(Publish, payload=b"x")


@covers(
    "MQTT-3.10.4-5",
    "MQTT-3.10.4-6",
    "MQTT-3.11.3-1",
    "MQTT-3.11.3-2",
    "v3:MQTT-3.10.4-5",
    "v3:MQTT-3.10.4-6",
)
@each_level
def test_unsuback_answers_every_filter_in_order(clients, topic, level):
    client = clients.connected(level)
    client.subscribe(f"{topic}/1", f"{topic}/3")
    codes = client.unsubscribe(*(f"{topic}/{n}" for n in range(5))).reason_codes
    assert codes == ([0x11, 0x00, 0x11, 0x00, 0x11] if level == MQTT_5 else [])
    client.publish(f"{topic}/1", b"x")
    client.publish(f"{topic}/3", b"x")
    client.expect_nothing()


@covers("MQTT-3.10.4-3", "v3:MQTT-3.10.4-3")
@each_level
def test_a_delivery_that_has_begun_is_completed_after_unsubscribe(clients, topic, level):
    subscriber, publisher = clients.connected(level, persistent=True), clients.connected(level)
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"begun", qos=2)
    begun = subscriber.expect(Publish, payload=b"begun", qos=2)
    subscriber.unsubscribe(topic)
    subscriber.close()
    assert subscriber.connect(persistent=True).session_present
    again = subscriber.take_message(payload=b"begun", qos=2, dup=True)
    assert again.packet_id == begun.packet_id


def test_only_the_client_that_unsubscribes_is_unsubscribed(clients, topic):
    stays, goes, publisher = (clients.connected() for _ in range(3))
    stays.subscribe(topic)
    goes.subscribe(topic)
    goes.unsubscribe(topic)
    publisher.publish(topic, b"x")
    stays.expect(Publish, payload=b"x")


@covers("MQTT-4.7.3-1", "MQTT-4.7.3-3", "v3:MQTT-4.7.3-1", "v3:MQTT-4.7.3-3")
@each_level
@pytest.mark.parametrize("length", [1, 2, 127, 128, 16_383, 65_535])
def test_topics_of_every_length_are_delivered(clients, level, length):
    name = "~" * length
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(name)
    publisher.publish(name, b"x")
    subscriber.expect(Publish, topic=name, payload=b"x")


def test_topics_of_128_levels_are_delivered(clients, topic):
    name = "/".join([topic] + ["x"] * 127)
    exact, wild, publisher = (clients.connected() for _ in range(3))
    exact.subscribe(name)
    wild.subscribe("/".join([topic] + ["+"] * 127))
    publisher.publish(name, b"x")
    exact.expect(Publish, topic=name)
    wild.expect(Publish, topic=name)


def test_unsubscribing_twice_in_one_write_is_answered_twice(clients, topic):
    client = clients.connected(MQTT_3_1_1)
    client.subscribe(topic)
    client.send(Unsubscribe(11, [topic]), Unsubscribe(12, [topic]))
    answers = [client.receive().packet_id for _ in range(2)]
    assert answers == [11, 12]
