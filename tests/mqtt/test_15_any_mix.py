"""Any mix of PUBLISH packets, in any pieces, to any subscribers: they get what a slow and obvious reference says.

The mix is rich in bursts of one topic, which the broker passes on as one piece. The first subscriber is the publisher
itself. Nothing is acknowledged: all of it fits into the windows.
"""

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tbmq._codec import encode
from tbmq.packets import Puback, Publish, Pubrec, Subscription
from tbmq.protocol import MQTT_3_1, MQTT_3_1_1, MQTT_5
from tests.helpers import Client, is_mosquitto
from tests.reference.matcher import Options, ReferenceSubscriptions

LEVELS = [MQTT_3_1, MQTT_3_1_1, MQTT_5]
TOPICS = ["a", "b", "a/b", "a/bb"]
FILTERS = ["a", "b", "#", "+", "a/+", "a/b", "a/#"]
SIZES = [0, 1, 30, 125, 2_000]
PREFIXES = itertools.count(1)

seldom = st.sampled_from([False, False, False, True])
piece = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from([0, 0, 0, 0, 1, 2]),  # QoS
    seldom,  # retain
    seldom,  # with properties
    st.tuples(st.sampled_from(SIZES), st.integers(1, 40)) | st.just((100_000, 1)),  # bytes, how often
)
line = st.tuples(st.sampled_from(FILTERS), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 200))
subscriber = st.tuples(
    st.sampled_from(LEVELS),
    st.lists(line, min_size=1, max_size=3, unique_by=lambda fields: fields[0]),
    st.sampled_from([0, 0, 3]),  # Topic Alias Maximum
)


def packets_of(mix, level, prefix):
    """Numbered by their payload; the last one goes to everybody."""
    found = []
    packet_ids = itertools.count(1)
    for topic, qos, retain, has_properties, (size, count) in mix:
        properties = {"content_type": "x"} if has_properties and level == MQTT_5 else {}
        for _ in range(count):
            payload = b"%d:" % len(found) + b"x" * size if size else b""
            packet_id = next(packet_ids) if qos else 0
            found.append(Publish(f"{prefix}/{topic}", payload, qos, retain, False, packet_id, properties))
    return [*found, Publish(f"{prefix}/end", b"end", 1, packet_id=next(packet_ids))]


def expected_of(index, level, packets, reference):
    for packet in packets:
        target = reference.match(packet.topic).get(index)
        if target is None or (target.no_local and index == 0):
            continue
        properties = dict(packet.properties) if level == MQTT_5 else {}
        if target.identifiers:
            properties["subscription_identifier"] = target.identifiers
        retain = packet.retain and target.retain_as_published
        yield packet.topic, packet.payload, min(packet.qos, target.qos), retain, False, properties


def received_by(client):
    """Everything up to the end, aliases resolved; acks of what it published itself are left out."""
    topics = {}
    payload = None
    while payload != b"end":
        packet = client.receive()
        if isinstance(packet, Puback | Pubrec):
            continue
        assert isinstance(packet, Publish), packet
        alias = packet.properties.pop("topic_alias", None)
        topic = topics.setdefault(alias, packet.topic) if alias else packet.topic
        if identifiers := packet.properties.get("subscription_identifier"):
            identifiers.sort()
        payload = packet.payload
        yield topic, payload, packet.qos, packet.retain, packet.dup, packet.properties


def connect(client, reference, index, lines, aliases, prefix):
    is_5 = client.level == MQTT_5
    client.connect(**({"topic_alias_maximum": aliases} if is_5 and aliases else {}))
    for topic_filter, qos, no_local, as_published, identifier in [*lines, ("end", 1, False, False, 0)]:
        options = Options(qos, is_5 and no_local, is_5 and as_published, identifier if is_5 else 0)
        reference.plain[f"{prefix}/{topic_filter}", index] = options
        client.subscribe(
            Subscription(f"{prefix}/{topic_filter}", qos, options.no_local, options.retain_as_published),
            **({"subscription_identifier": options.identifier} if options.identifier else {}),
        )


@pytest.mark.skipif(is_mosquitto(), reason="what subscriptions that overlap get is up to the broker")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from(LEVELS),
    st.lists(piece, max_size=10),
    st.lists(subscriber, min_size=1, max_size=4),
    st.lists(st.floats(0, 1), max_size=5),
)
def test_any_mix_of_packets_arrives_as_the_reference_says(broker, level, mix, subscribers, cuts):
    prefix = f"mix{next(PREFIXES)}"
    reference = ReferenceSubscriptions()
    clients = [
        Client(broker.address, f"{prefix}-{index}", level=other_level if index else level)
        for index, (other_level, _, _) in enumerate(subscribers)
    ]
    packets = packets_of(mix, level, prefix)
    stream = b"".join(encode(packet, level, client=True) for packet in packets)
    places = sorted({int(cut * len(stream)) for cut in cuts} | {0, len(stream)})
    try:
        for index, (client, (_, lines, aliases)) in enumerate(zip(clients, subscribers, strict=True)):
            connect(client, reference, index, lines, aliases, prefix)
        sender = threading.Thread(
            target=lambda: [clients[0].send(stream[start:end]) for start, end in itertools.pairwise(places)]
        )
        sender.start()
        for index, client in enumerate(clients):
            assert list(received_by(client)) == list(expected_of(index, client.level, packets, reference))
        sender.join(10)
        clients[0].send(*(Publish(f"{prefix}/{topic}", b"", retain=True) for topic in TOPICS))
        clients[0].ping()
    finally:
        for client in clients:
            client.close()
    broker.assert_healthy()
