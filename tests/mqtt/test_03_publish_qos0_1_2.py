"""PUBLISH and its acknowledgements, in both directions, one message at a time."""

import itertools

import pytest

from tbmq.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1

each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


@covers(
    "MQTT-2.2.1-2",
    "MQTT-2.2.1-5",
    "MQTT-3.3.1-2",
    "MQTT-3.3.4-1",
    "MQTT-4.3.1-1",
    "MQTT-4.3.2-2",
    "MQTT-4.3.2-4",
    "MQTT-4.3.3-2",
    "MQTT-4.3.3-4",
    "MQTT-4.3.3-8",
    "MQTT-4.3.3-11",
    "v3:MQTT-2.3.1-5",
    "v3:MQTT-2.3.1-6",
    "v3:MQTT-3.3.1-2",
    "v3:MQTT-3.3.4-1",
    "v3:MQTT-4.3.1-1",
    "v3:MQTT-4.3.2-1",
    "v3:MQTT-4.3.2-2",
    "v3:MQTT-4.3.3-1",
    "v3:MQTT-4.3.3-2",
)
@each_level_with_3_1
@each_qos
def test_a_message_arrives_once_and_unchanged(clients, topic, level, qos):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=qos)
    payload = bytes(range(256)) * 4
    publisher.publish(topic, payload, qos=qos)
    message = subscriber.take_message(topic=topic, payload=payload, qos=qos, dup=False, retain=False, properties={})
    assert (message.packet_id == 0) == (qos == 0)
    subscriber.expect_nothing()
    publisher.expect_nothing()


@each_qos
@pytest.mark.parametrize(("sender", "receiver"), [(MQTT_3_1_1, MQTT_5), (MQTT_5, MQTT_3_1_1)], ids=["3to5", "5to3"])
def test_a_message_passes_between_protocol_levels(clients, topic, qos, sender, receiver):
    subscriber, publisher = clients.connected(receiver), clients.connected(sender)
    subscriber.subscribe(topic, qos=qos)
    properties = {"content_type": "text/plain", "user_property": [("a", "b")]} if sender == MQTT_5 else {}
    publisher.publish(topic, b"x", qos=qos, **properties)
    subscriber.take_message(topic=topic, payload=b"x", qos=qos, properties={})


@each_level
@each_qos
def test_an_empty_payload_is_a_message_too(clients, topic, level, qos):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=qos)
    publisher.publish(topic, b"", qos=qos)
    subscriber.take_message(topic=topic, payload=b"", qos=qos)


@covers("MQTT-4.5.0-1", "v3:MQTT-4.5.0-1")
@each_level
@each_qos
def test_every_subscriber_gets_its_own_copy(clients, topic, level, qos):
    subscribers = [clients.connected(level) for _ in range(9)]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=qos)
    clients.connected(level).publish(topic, b"to all", qos=qos)
    for subscriber in subscribers:
        subscriber.take_message(payload=b"to all", qos=qos)


@each_qos
def test_a_publisher_that_subscribed_gets_its_own_message(clients, topic, qos):
    client = clients.connected()
    client.subscribe(topic, qos=qos)
    client.publish(topic, b"echo", qos=qos)
    client.take_message(payload=b"echo")


@covers("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.7.2-1")
@each_level
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_for_nobody_is_acknowledged(clients, topic, level, qos):
    answer = clients.connected(level).publish(topic, b"x", qos=qos)
    assert answer.reason_code in ({0x00, 0x10} if level == MQTT_5 else {0x00})


@covers("MQTT-2.2.1-5", "v3:MQTT-2.3.1-6")
@each_level
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
def test_acknowledgements_carry_the_id_of_the_message(clients, topic, level, packet_id):
    client = clients.connected(level)
    client.send(Publish(topic, b"1", qos=1, packet_id=packet_id))
    client.expect(Puback, packet_id=packet_id)
    client.send(Publish(topic, b"2", qos=2, packet_id=packet_id))
    client.expect(Pubrec, packet_id=packet_id)
    client.send(Pubrel(packet_id))
    client.expect(Pubcomp, packet_id=packet_id, reason_code=0)


@covers("MQTT-4.6.0-2", "MQTT-4.6.0-3", "v3:MQTT-4.6.0-2", "v3:MQTT-4.6.0-3")
@each_level
def test_acknowledgements_come_in_the_order_of_the_messages(clients, topic, level):
    client = clients.connected(level)
    ids = [7, 3, 9, 1, 8, 2]
    client.send(*(Publish(topic, b"x", qos=1, packet_id=packet_id) for packet_id in ids))
    assert [client.expect(Puback).packet_id for _ in ids] == ids
    client.send(*(Publish(topic, b"x", qos=2, packet_id=packet_id) for packet_id in ids))
    assert [client.expect(Pubrec).packet_id for _ in ids] == ids
    client.send(*(Pubrel(packet_id) for packet_id in ids))
    assert [client.expect(Pubcomp).packet_id for _ in ids] == ids


@covers("MQTT-4.3.2-5", "v3:MQTT-4.3.2-2")
@each_level
def test_an_id_is_free_again_after_puback(clients, topic, level):
    """Even with DUP set it is then a new message."""
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic)
    for dup in (False, True, True):
        publisher.send(Publish(topic, b"x", qos=1, packet_id=5, dup=dup))
        publisher.expect(Puback, packet_id=5)
        subscriber.expect(Publish, payload=b"x")


@covers("MQTT-4.3.3-10", "MQTT-4.3.3-12", "v3:MQTT-4.3.3-2")
@each_level
def test_a_qos_2_message_is_passed_on_once_however_often_it_is_sent(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic)
    for dup in (False, True, True):
        publisher.send(Publish(topic, b"once", qos=2, packet_id=5, dup=dup))
        publisher.expect(Pubrec, packet_id=5)
    publisher.send(Pubrel(5))
    publisher.expect(Pubcomp, packet_id=5)
    publisher.send(Publish(topic, b"new", qos=2, packet_id=5))
    publisher.expect(Pubrec, packet_id=5)
    publisher.send(Pubrel(5))
    publisher.expect(Pubcomp, packet_id=5)
    subscriber.expect(Publish, payload=b"once")
    subscriber.expect(Publish, payload=b"new")
    subscriber.expect_nothing()


@covers("MQTT-4.3.3-11", "v3:MQTT-4.3.3-2")
@each_level
def test_pubrel_is_answered_each_time(clients, topic, level):
    client = clients.connected(level)
    client.publish(topic, b"x", qos=2)
    client.send(Pubrel(client._packet_id))
    assert client.expect(Pubcomp).reason_code == (0x92 if level == MQTT_5 else 0)


@covers("MQTT-3.3.1-3", "v3:MQTT-3.3.1-3")
@each_level
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_of_the_publisher_is_not_passed_on(clients, topic, level, qos):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=qos)
    publisher.send(Publish(topic, b"x", qos=qos, packet_id=3, dup=True))
    if qos == 2:
        publisher.expect(Pubrec, packet_id=3)
        publisher.send(Pubrel(3))
    subscriber.take_message(payload=b"x", dup=False)


@covers("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "v3:MQTT-2.3.1-4", "v3:MQTT-2.3.1-1", "v3:MQTT-2.3.1-2")
@each_level
@pytest.mark.parametrize("qos", [1, 2])
def test_ids_of_the_broker_are_not_zero_and_not_in_use(clients, topic, level, qos):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=qos)
    held = []
    for _ in range(10):
        publisher.publish(topic, b"x", qos=qos)
        held.append(subscriber.expect(Publish).packet_id)
    assert len(set(held)) == 10
    assert 0 not in held

    freed = held.pop(4)
    if qos == 1:
        subscriber.send(Puback(freed))
    else:
        subscriber.send(Pubrec(freed))
        subscriber.expect(Pubrel, packet_id=freed)
        subscriber.send(Pubcomp(freed))
    for _ in range(5):
        publisher.publish(topic, b"y", qos=qos)
        message = subscriber.take_message(payload=b"y")
        assert message.packet_id not in held


@covers("MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.4.0-1", "MQTT-4.3.2-3", "v3:MQTT-4.4.0-1")
@each_level
def test_nothing_is_resent_while_the_connection_lasts(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"1", qos=1)
    publisher.publish(topic, b"2", qos=2)
    first, second = subscriber.expect(Publish, qos=1), subscriber.expect(Publish, qos=2)
    subscriber.expect_nothing()
    subscriber.send(Pubrec(second.packet_id))
    subscriber.expect(Pubrel, packet_id=second.packet_id)
    subscriber.expect_nothing()
    subscriber.send(Pubcomp(second.packet_id), Puback(first.packet_id))
    subscriber.expect_nothing()


@covers("MQTT-3.6.2-1", "MQTT-4.3.3-4")
@each_level
def test_a_repeated_pubrec_gets_pubrel_again(clients, topic, level):
    subscriber = clients.connected(level)
    subscriber.subscribe(topic, qos=2)
    subscriber.publish(topic, b"x", qos=2)
    packet_id = subscriber.expect(Publish, qos=2).packet_id
    for _ in range(2):
        subscriber.send(Pubrec(packet_id))
        subscriber.expect(Pubrel, packet_id=packet_id, reason_code=0)
    subscriber.send(Pubcomp(packet_id))
    subscriber.expect_nothing()


@covers("MQTT-4.3.3-4", "MQTT-4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_is_done_with(clients, topic, qos):
    """No PUBREL follows, nothing is sent again, and the message counts as acknowledged."""
    subscriber, publisher = clients.connected(persistent=True, receive_maximum=1), clients.connected()
    subscriber.subscribe(topic, qos=qos)
    publisher.publish(topic, b"refused", qos=qos)
    packet_id = subscriber.expect(Publish, payload=b"refused").packet_id
    subscriber.send(Puback(packet_id, 0x80) if qos == 1 else Pubrec(packet_id, 0x80))
    publisher.publish(topic, b"next", qos=qos)
    subscriber.take_message(payload=b"next")
    subscriber.ping()
    subscriber.close()
    assert subscriber.connect(persistent=True).session_present
    subscriber.expect_nothing()


@covers("MQTT-4.3.3-9")
def test_an_id_is_free_again_after_a_refusing_pubrec(clients, topic):
    client = clients.connected()
    client.subscribe(topic)
    client.send(Publish("$SYS/forged", b"x", qos=2, packet_id=5))
    assert client.expect(Pubrec, packet_id=5).reason_code >= 0x80
    client.send(Publish(topic, b"new", qos=2, packet_id=5, dup=True))
    assert client.take(Pubrec) == Pubrec(5)
    client.send(Pubrel(5))
    assert client.take(Pubcomp) == Pubcomp(5)
    client.expect(Publish, payload=b"new")
    client.expect_nothing()


@each_level
def test_flows_of_every_qos_run_at_the_same_time(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level)
    subscriber.subscribe(topic, qos=2)
    for n, qos in zip(range(9), itertools.cycle([0, 1, 2]), strict=False):
        publisher.send(Publish(topic, b"%d" % n, qos=qos, packet_id=n + 1 if qos else 0))
    answers = [type(publisher.receive()) for _ in range(6)]
    assert answers == [Puback, Pubrec] * 3
    publisher.send(Pubrel(3), Pubrel(6), Pubrel(9))
    assert [publisher.expect(Pubcomp).packet_id for _ in range(3)] == [3, 6, 9]
    got = [subscriber.take_message() for _ in range(9)]
    for qos in (0, 1, 2):
        assert [message.payload for message in got if message.qos == qos] == [b"%d" % n for n in range(qos, 9, 3)]
