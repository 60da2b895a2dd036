"""`$share/<group>/<filter>` and `$queue/<filter>`: every message goes to one member of a group."""

import pytest

from tbmq.packets import Puback, Publish, Pubrec, Pubrel, Subscription
from tbmq.protocol import MQTT_5
from tests.helpers import covers, each_level, raw_packet, raw_string


def members(clients, topic_filter, count, *, qos=0, level=MQTT_5, **fields):
    joined = [clients.connected(level, **fields) for _ in range(count)]
    for member in joined:
        member.subscribe(topic_filter, qos=qos)
    return joined


def waiting(client):
    """Payloads of the messages that have come to this client; they are taken and acknowledged."""
    client.ping()
    return [client.take_message().payload for _ in list(client.inbox)]


@each_level
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("prefix", ["$share/group", "$queue"])
def test_each_message_goes_to_one_member_in_turn(clients, topic, level, qos, prefix):
    group = members(clients, f"{prefix}/{topic}", 3, qos=qos, level=level)
    publisher = clients.connected(level)
    for member in group:
        member.subscribe(f"{topic}/marker", qos=0)
    for n in range(12):
        publisher.publish(topic, b"%d" % n, qos=qos)
    publisher.publish(f"{topic}/marker", b"marker")
    shares = []
    for member in group:
        share = []
        while (message := member.take_message()).payload != b"marker":
            share.append(int(message.payload))
        assert share == sorted(share)
        shares.append(share)
    assert sorted(n for share in shares for n in share) == list(range(12))
    assert [len(share) for share in shares] == [4, 4, 4]


def test_members_may_have_filters_with_wildcards(clients, topic):
    first, second = members(clients, f"$share/group/{topic}/+/#", 2)
    publisher = clients.connected()
    for n in range(10):
        publisher.publish(f"{topic}/{n}/x", b"%d" % n)
    got = []
    while len(got) < 10:
        got += waiting(first) + waiting(second)
    assert sorted(got) == [b"%d" % n for n in range(10)]


def test_every_group_gets_its_own_copy(clients, topic):
    groups = [members(clients, f"$share/{name}/{topic}", 2) for name in ("a", "b", "A", "ö 七")]
    publisher = clients.connected()
    for n in range(4):
        publisher.publish(topic, b"%d" % n)
    for group in groups:
        got = []
        while len(got) < 4:
            got += [payload for member in group for payload in waiting(member)]
        assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_a_group_that_is_named_like_the_queue_is_another_group(clients, topic):
    """Each gets its own copy, also when one client is in both, and leaving one is not leaving the other."""
    queue, named = f"$queue/{topic}", f"$share/$queue/{topic}"
    client, publisher = clients.connected(), clients.connected()
    client.subscribe(queue, subscription_identifier=1)
    client.subscribe(named, subscription_identifier=2)
    client.subscribe(f"{topic}/marker")

    def identifiers():
        publisher.publish(topic, b"x")
        publisher.publish(f"{topic}/marker", b"x")
        found = []
        while (message := client.expect(Publish)).topic == topic:
            found += message.properties["subscription_identifier"]
        return sorted(found)

    assert identifiers() == [1, 2]
    assert client.unsubscribe(queue).reason_codes == [0x00]
    assert identifiers() == [2]
    assert client.unsubscribe(queue, named).reason_codes == [0x11, 0x00]
    assert identifiers() == []


def test_a_membership_is_of_a_client_in_a_group_with_a_filter(clients, topic):
    """The same client may be in one group with two filters, and with one filter in two groups."""
    lines = [f"$share/a/{topic}/x", f"$share/a/{topic}/+", f"$share/b/{topic}/x"]
    client, publisher = clients.connected(persistent=True), clients.connected()
    for identifier, line in enumerate(lines, start=1):
        client.subscribe(line, qos=1, subscription_identifier=identifier)

    def identifiers():
        publisher.publish(f"{topic}/x", b"x", qos=1)
        publisher.publish(f"{topic}/marker", b"x", qos=1)
        found = []
        while (message := client.take_message()).topic != f"{topic}/marker":
            found += message.properties["subscription_identifier"]
        return sorted(found)

    client.subscribe(f"{topic}/marker", qos=1)
    client.unsubscribe(f"{topic}/marker")
    client.subscribe(f"$share/c/{topic}/marker", qos=1)
    client.unsubscribe(lines[1])
    assert identifiers() == [1, 3]
    client.subscribe(lines[1], qos=1, subscription_identifier=2)
    client.unsubscribe(f"$share/c/{topic}/marker")
    assert identifiers() == [1, 2, 3]
    client.disconnect()
    client.connect(persistent=True)
    assert identifiers() == [1, 2, 3]
    client.unsubscribe(lines[0])
    assert identifiers() == [2, 3]


def test_a_shared_and_a_plain_subscription_live_side_by_side(clients, topic):
    """They are two subscriptions with two deliveries, and each is unsubscribed for itself."""
    client, publisher = clients.connected(), clients.connected()
    client.subscribe(topic, subscription_identifier=1)
    client.subscribe(f"$share/group/{topic}", subscription_identifier=2)

    def identifiers():
        publisher.publish(topic, b"x")
        publisher.publish(f"{topic}/marker", b"x")
        found = []
        while (message := client.expect(Publish)).topic == topic:
            found += message.properties["subscription_identifier"]
        return sorted(found)

    client.subscribe(f"{topic}/marker")
    assert identifiers() == [1, 2]
    assert client.unsubscribe(topic).reason_codes == [0x00]
    assert identifiers() == [2]
    assert client.unsubscribe(topic).reason_codes == [0x11]
    client.subscribe(topic, subscription_identifier=3)
    assert client.unsubscribe(f"$share/other/{topic}", f"$share/group/{topic}").reason_codes == [0x11, 0x00]
    assert identifiers() == [3]


@covers("MQTT-4.8.2-3")
def test_a_message_goes_out_at_the_qos_of_the_member_that_gets_it(clients, topic):
    group = [clients.connected() for _ in range(3)]
    for qos, member in enumerate(group):
        member.subscribe(f"$share/group/{topic}", qos=qos)
    publisher = clients.connected()
    for _ in range(3):
        publisher.publish(topic, b"x", qos=2)
    for qos, member in enumerate(group):
        member.take_message(payload=b"x", qos=qos)


@covers("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@each_level
@pytest.mark.parametrize("rest", ["/", "/g", "/g/", "//t", "/+/t", "/#/t", "/a+/t", "/g/t#", "/g/#/t"])
def test_a_malformed_share_is_refused(clients, level, rest):
    client = clients.connected(level)
    assert client.try_subscribe(Subscription(f"$share{rest}")).reason_codes == [0x8F if level == MQTT_5 else 0x80]
    client.ping()


@pytest.mark.parametrize("prefix", ["$share/g/$share/h/", "$share/g/$queue/", "$queue/$share/g/", "$queue/$queue/"])
def test_a_share_inside_a_share_is_refused(clients, topic, prefix):
    assert clients.connected().try_subscribe(Subscription(prefix + topic)).reason_codes == [0x8F]


@covers("MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_is_a_protocol_error(clients, topic):
    client = clients.connected()
    client.send(raw_packet(0x82, b"\x00\x01" + b"\x00" + raw_string(f"$share/group/{topic}") + b"\x04"))
    client.expect_disconnect(0x82)


@pytest.mark.parametrize("ending", ["disconnect", "abort", "unsubscribe"])
def test_a_member_that_has_left_is_not_chosen_any_more(clients, topic, ending):
    leaves, stays = members(clients, f"$share/group/{topic}", 2, qos=1)
    publisher = clients.connected()
    if ending == "unsubscribe":
        leaves.unsubscribe(f"$share/group/{topic}")
    elif ending == "disconnect":
        leaves.disconnect()
    else:
        leaves.abort()
        clients.connected(client_id=leaves.client_id).disconnect()  # the broker has noticed
    for n in range(6):
        publisher.publish(topic, b"%d" % n, qos=1)
    for n in range(6):
        stays.take_message(payload=b"%d" % n)


def test_only_connected_members_are_chosen(clients, topic):
    away, stays = members(clients, f"$share/group/{topic}", 2, qos=1, persistent=True)
    publisher = clients.connected()
    away.disconnect()
    for n in range(6):
        publisher.publish(topic, b"%d" % n, qos=1)
    for n in range(6):
        stays.take_message(payload=b"%d" % n)
    away.connect(persistent=True)
    away.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_the_first_member_to_come_back_when_all_are_away(clients, topic, qos):
    group = members(clients, f"$share/group/{topic}", 2, qos=qos, persistent=True)
    publisher = clients.connected()
    for member in group:
        member.disconnect()
    for worker in range(3):  # SUBACK comes when all workers know what this one has said: also that the members are away
        clients.connected(worker=worker).subscribe(f"{topic}/{worker}")
    for n in range(6):
        publisher.publish(topic, b"%d" % n, qos=qos)
    back = group[1]
    assert back.connect(persistent=True).session_present
    for n in range(6):
        back.take_message(payload=b"%d" % n)
    group[0].connect(persistent=True)
    group[0].expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_given_up_while_the_only_member_comes_and_goes(clients, topic, qos):
    """At no moment the group may look as if it had no members."""
    (member,) = members(clients, f"$share/group/{topic}", 1, qos=qos, persistent=True)
    publisher = clients.connected()
    for n in range(5):
        member.disconnect()
        publisher.publish(topic, b"waits %d" % n, qos=qos)
        member.connect(persistent=True)
        member.take_message(payload=b"waits %d" % n)


def test_what_the_only_member_did_not_acknowledge_comes_again_when_it_is_back(clients, topic):
    (member,) = members(clients, f"$share/group/{topic}", 1, qos=1, persistent=True)
    publisher = clients.connected()
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=1)
        member.expect(Publish, payload=b"%d" % n)
        member.close()
        member.connect(persistent=True)
        member.take_message(payload=b"%d" % n)


def test_an_unacknowledged_qos_1_message_of_a_member_whose_session_ends_goes_to_another(clients, topic):
    first = clients.connected()
    first.subscribe(f"$share/group/{topic}", qos=1)
    publisher = clients.connected()
    publisher.publish(topic, b"orphan", qos=1)
    first.expect(Publish, payload=b"orphan")
    (second,) = members(clients, f"$share/group/{topic}", 1, qos=1)
    first.abort()
    second.take_message(payload=b"orphan")


@covers("MQTT-4.8.2-4")
def test_a_qos_2_delivery_is_completed_when_the_member_comes_back(clients, topic):
    first, second = members(clients, f"$share/group/{topic}", 2, qos=2, persistent=True)
    publisher = clients.connected()
    publisher.publish(topic, b"0", qos=2)
    publisher.publish(topic, b"1", qos=2)
    held = first.expect(Publish)
    first.close()
    second.take_message()
    first.connect(persistent=True)
    again = first.take_message(payload=held.payload, dup=True)
    assert again.packet_id == held.packet_id
    second.expect_nothing()


@covers("MQTT-4.8.2-5")
def test_a_qos_2_delivery_goes_to_nobody_else_when_the_session_of_its_member_ends(clients, topic):
    first, second = members(clients, f"$share/group/{topic}", 2, qos=2)
    publisher = clients.connected()
    publisher.publish(topic, b"0", qos=2)
    publisher.publish(topic, b"1", qos=2)
    held = first.expect(Publish)
    first.send(Pubrec(held.packet_id))
    first.expect(Pubrel, packet_id=held.packet_id)
    first.disconnect()
    second.take_message()
    publisher.publish(topic, b"marker", qos=2)
    second.take_message(payload=b"marker")


@covers("MQTT-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_refused_by_its_member_goes_to_nobody_else(clients, topic, qos):
    first, second = members(clients, f"$share/group/{topic}", 2, qos=qos)
    publisher = clients.connected()
    publisher.publish(topic, b"0", qos=qos)
    publisher.publish(topic, b"1", qos=qos)
    refused = first.expect(Publish)
    first.send(Puback(refused.packet_id, 0x80) if qos == 1 else Pubrec(refused.packet_id, 0x80))
    first.ping()
    second.take_message()
    for _ in range(2):
        publisher.publish(topic, b"marker", qos=qos)
    first.take_message(payload=b"marker")
    second.take_message(payload=b"marker")


def test_a_member_with_a_full_window_does_not_stop_the_others(clients, topic):
    """Its share waits for it; nothing is lost, nothing comes twice."""
    slow, quick = clients.connected(receive_maximum=1), clients.connected()
    publisher = clients.connected()
    for member in (slow, quick):
        member.subscribe(f"$share/group/{topic}", qos=1)
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1)
    first = slow.expect(Publish)
    got = [first.payload, *(quick.take_message().payload for _ in range(5))]
    slow.send(Puback(first.packet_id))
    while len(got) < 10:
        got += waiting(slow) + waiting(quick)
    assert sorted(got) == [b"%d" % n for n in range(10)]
