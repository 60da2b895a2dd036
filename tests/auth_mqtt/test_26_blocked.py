"""Who stays outside whatever they show: blocked by the operator, or because they come and go too often."""

from __future__ import annotations

import time

import pytest

from tbmq.packets import Connack, Connect
from tbmq.protocol import MQTT_5
from tests.helpers import each_level
from tests.helpers.client import Client
from tests.helpers.secured import (
    BITES_S,
    Secured,
    connect,
    eventually,
    new_name,
    run_secured,
    scram_begin,
    scram_connect,
)
from tests.helpers.transports import TransportClient


def answer(client: Client, **fields) -> int:
    client.open()
    client.send(Connect(client.client_id, client.level, **fields))
    return client.expect(Connack).reason_code


@each_level
def test_connected_client_is_disconnected_and_stays_outside_when_its_id_is_blocked(secured: Secured, level):
    client, other = secured.login(level=level), secured.login(level=level)
    blocked = secured.entities.block("client_id", client.client_id, reason="floods")
    client.expect_disconnect(0x98, BITES_S)
    connect(client, code=0x8A if level == MQTT_5 else 5)
    client.expect_closed()
    other.ping()
    secured.entities.unblock(blocked)
    eventually(lambda: answer(client, username=client.username, password=b"right") == 0, BITES_S)


@pytest.mark.parametrize(("kind", "is_regex"), [("username", False), ("username", True), ("client_id", True)])
def test_connected_client_is_disconnected_when_its_name_or_a_pattern_is_blocked(secured: Secured, kind, is_regex):
    client, other = secured.login(), secured.login()
    value = client.username if kind == "username" else client.client_id
    blocked = secured.entities.block(kind, value + ("|nobody" if is_regex else ""), is_regex=is_regex)
    client.expect_disconnect(0x98, BITES_S)
    connect(client, code=0x8A)
    other.ping()
    secured.entities.unblock(blocked)


def test_scram_client_is_refused_when_the_name_of_its_exchange_is_blocked(secured: Secured):
    name = new_name("user")
    secured.entities.add_scram(name, "right")
    client = secured.client()
    scram_connect(client, name, "right")
    blocked = secured.entities.block("username", name)
    client.expect_disconnect(0x98, BITES_S)
    scram_begin(client, name, "right", "SCRAM-SHA-256", fields={"username": "innocent"})
    client.expect(Connack, reason_code=0x8A)
    client.expect_closed()
    secured.entities.unblock(blocked)


@pytest.mark.parametrize(("kind", "value"), [("ip", "127.0.0.9"), ("network", "127.0.0.8/31")])
def test_address_is_refused_when_it_or_its_network_is_blocked(secured: Secured, kind, value):
    client = TransportClient(secured.broker.address, secured.new_id(2), kind="tcp", source="127.0.0.9")
    secured.made.append(client)
    secured.entities.add_basic(client_id=client.client_id)
    client.connect()
    innocent = secured.login()
    blocked = secured.entities.block(kind, value)
    client.expect_disconnect(0x98, BITES_S)
    client.connect(code=0x8A)
    innocent.ping()
    secured.entities.unblock(blocked)
    eventually(lambda: answer(client) == 0, BITES_S)


def test_client_comes_in_again_when_its_block_has_expired(secured: Secured):
    client = secured.login()
    until = time.time() + 1.5
    secured.entities.block("client_id", client.client_id, expires_at=until)
    client.expect_disconnect(0x98, BITES_S)
    eventually(lambda: answer(client, username=client.username, password=b"right") == 0)
    assert time.time() >= until


def test_command_line_blocks_and_lets_in_again(secured: Secured):
    client = secured.login()
    told = secured.entities.command("blocked", "add", "client_id", client.client_id, "--for", "1h")
    client.expect_disconnect(0x98, BITES_S)
    secured.entities.command("blocked", "remove", told.rpartition("id ")[2].strip())
    eventually(lambda: answer(client, username=client.username, password=b"right") == 0, BITES_S)


def test_block_comes_first_when_the_password_is_wrong_too(secured: Secured):
    client = secured.login()
    blocked = secured.entities.block("client_id", client.client_id)
    client.expect_disconnect(0x98, BITES_S)
    client.connect(username=client.username, password=b"wrong", code=0x8A)
    secured.entities.unblock(blocked)


@pytest.mark.parametrize("workers", [1, 3])
def test_client_is_blocked_for_a_while_when_it_comes_and_goes_too_often(tmp_path, workers):
    settings = {"auth.flapping_max_disconnects": 5, "auth.flapping_window_s": 60, "auth.flapping_block_s": 2}
    with run_secured(tmp_path, workers=workers, settings=settings) as secured:
        client, other = secured.login(), secured.login()
        for _ in range(4):
            client.disconnect()
            connect(client)
        client.abort()
        eventually(lambda: answer(client, username=client.username, password=b"right") == 0x8A)
        other.ping()
        eventually(lambda: answer(client, username=client.username, password=b"right") == 0)


def test_war_of_two_ends_when_both_have_the_client_id_and_the_password(tmp_path):
    settings = {"auth.flapping_max_disconnects": 10, "auth.flapping_block_s": 60}
    with run_secured(tmp_path, settings=settings) as secured:
        first = secured.login()
        second = secured.client(first.client_id)
        clients = [first, second]
        code = 0
        for turn in range(1, 20):
            code = answer(clients[turn % 2], username=first.username, password=b"right")
            if code:
                break
        assert code == 0x8A and turn >= 10
