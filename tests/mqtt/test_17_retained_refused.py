"""A message that may not be retained is delivered all the same, and its MQTT 5 publisher is told by the ack: 0x97.

A topic's retained message is kept by one worker, `crc32c(topic) % workers`, which need not be the publisher's: then the
refusal travels back before the ack leaves. Each worker of these tests keeps one message.
"""

import contextlib
import itertools
import zlib

import pytest

from tbmq.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client, is_mosquitto, run_broker
from tests.reference.batch import crc32c

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="the bounds are ours")
QUOTA_EXCEEDED = 0x97
LIVE = Subscription("t/#", 2, retain_handling=2)  # only what is published from now on


@contextlib.contextmanager
def running(tmp_path, workers):
    """A broker, a function that makes connected clients of it, and for each worker an iterator of topics it keeps."""
    made = []
    settings = {"mqtt.max_retained_messages": workers, "mqtt.max_retained_payload_bytes": 100}
    with run_broker(tmp_path / "broker", workers=workers, settings=settings) as broker:

        def make(worker, level=MQTT_5):
            client_id = next(
                f"c{n}" for n in itertools.count(len(made) * 100) if zlib.crc32(b"c%d" % n) % workers == worker
            )
            made.append(Client(broker.address, client_id, level=level))
            made[-1].connect()
            return made[-1]

        def topics_of(worker):
            return (f"t/{n}" for n in itertools.count() if crc32c(b"t/%d" % n) % workers == worker)

        try:
            yield make, [topics_of(worker) for worker in range(workers)]
        finally:
            for client in made:
                client.close()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("has_subscribers", [True, False], ids=["live", "alone"])
def test_the_ack_tells_it_wherever_the_topic_is_kept(tmp_path, workers, has_subscribers):
    """For each pair of publisher's worker and keeper. Subscribers on all workers get every message."""
    fine = 0 if has_subscribers else 0x10
    with running(tmp_path, workers) as (make, topics):
        live = [make(n) for n in range(workers)] if has_subscribers else []
        for subscriber in live:
            subscriber.subscribe(LIVE)
        publishers = [make(n) for n in range(workers)]
        for keeper in range(workers):
            first = next(topics[keeper])
            assert publishers[0].publish(first, b"kept", qos=1, retain=True).reason_code == fine
            for publisher, qos in itertools.product(publishers, (1, 2)):
                over = next(topics[keeper])
                answer = publisher.publish(over, b"not kept", qos=qos, retain=True)
                assert answer.reason_code == QUOTA_EXCEEDED, f"{publisher} to {keeper}, QoS {qos}"
                answer = publisher.publish(first, b"=" * 101, qos=qos, retain=True)
                assert answer.reason_code == QUOTA_EXCEEDED, "too large a payload"
                answer = publisher.publish(first, b"again", qos=qos, retain=True)
                assert answer.reason_code == fine, "replaces"
                for subscriber in live:
                    if (publisher, qos) == (publishers[0], 1):
                        subscriber.take_message(topic=first, payload=b"kept")
                    subscriber.take_message(topic=over, payload=b"not kept", qos=qos, retain=False)
                    subscriber.take_message(topic=first, payload=b"=" * 101, qos=qos)
                    subscriber.take_message(topic=first, payload=b"again", qos=qos)
        late = make(0)
        late.subscribe("t/#", qos=1)
        assert [late.take_message(retain=True).payload for _ in range(workers)] == [b"again"] * workers
        late.expect_nothing()


@pytest.mark.parametrize("workers", [1, 3])
def test_an_id_whose_pubrec_refused_can_be_used_again_at_once(tmp_path, workers):
    with running(tmp_path, workers) as (make, topics):
        live = make(0)
        live.subscribe(LIVE)
        for keeper in range(workers):
            publisher = make((keeper + 1) % workers)
            publisher.publish(next(topics[keeper]), b"kept", qos=1, retain=True)
            live.take_message()
            for n in range(20):  # each is a new message, not a repetition
                publisher.send(Publish(next(topics[keeper]), b"%d" % n, 2, retain=True, packet_id=9))
                publisher.expect(Pubrec(9, QUOTA_EXCEEDED))
                live.take_message(payload=b"%d" % n)
            publisher.send(Pubrel(9))
            publisher.expect(Pubcomp(9, 0x92))
            publisher.send(Publish("t/plain", b"plain", 2, packet_id=9))
            publisher.expect(Pubrec(9))
            publisher.send(Pubrel(9))
            publisher.expect(Pubcomp(9))
            live.take_message(payload=b"plain")


@pytest.mark.parametrize("workers", [1, 3])
def test_below_mqtt_5_the_flow_is_the_same_as_ever(tmp_path, workers):
    with running(tmp_path, workers) as (make, topics):
        live = make(0)
        live.subscribe(LIVE)
        for keeper in range(workers):
            publisher = make((keeper + 1) % workers, MQTT_3_1_1)
            for qos in (1, 2) * 3:
                publisher.publish(next(topics[keeper]), b"%d" % qos, qos=qos, retain=True)
                live.take_message(payload=b"%d" % qos)


def test_in_a_burst_each_ack_tells_of_its_own_message(tmp_path):
    """600 in one write, to all keepers, retained or not: acks come in order, each with its own code."""
    with running(tmp_path, 3) as (make, topics):
        live, publisher = make(1), make(0)
        live.subscribe(LIVE)
        kept = [next(each) for each in topics]
        for topic in kept:
            publisher.publish(topic, b"kept", qos=1, retain=True)
            live.take_message()
        packets, expected = [], []
        for n in range(600):
            over, qos = n % 5 in (1, 3), 1 + n % 2
            topic = next(topics[n % 3]) if over else kept[n % 3]
            packets.append(Publish(topic, b"%d" % n, qos, retain=n % 5 != 4, packet_id=n + 1))
            expected.append((Puback if qos == 1 else Pubrec)(n + 1, QUOTA_EXCEEDED if over else 0))
        publisher.send(*packets)
        assert [publisher.receive() for _ in range(600)] == expected
        for n in range(600):
            live.take_message(payload=b"%d" % n)


def test_acks_keep_their_order_wherever_the_answers_come_from(tmp_path):
    """Refused far away, wanted by nobody, refused here, in turn."""
    with running(tmp_path, 3) as (make, topics):
        publisher = make(0)
        for each in topics:
            publisher.publish(next(each), b"kept", qos=1, retain=True)
        packets = []
        for n in range(0, 300, 3):
            packets.append(Publish(next(topics[n % 2 + 1]), b"x", 1, retain=True, packet_id=n + 1))  # far away
            packets.append(Publish("nobody/wants/it", b"x", 1, packet_id=n + 2))  # acked here
            packets.append(Publish(next(topics[0]), b"x", 1, retain=True, packet_id=n + 3))  # kept here
        publisher.send(*packets)
        codes = (QUOTA_EXCEEDED, 0x10, QUOTA_EXCEEDED)
        assert [publisher.receive() for _ in packets] == [Puback(n + 1, codes[n % 3]) for n in range(300)]
