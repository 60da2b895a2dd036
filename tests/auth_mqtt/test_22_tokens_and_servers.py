"""JWT and HTTP in the whole broker, and the order in which providers are asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tbmq.packets import Connack, Connect, Subscription
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import each_level
from tests.helpers.http_server import HttpServer
from tests.helpers.http_thread import http_thread
from tests.helpers.secured import BITES_S, Secured, eventually, new_name, run_secured

KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
PUBLIC = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def token(key: Any = KEY, algorithm: str = "RS256", for_s: float = 600, **claims: Any) -> bytes:
    return jwt.encode({"sub": new_name("sub"), "exp": time.time() + for_s} | claims, key, algorithm).encode()


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    def prepare(entities):
        entities.provide("jwt", public_key=PUBLIC.decode())
        entities.order("jwt", "basic")

    with run_secured(tmp_path_factory.mktemp("jwt"), workers=request.param, prepare=prepare) as running:
        yield running


@pytest.fixture
def by_token(started: Secured) -> Iterator[Secured]:
    start = started.broker.log_bytes()
    yield started
    started.close_clients()
    started.broker.assert_healthy(since=start)


# --- JWT


@each_level
def test_comes_in_when_the_token_is_good(by_token: Secured, level):
    by_token.client(level=level).connect(username="any", password=token())


def bare(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> bytes:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def hmac_with_the_public_key() -> bytes:
    unsigned = bare({"alg": "HS256", "typ": "JWT"}, {"sub": "a", "exp": time.time() + 600}).rstrip(b".")
    signature = hmac.digest(PUBLIC, unsigned, hashlib.sha256)
    return unsigned + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


OTHER = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
BAD = {
    "expired": lambda: token(for_s=-1),
    "not yet good": lambda: token(nbf=time.time() + 100),
    "without expiry": lambda: jwt.encode({"sub": "a"}, KEY, "RS256").encode(),
    "alg none": lambda: bare({"alg": "none", "typ": "JWT"}, {"sub": "a", "exp": time.time() + 600}),
    "hmac with the public key": hmac_with_the_public_key,
    "another key": lambda: token(OTHER),
    "changed claims": lambda: token().replace(b".", b".x", 1),
    "unreadable rules": lambda: token(rules=[{"effect": "maybe"}]),
    "unknown type": lambda: token(client_type="ROOT"),
}


@pytest.mark.parametrize("kind", BAD)
@each_level
def test_is_refused_when_the_token_is_bad(by_token: Secured, kind, level):
    client = by_token.client(level=level)
    client.open()
    client.send(Connect(client.client_id, level, username="any", password=BAD[kind]()))
    code = client.expect(Connack).reason_code
    assert code in ((0x86, 0x87) if level == MQTT_5 else (4, 5))
    client.expect_closed()


@each_level
def test_rules_of_the_token_count(by_token: Secured, topic, level):
    rules = [
        {"effect": "deny", "action": "all", "filter": f"{topic}/secret"},
        {"effect": "allow", "action": "all", "filter": f"{topic}/${{clientid}}/#"},
    ]
    client = by_token.client(level=level)
    client.connect(username="any", password=token(rules=rules))
    own = f"{topic}/{client.client_id}/x"
    denied = 0x87 if level == MQTT_5 else 0x80
    lines = [Subscription(own, 1), Subscription(f"{topic}/secret", 1), Subscription(f"{topic}/#", 1)]
    assert client.try_subscribe(*lines).reason_codes == [1, denied, denied]
    client.publish(own, b"x", qos=1)
    client.take_message(payload=b"x")


@each_level
def test_live_client_is_disconnected_when_its_token_expires(by_token: Secured, level):
    client = by_token.client(level=level)
    good_for_s = 2
    start = time.time()
    client.connect(username="any", password=token(for_s=good_for_s))
    client.ping()
    client.expect_disconnect(0xA0, 6)
    assert time.time() - start >= good_for_s - 1  # exp has whole seconds


def test_client_stays_when_it_came_again_with_a_newer_token(by_token: Secured):
    client = by_token.client()
    client.connect(password=token(for_s=2, sub="the same"), persistent=True)
    client.connect(password=token(for_s=600, sub="the same"), persistent=True)
    short = by_token.client()
    short.connect(password=token(for_s=3))
    short.expect_disconnect(0xA0, 8)
    client.ping()


def test_session_is_refused_when_the_token_is_of_somebody_else(by_token: Secured):
    owner = by_token.client()
    owner.connect(password=token(sub="ann"))
    by_token.client(owner.client_id).connect(password=token(sub="bob"), code=0x87)
    owner.ping()
    by_token.client(owner.client_id).connect(password=token(sub="ann"))


def test_next_provider_is_asked_when_it_is_no_token(by_token: Secured):
    client = by_token.client()
    by_token.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(password=b"right")
    client.connect(password=b"wrong", code=0x86)


# --- HTTP


async def judge(request: web.Request) -> web.StreamResponse:
    """By the user name: what it says is what is answered."""
    asked = await request.json()
    word = asked["username"] or "ignore"
    if word == "slow":
        await asyncio.sleep(30)
    if word.isdigit():
        return web.Response(status=int(word))
    if word == "garbage":
        return web.Response(body=b"allow")
    if word == "rules":
        rules = [{"effect": "allow", "action": "all", "filter": "free/${clientid}"}]
        return web.json_response({"result": "allow", "rules": rules})
    return web.json_response({"result": word})


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def asking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with http_thread(judge) as server:

        def prepare(entities):
            entities.provide("http", url=f"{server.url}/login", timeout_s=1)
            entities.order("http", "basic")

        with run_secured(tmp_path_factory.mktemp("http"), workers=request.param, prepare=prepare) as running:
            yield running


@pytest.fixture
def by_server(asking: Secured) -> Iterator[Secured]:
    start = asking.broker.log_bytes()
    yield asking
    asking.close_clients()
    asking.broker.assert_healthy(since=start)


@pytest.mark.parametrize(
    ("word", "code", "code_v3"),
    [
        ("allow", 0, 0),
        ("deny", 0x87, 5),
        ("ignore", 0x86, 4),  # Basic is asked, and knows nobody of this name
        ("401", 0x86, 4),
        ("403", 0x87, 5),
        ("500", 0x88, 3),
        ("302", 0x88, 3),
        ("204", 0x88, 3),
        ("garbage", 0x88, 3),
        ("yes", 0x88, 3),
        ("slow", 0x88, 3),
    ],
)
@each_level
def test_server_decides_and_a_fault_refuses(by_server: Secured, word, code, code_v3, level):
    client = by_server.client(level=level)
    client.connect(username=word, password=b"p", code=code if level == MQTT_5 else code_v3)


def test_rules_of_the_servers_answer_count(by_server: Secured):
    client = by_server.client()
    client.connect(username="rules", password=b"p")
    assert client.publish(f"free/{client.client_id}", qos=1).reason_code == 0x10
    assert client.publish("free/other", qos=1).reason_code == 0x87


def test_others_are_served_when_the_server_is_slow(by_server: Secured, topic):
    waiting = [by_server.client() for _ in range(10)]
    for client in waiting:
        client.open()
        client.send(Connect(client.client_id, username="slow", password=b"p"))
    client = by_server.client()
    client.connect(username="allow", password=b"p")
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.take_message(payload=b"x")
    for other in waiting:
        other.expect(Connack, reason_code=0x88)


def test_nobody_comes_in_while_the_server_is_down_and_clients_do_when_it_is_back(tmp_path):
    def prepare(entities):
        entities.provide("http", url=f"{servers[0].url}/login", timeout_s=1)
        entities.order("http", "basic")

    servers: list[HttpServer] = []
    with http_thread(judge) as server:
        servers.append(server)
        port = int(server.url.rpartition(":")[2])
        running = run_secured(tmp_path, prepare=prepare)
        secured = running.__enter__()
    try:
        secured.client().connect(username="allow", password=b"p", code=0x88)
        secured.client(level=MQTT_3_1_1).connect(username="allow", password=b"p", code=3)
        secured.client("is-it-up").connect(code=0x88)  # a provider behind it is not asked
        with http_thread(judge, port):
            secured.client().connect(username="allow", password=b"p")
            start = secured.broker.log_bytes()
            secured.entities.provide("http", False)
            eventually(lambda: "authentication: basic\n" in secured.broker.log(start), BITES_S)
            secured.client().connect(username="allow", password=b"p", code=0x86)
    finally:
        running.__exit__(None, None, None)


def test_order_decides_who_is_asked_first(by_server: Secured):
    """The same client, refused by the server and known to Basic."""
    client = by_server.client()
    by_server.entities.add_basic(client_id=client.client_id, password="right")
    client.connect(username="deny", password=b"right", code=0x87)
    start = by_server.broker.log_bytes()
    by_server.entities.order("basic", "http")
    workers = by_server.broker.workers
    eventually(lambda: by_server.broker.log(start).count("authentication: basic, http\n") == workers, BITES_S)
    client.connect(username="deny", password=b"right")
    by_server.entities.order("http", "basic")
    eventually(lambda: by_server.broker.log(start).count("authentication: http, basic\n") == workers, BITES_S)
    client.connect(username="deny", password=b"right", code=0x87)
