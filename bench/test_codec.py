"""The codec: `scan` is the C loop of the hot path; `Decoder.feed` and `encode` build and read packet objects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tbmq._codec import Decoder, ScanResult, encode, scan
from tbmq.packets import Connect, Packet, Puback, Publish, Subscribe, Subscription, Will

PACKETS = 1000  # in a stream: the call itself does not count, and the bytes are as many as a busy socket gives at once
TOPIC = "plant/7/temp"  # 12 bytes: 2 of header, 2 + 12 of topic, 48 of payload make 64
PAYLOAD = b"x" * 48

PUBLISH_V5 = Publish(
    TOPIC,
    PAYLOAD,
    properties={
        "message_expiry_interval": 60,
        "content_type": "application/json",
        "user_property": [("trace", "0123456789abcdef")],
    },
)
CONNECT = Connect(
    client_id="device-000042",
    keep_alive_s=60,
    username="device",
    password=b"secret",
    will=Will("plant/7/state", b"offline", qos=1, retain=True),
    properties={"session_expiry_interval": 3600, "receive_maximum": 100},
)
SUBSCRIBE = Subscribe(1, [Subscription("plant/+/temp", 1), Subscription("plant/7/#", 0), Subscription("alarm", 2)])


def measure_scan(benchmark: BenchmarkFixture, packets: Sequence[Packet], level: int) -> None:
    stream = b"".join(encode(packet, level, client=True) for packet in packets)
    publishes = [packet for packet in packets if isinstance(packet, Publish)]
    assert scan(stream, level) == ScanResult(
        packets=len(packets),
        publishes=len(publishes),
        payload_bytes=sum(len(packet.payload) for packet in publishes),
        consumed_bytes=len(stream),
    )
    benchmark.extra_info["operations"] = len(packets)
    benchmark(scan, stream, level)


def measure_feed(benchmark: BenchmarkFixture, packet: Packet) -> None:
    stream = encode(packet, 5, client=True) * PACKETS
    decoder = Decoder(protocol_level=5)
    assert decoder.feed(stream) == [packet] * PACKETS
    benchmark.extra_info.update(operations=PACKETS, calibration="objects")
    benchmark(decoder.feed, stream)


def measure_encode(benchmark: BenchmarkFixture, packet: Packet, *, client: bool = False) -> None:
    def encode_all() -> None:
        for _ in range(PACKETS):
            encode(packet, 5, client=client)

    decoder = Decoder(client=not client, protocol_level=0 if client else 5)
    assert decoder.feed(encode(packet, 5, client=client)) == [packet]
    benchmark.extra_info.update(operations=PACKETS, calibration="objects")
    benchmark(encode_all)


# --- scan ------------------------------------------------------------------------------------------------------------


def test_scan_publish_qos0(benchmark: BenchmarkFixture) -> None:
    packet = Publish(TOPIC, PAYLOAD)
    assert len(encode(packet, 4)) == 64
    measure_scan(benchmark, [packet] * PACKETS, 4)


def test_scan_publish_qos0_v5(benchmark: BenchmarkFixture) -> None:
    packet = Publish(TOPIC, PAYLOAD[1:])
    assert len(encode(packet, 5)) == 64
    measure_scan(benchmark, [packet] * PACKETS, 5)


def test_scan_publish_v5_with_properties(benchmark: BenchmarkFixture) -> None:
    measure_scan(benchmark, [PUBLISH_V5] * PACKETS, 5)


@pytest.mark.parametrize("level", [4, 5], ids=["v4", "v5"])
def test_scan_qos1_and_acks(benchmark: BenchmarkFixture, level: int) -> None:
    """A client that publishes with QoS 1 and acknowledges what it receives, in turn."""
    packets: list[Packet] = []
    for packet_id in range(1, PACKETS // 2 + 1):
        packets += [Publish(TOPIC, PAYLOAD, qos=1, packet_id=packet_id), Puback(packet_id)]
    measure_scan(benchmark, packets, level)


# --- Decoder.feed ----------------------------------------------------------------------------------------------------


def test_feed_connect(benchmark: BenchmarkFixture) -> None:
    """A new decoder for each CONNECT, as for each connection."""
    data = encode(CONNECT, 5, client=True)

    def connect_all() -> None:
        for _ in range(PACKETS):
            Decoder().feed(data)

    assert Decoder().feed(data) == [CONNECT]
    benchmark.extra_info.update(operations=PACKETS, calibration="objects")
    benchmark(connect_all)


def test_feed_subscribe(benchmark: BenchmarkFixture) -> None:
    measure_feed(benchmark, SUBSCRIBE)


def test_feed_publish(benchmark: BenchmarkFixture) -> None:
    measure_feed(benchmark, Publish(TOPIC, PAYLOAD))


# --- encode ----------------------------------------------------------------------------------------------------------


def test_encode_publish(benchmark: BenchmarkFixture) -> None:
    measure_encode(benchmark, Publish(TOPIC, PAYLOAD))


def test_encode_publish_with_properties(benchmark: BenchmarkFixture) -> None:
    measure_encode(benchmark, PUBLISH_V5)


def test_encode_puback(benchmark: BenchmarkFixture) -> None:
    measure_encode(benchmark, Puback(1))


def test_encode_connect(benchmark: BenchmarkFixture) -> None:
    measure_encode(benchmark, CONNECT, client=True)
