"""What a client may publish and subscribe to, and the ways around it that must not exist."""

from __future__ import annotations

import pytest

from tbmq.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import each_level
from tests.helpers.client import Client
from tests.helpers.secured import Secured, connect, new_name

each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


def marker(publisher: Client, reader: Client, topic: str) -> None:
    """Nothing came to the reader before this."""
    publisher.publish(topic, b"marker", qos=1)
    reader.take_message(topic=topic, payload=b"marker")


# --- publishing


@each_qos
def test_v5_is_told_and_nothing_is_delivered_when_publishing_is_denied(secured: Secured, topic, qos):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=2)
    client = secured.login(f"deny publish:{topic}/secret", f"allow all:{topic}/#")
    answer = client.publish(f"{topic}/secret", b"no", qos=qos)
    assert answer is None if qos == 0 else answer.reason_code == 0x87
    marker(client, reader, f"{topic}/free")
    client.ping()


@each_qos
def test_v3_flow_goes_on_and_nothing_is_delivered_when_publishing_is_denied(secured: Secured, topic, qos):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=2)
    client = secured.login(f"allow publish:{topic}/free", level=MQTT_3_1_1)
    client.send(Publish(f"{topic}/secret", b"no", qos, packet_id=7 if qos else 0))
    if qos == 1:
        client.expect(Puback, packet_id=7)
    elif qos == 2:
        client.expect(Pubrec, packet_id=7)
        client.send(Pubrel(7))
        client.expect(Pubcomp, packet_id=7)
    marker(client, reader, f"{topic}/free")


@each_level
def test_nothing_is_retained_when_publishing_is_denied(secured: Secured, topic, level):
    client = secured.login(f"deny publish:{topic}/secret", f"allow all:{topic}/#", level=level)
    client.publish(f"{topic}/secret", b"no", qos=1, retain=True)
    client.publish(f"{topic}/free", b"yes", qos=1, retain=True)
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    reader.take_message(payload=b"yes", retain=True)
    marker(client, reader, f"{topic}/free")


def test_answer_is_always_the_same_when_many_topics_are_asked_for(secured: Secured, topic):
    """More topics than a connection remembers."""
    client = secured.login(f"deny publish:{topic}/+/no", f"allow publish:{topic}/#")
    for _ in range(2):
        for number in range(1_500):
            client.send(Publish(f"{topic}/{number}/{'no' if number % 2 else 'yes'}", b"", 1, packet_id=number + 1))
            answer = client.expect(Puback, packet_id=number + 1)
            assert answer.reason_code == (0x87 if number % 2 else 0x10)


def test_alias_cannot_dodge_when_its_topic_is_denied(secured: Secured, topic):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    client = secured.login(f"deny publish:{topic}/secret", f"allow all:{topic}/#")
    assert client.publish(f"{topic}/secret", b"no", qos=1, topic_alias=1).reason_code == 0x87
    assert client.publish("", b"no", qos=1, topic_alias=1).reason_code == 0x87
    client.publish(f"{topic}/free", b"yes", qos=1, topic_alias=1)
    reader.take_message(payload=b"yes")
    client.publish("", b"again", qos=1, topic_alias=1)
    reader.take_message(topic=f"{topic}/free", payload=b"again")
    assert client.publish(f"{topic}/secret", b"no", qos=1, topic_alias=1).reason_code == 0x87
    assert client.publish("", b"no", qos=1, topic_alias=1).reason_code == 0x87
    marker(client, reader, f"{topic}/free")


@pytest.mark.parametrize("name", ["$SYS/x", "$SYS/brokers/x/uptime"])
@each_qos
def test_is_denied_when_a_client_that_may_do_everything_publishes_below_sys(secured: Secured, name, qos):
    client = secured.login()
    answer = client.publish(name, b"x", qos=qos)
    assert answer is None if qos == 0 else answer.reason_code == 0x87
    client.ping()


def test_is_denied_when_a_client_publishes_to_sys_itself(secured: Secured):
    assert secured.login().publish("$SYS", b"x", qos=1).reason_code == 0x87


def test_prefix_cannot_dodge_when_publishing(secured: Secured, topic):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", "$delayed/#", qos=1)
    client = secured.login(f"deny publish:{topic}/secret", "allow-regex all:.*")
    for prefix in ("$share/g/", "$queue/", "$exclusive/", "$delayed/0/", "$delayed/1/"):
        client.publish(f"{prefix}{topic}/secret", b"no", qos=1)
    marker_topic = f"{topic}/free"
    client.publish(marker_topic, b"marker", qos=1)
    while (message := reader.take_message()).topic != marker_topic:
        assert message.topic.startswith("$delayed/"), "a prefix brought it to the denied topic"


# --- subscribing


@each_level
@pytest.mark.parametrize(
    ("rules", "filters"),
    [
        (["allow subscribe:T/a"], {"T/a": True, "T/b": False, "T/+": False, "T/#": False, "#": False}),
        (["allow subscribe:T/#"], {"T": True, "T/a/b": True, "T/+/x": True, "T/#": True, "+/a": False, "#": False}),
        (["deny subscribe:T/s", "allow subscribe:T/#"], {"T/s": False, "T/+": False, "T/#": False, "T/+/x": True}),
        (["allow publish:T/#"], {"T/a": False}),
        (["allow-regex all:T/[0-9]+"], {"T/12": True, "T/a": False, "T/+": False, "T/#": False}),
        (["allow subscribe:#"], {"#": True, "T/a": True, "$SYS/#": False, "$SYS/x": False}),
        (["deny-regex subscribe:.*[+#].*", "allow-regex all:.*"], {"T/a": True, "T/+": False, "#": False}),
    ],
)
def test_each_line_is_judged_by_itself_when_subscribing(secured: Secured, topic, level, rules, filters):
    client = secured.login(*(rule.replace("T", topic) for rule in rules), level=level)
    lines = {text.replace("T", topic): is_allowed for text, is_allowed in filters.items()}
    suback = client.try_subscribe(*(Subscription(text, 1) for text in lines))
    denied = 0x87 if level == MQTT_5 else 0x80
    assert suback.reason_codes == [1 if is_allowed else denied for is_allowed in lines.values()]


@each_level
def test_nothing_is_delivered_and_no_retained_sent_when_subscribing_is_denied(secured: Secured, topic, level):
    publisher = secured.login()
    publisher.publish(f"{topic}/secret", b"kept", qos=1, retain=True)
    client = secured.login(f"allow subscribe:{topic}/free", level=level)
    client.try_subscribe(Subscription(f"{topic}/secret", 1), Subscription(f"{topic}/free", 1))
    publisher.publish(f"{topic}/secret", b"no", qos=1)
    marker(publisher, client, f"{topic}/free")


@pytest.mark.parametrize("prefix", ["$share/g/", "$queue/", "$exclusive/", "$share/#/", "$share/g/$share/h/"])
@each_level
def test_prefix_cannot_dodge_when_subscribing(secured: Secured, topic, prefix, level):
    client = secured.login(f"deny subscribe:{topic}/secret", "allow-regex all:.*", level=level)
    for text in (f"{topic}/secret", f"{topic}/+", f"{topic}/#", "#", "+/+"):
        (code,) = client.try_subscribe(Subscription(f"{prefix}{text}", 1)).reason_codes
        assert code >= 0x80
    publisher = secured.login()
    publisher.publish(f"{topic}/secret", b"no", qos=1)
    client.subscribe(f"{topic}/free", qos=1)
    marker(publisher, client, f"{topic}/free")


@each_level
def test_shared_subscription_works_when_its_real_topic_is_allowed(secured: Secured, topic, level):
    client = secured.login(f"allow subscribe:{topic}/#", level=level)
    client.subscribe(f"$share/g/{topic}/a", f"$queue/{topic}/b", qos=1)
    publisher = secured.login()
    publisher.publish(f"{topic}/a", b"1", qos=1)
    client.take_message(topic=f"{topic}/a")
    publisher.publish(f"{topic}/b", b"2", qos=1)
    client.take_message(topic=f"{topic}/b")


# --- placeholders


def test_placeholders_stand_for_the_clients_own_names(secured: Secured, topic):
    client = secured.login(f"allow all:{topic}/${{clientid}}/#", f"allow all:{topic}/u/${{username}}")
    own, user = f"{topic}/{client.client_id}", f"{topic}/u/{client.username}"
    client.subscribe(f"{own}/#", user)
    assert client.publish(f"{own}/x", qos=1).reason_code == 0
    assert client.publish(user, qos=1).reason_code == 0
    assert client.publish(f"{topic}/other/x", qos=1).reason_code == 0x87
    assert client.try_subscribe(Subscription(f"{topic}/+/x", 0)).reason_codes == [0x87]


@pytest.mark.parametrize("value", ["#", "+", "/", "a/b", "+/#", "victim/inbox", "a#", "$SYS"])
@each_level
def test_client_id_gains_nothing_when_it_holds_a_wildcard_or_a_level(secured: Secured, topic, value, level):
    """They share the broker, so each value is used by one test of each level at a time."""
    client = secured.client(value, level)
    name = secured.entities.add_basic(f"allow all:{topic}/${{clientid}}/#", "allow all:${clientid}", client_id=value)
    publisher = secured.login()
    client.connect()
    denied = 0x87 if level == MQTT_5 else 0x80
    for text in (f"{topic}/#", f"{topic}/+/x", f"{topic}/victim/inbox/#", "#", "+", f"{topic}/a/b", value):
        code = client.try_subscribe(Subscription(text, 1)).reason_codes[0]
        assert code >= 0x80 if text != "/" else code in (denied,)
    if level == MQTT_5:
        for text in (f"{topic}/victim/inbox", f"{topic}/a/b", f"{topic}/x/y"):
            assert client.publish(text, qos=1).reason_code == 0x87
    publisher.publish(f"{topic}/victim/inbox", b"secret", qos=1)
    client.expect_nothing()
    secured.entities.remove(name)
    client.expect_disconnect(0x87)


@pytest.mark.parametrize("value", ["#", "+", "a/b"])
def test_user_name_gains_nothing_when_it_holds_a_wildcard_or_a_level(secured: Secured, topic, value):
    client = secured.client()
    name = secured.entities.add_basic(f"allow all:{topic}/${{username}}/#", client_id=client.client_id)
    client.connect(username=value)
    for text in (f"{topic}/#", f"{topic}/+/x", f"{topic}/a/b"):
        assert client.try_subscribe(Subscription(text, 1)).reason_codes == [0x87]
    assert client.publish(f"{topic}/a/b", qos=1).reason_code == 0x87
    secured.entities.remove(name)


def test_rules_are_those_of_the_present_user_name_when_a_session_is_resumed(secured: Secured, topic):
    """Credentials for a client id: the user name is free, and rules may speak of it."""
    client, publisher = secured.client(), secured.login()
    secured.entities.add_basic(f"allow all:{topic}/${{username}}", client_id=client.client_id)
    client.connect(username="ann", persistent=True)
    client.subscribe(f"{topic}/ann", qos=1)
    client.disconnect()
    publisher.publish(f"{topic}/ann", b"for ann", qos=1)
    assert client.connect(username="bob", persistent=True).session_present
    publisher.publish(f"{topic}/ann", b"for ann", qos=1)
    client.subscribe(f"{topic}/bob", qos=1)
    marker(publisher, client, f"{topic}/bob")


# --- wills


@each_level
@pytest.mark.parametrize("name", ["T/secret", "$SYS/x", "$SYS"])
def test_connect_is_refused_when_the_will_is_for_a_denied_topic(secured: Secured, topic, level, name):
    client = secured.login(f"deny publish:{topic}/secret", "allow-regex all:.*", level=level)
    will = Will(name.replace("T", topic), b"gone", 1)
    other = secured.client(client.client_id, level)
    other.username = client.username
    connect(other, will=will, code=0x87 if level == MQTT_5 else 5)
    other.expect_closed()
    client.ping()  # it was not taken over


@each_level
def test_will_is_published_when_its_topic_is_allowed(secured: Secured, topic, level):
    reader = secured.login()
    reader.subscribe(f"{topic}/#", qos=1)
    client = secured.login(f"allow publish:{topic}/will", level=level, will=Will(f"{topic}/will", b"gone", 1))
    client.abort()
    reader.take_message(topic=f"{topic}/will", payload=b"gone")


# --- take-over


@each_level
def test_take_over_is_refused_when_somebody_else_has_the_client_id(secured: Secured, level):
    username = new_name("user")
    secured.entities.add_basic(username=username, password="other")
    owner = secured.login(level=level)
    thief = secured.client(owner.client_id, level)
    thief.connect(username=username, password=b"other", code=0x87 if level == MQTT_5 else 5)
    owner.ping()


@each_level
def test_session_cannot_be_stolen_or_ended_when_its_owner_is_away(secured: Secured, level, topic):
    username = new_name("user")
    secured.entities.add_basic(username=username, password="other")
    owner, publisher = secured.login(level=level, persistent=True), secured.login()
    owner.subscribe(topic, qos=1)
    owner.disconnect()
    publisher.publish(topic, b"for the owner", qos=1)
    thief = secured.client(owner.client_id, level)
    for clean in (True, False):
        thief.connect(username=username, password=b"other", clean=clean, code=0x87 if level == MQTT_5 else 5)
    assert connect(owner, persistent=True).session_present
    owner.take_message(payload=b"for the owner")


@each_level
def test_take_over_succeeds_when_it_is_the_same_principal(secured: Secured, level):
    username = new_name("user")
    secured.entities.add_basic(username=username, password="right")
    first = secured.client(level=level)
    first.connect(username=username, password=b"right")
    second = secured.client(first.client_id, level)
    second.connect(username=username, password=b"right")
    first.expect_disconnect(0x8E)
    second.ping()


def test_many_refused_connects_change_nothing_when_an_owner_is_connected(secured: Secured, topic):
    owner = secured.login()
    owner.subscribe(topic, qos=1)
    thieves = [secured.client(owner.client_id).open() for _ in range(20)]
    for thief in thieves:
        thief.send(Connect(owner.client_id, username=owner.username, password=b"wrong"))
    for thief in thieves:
        assert thief.expect(Connack).reason_code in (0x86, 0x89)
    owner.publish(topic, b"x", qos=1)
    owner.take_message(payload=b"x")
