"""CONNECT, CONNACK, PINGREQ and DISCONNECT as they should be; what they should not be is in test_10_bad_input.py."""

import string

import pytest

from tbmq._codec import encode
from tbmq.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Publish, Suback, Subscribe, Subscription, Will
from tbmq.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5
from tests.helpers import covers, each_level, each_level_with_3_1

ALPHABET = string.digits + string.ascii_lowercase + string.ascii_uppercase


def read_to_the_end(client):
    """All bytes that the broker sends until it closes."""
    data = b""
    while piece := client._socket.recv(4096):
        data += piece
    return data


@covers(
    "MQTT-3.1.4-5",
    "MQTT-3.2.0-1",
    "MQTT-3.2.0-2",
    "MQTT-3.2.2-2",
    "MQTT-4.2.0-1",
    "v3:MQTT-3.1.4-4",
    "v3:MQTT-3.2.0-1",
    "v3:MQTT-3.2.2-1",
    "v3:MQTT-4.2.0-1",
)
@each_level_with_3_1
def test_one_connack_comes_first_when_a_client_connects(clients, level):
    client = clients.connected(level)
    assert client.connack.session_present is False
    client.expect_nothing()


@covers("MQTT-3.2.2-1", "MQTT-3.2.2-8")
@each_level
def test_connack_has_no_reserved_bit_and_a_known_code(clients, level):
    client = clients.new(level).open()
    client.send(Connect(client.client_id, level))
    header = client._socket.recv(2)
    body = client._socket.recv(header[1])
    assert header[0] == 0x20
    assert body[:2] == b"\x00\x00"
    assert (len(body) == 2) == (level != MQTT_5)


@covers("MQTT-3.12.4-1", "v3:MQTT-3.12.4-1")
@each_level_with_3_1
def test_each_pingreq_is_answered(clients, level):
    client = clients.connected(level)
    client.send(Pingreq(), Pingreq(), Pingreq())
    for _ in range(3):
        client.expect(Pingresp)
    client.expect_nothing()


@covers("MQTT-3.1.3-3", "MQTT-3.1.3-5", "v3:MQTT-3.1.3-3", "v3:MQTT-3.1.3-5")
@each_level
@pytest.mark.parametrize("client_id", [ALPHABET[:23], ALPHABET[23:46], ALPHABET[46:] + "z", "z"])
def test_ids_of_1_to_23_letters_and_digits_are_allowed(clients, level, client_id):
    clients.connected(level, client_id).disconnect()


@each_level
@pytest.mark.parametrize("client_id", ["x" * 200, "gerät/七", "a b", "-._~:@!*()[]", "\U0001f600"])
def test_ids_beyond_the_minimum_are_allowed(clients, level, client_id):
    clients.connected(level, client_id).disconnect()


@covers("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "resume"])
def test_an_id_is_assigned_and_told_when_a_v5_client_brings_none(clients, topic, clean):
    first, second = (clients.new(client_id="") for _ in range(2))
    ids = [
        client.connect(clean=clean, session_expiry_interval=60).properties["assigned_client_identifier"]
        for client in (first, second)
    ]
    assert ids[0] != ids[1]
    first.subscribe(topic)
    first.disconnect()

    again = clients.connected(client_id=ids[0], clean=False)
    assert again.connack.session_present
    assert "assigned_client_identifier" not in again.connack.properties


@covers("v3:MQTT-3.1.3-6")
def test_v311_clients_without_an_id_are_told_apart(clients, topic):
    first, second = (clients.connected(MQTT_3_1_1, "") for _ in range(2))
    first.subscribe(topic)
    second.publish(topic, b"from the other")
    first.expect(Publish, payload=b"from the other")
    second.expect_nothing()


@covers("v3:MQTT-3.1.3-7", "v3:MQTT-3.1.3-8", "v3:MQTT-3.1.3-9", "v3:MQTT-3.2.2-4", "v3:MQTT-3.2.2-5")
@pytest.mark.parametrize(
    ("level", "clean"), [(MQTT_3_1, True), (MQTT_3_1, False), (MQTT_3_1_1, False)], ids=["3.1 clean", "3.1", "3.1.1"]
)
def test_an_empty_id_is_refused_when_the_session_should_be_kept(clients, level, clean):
    client = clients.new(level, "")
    connack = client.connect(clean=clean, code=0x02)
    assert connack.session_present is False
    client.expect_closed()


@covers("MQTT-3.1.4-6", "v3:MQTT-3.1.4-5")
@pytest.mark.parametrize("level", [MQTT_3_1_1, MQTT_5], ids=["v3.1.1", "v5"])
def test_nothing_is_processed_after_a_refused_connect(clients, topic, level):
    watcher = clients.connected()
    watcher.subscribe(topic)
    refused = clients.new(level, "").open()
    if level == MQTT_5:
        connect = Connect(clients.new_id(), properties={"authentication_method": "no-such-method"})
    else:
        connect = Connect("", level, clean_start=False)
    refused.send(connect, Publish(topic, b"too late"))
    assert refused.expect(Connack).reason_code == (0x8C if level == MQTT_5 else 0x02)
    refused.expect_closed()

    clients.connected().publish(topic, b"marker")
    watcher.expect(Publish, payload=b"marker")


@covers("MQTT-4.12.0-1", "MQTT-4.12.0-4", "MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-4.13.2-1")
def test_an_unknown_authentication_method_is_refused(clients):
    client = clients.new()
    connack = client.connect(authentication_method="no-such-method", authentication_data=b"x", code=0x8C)
    assert connack.session_present is False
    client.expect_closed()


@covers("MQTT-4.12.0-6")
def test_the_broker_speaks_of_no_authentication_when_the_client_did_not(clients):
    client = clients.connected(username="somebody", password=b"secret")
    assert not {"authentication_method", "authentication_data"} & set(client.connack.properties)
    client.expect_nothing()


@covers(
    "MQTT-3.1.2-17",
    "MQTT-3.1.2-19",
    "MQTT-3.1.3-1",
    "v3:MQTT-3.1.2-19",
    "v3:MQTT-3.1.2-21",
    "v3:MQTT-3.1.3-1",
)
@each_level
def test_every_field_of_the_payload_is_read_in_its_place(clients, topic, level):
    watcher = clients.connected()
    watcher.subscribe(topic)
    client = clients.connected(level, will=Will(topic, b"will"), username="name", password=b"\x00\xff")
    client.abort()
    watcher.expect(Publish, payload=b"will")


def test_a_password_needs_no_user_name_in_v5(clients):
    clients.connected(password=b"token").disconnect()


@covers("v3:MQTT-3.1.2-1", "MQTT-3.1.2-1", "v3:MQTT-3.1.2-2", "MQTT-3.1.2-2", "v3:MQTT-3.2.2-6")
@pytest.mark.parametrize(
    ("name", "level", "answers"),
    [
        ("MQTT", 0, [b"\x20\x02\x00\x01"]),
        ("MQTT", 3, [b"\x20\x02\x00\x01"]),
        ("MQIsdp", 4, [b"\x20\x02\x00\x01"]),
        ("MQTT", 6, [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"]),
        ("MQTT", 255, [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"]),
        ("MQTU", 4, [b"", b"\x20\x02\x00\x01"]),
        ("mqtt", 4, [b"", b"\x20\x02\x00\x01"]),
        ("MQTU", 5, [b"", b"\x20\x03\x00\x84\x00"]),
    ],
)
def test_an_unknown_protocol_is_refused(clients, name, level, answers):
    client = clients.new(MQTT_3_1_1).open()
    variable = bytes([0, len(name)]) + name.encode() + bytes([level, 0x02, 0, 0]) + (b"\x00" if level >= 5 else b"")
    body = variable + b"\x00\x01c"
    client.send(bytes([0x10, len(body)]) + body)
    assert read_to_the_end(client) in answers


@each_level
def test_packets_sent_along_with_connect_are_processed_after_it(clients, topic, level):
    client = clients.new(level).open()
    client.send(
        Connect(client.client_id, level), Subscribe(7, [Subscription(topic)]), Publish(topic, b"early"), Pingreq()
    )
    client.expect(Connack, reason_code=0)
    client.expect(Suback, packet_id=7)
    assert {type(client.receive()) for _ in range(2)} == {Publish, Pingresp}


@each_level
def test_a_connect_may_come_in_single_bytes(clients, level):
    client = clients.new(level).open()
    for byte in encode(Connect(client.client_id, level, username="slow"), level, client=True):
        client.send(bytes([byte]))
    client.expect(Connack, reason_code=0)
    client.ping()


@covers("MQTT-3.14.4-1", "MQTT-3.14.4-2", "v3:MQTT-3.14.4-1", "v3:MQTT-3.14.4-2")
@each_level
def test_disconnect_ends_the_connection_and_what_follows_is_ignored(clients, topic, level):
    watcher = clients.connected()
    watcher.subscribe(topic)
    client = clients.connected(level)
    client.send(Disconnect(), Publish(topic, b"after the end"))
    client.expect_closed()

    clients.connected(level).publish(topic, b"marker")
    watcher.expect(Publish, payload=b"marker")


@covers("MQTT-3.14.2-1")
@pytest.mark.parametrize("reason_code", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x99])
def test_every_reason_of_a_client_to_disconnect_is_taken(clients, reason_code):
    clients.connected().disconnect(reason_code)


@covers("MQTT-3.1.2-28")
@pytest.mark.parametrize("properties", [{}, {"request_response_information": 0}], ids=["absent", "zero"])
def test_no_response_information_comes_unasked(clients, properties):
    client = clients.connected(**properties)
    assert "response_information" not in client.connack.properties


@covers("MQTT-3.2.2-9")
def test_connack_announces_only_what_is_limited(clients):
    """Everything is supported, and the default of each of these properties says so."""
    properties = clients.connected(keep_alive_s=30).connack.properties
    assert properties.get("maximum_qos", 2) == 2
    for name in (
        "retain_available",
        "wildcard_subscription_available",
        "subscription_identifier_available",
        "shared_subscription_available",
    ):
        assert properties.get(name, 1) == 1
    assert properties.get("receive_maximum", 65_535) > 0
    assert "server_keep_alive" not in properties
