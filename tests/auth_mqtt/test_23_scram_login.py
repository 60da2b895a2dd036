"""SCRAM through AUTH packets, with a client library that we did not write."""

from __future__ import annotations

import pytest
import scramp

from tbmq.packets import Auth, Connack, Connect, Disconnect, Pingreq, Publish, Subscribe, Subscription, Unsubscribe
from tests.helpers.client import Client
from tests.helpers.secured import (
    BITES_S,
    Secured,
    auth,
    eventually,
    new_name,
    run_secured,
    scram_answer,
    scram_begin,
    scram_connect,
)

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
each_method = pytest.mark.parametrize("method", [SHA_256, SHA_512])


@pytest.fixture
def username(secured: Secured) -> str:
    """With the password `right`, and rights to everything."""
    name = new_name("user")
    secured.entities.add_scram(name, "right")
    return name


@each_method
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_comes_in_when_the_password_is_right(secured: Secured, username, method, worker, topic):
    client = secured.client(worker=worker)
    scram_connect(client, username, "right", method)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.take_message(payload=b"x")


@each_method
def test_is_refused_when_the_password_is_wrong(secured: Secured, username, method):
    client = secured.client()
    scram_connect(client, username, "wrong", method, code=0x87)
    client.expect_closed()


@each_method
def test_is_refused_in_the_same_way_when_nobody_has_the_name(secured: Secured, username, method):
    wrong = scram_connect(secured.client(), username, "wrong", method, code=0x87)
    unknown = scram_connect(secured.client(), new_name("user"), "right", method, code=0x87)
    assert wrong == unknown


def test_salt_stays_the_same_when_nobody_has_the_name_and_another_worker_is_asked(secured: Secured):
    salts, name = set(), new_name("nobody")
    for worker in range(3):
        client = secured.client(worker=worker)
        scram_begin(client, name, "x", SHA_256)
        challenge = client.expect(Auth).properties["authentication_data"].decode()
        salts.add(challenge.split(",")[1])
    assert len(salts) == 1


def test_comes_in_when_the_command_line_added_the_credentials(secured: Secured):
    name = new_name("meter")
    secured.entities.command(
        "credentials", "add", name, "--kind", "scram", "--username", name, "--password-file", "-", text="s3cret\n"
    )
    scram_connect(secured.client(), name, "s3cret", SHA_512)


def test_rules_use_the_name_of_the_exchange_when_connect_has_another_one(secured: Secured, topic):
    name = new_name("user")
    secured.entities.add_scram(name, "right", f"allow publish:{topic}/${{username}}")
    client = secured.client()
    scram_connect(client, name, "right", fields={"username": "somebody else"})
    assert client.publish(f"{topic}/{name}", qos=1).reason_code == 0x10
    assert client.publish(f"{topic}/somebody else", qos=1).reason_code == 0x87


def test_recorded_exchange_is_refused_when_it_is_replayed(secured: Secured, username):
    client = secured.client()
    scram = scram_begin(client, username, "right", SHA_256)
    first = f"{scram.gs2_header}{scram.client_first_bare}".encode()
    final = scram_answer(client, scram, SHA_256)
    client.expect(Connack, reason_code=0)
    thief = secured.client().open()
    properties = {"authentication_method": SHA_256, "authentication_data": first}
    thief.send(Connect(thief.client_id, properties=properties))
    thief.expect(Auth, reason_code=0x18)
    thief.send(auth(SHA_256, final))
    thief.expect(Connack, reason_code=0x87)
    thief.expect_closed()


@pytest.mark.parametrize("method", ["PLAIN", "", "scram-sha-256", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS"])
def test_is_told_bad_method_when_the_method_is_not_known(secured: Secured, method):
    client = secured.client().open()
    client.send(Connect(client.client_id, properties={"authentication_method": method}))
    client.expect(Connack, reason_code=0x8C)
    client.expect_closed()


def test_is_told_bad_method_when_authentication_is_off(tmp_path):
    with run_secured(tmp_path, prepare=lambda entities: entities.provide("basic", False)) as secured:
        client = secured.client()
        scram_begin(client, "u", "p", SHA_256)
        client.expect(Connack, reason_code=0x8C)


@pytest.mark.parametrize("data", [None, b"", b"\xff", b"n,,n=u", b"p=x,,n=u,r=12345678", b"n,,n=u,r=12345678," * 500])
def test_is_refused_when_the_first_message_is_wrong(secured: Secured, data):
    client = secured.client().open()
    properties = {"authentication_method": SHA_256} | ({} if data is None else {"authentication_data": data})
    client.send(Connect(client.client_id, properties=properties))
    client.expect(Connack, reason_code=0x87)
    client.expect_closed()


@pytest.mark.parametrize(
    "packet",
    [
        auth(SHA_512, b"c=biws,r=x,p=eA=="),
        b"\xf0\x02\x18\x00",  # AUTH without a method
        auth(SHA_256, b"n,,n=u,r=12345678", code=0x19),
        auth(SHA_256, b"", code=0x00),
        Connect("second"),
        Publish("a"),
        Publish("a", qos=1, packet_id=1),
        Subscribe(1, [Subscription("a", 0)]),
        Unsubscribe(1, ["a"]),
        Pingreq(),
    ],
    ids=lambda packet: f"{type(packet).__name__} {getattr(packet, 'reason_code', '')}",
)
def test_is_a_protocol_error_when_another_packet_comes_during_the_exchange(secured: Secured, username, packet):
    for worker in range(3):
        client = secured.client(worker=worker)
        scram_begin(client, username, "right", SHA_256)
        client.expect(Auth, reason_code=0x18)
        client.send(packet)
        client.expect(Connack, reason_code=0x82)
        client.expect_closed()


def test_is_a_protocol_error_when_the_answer_comes_before_the_challenge(secured: Secured, username):
    client = secured.client()
    scram = scramp.ScramClient([SHA_256], username, "right")
    properties = {"authentication_method": SHA_256, "authentication_data": scram.get_client_first().encode()}
    client.open()
    client.send(Connect(client.client_id, properties=properties), auth(SHA_256, b"c=biws,r=x,p=eA=="))
    answer = client.receive()
    assert isinstance(answer, Connack) and answer.reason_code == 0x82
    client.expect_closed()


def test_exchange_ends_when_the_client_gives_up(secured: Secured, username):
    client = secured.client()
    scram_begin(client, username, "right", SHA_256)
    client.expect(Auth)
    client.close()
    scram_connect(client, username, "right")


def test_exchange_ends_when_the_client_does_not_answer_in_time(tmp_path):
    settings = {"mqtt.connect_timeout_s": 1}
    with run_secured(tmp_path, "scram", settings=settings) as secured:
        secured.entities.add_scram("u", "right")
        client = secured.client()
        scram_begin(client, "u", "right", SHA_256)
        client.expect(Auth)
        client.expect_closed(5)


def test_session_is_untouched_when_an_exchange_fails(secured: Secured, username, topic):
    owner = secured.client()
    scram_connect(owner, username, "right", properties={"session_expiry_interval": 100})
    owner.subscribe(topic, qos=1)
    thief = secured.client(owner.client_id)
    scram_connect(thief, username, "wrong", code=0x87)
    owner.publish(topic, b"still here", qos=1)
    owner.take_message(payload=b"still here")


def test_is_refused_when_another_user_has_the_client_id(secured: Secured, username):
    owner = secured.client()
    scram_connect(owner, username, "right")
    other = new_name("user")
    secured.entities.add_scram(other, "right")
    scram_connect(secured.client(owner.client_id), other, "right", code=0x87)
    owner.ping()


# --- again, while connected


def again(client: Client, username: str, password: str, method: str = SHA_256) -> scramp.ScramClient:
    """Up to the answer to the challenge."""
    scram = scramp.ScramClient([method], username, password)
    client.send(auth(method, scram.get_client_first().encode(), code=0x19))
    scram_answer(client, scram, method)
    return scram


@each_method
def test_stays_when_it_authenticates_again(secured: Secured, username, method, topic):
    client = secured.client()
    scram_connect(client, username, "right", method)
    client.subscribe(topic, qos=1)
    for _ in range(3):
        scram = again(client, username, "right", method)
        answer = client.expect(Auth, reason_code=0)
        scram.set_server_final(answer.properties["authentication_data"].decode())
    client.publish(topic, b"still", qos=1)
    client.take_message(payload=b"still")


def test_goes_on_meanwhile_when_it_authenticates_again(secured: Secured, username, topic):
    client = secured.client()
    scram_connect(client, username, "right")
    client.subscribe(topic)
    scram = scramp.ScramClient([SHA_256], username, "right")
    client.send(auth(SHA_256, scram.get_client_first().encode(), code=0x19))
    client.publish(topic, b"x")
    assert client.take(Publish).payload == b"x"
    challenge = client.take(Auth)
    scram.set_server_first(challenge.properties["authentication_data"].decode())
    client.send(auth(SHA_256, scram.get_client_final().encode()))
    client.expect(Auth, reason_code=0)


def test_is_disconnected_when_it_authenticates_again_with_a_wrong_password(secured: Secured, username):
    client = secured.client()
    scram_connect(client, username, "right")
    again(client, username, "wrong")
    client.expect_disconnect(0x87)


def test_is_disconnected_when_it_authenticates_again_as_somebody_else(secured: Secured, username):
    other = new_name("user")
    secured.entities.add_scram(other, "right")
    client = secured.client()
    scram_connect(client, username, "right")
    again(client, other, "right")
    client.expect_disconnect(0x87)


@pytest.mark.parametrize(
    "packet",
    [auth(SHA_512, b"n,,n=u,r=12345678", code=0x19), b"\xf0\x02\x19\x00", auth(SHA_256, b"x"), Auth(0)],
    ids=["another method", "no method", "nothing asked", "success"],
)
def test_is_a_protocol_error_when_auth_does_not_fit_while_connected(secured: Secured, username, packet):
    client = secured.client()
    scram_connect(client, username, "right")
    client.send(packet)
    client.expect_disconnect(0x82)


def test_is_a_protocol_error_when_a_second_one_begins_before_the_first_has_ended(secured: Secured, username):
    client = secured.client()
    scram_connect(client, username, "right")
    first = auth(SHA_256, f"n,,n={username},r=12345678".encode(), code=0x19)
    client.send(first, first)
    client.expect_disconnect(0x82, may_come_before=Auth)


@pytest.mark.parametrize("code", [0x00, 0x18, 0x19])
def test_is_a_protocol_error_when_auth_comes_from_a_client_without_a_method(secured: Secured, code):
    client = secured.login()
    client.send(auth(SHA_256, b"n,,n=u,r=12345678", code=code))
    client.expect_disconnect(0x82)


def test_is_disconnected_when_scram_was_switched_off_and_it_authenticates_again(tmp_path):
    with run_secured(tmp_path, "scram") as secured:
        secured.entities.add_scram("u", "right")
        client = secured.client()
        scram_connect(client, "u", "right")
        start = secured.broker.log_bytes()
        secured.entities.provide("scram", False)
        eventually(lambda: "authentication: basic\n" in secured.broker.log(start), BITES_S)
        client.ping()
        client.send(auth(SHA_256, b"n,,n=u,r=12345678", code=0x19))
        client.expect_disconnect(0x87)


# --- changes during an exchange, and SCRAM alone


def test_is_refused_when_credentials_are_removed_during_the_exchange(secured: Secured):
    """The keys of the challenge still fit, but nobody may come in by them any more."""
    name = new_name("user")
    credentials = secured.entities.add_scram(name, "right")
    client, witness = secured.client(), secured.client()
    scram_connect(witness, name, "right")
    scram = scram_begin(client, name, "right", SHA_256)
    secured.entities.remove(credentials)
    witness.expect_disconnect(0x87, BITES_S)
    secured.wait_for_changes()
    scram_answer(client, scram, SHA_256)
    client.expect(Connack, reason_code=0x87)


def test_comes_in_when_other_credentials_change_during_the_exchange(secured: Secured, username):
    client = secured.client()
    scram = scram_begin(client, username, "right", SHA_256)
    secured.wait_for_changes()
    scram_answer(client, scram, SHA_256)
    client.expect(Connack, reason_code=0)


def test_only_scram_clients_come_in_when_scram_alone_is_on(tmp_path):
    with run_secured(tmp_path, "scram") as secured:
        secured.entities.add_scram("u", "right")
        start = secured.broker.log_bytes()
        secured.entities.provide("basic", False)
        eventually(lambda: "authentication: scram\n" in secured.broker.log(start), BITES_S)
        secured.client().connect(code=0x87)
        secured.client(level=4).connect(code=5)
        secured.client().connect(username="u", password=b"right", code=0x87)
        scram_connect(secured.client(), "u", "right")


def test_password_alone_is_not_enough_when_credentials_are_for_scram(secured: Secured, username):
    secured.client().connect(username=username, password=b"right", code=0x86)


def test_client_may_leave_when_the_exchange_is_under_way(secured: Secured, username):
    client = secured.client()
    scram_begin(client, username, "right", SHA_256)
    client.expect(Auth)
    client.send(Disconnect())
    client.expect_closed()
