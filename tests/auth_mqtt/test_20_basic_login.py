"""Basic: client id, user name, password; what a refused client is told, in each version of MQTT."""

from __future__ import annotations

from dataclasses import replace

import bcrypt
import pytest

from tbmq.auth.passwords import hash_password
from tbmq.packets import Connack, Connect
from tbmq.protocol import MQTT_5
from tests.helpers import each_level
from tests.helpers.client import Client
from tests.helpers.secured import BITES_S, Secured, connect, eventually, new_name, run_secured

WRONG = {MQTT_5: 0x86}  # below: 4


def wrong(client: Client) -> int:
    return WRONG.get(client.level, 4)


@each_level
def test_comes_in_when_client_id_and_password_are_right(secured: Secured, level):
    client = secured.client(level=level)
    secured.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(username="anything", password=b"right")
    client.ping()


@each_level
def test_comes_in_when_user_name_and_password_are_right(secured: Secured, level):
    username = new_name("user")
    secured.entities.add_basic(username=username, password="right")
    for worker in range(3):  # any client id will do
        secured.client(level=level, worker=worker).connect(username=username, password=b"right")


def test_password_alone_is_enough_when_credentials_are_for_the_client_id_and_it_is_mqtt_5(secured: Secured):
    client = secured.client()
    secured.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(password=b"right")


@each_level
def test_both_must_be_right_when_credentials_are_for_both(secured: Secured, level):
    client, other = secured.client(level=level), secured.client(level=level)
    username = new_name("user")
    secured.entities.add_basic(client_id=client.client_id, username=username, password="right")
    client.connect(username=username, password=b"right")
    other.connect(username=username, password=b"right", code=wrong(other))
    other.expect_closed()
    again = secured.client(client.client_id, level)
    again.connect(username="somebody else", password=b"right", code=wrong(again))
    client.ping()  # a refused CONNECT changes nothing for who is here


@each_level
@pytest.mark.parametrize("password", [b"Right", b"", b"right ", b"right\0", b"x" * 2_000, b"\xff\xfe"])
def test_is_refused_when_the_password_is_wrong(secured: Secured, level, password):
    client = secured.client(level=level)
    secured.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(username="u", password=password, code=wrong(client))
    client.expect_closed()


@each_level
def test_is_refused_when_the_password_is_missing(secured: Secured, level):
    client = secured.client(level=level)
    secured.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(code=wrong(client))


@each_level
def test_is_refused_when_nobody_has_such_credentials(secured: Secured, level):
    client = secured.client(level=level)
    client.connect(username="nobody", password=b"right", code=wrong(client))


@each_level
def test_is_not_authorised_when_it_shows_nothing_and_no_credentials_are_for_it(secured: Secured, level):
    secured.client(level=level).connect(code=0x87 if level == MQTT_5 else 5)


def test_refusal_tells_nothing_when_the_name_exists_or_not(secured: Secured):
    username = new_name("user")
    secured.entities.add_basic(username=username, password="right")
    known = secured.client().connect(username=username, password=b"wrong", code=0x86)
    unknown = secured.client().connect(username=new_name("user"), password=b"wrong", code=0x86)
    assert known == unknown


def test_most_specific_credentials_count_when_several_fit(secured: Secured, topic):
    """Their rules show which ones were taken."""
    client, username = secured.client(), new_name("user")
    secured.entities.add_basic(f"allow publish:{topic}/user", username=username, password="right")
    secured.entities.add_basic(f"allow publish:{topic}/id", client_id=client.client_id, password="right")
    secured.entities.add_basic(
        f"allow publish:{topic}/both", client_id=client.client_id, username=username, password="right"
    )
    client.connect(username=username, password=b"right")
    assert client.publish(f"{topic}/both", qos=1).reason_code == 0x10
    assert client.publish(f"{topic}/id", qos=1).reason_code == 0x87
    assert client.publish(f"{topic}/user", qos=1).reason_code == 0x87


def test_comes_in_without_a_password_when_credentials_ask_for_none(secured: Secured):
    client = secured.client()
    secured.entities.add_basic(client_id=client.client_id)
    client.connect()
    client.connect(username="any", password=b"any")


@pytest.mark.parametrize("prefix", [b"2a", b"2b", b"2y"])
def test_imported_bcrypt_hash_works_when_the_password_is_right(secured: Secured, tmp_path, prefix):
    client = secured.client()
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(5)).replace(b"$2b$", b"$" + prefix + b"$").decode()
    file = tmp_path / "clients.csv"
    file.write_text(f"name,client_id,password_hash\n{new_name('import')},{client.client_id},{hashed}\n")
    assert "Added 1 credentials" in secured.entities.command("credentials", "import", str(file))
    client.connect(username="u", password=b"right")
    client.connect(username="u", password=b"wrong", code=0x86)


@each_level
def test_old_password_is_refused_and_the_client_disconnected_when_the_password_changes(secured: Secured, level):
    client = secured.login(level=level)
    other = secured.login(level=level)
    secured.entities.change(
        client.credentials, lambda found: replace(found, proof=replace(found.proof, password_hash=hash_password("new")))
    )
    client.expect_disconnect(0x98, BITES_S)
    connect(client, code=wrong(client))
    client.connect(username=client.username, password=b"new")
    other.ping()


@each_level
def test_session_and_queue_end_when_credentials_are_removed(secured: Secured, level, topic):
    here, away = secured.login(level=level, persistent=True), secured.login(level=level, persistent=True)
    publisher = secured.login()
    for client in (here, away):
        client.subscribe(topic, qos=1)
    away.disconnect()
    publisher.publish(topic, b"waits", qos=1)
    here.take_message(payload=b"waits")
    assert "removed" in secured.entities.command("credentials", "remove", here.credentials)
    here.expect_disconnect(0x87, BITES_S)
    connect(here, code=wrong(here))
    secured.entities.remove(away.credentials)
    for client in (here, away):
        secured.entities.add_basic(client_id=client.client_id, username=client.username, password="right")
    # Until its session has ended, which belongs to the removed credentials, the new ones are refused.
    eventually(lambda: comes_in(away), BITES_S)
    assert connect(here, persistent=True).session_present is False
    away.ping()
    away.expect_nothing()


def comes_in(client: Client) -> bool:
    client.open()
    fields = {"username": client.username, "password": b"right", "clean_start": False}
    client.send(Connect(client.client_id, client.level, **fields))
    connack = client.expect(Connack)
    assert connack.session_present is False
    return connack.reason_code == 0


def test_provider_bites_when_it_is_switched_on_and_off_by_the_command_line(tmp_path):
    with run_secured(tmp_path, workers=3, prepare=lambda entities: entities.provide("basic", False)) as secured:
        for worker in range(3):
            secured.client(worker=worker).connect()
        here = secured.client()
        here.connect()
        assert "is on" in secured.entities.command("provider", "enable", "basic")
        eventually(lambda: answers(secured) == {0x87}, BITES_S)
        here.ping()  # who is in stays
        secured.entities.add_basic(username="u", password="right")
        secured.client().connect(username="u", password=b"right")
        assert "is off" in secured.entities.command("provider", "disable", "basic")
        eventually(lambda: answers(secured) == {0}, BITES_S)


def answers(secured: Secured) -> set[int]:
    """Of all workers, to a client that shows nothing."""
    codes = set()
    for worker in range(secured.broker.workers):
        client = secured.client(worker=worker).open()
        client.send(Connect(client.client_id))
        codes.add(client.expect(Connack).reason_code)
    return codes


def test_command_line_adds_credentials_with_rules_that_count_at_once(secured: Secured, topic):
    client, name = secured.client(), new_name("cli")
    secured.entities.command(
        "credentials", "add", name, "--client-id", client.client_id, "--password-file", "-",
        "--deny", f"publish:{topic}/secret", "--allow", f"all:{topic}/#", text="p\n",
    )  # fmt: skip
    client.connect(password=b"p")
    assert client.publish(f"{topic}/x", qos=1).reason_code == 0x10
    assert client.publish(f"{topic}/secret", qos=1).reason_code == 0x87
