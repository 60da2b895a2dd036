"""What a node holds is bounded: sessions, subscriptions, retained messages. Each test has a broker with low bounds."""

import contextlib
import itertools
import threading
import zlib

import pytest

from tbmq.packets import Connack, Connect, Pingreq, Puback, Publish, Subscription
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client, each_level, is_mosquitto, run_broker

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="the bounds are ours")
one_and_three_workers = pytest.mark.parametrize("workers", [1, 3])


@contextlib.contextmanager
def running(tmp_path, workers, **settings):
    """A broker with these settings of `mqtt`, and a function that makes clients of it; all are closed at the end."""
    numbers, made = itertools.count(1), []
    with run_broker(
        tmp_path / "broker", workers=workers, settings={f"mqtt.{k}": v for k, v in settings.items()}
    ) as broker:

        def make(level=MQTT_5, worker=None):
            wanted = (len(made) if worker is None else worker) % workers
            while True:
                client_id = f"c{next(numbers)}"
                if zlib.crc32(client_id.encode()) % workers == wanted:
                    break
            made.append(Client(broker.address, client_id, level=level))
            return made[-1]

        try:
            yield broker, make
        finally:
            for client in made:
                client.close()


def connected(client, **fields):
    client.connect(**fields)
    return client


# --- sessions ---------------------------------------------------------------------------------------------------------


@one_and_three_workers
@each_level
def test_no_session_is_made_over_the_bound_and_those_that_exist_can_be_resumed(tmp_path, workers, level):
    """A flood of ids whose sessions never end: each worker has its part of the node's bound."""
    with running(tmp_path, workers, max_sessions=4 * workers) as (_, make):
        for worker in range(workers):
            clients = [make(level, worker) for _ in range(4)]
            for client in clients:
                client.connect(persistent=True)
            clients[0].disconnect()
            more = make(level, worker)
            for persistent in (True, False):
                more.connect(persistent=persistent, code=0x97 if level == MQTT_5 else 3)
                more.expect_closed()
            assert clients[0].connect(persistent=True).session_present
            assert clients[1].connect(persistent=True).session_present  # takes its own connection over
            assert not clients[2].connect(clean=True).session_present
            clients[2].disconnect()  # and with it goes a session
            more.connect(persistent=True)
            clients[2].connect(code=0x97 if level == MQTT_5 else 3)


# --- subscriptions ----------------------------------------------------------------------------------------------------


@one_and_three_workers
@each_level
def test_no_subscription_is_granted_over_the_bound(tmp_path, workers, level):
    with running(tmp_path, workers, max_subscriptions=10) as (_, make):
        client, publisher = connected(make(level)), connected(make(level))
        refused = 0x97 if level == MQTT_5 else 0x80
        lines = [Subscription(f"t/{n}", 0) for n in range(15)]
        assert client.try_subscribe(*lines).reason_codes == [0] * 10 + [refused] * 5
        assert client.try_subscribe(Subscription("$share/g/t", 0)).reason_codes == [refused]
        assert client.try_subscribe(Subscription("t/0", 1)).reason_codes == [1]  # replaces
        client.unsubscribe("t/1", "t/14")
        assert client.try_subscribe(Subscription("t/11"), Subscription("t/12")).reason_codes == [0, refused]
        for n in range(15):
            publisher.publish(f"t/{n}", b"%d" % n)
        publisher.publish("t/11", b"end")
        got = []
        while not got or got[-1] != b"end":
            got.append(client.take_message().payload)
        assert got == [b"%d" % n for n in (0, 2, 3, 4, 5, 6, 7, 8, 9, 11)] + [b"end"]


# --- retained messages ------------------------------------------------------------------------------------------------


LIVE = Subscription("t/#", 2, retain_handling=2)  # only what is published from now on


def retained(client):
    """What is retained below `t`. Wildcards of one client are served one after the other: the marker comes last."""
    client.subscribe("t/#", "marker/#")
    found = []
    while (message := client.take_message(retain=True)).topic != "marker/x":
        found.append((message.topic, message.payload))
    assert len(found) == len(dict(found))
    return dict(found)


@one_and_three_workers
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_flood_of_retained_topics_is_delivered_and_not_retained_over_the_bound(tmp_path, workers, qos):
    with running(tmp_path, workers, max_retained_messages=30) as (_, make):
        live, publisher = connected(make()), connected(make())
        live.subscribe(LIVE)
        publisher.publish("marker/x", b"x", qos=1, retain=True)
        answers = [publisher.publish(f"t/{n}", b"first", qos=qos, retain=True) for n in range(200)]
        for n in range(200):
            live.take_message(topic=f"t/{n}", payload=b"first")
        kept = retained(connected(make()))
        assert len(kept) == 29
        if qos:
            told = {f"t/{n}" for n, answer in enumerate(answers) if answer.reason_code == 0x97}
            assert told == {f"t/{n}" for n in range(200)} - kept.keys()
        one = next(iter(kept))
        assert publisher.publish(one, b"second", qos=1, retain=True).reason_code == 0  # replaces
        publisher.publish("t/new", b"x", qos=1, retain=True)
        assert retained(connected(make())) == kept | {one: b"second"}
        for topic in kept:
            publisher.publish(topic, b"", qos=1, retain=True)
        publisher.publish("t/new", b"x", qos=1, retain=True)
        assert retained(connected(make())) == {"t/new": b"x"}


@one_and_three_workers
def test_a_payload_over_the_bound_is_delivered_and_not_retained(tmp_path, workers):
    with running(tmp_path, workers, max_retained_payload_bytes=100) as (_, make):
        live, publisher = connected(make()), connected(make())
        live.subscribe(LIVE)
        publisher.publish("marker/x", b"x", qos=1, retain=True)
        for n in range(20):
            publisher.publish(f"t/{n}", b"=" * 100, qos=1, retain=True)
            live.take_message(payload=b"=" * 100)
            answer = publisher.publish(f"t/{n}", b">" * 101, qos=1, retain=True)
            assert answer.reason_code == 0x97
            live.take_message(payload=b">" * 101)
        assert retained(connected(make())) == {f"t/{n}": b"=" * 100 for n in range(20)}


@one_and_three_workers
@pytest.mark.parametrize(
    ("count", "settings"), [(3_000, {}), (150, {"max_queued_messages": 0, "max_inflight": 1})], ids=["ample", "tight"]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_all_that_is_retained_comes_to_a_slow_reader_and_others_go_on_meanwhile(
    tmp_path, workers, qos, count, settings
):
    """`#` against 30 MB for a client that does not read: the broker holds little of it for that client, and serves
    others as if nothing were. Then it reads, and gets each message once."""
    with running(tmp_path, workers, **settings) as (broker, make):
        publisher = connected(make())
        for n in range(count):
            publisher.send(Publish(f"kept/{n}", b"x" * 10_000, 1, True, packet_id=n + 1))
            publisher.expect(Puback)
        reader = make().open(receive_buffer_bytes=4_096)
        reader.send(Connect(reader.client_id))
        reader.expect(Connack)
        before = broker.memory_bytes()
        reader.subscribe("#", qos=qos)
        first, second = connected(make()), connected(make())
        first.subscribe("$other/talk")
        for n in range(200):
            second.publish("$other/talk", b"%d" % n, qos=1)
            first.expect(Publish, payload=b"%d" % n)
        grown = broker.memory_bytes() - before
        assert grown < 24 * 1_048_576, f"{grown} bytes held for a client that does not read"
        got = [reader.take_message(retain=True).topic for _ in range(count)]
        assert sorted(got) == sorted(f"kept/{n}" for n in range(count))


@one_and_three_workers
def test_a_client_that_subscribes_again_and_again_and_does_not_read_costs_little(tmp_path, workers):
    """Each SUBSCRIBE asks for all retained messages anew, and only the last one counts."""
    with running(tmp_path, workers) as (broker, make):
        publisher = connected(make())
        for n in range(100):
            publisher.publish(f"kept/{n}", b"x" * 10_000, qos=1, retain=True)
        reader = make().open(receive_buffer_bytes=4_096)
        reader.send(Connect(reader.client_id))
        reader.expect(Connack)
        before = broker.memory_bytes()
        writing = threading.Thread(
            target=lambda: [reader.send(subscribe(n)) for n in range(20_000)], name="writer", daemon=True
        )
        writing.start()
        writing.join(30)
        assert not writing.is_alive()
        publisher.ping()
        grown = broker.memory_bytes() - before
        assert grown < 24 * 1_048_576, f"{grown} bytes held for a client that does not read"
        reader.send(Pingreq())


def subscribe(n):
    body = (n % 60_000 + 1).to_bytes(2, "big") + b"\0" + (6).to_bytes(2, "big") + b"kept/" + b"+#"[n % 2 : n % 2 + 1]
    return bytes((0x82, len(body) + 1)) + body + b"\0"


# --- CONNECT ----------------------------------------------------------------------------------------------------------


@one_and_three_workers
@pytest.mark.parametrize("level", [MQTT_3_1_1, MQTT_5])
def test_nothing_is_lost_when_a_large_connect_is_followed_by_much_at_once(tmp_path, workers, level):
    """CONNECT of 64 KiB and 300 KB of messages in one write, whichever worker gets them first."""
    with running(tmp_path, workers) as (_, make):
        watcher = connected(make())
        watcher.subscribe("t/#")
        for _ in range(12):
            client = make(level).open()
            fields = {"username": "u", "password": b"p" * (65_536 - 40)}
            connect = Connect(client.client_id, protocol_level=level, **fields)
            client.send(connect, *(Publish(f"t/{n}", b"x" * 3_000) for n in range(100)))
            client.expect(Connack, reason_code=0)
            for n in range(100):
                watcher.expect(Publish, topic=f"t/{n}", payload=b"x" * 3_000)


@one_and_three_workers
def test_a_connect_of_a_megabyte_is_taken_when_it_is_allowed(tmp_path, workers):
    with running(tmp_path, workers, max_connect_packet_bytes=1_048_576) as (_, make):
        watcher = connected(make())
        watcher.subscribe("t/#")
        for _ in range(12):
            client = make().open()
            properties = {"user_property": [("name", "v" * 60_000)] * 17}
            client.send(
                Connect(client.client_id, properties=properties),
                *(Publish(f"t/{n}", b"x" * 30_000) for n in range(40)),
            )
            client.expect(Connack, reason_code=0)
            for n in range(40):
                watcher.expect(Publish, topic=f"t/{n}", payload=b"x" * 30_000)
