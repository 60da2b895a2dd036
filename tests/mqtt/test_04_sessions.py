"""What outlives a connection: subscriptions, queued messages, unfinished flows; and who may have them back."""

import time

import pytest

from tbmq.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1

WEEK_S = 604_800
NO_END = 0xFFFF_FFFF


@covers(
    "MQTT-3.1.2-5",
    "MQTT-3.1.2-6",
    "MQTT-3.1.2-23",
    "MQTT-3.1.3-2",
    "MQTT-3.2.2-3",
    "v3:MQTT-3.1.2-4",
    "v3:MQTT-3.1.2-5",
    "v3:MQTT-3.1.3-2",
    "v3:MQTT-3.2.2-2",
    "v3:MQTT-3.2.2-3",
    "v3:MQTT-4.1.0-1",
    "MQTT-4.1.0-1",
)
@each_level_with_3_1
def test_a_session_is_resumed_with_its_subscriptions_and_messages(clients, topic, level):
    client, publisher = clients.new(level), clients.connected(level)
    assert client.connect(persistent=True).session_present is False
    client.subscribe(topic, qos=2)
    client.disconnect()
    for n in range(20):
        publisher.publish(topic, b"%d" % n, qos=1 + n % 2)

    connack = client.connect(persistent=True)
    assert connack.session_present is (level > 3)  # MQTT 3.1 has no such flag
    for n in range(20):
        client.take_message(topic=topic, payload=b"%d" % n, qos=1 + n % 2, dup=False)
    publisher.publish(topic, b"live", qos=1)
    client.take_message(payload=b"live")


@covers("MQTT-3.1.3-2", "v3:MQTT-3.1.3-2")
@each_level
def test_a_session_belongs_to_its_id_alone(clients, topic, level):
    owner, other = clients.connected(level, persistent=True), clients.new(level)
    owner.subscribe(topic, qos=1)
    owner.disconnect()
    assert other.connect(persistent=True).session_present is False
    other.publish(topic, b"x", qos=1)
    other.expect_nothing()
    assert owner.connect(persistent=True).session_present
    owner.take_message(payload=b"x")


@covers("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2", "v3:MQTT-3.1.2-6", "v3:MQTT-3.1.4-3", "v3:MQTT-3.2.2-1")
@each_level_with_3_1
def test_a_clean_start_discards_the_session(clients, topic, level):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher.publish(topic, b"queued", qos=1)

    assert client.connect(clean=True).session_present is False
    client.expect_nothing()
    publisher.publish(topic, b"live", qos=1)
    client.subscribe(f"{topic}/marker")
    publisher.publish(f"{topic}/marker", b"x")
    client.expect(Publish, topic=f"{topic}/marker")
    client.disconnect()
    assert client.connect(persistent=True).session_present is False


@covers("v3:MQTT-3.1.2-6", "MQTT-4.1.0-2")
@each_level
@pytest.mark.parametrize("ending", ["disconnect", "abort"])
def test_a_clean_session_ends_with_its_connection(clients, topic, level, ending):
    watcher = clients.connected()
    watcher.subscribe(topic)
    client = clients.connected(level, will=Will(topic, b"gone") if ending == "abort" else None)
    client.subscribe(f"{topic}/x", qos=1)
    if ending == "abort":
        client.abort()
        watcher.expect(Publish, payload=b"gone")  # the broker has noticed
    else:
        client.disconnect()
    assert client.connect(clean=False).session_present is False


def test_a_v5_session_without_expiry_lives_on_the_time_of_the_server(clients, topic):
    """Without Clean Start and with no expiry the session is kept, and CONNACK tells for how long."""
    client = clients.new()
    connack = client.connect(clean=False)
    assert connack.properties.get("session_expiry_interval") == WEEK_S
    client.subscribe(topic, qos=1)
    client.disconnect()
    clients.connected().publish(topic, b"kept", qos=1)
    assert client.connect(clean=False).session_present
    client.take_message(payload=b"kept")


@pytest.mark.parametrize("wanted", [WEEK_S + 1, NO_END])
def test_a_session_expiry_over_the_bound_of_the_server_is_lowered_and_told(clients, wanted):
    client = clients.connected(session_expiry_interval=wanted)
    assert client.connack.properties["session_expiry_interval"] == WEEK_S


def test_a_session_expiry_within_the_bound_is_taken_as_it_is(clients):
    client = clients.connected(session_expiry_interval=WEEK_S)
    assert client.connack.properties.get("session_expiry_interval", WEEK_S) == WEEK_S


@covers("MQTT-4.1.0-2")
def test_a_session_ends_when_its_expiry_has_passed(clients, topic):
    """A will with a longer delay fires when the session ends, and so tells when that was."""
    watcher = clients.connected()
    watcher.subscribe(topic)
    will = Will(topic, b"over", properties={"will_delay_interval": 60})
    client = clients.connected(session_expiry_interval=1, will=will)
    started = time.monotonic()
    client.abort()
    watcher.expect(Publish, payload=b"over")
    assert 0.9 <= time.monotonic() - started < 4
    assert client.connect(clean=False, session_expiry_interval=1).session_present is False


@covers("MQTT-4.1.0-1")
def test_the_expiry_counts_from_the_end_of_the_connection(clients, topic):
    """A watcher's will, not time, says when more than the first session's expiry has passed."""
    client = clients.connected(persistent=False, session_expiry_interval=1)
    client.subscribe(topic, qos=1)
    watcher, timer = clients.connected(), clients.new()
    watcher.subscribe(f"{topic}/timer")
    timer.connect(session_expiry_interval=1, will=Will(f"{topic}/timer", b"", 0, False, {"will_delay_interval": 60}))
    timer.abort()
    watcher.expect(Publish, topic=f"{topic}/timer")
    watcher.publish(topic, b"still there", qos=1)
    client.take_message(payload=b"still there")
    client.disconnect()
    assert client.connect(clean=False).session_present


def test_disconnect_may_change_the_expiry(clients, topic):
    client = clients.connected(session_expiry_interval=600)
    client.disconnect(session_expiry_interval=0)
    assert client.connect(clean=False, session_expiry_interval=1).session_present is False
    client.disconnect(session_expiry_interval=600)
    assert client.connect(clean=False, session_expiry_interval=600).session_present


def test_disconnect_must_not_give_a_life_to_a_session_that_had_none(clients):
    client = clients.connected()
    client.send(Disconnect(0, {"session_expiry_interval": 60}))
    client.expect_disconnect(0x82)
    assert client.connect(clean=False).session_present is False


def test_qos_0_messages_are_not_kept_for_an_absent_client(clients, topic):
    client, publisher = clients.connected(persistent=True), clients.connected()
    client.subscribe(topic, qos=2)
    client.subscribe(f"{topic}/low", qos=0)
    client.disconnect()
    publisher.publish(topic, b"qos 0", qos=0)
    publisher.publish(f"{topic}/low", b"subscribed at 0", qos=1)
    publisher.publish(topic, b"kept", qos=1)
    client.connect(persistent=True)
    client.take_message(payload=b"kept")
    client.expect_nothing()


# --- unfinished flows -------------------------------------------------------------------------------------------------


@covers(
    "MQTT-3.3.1-1",
    "MQTT-4.3.2-3",
    "MQTT-4.3.3-3",
    "MQTT-4.4.0-1",
    "v3:MQTT-2.3.1-3",
    "v3:MQTT-3.3.1-1",
    "v3:MQTT-4.3.2-1",
    "v3:MQTT-4.3.3-1",
    "v3:MQTT-4.4.0-1",
)
@each_level_with_3_1
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_come_again_in_order_with_dup_and_their_ids(clients, topic, level, qos):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=qos)
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=qos)
    first = [client.expect(Publish, payload=b"%d" % n, dup=False).packet_id for n in range(5)]
    client.disconnect()  # a close would leave it open on which side of it the next message falls

    publisher.publish(topic, b"5", qos=qos)
    client.connect(persistent=True)
    again = [client.expect(Publish, payload=b"%d" % n, dup=True).packet_id for n in range(5)]
    assert again == first
    new = client.expect(Publish, payload=b"5", dup=False)
    assert new.packet_id not in first


@covers("MQTT-4.4.0-1", "MQTT-4.3.2-3")
@each_level
def test_only_what_was_not_acknowledged_comes_again(clients, topic, level):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=1)
    for n in range(4):
        publisher.publish(topic, b"%d" % n, qos=1)
    messages = [client.expect(Publish) for _ in range(4)]
    client.send(Puback(messages[0].packet_id), Puback(messages[2].packet_id))
    client.ping()
    client.close()
    client.connect(persistent=True)
    assert [client.take_message(dup=True).payload for _ in range(2)] == [b"1", b"3"]
    client.expect_nothing()


@covers("MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1", "v3:MQTT-4.3.3-1", "v3:MQTT-4.4.0-1")
@each_level
def test_pubrel_and_not_publish_comes_again_after_pubrec(clients, topic, level):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    packet_id = client.expect(Publish).packet_id
    client.send(Pubrec(packet_id))
    client.expect(Pubrel, packet_id=packet_id)
    for _ in range(2):
        client.close()
        client.connect(persistent=True)
        client.expect(Pubrel, packet_id=packet_id)
    client.send(Pubcomp(packet_id))
    client.ping()
    client.close()
    client.connect(persistent=True)
    client.expect_nothing()


@covers("MQTT-4.3.3-10", "v3:MQTT-4.3.3-2", "v3:MQTT-4.4.0-1")
@each_level
def test_a_qos_2_publisher_may_finish_on_its_next_connection(clients, topic, level):
    subscriber, publisher = clients.connected(level), clients.connected(level, persistent=True)
    subscriber.subscribe(topic)
    publisher.send(Publish(topic, b"once", qos=2, packet_id=9))
    publisher.expect(Pubrec, packet_id=9)
    publisher.close()
    publisher.connect(persistent=True)
    publisher.send(Publish(topic, b"once", qos=2, packet_id=9, dup=True))
    publisher.expect(Pubrec, packet_id=9)
    publisher.send(Pubrel(9))
    publisher.expect(Pubcomp, packet_id=9, reason_code=0)
    publisher.publish(topic, b"marker")
    subscriber.expect(Publish, payload=b"once")
    subscriber.expect(Publish, payload=b"marker")


@each_level
def test_a_clean_start_forgets_unfinished_flows(clients, topic, level):
    subscriber, publisher = clients.connected(level, persistent=True), clients.connected(level, persistent=True)
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"not acknowledged", qos=1)
    subscriber.expect(Publish, payload=b"not acknowledged")
    publisher.send(Publish(f"{topic}/other", b"not released", qos=2, packet_id=9))
    publisher.expect(Pubrec, packet_id=9)
    publisher.close()
    subscriber.close()
    publisher.connect(clean=True)
    subscriber.connect(clean=True)
    subscriber.subscribe(topic, qos=1)
    publisher.send(Publish(topic, b"second", qos=2, packet_id=9, dup=True))
    publisher.expect(Pubrec, packet_id=9)
    publisher.send(Pubrel(9))
    subscriber.take_message(payload=b"second", dup=False)


@each_level
def test_messages_keep_their_order_across_many_short_connections(clients, topic, level):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=1)
    client.disconnect()
    for n in range(30):
        publisher.publish(topic, b"%d" % n, qos=1)
    got = []
    for _ in range(10):
        client.connect(persistent=True)
        got += [client.take_message().payload for _ in range(3)]
        client.ping()
        client.close()
    assert got == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize(("before", "after"), [(MQTT_3_1_1, MQTT_5), (MQTT_5, MQTT_3_1_1)], ids=["3to5", "5to3"])
def test_a_session_may_be_resumed_at_another_protocol_level(clients, topic, before, after):
    old, publisher = clients.connected(before, persistent=True), clients.connected()
    old.subscribe(topic, qos=1)
    old.disconnect()
    publisher.publish(topic, b"x", qos=1, content_type="text/plain")
    new = clients.new(after, old.client_id)
    assert new.connect(persistent=True).session_present
    new.take_message(payload=b"x", properties={"content_type": "text/plain"} if after == MQTT_5 else {})


# --- take-over --------------------------------------------------------------------------------------------------------


@covers("MQTT-3.1.4-3", "v3:MQTT-3.1.4-2")
@each_level_with_3_1
def test_a_new_connection_ends_the_old_one_of_the_same_id(clients, level):
    old = clients.connected(level)
    new = clients.connected(level, old.client_id)
    old.expect_disconnect(0x8E)
    new.ping()


@covers("MQTT-3.1.2-5", "MQTT-3.1.4-3", "v3:MQTT-3.1.4-2", "v3:MQTT-3.1.2-4")
@each_level
def test_the_new_connection_takes_the_session_over(clients, topic, level):
    old, publisher = clients.connected(level, persistent=True), clients.connected(level)
    old.subscribe(topic, qos=1)
    publisher.publish(topic, b"not acknowledged", qos=1)
    old.expect(Publish, payload=b"not acknowledged")
    new = clients.new(level, old.client_id)
    assert new.connect(persistent=True).session_present
    new.take_message(payload=b"not acknowledged", dup=True)
    old.expect_disconnect(0x8E)
    publisher.publish(topic, b"x", qos=1)
    new.take_message(payload=b"x", dup=False)


@covers("MQTT-3.1.2-4", "v3:MQTT-3.1.2-6")
@each_level
def test_a_clean_start_ends_the_old_connection_and_its_session(clients, topic, level):
    old, publisher = clients.connected(level, persistent=True), clients.connected(level)
    old.subscribe(topic, qos=1)
    new = clients.new(level, old.client_id)
    assert new.connect(clean=True).session_present is False
    old.expect_disconnect(0x8E)
    publisher.publish(topic, b"x", qos=1)
    new.subscribe(f"{topic}/marker")
    publisher.publish(f"{topic}/marker", b"x")
    new.expect(Publish, topic=f"{topic}/marker")


@each_level
def test_many_take_overs_leave_the_last_one(clients, topic, level):
    first = clients.connected(level, persistent=True)
    first.subscribe(topic, qos=1)
    line = [first]
    for _ in range(20):
        new = clients.new(level, first.client_id)
        assert new.connect(persistent=True).session_present
        line.append(new)
    for old in line[:-1]:
        old.expect_disconnect(0x8E)
    clients.connected(level).publish(topic, b"x", qos=1)
    line[-1].take_message(payload=b"x")


@each_level
def test_a_message_published_during_a_take_over_is_delivered_once(clients, topic, level):
    client, publisher = clients.connected(level, persistent=True), clients.connected(level)
    client.subscribe(topic, qos=1)
    got = []
    for n in range(60):
        publisher.send(Publish(topic, b"%d" % n, qos=1, packet_id=n + 1))
        if n % 6 == 5:
            client.ping()
            for message in client.inbox:
                client.send(Puback(message.packet_id))
                got.append(message.payload)
            client.ping()  # the acknowledgements are taken; what has come since is not acknowledged
            new = clients.new(level, client.client_id)
            new.connect(persistent=True)
            client = new
    for n in range(60):
        publisher.expect(Puback, packet_id=n + 1)
    while len(got) < 60:
        got.append(client.take_message().payload)
    assert got == [b"%d" % n for n in range(60)]
