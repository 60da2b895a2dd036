"""What MQTT 5 added: aliases, subscription identifiers and options, limits of either side, expiry, properties."""

import time

import pytest

from tbmq._codec import encode
from tbmq.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import covers

each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


def let_pass(seconds):
    """Expiry is a matter of time: there is nothing else to wait for."""
    time.sleep(seconds)


# --- topic aliases ----------------------------------------------------------------------------------------------------


@covers("MQTT-3.3.2-12", "MQTT-3.1.2-27")
@each_qos
def test_an_alias_stands_for_the_topic_it_was_given(clients, topic, qos):
    """Over the whole range that the broker announces, and re-assigned at will."""
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(f"{topic}/#", qos=qos)
    highest = publisher.connack.properties["topic_alias_maximum"]
    steps = [(f"{topic}/a", 1), ("", 1), (f"{topic}/b", highest), ("", 1), ("", highest), (f"{topic}/c", 1), ("", 1)]
    expected = ["a", "a", "b", "a", "b", "c", "c"]
    for (name, alias), wanted in zip(steps, expected, strict=True):
        publisher.publish(name, b"x", qos=qos, topic_alias=alias)
        subscriber.take_message(topic=f"{topic}/{wanted}", qos=qos, properties={})


@covers("MQTT-3.3.2-7")
def test_an_alias_ends_with_its_connection(clients, topic):
    client = clients.connected(persistent=True)
    client.publish(topic, b"x", topic_alias=1)
    client.disconnect()
    client.connect(persistent=True)
    client.send(Publish("", b"x", properties={"topic_alias": 1}))
    client.expect_disconnect(0x82)


def test_aliases_of_two_clients_are_apart(clients, topic):
    subscriber, first, second = (clients.connected() for _ in range(3))
    subscriber.subscribe(f"{topic}/#")
    first.publish(f"{topic}/first", b"x", topic_alias=1)
    second.publish(f"{topic}/second", b"x", topic_alias=1)
    first.publish("", b"x", topic_alias=1)
    second.publish("", b"x", topic_alias=1)
    got = sorted(subscriber.expect(Publish).topic for _ in range(4))
    assert got == [f"{topic}/first"] * 2 + [f"{topic}/second"] * 2


@covers("MQTT-3.1.2-26", "MQTT-3.3.2-8", "MQTT-3.3.2-11", "MQTT-3.3.2-7")
def test_the_broker_uses_aliases_within_the_bound_of_the_client(clients, topic):
    """More topics than aliases, again and again: every message must resolve, and some must use an alias."""
    subscriber, publisher = clients.connected(topic_alias_maximum=3, persistent=True), clients.connected()
    subscriber.subscribe(f"{topic}/#")
    for connection in range(2):
        if connection:
            subscriber.disconnect()
            subscriber.connect(persistent=True, topic_alias_maximum=3)
        names: dict[int, str] = {}
        bare = 0
        for n in range(30):
            wanted = f"{topic}/{n % 5 if n < 20 else 0}"
            publisher.publish(wanted, b"x")
            message = subscriber.expect(Publish)
            alias = message.properties.get("topic_alias")
            if alias is not None:
                assert 1 <= alias <= 3
                if message.topic:
                    names[alias] = message.topic
                else:
                    bare += 1
            assert (message.topic or names[alias]) == wanted
        assert bare > 0, "no alias was used"


@each_qos
def test_an_alias_is_told_with_a_message_that_is_sent_and_not_with_one_that_is_dropped(clients, topic, qos):
    """A message over Maximum Packet Size is dropped: the client never hears of its topic."""
    subscriber = clients.connected(topic_alias_maximum=2, maximum_packet_size=len(topic) + 60)
    publisher = clients.connected()
    subscriber.subscribe(f"{topic}/#", qos=qos)
    for name in ("a", "b"):
        publisher.publish(f"{topic}/{name}", b"too large" * 20, qos=qos)
        publisher.publish(f"{topic}/{name}", b"fits", qos=qos)
        first = subscriber.take_message(topic=f"{topic}/{name}", payload=b"fits")
        publisher.publish(f"{topic}/{name}", b"too large" * 20, qos=qos)
        publisher.publish(f"{topic}/{name}", b"again", qos=qos)
        again = subscriber.take_message(topic="", payload=b"again")
        assert again.properties["topic_alias"] == first.properties["topic_alias"]


@covers("MQTT-3.1.2-27")
@pytest.mark.parametrize("properties", [{}, {"topic_alias_maximum": 0}], ids=["absent", "zero"])
def test_the_broker_uses_no_alias_unasked(clients, topic, properties):
    subscriber, publisher = clients.connected(**properties), clients.connected()
    subscriber.subscribe(topic)
    for _ in range(5):
        publisher.publish(topic, b"x")
        subscriber.expect(Publish, topic=topic, properties={})


# --- subscription identifiers and options -----------------------------------------------------------------------------


@covers("MQTT-3.3.4-3")
@pytest.mark.parametrize("identifier", [1, 127, 128, 268_435_455])
def test_the_identifier_of_a_subscription_comes_with_its_messages(clients, topic, identifier):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(topic, subscription_identifier=identifier)
    subscriber.subscribe(f"{topic}/without")
    publisher.publish(topic, b"x")
    subscriber.expect(Publish, topic=topic, properties={"subscription_identifier": [identifier]})
    publisher.publish(f"{topic}/without", b"x")
    subscriber.expect(Publish, topic=f"{topic}/without", properties={})


@covers("MQTT-3.3.4-3", "MQTT-3.3.4-4")
def test_one_copy_carries_the_identifiers_of_all_matching_subscriptions(clients, topic):
    subscriber, publisher = clients.connected(), clients.connected()
    for identifier, topic_filter in enumerate([f"{topic}/a", f"{topic}/+", f"{topic}/#", f"{topic}/b"], start=1):
        subscriber.subscribe(topic_filter, qos=identifier % 3, subscription_identifier=identifier)
    subscriber.subscribe("+/a")
    publisher.publish(f"{topic}/a", b"x", qos=2)
    message = subscriber.take_message(topic=f"{topic}/a", qos=2)
    assert sorted(message.properties["subscription_identifier"]) == [1, 2, 3]
    subscriber.expect_nothing()


def test_a_replaced_subscription_has_the_new_identifier_or_none(clients, topic):
    subscriber = clients.connected()
    for identifier in (5, 6, None):
        properties = {"subscription_identifier": identifier} if identifier else {}
        subscriber.subscribe(topic, **properties)
        subscriber.publish(topic, b"x")
        subscriber.expect(Publish, properties={"subscription_identifier": [identifier]} if identifier else {})


def test_identifiers_and_options_are_part_of_the_session(clients, topic):
    subscriber, publisher = clients.connected(persistent=True), clients.connected()
    line = Subscription(topic, 1, no_local=True, retain_as_published=True)
    subscriber.subscribe(line, subscription_identifier=9)
    subscriber.disconnect()
    publisher.publish(topic, b"queued", qos=1, retain=True)
    subscriber.connect(persistent=True)
    subscriber.take_message(payload=b"queued", retain=True, properties={"subscription_identifier": [9]})
    subscriber.publish(topic, b"own", qos=1)
    publisher.publish(topic, b"live", qos=1)
    subscriber.take_message(payload=b"live", retain=False, properties={"subscription_identifier": [9]})


@covers("MQTT-3.8.3-3")
@each_qos
def test_no_local_keeps_own_messages_away(clients, topic, qos):
    client, other = clients.connected(), clients.connected()
    client.subscribe(Subscription(topic, qos, no_local=True))
    other.subscribe(topic, qos=qos)
    client.publish(topic, b"own", qos=qos)
    other.take_message(payload=b"own")
    other.publish(topic, b"foreign", qos=qos)
    client.take_message(payload=b"foreign")


@covers("MQTT-3.8.3-3")
def test_no_local_goes_by_the_id_and_not_by_the_connection(clients, topic):
    client, other = clients.connected(persistent=True), clients.connected()
    client.subscribe(Subscription(topic, 1, no_local=True))
    client.disconnect()
    client.connect(persistent=True)
    client.publish(topic, b"own", qos=1)
    other.publish(topic, b"foreign", qos=1)
    client.take_message(payload=b"foreign")


# --- properties of messages -------------------------------------------------------------------------------------------

PROPERTIES = {
    "payload_format_indicator": 1,
    "content_type": "text/plain; ü",
    "response_topic": "answer/to/me",
    "correlation_data": bytes(range(256)),
    "user_property": [("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("ключ", "значение")],
}


@covers(
    "MQTT-1.5.7-1",
    "MQTT-2.2.2-1",
    "MQTT-3.3.2-4",
    "MQTT-3.3.2-13",
    "MQTT-3.3.2-15",
    "MQTT-3.3.2-16",
    "MQTT-3.3.2-17",
    "MQTT-3.3.2-18",
    "MQTT-3.3.2-19",
    "MQTT-3.3.2-20",
)
@each_qos
def test_the_properties_of_a_message_arrive_unchanged_and_in_order(clients, topic, qos):
    present, absent, publisher = clients.connected(), clients.connected(persistent=True), clients.connected()
    present.subscribe(topic, qos=qos)
    absent.subscribe(topic, qos=qos)
    absent.disconnect()
    publisher.publish(topic, b"x", qos=qos, **PROPERTIES)
    present.take_message(payload=b"x", qos=qos, properties=PROPERTIES)
    if qos:
        absent.connect(persistent=True)
        absent.take_message(payload=b"x", qos=qos, properties=PROPERTIES)


def test_a_hundred_user_properties_arrive(clients, topic):
    properties = {"user_property": [(f"key {n}", "v" * n) for n in range(100)]}
    client = clients.connected()
    client.subscribe(topic)
    client.publish(topic, b"x", **properties)
    client.expect(Publish, properties=properties)


def test_a_request_is_answered_at_its_response_topic(clients, topic):
    requester, responder = clients.connected(request_response_information=1), clients.connected()
    requester.subscribe(f"{topic}/answer")
    responder.subscribe(f"{topic}/request")
    requester.publish(f"{topic}/request", b"?", response_topic=f"{topic}/answer", correlation_data=b"\x01")
    request = responder.expect(Publish).properties
    responder.publish(request["response_topic"], b"!", correlation_data=request["correlation_data"])
    requester.expect(Publish, payload=b"!", properties={"correlation_data": b"\x01"})


@covers("MQTT-3.3.2-6")
@each_qos
def test_the_time_left_is_passed_on(clients, topic, qos):
    subscriber, publisher = clients.connected(), clients.connected()
    subscriber.subscribe(topic, qos=qos)
    publisher.publish(topic, b"x", qos=qos, message_expiry_interval=100)
    assert 98 <= subscriber.take_message().properties["message_expiry_interval"] <= 100


@covers("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_a_message_expires_while_its_receiver_is_away(clients, topic):
    subscriber, publisher = clients.connected(persistent=True), clients.connected()
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher.publish(topic, b"short", qos=1, message_expiry_interval=1)
    publisher.publish(topic, b"long", qos=1, message_expiry_interval=100)
    publisher.publish(topic, b"endless", qos=1)
    let_pass(2.1)
    subscriber.connect(persistent=True)
    left = subscriber.take_message(payload=b"long").properties["message_expiry_interval"]
    assert 95 <= left <= 98
    subscriber.take_message(payload=b"endless", properties={})


@covers("MQTT-3.3.2-5")
def test_a_message_expires_behind_a_full_window(clients, topic):
    subscriber, publisher = clients.connected(receive_maximum=1), clients.connected()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"first", qos=1)
    publisher.publish(topic, b"short", qos=1, message_expiry_interval=1)
    publisher.publish(topic, b"last", qos=1)
    first = subscriber.expect(Publish, payload=b"first")
    let_pass(2.1)
    subscriber.send(Puback(first.packet_id))
    subscriber.take_message(payload=b"last")


@covers("MQTT-4.3.3-7", "MQTT-4.3.3-13")
def test_a_message_that_was_sent_does_not_expire_any_more(clients, topic):
    subscriber, publisher = clients.connected(persistent=True), clients.connected()
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2, message_expiry_interval=1)
    subscriber.expect(Publish, payload=b"x")
    publisher.send(Publish(topic, b"y", qos=2, packet_id=77, properties={"message_expiry_interval": 1}))
    publisher.expect(Pubrec, packet_id=77)
    let_pass(2.1)
    publisher.send(Pubrel(77))
    publisher.expect(Pubcomp, packet_id=77, reason_code=0)
    subscriber.close()
    subscriber.connect(persistent=True)
    subscriber.take_message(payload=b"x", dup=True)


# --- maximum packet size ----------------------------------------------------------------------------------------------


@covers("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@each_qos
def test_a_message_over_the_bound_of_a_client_is_dropped_for_it_alone(clients, topic, qos):
    fits = Publish(topic, b"=" * 200, qos, packet_id=1 if qos else 0)
    bound = len(encode(fits, MQTT_5))
    small, other, publisher = (
        clients.connected(maximum_packet_size=bound, receive_maximum=1),
        clients.connected(),
        clients.connected(),
    )
    small.subscribe(topic, qos=qos)
    other.subscribe(topic, qos=qos)
    for payload in (b"=" * 200, b">" * 201, b"last"):
        publisher.publish(topic, payload, qos=qos)
        other.take_message(payload=payload)
    small.take_message(payload=b"=" * 200)
    small.take_message(payload=b"last")  # the one too large holds no place in the window


@covers("MQTT-3.2.2-15")
def test_a_packet_over_the_bound_of_the_broker_ends_the_connection(limited_clients, topic):
    client = limited_clients.connected()
    bound = client.connack.properties["maximum_packet_size"]
    assert bound == 4_096
    packet = Publish(topic, b"", 1, packet_id=1)
    room = bound - len(encode(packet, MQTT_5)) - 1  # the length takes a second byte
    packet.payload = b"=" * room
    assert len(encode(packet, MQTT_5)) == bound
    client.send(packet)
    client.expect(Puback, packet_id=1)
    packet.payload += b">"
    client.send(packet)
    client.expect_disconnect(0x95)


def test_a_packet_over_the_bound_ends_a_v311_connection_too(limited_clients, topic):
    client = limited_clients.connected(MQTT_3_1_1, keep_alive_s=2)
    client.send(Publish(topic, b">" * 4_096))
    client.expect_closed()


@covers(
    "MQTT-3.2.2-19",
    "MQTT-3.2.2-20",
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.9.2-1",
    "MQTT-3.9.2-2",
    "MQTT-3.11.2-1",
    "MQTT-3.11.2-2",
    "MQTT-3.14.2-2",
    "MQTT-3.14.2-3",
    "MQTT-3.14.2-4",
)
def test_every_answer_fits_into_the_bound_of_the_client(clients, topic):
    """The client's decoder refuses anything larger. Each answer here is one that might explain itself."""
    client = clients.connected(maximum_packet_size=40)
    refusals(client, topic)
    client.send(b"\x80\x00")  # SUBSCRIBE with bad flags
    client.expect_disconnect(0x81)


@covers("MQTT-3.1.2-29")
def test_no_answer_explains_itself_when_the_client_does_not_want_it(clients, topic):
    client = clients.connected(request_problem_information=0)
    for answer in refusals(client, topic):
        assert not {"reason_string", "user_property"} & set(answer.properties), answer


@covers("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1", "MQTT-3.9.3-2", "MQTT-3.11.3-2")
def test_every_refusal_has_its_reason(clients, topic):
    refusals(clients.connected(), topic)


def refusals(client, topic):
    """Provokes one refusal of every kind that leaves the connection open; returns the answers."""
    client.send(
        Subscribe(1, [Subscription("a/#/b")]),
        Unsubscribe(2, [topic]),
        Publish("$SYS/forged", b"x", 1, packet_id=3),
        Publish("$SYS/forged", b"x", 2, packet_id=4),
        Pubrel(5),
        Pubrec(6),
    )
    return [
        client.expect(Suback, packet_id=1, reason_codes=[0x8F]),
        client.expect(Unsuback, packet_id=2, reason_codes=[0x11]),
        client.expect(Puback, packet_id=3, reason_code=0x87),
        client.expect(Pubrec, packet_id=4, reason_code=0x87),
        client.expect(Pubcomp, packet_id=5, reason_code=0x92),
        client.expect(Pubrel, packet_id=6, reason_code=0x92),
    ]


# --- receive maximum --------------------------------------------------------------------------------------------------


@covers("MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_the_broker_keeps_to_the_window_of_the_client(clients, topic, qos):
    subscriber, publisher = clients.connected(receive_maximum=3), clients.connected()
    subscriber.subscribe(topic, qos=qos)
    for n in range(8):
        publisher.publish(topic, b"%d" % n, qos=qos)
    publisher.publish(topic, b"qos 0")
    held = [subscriber.expect(Publish, payload=b"%d" % n) for n in range(3)]
    subscriber.expect(Publish, payload=b"qos 0", qos=0)  # not held back
    subscriber.expect_nothing()
    subscriber.subscribe(f"{topic}/other")  # other packets are answered
    for n in range(3, 8):
        message = held.pop(0)
        if qos == 1:
            subscriber.send(Puback(message.packet_id))
        else:
            subscriber.send(Pubrec(message.packet_id))
            subscriber.expect(Pubrel, packet_id=message.packet_id)
            subscriber.expect_nothing()  # PUBREC frees no place, PUBCOMP does
            subscriber.send(Pubcomp(message.packet_id))
        held.append(subscriber.expect(Publish, payload=b"%d" % n))
        subscriber.expect_nothing()


@covers("MQTT-4.9.0-2")
def test_stray_acknowledgements_do_not_widen_the_window(clients, topic):
    subscriber, publisher = clients.connected(receive_maximum=2), clients.connected()
    subscriber.subscribe(topic, qos=1)
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=1)
    held = [subscriber.expect(Publish) for _ in range(2)]
    subscriber.send(Puback(60_000), Pubcomp(60_001), Puback(held[0].packet_id), Puback(held[0].packet_id))
    subscriber.expect(Publish, payload=b"2")
    subscriber.expect_nothing()


@covers("MQTT-3.3.4-7")
def test_a_client_over_the_window_of_the_broker_is_disconnected(limited_clients, topic):
    client = limited_clients.connected()
    assert client.connack.properties["receive_maximum"] == 4
    for packet_id in range(1, 5):
        client.send(Publish(topic, b"x", 2, packet_id=packet_id))
        client.expect(Pubrec, packet_id=packet_id)
    client.send(Pubrel(1))
    client.expect(Pubcomp, packet_id=1)
    client.send(Publish(topic, b"x", 2, packet_id=5))
    client.expect(Pubrec, packet_id=5)
    client.send(Publish(topic, b"x", 2, packet_id=6))
    client.expect_disconnect(0x93)


def test_a_qos_2_message_takes_one_place_in_the_window_of_the_broker(limited_clients, topic):
    """From PUBLISH to PUBREL, however often it is sent, and whether or not its PUBREC has left."""
    client = limited_clients.connected()
    burst = [Publish(topic, b"x", 2, dup=dup, packet_id=n) for dup in (False, True) for n in range(1, 5)]
    client.send(*burst)  # in one write: the broker reads all of it before it answers
    assert [client.expect(Pubrec).packet_id for _ in burst] == [1, 2, 3, 4, 1, 2, 3, 4]
    client.send(Publish(topic, b"x", 1, packet_id=5))
    client.expect_disconnect(0x93)


@covers("MQTT-3.14.2-2", "MQTT-3.14.0-1")
def test_a_server_disconnect_carries_no_session_expiry(clients):
    client = clients.connected(persistent=True)
    clients.connected(client_id=client.client_id, persistent=True)
    assert "session_expiry_interval" not in client.expect(Disconnect, reason_code=0x8E).properties
