"""The load generator against slow, obvious references: latencies, sequence numbers, templates, options, frames."""

from __future__ import annotations

import base64
import hashlib
import math
import random
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq._codec import Decoder
from tbmq._loadgen import STAMP_BYTES, Engine, Histogram, StreamChecker
from tbmq.loadgen import packets
from tbmq.loadgen.advice import explain
from tbmq.loadgen.options import Options, OptionsError, Scenario, Share, from_json, split, to_json
from tbmq.loadgen.result import add_up, make_result
from tbmq.loadgen.transports import BINARY, Transport, frame
from tbmq.loadgen.worker import make_engine
from tbmq.packets import Connect, Publish, Subscribe

# --- Histogram -------------------------------------------------------------------------------------------------------


def exact_percentile(values: list[int], percent: float) -> int:
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_sorted_list_to_one_percent_when_values_are_any(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    assert histogram.count == len(values)
    assert histogram.max == max(values)
    for percent in (1, 50, 99, 99.9, 100):
        exact = exact_percentile(values, percent)
        assert exact <= histogram.percentile(percent) <= exact * 1.01


def test_small_values_are_exact() -> None:
    histogram = Histogram()
    for value in range(256):
        histogram.record(value)
    assert [histogram.percentile(percent) for percent in (25, 50, 75, 100)] == [63, 127, 191, 255]


def test_an_empty_histogram_has_no_latency() -> None:
    assert Histogram().percentile(99) == 0
    assert Histogram().count == 0


def test_merged_histograms_are_one_of_all_values_when_processes_are_added_up() -> None:
    parts = [[random.Random(seed).randrange(10**9) for _ in range(500)] for seed in range(3)]
    merged, whole = Histogram(), Histogram()
    for values in parts:
        one = Histogram()
        for value in values:
            one.record(value)
            whole.record(value)
        merged.merge(one.dump())
    assert merged.dump() == whole.dump()


def test_a_bucket_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no bucket"):
        Histogram().merge({"max": 1, "counts": [[1_000_000, 1]]})


# --- Streams ---------------------------------------------------------------------------------------------------------


def reference_statistics(numbers: list[int]) -> dict[str, int]:
    """All that has arrived in a set; late is what comes after a higher number."""
    seen: set[int] = set()
    found = {"arrived": 0, "duplicates": 0, "late": 0}
    for number in numbers:
        if number in seen:
            found["duplicates"] += 1
            continue
        found["late"] += bool(seen) and number < max(seen)
        found["arrived"] += 1
        seen.add(number)
    return found


def checked(numbers: list[int], window: int = 4096) -> dict[str, int]:
    checker = StreamChecker(window)
    for number in numbers:
        checker.arrive(number)
    return checker.statistics()


@given(
    count=st.integers(1, 400),
    lost=st.sets(st.integers(0, 399)),
    doubled=st.sets(st.integers(0, 399)),
    moved=st.lists(st.tuples(st.integers(0, 399), st.integers(1, 100)), max_size=20),
)
def test_loss_duplicates_and_order_are_those_of_the_reference_when_a_stream_is_disturbed(
    count: int, lost: set[int], doubled: set[int], moved: list[tuple[int, int]]
) -> None:
    numbers = [number for number in range(count) if number not in lost]
    numbers = [number for number in numbers for _ in range(2 if number in doubled else 1)]
    for place, distance in moved:
        if numbers:
            number = numbers.pop(place % len(numbers))
            numbers.insert(min(place % (len(numbers) + 1) + distance, len(numbers)), number)
    assert checked(numbers) == reference_statistics(numbers)


@given(st.lists(st.integers(0, 3000), max_size=300))
def test_any_order_is_that_of_the_reference_when_it_fits_into_the_window(numbers: list[int]) -> None:
    assert checked(numbers) == reference_statistics(numbers)


def test_a_long_run_in_order_is_all_arrived_when_the_ring_comes_round_many_times() -> None:
    assert checked(list(range(10_000)), window=64) == {"arrived": 10_000, "duplicates": 0, "late": 0}


def test_a_gap_longer_than_the_ring_leaves_no_old_bits() -> None:
    checker = StreamChecker(128)
    for number in (*range(128), 1_000, *range(900, 1_000)):
        checker.arrive(number)
    assert checker.statistics() == {"arrived": 128 + 1 + 100, "duplicates": 0, "late": 100}


def test_what_is_older_than_the_ring_counts_as_a_duplicate() -> None:
    assert checked([0, 10_000, 1], window=64) == {"arrived": 2, "duplicates": 1, "late": 0}


@pytest.mark.parametrize("window", [0, 63, 100])
def test_a_window_that_is_no_power_of_two_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        StreamChecker(window)


# --- Templates -------------------------------------------------------------------------------------------------------


def engine_for(options: Options, publishers: int = 3, first: int = 0) -> Engine:
    return make_engine(options, Share(index=0, publishers=publishers, first_publisher=first))


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_filled_messages_are_packets_with_topic_number_and_sequence(level: int, qos: int) -> None:
    options = Options(scenario=Scenario.P2P, topic="a/b", qos=qos, protocol_level=level, payload_bytes=40)
    engine = engine_for(options, first=7)
    engine.start(at_ns=time.monotonic_ns(), sample_every=4)
    data = engine.messages(2, 5) + engine.messages(2, 5)
    decoder = Decoder(client=True, protocol_level=level)  # as the subscriber of a broker that changes nothing
    found = [packet for packet in decoder.feed(data) if isinstance(packet, Publish)]
    assert decoder.pending_bytes == 0
    assert [packet.topic for packet in found] == ["a/b/0000009"] * 10
    assert [packet.packet_id for packet in found] == (list(range(1, 11)) if qos else [0] * 10)
    words = [struct.unpack("=QQ", packet.payload[:STAMP_BYTES]) for packet in found]
    assert [word[0] >> 56 for word in words] == [0xB7] * 10
    assert [word[0] >> 36 & 0xFFFFF for word in words] == [9] * 10
    assert [word[0] & 0xFFFFFFFFF for word in words] == list(range(10))
    assert [word[1] > 0 for word in words] == [number % 4 == 0 for number in range(10)]
    assert engine.sent_by_publisher() == [0, 0, 10]


def test_times_are_those_of_the_schedule_when_there_is_a_rate() -> None:
    options = Options(scenario=Scenario.P2P, publishers=10, subscribers=10, rate=1_000)
    engine = engine_for(options, publishers=10)
    engine.start(at_ns=5_000_000_000, rate=options.rate)
    data = engine.messages(3, 4)
    size = len(data) // 4
    times = [struct.unpack("=Q", data[(k + 1) * size - 64 + 8 : (k + 1) * size - 64 + 16])[0] for k in range(4)]
    assert times == [5_000_000_000 + (k * 10 + 3) * 1_000_000 for k in range(4)]


def test_the_window_bounds_what_is_in_flight() -> None:
    engine = engine_for(Options(scenario=Scenario.P2P, qos=1, window=5))
    engine.start(at_ns=0)
    engine.messages(0, 5)
    with pytest.raises(ValueError, match="window is full"):
        engine.messages(0, 1)
    assert engine.statistics()["inflight"] == 5


@pytest.mark.parametrize(
    ("scenario", "topic", "topic_filter"),
    [
        (Scenario.P2P, "x/~~~~~~~", "x/~~~~~~~"),
        (Scenario.FANIN, "x/~~~~~~~", "x/#"),
        (Scenario.FANOUT, "x/all", "x/all"),
        (Scenario.SHARED, "x/~~~~~~~", "$share/bench/x/#"),
    ],
)
def test_publishers_and_subscribers_meet_in_every_scenario(scenario: Scenario, topic: str, topic_filter: str) -> None:
    made = packets.make(Options(scenario=scenario, topic="x", username="u", password="p"))
    decoder = Decoder()
    connect, subscribe, publish = decoder.feed(made.connect[0] + made.subscribe[0] + made.publish[0])
    assert isinstance(connect, Connect) and isinstance(subscribe, Subscribe) and isinstance(publish, Publish)
    assert (connect.username, connect.password, connect.clean_start) == ("u", b"p", True)
    assert (publish.topic, subscribe.subscriptions[0].topic_filter) == (topic, topic_filter)
    for packet, at in (made.connect, made.subscribe, made.publish):
        assert at == packet.find(b"~~~~~~~")


# --- Options and results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_every_client_is_in_one_process_when_they_are_split(processes: int) -> None:
    options = Options(scenario=Scenario.SHARED, publishers=10, subscribers=4, processes=processes)
    shares = split(options)
    publishers = [n for share in shares for n in range(share.first_publisher, share.first_publisher + share.publishers)]
    subscribers = [
        n for share in shares for n in range(share.first_subscriber, share.first_subscriber + share.subscribers)
    ]
    assert (publishers, subscribers) == (list(range(10)), list(range(4)))


def test_a_plan_survives_the_pipe() -> None:
    options = Options(scenario=Scenario.CONN, clients=3, sources=("127.0.0.2",), cores=(1,), password="p", username="u")
    assert from_json(to_json(options, Share(index=2))) == (options, Share(index=2))


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"qos": 3}, "qos is 3"),
        ({"publishers": 0}, "at least one publisher"),
        ({"publishers": 2}, "--pairs"),
        ({"topic": "a/#"}, "wildcard"),
        ({"password": "p"}, "user name"),
        ({"is_insecure": True}, "--tls"),
        ({"rate": -1.0}, "negative"),
        ({"scenario": Scenario.IDLE}, "clients is 0"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_words(given_options: dict[str, object], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        Options(**{"scenario": Scenario.P2P, **given_options})  # type: ignore[arg-type]


def finished(**changes: object) -> dict[str, object]:
    engine = engine_for(Options(scenario=Scenario.P2P))
    measured = {"time_ns": 2 * 10**9, "sent": 10, "received": 10, "connected": 0}
    return {**engine.statistics(), "measured": measured, "histogram": Histogram().dump(), **changes}


def test_lost_messages_fail_the_run_when_qos_is_above_0() -> None:
    parts = [finished(sent=10, received=10, arrived=9, duplicates=1, ready=3), finished(ready=3)]
    for qos, is_ok in ((0, True), (1, False)):
        result = make_result(Options(scenario=Scenario.P2P, qos=qos), parts, None, None, None)
        assert (result.lost, result.duplicates, result.sent_per_s) == (1, 1, 10.0)
        assert result.is_ok is is_ok, result.problems


def test_a_copy_for_every_subscriber_is_expected_when_fanned_out() -> None:
    options = Options(scenario=Scenario.FANOUT, publishers=1, subscribers=4)
    result = make_result(options, [finished(sent=5, received=18, arrived=18, ready=3)], None, None, None)
    assert (result.expected, result.lost) == (20, 2)


def test_failures_of_all_processes_are_added_up() -> None:
    parts = [finished(failures=[["refused", 5, 2]]), finished(failures=[["refused", 5, 1], ["closed", 0, 1]])]
    assert add_up(parts).failures == {("refused", 5): 3, ("closed", 0): 1}


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("connect_failed", 111, "Nothing listens there"),
        ("connect_failed", 99, "--source"),
        ("refused", 5, "--username"),
        ("not_subscribed", 1, "--qos 1"),
        ("transport_failed", "CERTIFICATE_VERIFY_FAILED", "--ca"),
        ("timed_out", 3, "CONNACK"),
    ],
)
def test_a_failure_says_what_to_do(kind: str, code: int | str, text: str) -> None:
    assert text in explain(Options(scenario=Scenario.P2P), kind, code)


# --- WebSocket -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_is_masked_with_zero_and_has_the_right_length(size: int) -> None:
    made = frame(BINARY, b"x" * size)
    length_bytes = 0 if size < 126 else 2 if size < 65_536 else 8
    assert made[0] == 0x82
    assert made[1] & 0x80
    assert made[2 + length_bytes : 6 + length_bytes] == b"\0\0\0\0"
    assert made[6 + length_bytes :] == b"x" * size


def test_frames_come_out_whole_when_they_arrive_byte_by_byte() -> None:
    transport = Transport(Options(scenario=Scenario.P2P, websocket=True), None)
    request = transport.start()
    key = next(line for line in request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key")).split()[1]
    stream = (
        b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Accept: "
        + accept_of(key)
        + b"\r\n\r\n\x82\x03abc\x89\x01!\x02\x01d\x80\x01e\x82\x7e\x00\x80"
        + b"f" * 128
    )
    data = reply = b""
    for at in range(len(stream)):
        part, answer = transport.receive(stream[at : at + 1])
        data += part
        reply += answer
    assert transport.is_ready
    assert data == b"abcde" + b"f" * 128
    assert reply == frame(0xA, b"!")


def accept_of(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
