"""Changes of rules, credentials and providers while clients are connected or away."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace

import jwt
import pytest

from tbmq.auth.model import ClientType
from tbmq.packets import Publish, Subscription, Will
from tbmq.protocol import MQTT_5
from tests.helpers import each_level
from tests.helpers.client import Client
from tests.helpers.secured import BITES_S, Secured, connect, eventually, new_name, run_secured


def change_rules(secured: Secured, client: Client, *rules: str) -> None:
    """And wait until the client's worker has taken them up."""
    secured.entities.set_rules(client.credentials, *rules)
    secured.wait_for_changes(zlib.crc32(client.client_id.encode()) % secured.broker.workers)


def marker(publisher: Client, reader: Client, topic: str) -> None:
    publisher.publish(topic, b"marker", qos=1)
    reader.take_message(topic=topic, payload=b"marker")


@each_level
def test_publishing_is_denied_when_the_right_is_taken_away(secured: Secured, topic, level):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    client = secured.login(f"allow publish:{topic}/#", level=level)
    client.publish(f"{topic}/a", b"yes", qos=1)
    reader.take_message(payload=b"yes")
    change_rules(secured, client, f"deny publish:{topic}/a", f"allow publish:{topic}/#")
    client.publish(f"{topic}/a", b"no", qos=1)
    client.publish(f"{topic}/a", b"no", qos=0)
    marker(client, reader, f"{topic}/b")
    change_rules(secured, client, f"allow publish:{topic}/#")
    client.publish(f"{topic}/a", b"yes again", qos=1)
    reader.take_message(payload=b"yes again")


def test_publishing_is_denied_when_a_client_that_might_do_everything_gets_rules(secured: Secured, topic):
    client = secured.login()
    assert client.publish(f"{topic}/a", qos=1).reason_code == 0x10
    change_rules(secured, client, f"allow publish:{topic}/b")
    assert client.publish(f"{topic}/a", qos=1).reason_code == 0x87
    assert client.publish(f"{topic}/b", qos=1).reason_code == 0x10


@each_level
@pytest.mark.parametrize("prefix", ["", "$share/g/"])
def test_subscription_ends_when_the_right_is_taken_away(secured: Secured, topic, level, prefix):
    publisher = secured.login()
    client = secured.login(f"allow subscribe:{topic}/#", level=level)
    client.subscribe(f"{prefix}{topic}/a", f"{topic}/b", qos=1)
    publisher.publish(f"{topic}/a", b"yes", qos=1)
    client.take_message(payload=b"yes")
    change_rules(secured, client, f"allow subscribe:{topic}/b")
    publisher.publish(f"{topic}/a", b"no", qos=1)
    marker(publisher, client, f"{topic}/b")
    denied = 0x87 if level == MQTT_5 else 0x80
    assert client.try_subscribe(Subscription(f"{prefix}{topic}/a", 1)).reason_codes == [denied]


@each_level
def test_wildcard_subscription_ends_when_a_part_of_it_is_denied(secured: Secured, topic, level):
    publisher = secured.login()
    client = secured.login(f"allow subscribe:{topic}/#", level=level)
    client.subscribe(f"{topic}/#", qos=1)
    client.subscribe(f"{topic}/b", qos=1)
    change_rules(secured, client, f"deny subscribe:{topic}/secret", f"allow subscribe:{topic}/#")
    publisher.publish(f"{topic}/secret", b"no", qos=1)
    publisher.publish(f"{topic}/a", b"no", qos=1)  # the wildcard is gone as a whole
    marker(publisher, client, f"{topic}/b")


@each_level
def test_queued_messages_are_dropped_when_the_right_is_taken_away_from_who_is_away(secured: Secured, topic, level):
    publisher = secured.login()
    client = secured.login(f"allow subscribe:{topic}/#", level=level, persistent=True)
    client.subscribe(f"{topic}/a", f"{topic}/b", qos=2)
    client.disconnect()
    for qos in (1, 2):
        publisher.publish(f"{topic}/a", b"no", qos=qos)
        publisher.publish(f"{topic}/b", b"yes", qos=qos)
    change_rules(secured, client, f"allow subscribe:{topic}/b")
    publisher.publish(f"{topic}/a", b"no", qos=1)
    assert connect(client, persistent=True).session_present
    for qos in (1, 2):
        client.take_message(topic=f"{topic}/b", payload=b"yes", qos=qos)
    marker(publisher, client, f"{topic}/b")


@each_level
@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_is_not_sent_again_when_the_right_is_taken_away_from_who_is_away(secured: Secured, topic, level, qos):
    publisher = secured.login()
    client = secured.login(f"allow subscribe:{topic}/#", level=level, persistent=True)
    client.subscribe(f"{topic}/a", f"{topic}/b", qos=2)
    publisher.publish(f"{topic}/a", b"in flight", qos=qos)
    client.expect(Publish, payload=b"in flight")  # not acknowledged
    client.abort()
    change_rules(secured, client, f"allow subscribe:{topic}/b")
    assert connect(client, persistent=True).session_present
    marker(publisher, client, f"{topic}/b")


def test_retained_messages_are_not_replayed_when_the_right_is_taken_away(secured: Secured, topic):
    publisher = secured.login()
    publisher.publish(f"{topic}/a", b"kept", qos=1, retain=True)
    client = secured.login(f"allow subscribe:{topic}/#")
    client.subscribe(f"{topic}/a", qos=1)
    client.take_message(payload=b"kept")
    change_rules(secured, client, f"allow subscribe:{topic}/b")
    assert client.try_subscribe(Subscription(f"{topic}/a", 1)).reason_codes == [0x87]
    assert client.try_subscribe(Subscription(f"{topic}/+", 1)).reason_codes == [0x87]
    client.subscribe(f"{topic}/b", qos=1)
    marker(publisher, client, f"{topic}/b")


@each_level
def test_will_is_not_published_when_the_right_was_taken_away(secured: Secured, topic, level):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    client = secured.login(f"allow publish:{topic}/#", level=level, will=Will(f"{topic}/will", b"gone", 1))
    change_rules(secured, client, f"allow publish:{topic}/other")
    start = secured.broker.log_bytes()
    client.abort()
    eventually(lambda: "its will is not published" in secured.broker.log(start))
    marker(secured.login(), reader, f"{topic}/b")


def test_delayed_will_is_not_published_when_the_right_is_taken_away_meanwhile(secured: Secured, topic):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    will = Will(f"{topic}/will", b"gone", 1, properties={"will_delay_interval": 2})
    client = secured.login(f"allow publish:{topic}/#", will=will, persistent=True)
    client.abort()
    start = secured.broker.log_bytes()
    change_rules(secured, client, f"allow publish:{topic}/other")
    eventually(lambda: "its will is not published" in secured.broker.log(start))
    marker(secured.login(), reader, f"{topic}/b")


@each_level
def test_everything_stays_when_rules_of_others_change(secured: Secured, topic, level):
    publisher, other = secured.login(), secured.login(f"allow all:{topic}/#")
    client = secured.login(f"allow all:{topic}/#", level=level)
    client.subscribe(f"{topic}/a", qos=1)
    change_rules(secured, other, "deny all:#")
    client.publish(f"{topic}/a", b"x", qos=1)
    client.take_message(payload=b"x")
    marker(publisher, client, f"{topic}/a")


def test_client_is_disconnected_when_its_type_changes(secured: Secured):
    client = secured.login()
    secured.entities.change(client.credentials, lambda found: replace(found, client_type=ClientType.APPLICATION))
    client.expect_disconnect(0x98, BITES_S)
    connect(client)


def test_many_are_found_when_shared_credentials_are_removed(secured: Secured):
    username = new_name("fleet")
    name = secured.entities.add_basic(username=username, password="right")
    fleet = [secured.client(worker=number) for number in range(30)]
    for client in fleet:
        client.connect(username=username, password=b"right")
    secured.entities.remove(name)
    for client in fleet:
        client.expect_disconnect(0x87, BITES_S)


# --- providers


def test_session_can_be_taken_up_when_authentication_is_switched_off(tmp_path):
    with run_secured(tmp_path) as secured:
        client = secured.login(persistent=True)
        client.subscribe("a", qos=1)
        client.disconnect()
        start = secured.broker.log_bytes()
        secured.entities.provide("basic", False)
        eventually(lambda: "authentication: off" in secured.broker.log(start), BITES_S)
        assert client.connect(persistent=True).session_present
        client.publish("a", b"x", qos=1)
        client.take_message(payload=b"x")


def test_session_made_by_everybody_can_be_taken_up_when_authentication_is_switched_on(tmp_path):
    with run_secured(tmp_path, prepare=lambda entities: entities.provide("basic", False)) as secured:
        client = secured.client()
        client.connect(persistent=True)
        client.subscribe("a", "b", qos=1)
        client.disconnect()
        start = secured.broker.log_bytes()
        secured.entities.provide("basic")
        eventually(lambda: "authentication: basic" in secured.broker.log(start), BITES_S)
        secured.entities.add_basic("allow all:b", client_id=client.client_id)
        assert client.connect(persistent=True).session_present
        client.publish("a", b"x", qos=1)
        client.publish("b", b"y", qos=1)
        client.take_message(payload=b"y")


def test_provider_fails_closed_and_others_work_when_its_settings_are_broken_at_the_start(tmp_path):
    """Nothing is let in by it, and changes of the others bite nevertheless."""
    gone = tmp_path / "secret"
    gone.write_text("0123456789" * 4)

    def prepare(entities):
        entities.provide("jwt", secret=f"file://{gone}")
        gone.unlink()

    with run_secured(tmp_path, prepare=prepare) as secured:
        assert "nobody is let in by jwt" in secured.broker.log()
        secured.client().connect(code=0x88)  # skipped by Basic, and then the broken one is asked
        client = secured.client()
        secured.entities.add_basic(client_id=client.client_id)
        client.connect()
        start = secured.broker.log_bytes()
        secured.entities.provide("scram")
        eventually(lambda: "authentication: basic, jwt, scram\n" in secured.broker.log(start), BITES_S)
        secured.entities.provide("jwt", False)
        eventually(lambda: "authentication: basic, scram\n" in secured.broker.log(start), BITES_S)
        secured.client().connect(code=0x87)


def test_last_good_settings_stay_and_others_change_when_settings_break_at_run_time(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789" * 4)
    token = jwt.encode({"sub": "a", "exp": time.time() + 600}, "0123456789" * 4, "HS256")

    def prepare(entities):
        entities.provide("jwt", secret=f"file://{secret}")
        entities.order("jwt", "basic")

    with run_secured(tmp_path, prepare=prepare) as secured:
        secured.client().connect(password=token.encode())
        start = secured.broker.log_bytes()
        secret.unlink()
        secured.entities.provide("jwt", secret=f"file://{secret}", leeway_s=1)
        eventually(lambda: "its last good settings stay in force" in secured.broker.log(start), BITES_S)
        secured.client().connect(password=token.encode())
        secured.entities.provide("basic", False)
        eventually(lambda: "authentication: jwt\n" in secured.broker.log(start), BITES_S)
        secured.client("is-it-up").connect(code=0x87)
        secured.client().connect(password=token.encode())
