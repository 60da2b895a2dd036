"""The decoder over time: pieces, errors that stay, limits, memory and time that grow no faster than the bytes."""

from __future__ import annotations

import array
import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tbmq import _codec
from tbmq.errors import PacketError
from tbmq.packets import Connect, Pingreq, Puback, Publish
from tbmq.protocol import ReasonCode
from tests.reference.implementations import CODECS, NATIVE, Codec, chunks_of, decode
from tests.vectors import ALL, Vector
from tests.vectors.vector import wire

codecs = pytest.mark.parametrize("codec", CODECS, ids=str)
STATM = Path("/proc/self/statm")
IS_ASAN = os.environ.get("TBMQ_ASAN") == "1"
measures_memory = pytest.mark.skipif(
    IS_ASAN or not STATM.exists(), reason="reads /proc; AddressSanitizer keeps freed memory for a while"
)
measures_time = pytest.mark.skipif(
    IS_ASAN, reason="for AddressSanitizer a decoder copies its pending bytes at each call"
)
PAGE_BYTES = 4096
MEGABYTE = 1 << 20

CONNECT_5 = wire("10 0E 0004 'MQTT' 05 02 0000 00 0001 'c'")
CONNECT_311 = wire("10 0D 0004 'MQTT' 04 02 0000 0001 'c'")
PUBACK = wire("40 02 0001")
WILDCARD = wire("30 04 0001 '#' 00")  # 0x90
ANNOUNCES_256_MB = wire("30 FF FF FF 7F")


def error_of(call: Callable[[], object]) -> PacketError:
    with pytest.raises(PacketError) as caught:
        call()
    return caught.value


# --- Pieces ----------------------------------------------------------------------------------------------------------


@codecs
def test_stream_gives_the_same_when_cut_at_random(codec: Codec) -> None:
    """All vectors of a kind in a row, up to the first bad one."""
    rng = random.Random(7)
    for client in (False, True):
        for level in (3, 4, 5):
            members = [v for v in ALL if (v.client, v.level) == (client, level) and not v.limits and len(v.data) < 500]
            for _ in range(40):
                chosen = [v for v in rng.sample(members, 12) if not v.needs_more]
                stream = b"".join(vector.data for vector in chosen)
                whole = decode(codec.decoder(client=client, protocol_level=level), [stream])
                assert whole.error == next((v.error for v in chosen if v.error is not None), None)
                cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(1, 20)))
                chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
                assert decode(codec.decoder(client=client, protocol_level=level), chunks) == whole, stream.hex()


@codecs
def test_packet_is_returned_by_the_call_that_completes_it(codec: Codec) -> None:
    decoder = codec.decoder(protocol_level=4)
    assert decoder.feed(PUBACK[:3]) == []
    assert decoder.pending_bytes == 3
    assert decoder.feed(PUBACK[3:] + PUBACK + PUBACK[:1]) == [Puback(1), Puback(1)]
    assert decoder.pending_bytes == 1
    assert decoder.feed(PUBACK[1:]) == [Puback(1)]
    assert decoder.pending_bytes == 0
    assert decoder.feed(b"") == []


@codecs
def test_level_is_learned_from_connect(codec: Codec) -> None:
    for data, level in ((CONNECT_311, 4), (CONNECT_5, 5)):
        decoder = codec.decoder()
        assert decoder.protocol_level == 0
        assert decoder.feed(data + PUBACK) == [Connect("c", level), Puback(1)]
        assert decoder.protocol_level == level


@codecs
def test_level_and_largest_packet_can_be_set_later(codec: Codec) -> None:
    decoder = codec.decoder(client=True, protocol_level=4)
    decoder.protocol_level = 5
    assert decoder.protocol_level == 5
    assert decoder.feed(wire("E0 01 8B"))[0].reason_code == 0x8B  # MQTT 5 only
    decoder.max_packet_bytes = 10
    assert decoder.max_packet_bytes == 10
    assert error_of(lambda: decoder.feed(wire("30 09"))).reason_code == ReasonCode.PACKET_TOO_LARGE


@codecs
@pytest.mark.parametrize("arguments", [{"client": True}, {"protocol_level": 2}, {"client": True, "protocol_level": 6}])
def test_unknown_level_is_refused(codec: Codec, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        codec.decoder(**arguments)


# --- Errors ----------------------------------------------------------------------------------------------------------


@codecs
def test_packets_before_an_error_are_returned_first(codec: Codec) -> None:
    decoder = codec.decoder(protocol_level=4)
    assert decoder.feed(PUBACK + PUBACK + WILDCARD + PUBACK) == [Puback(1), Puback(1)]
    assert error_of(lambda: decoder.feed(b"")).reason_code == ReasonCode.TOPIC_NAME_INVALID


@codecs
def test_error_is_raised_at_once_when_no_packet_is_ahead(codec: Codec) -> None:
    decoder = codec.decoder(protocol_level=4)
    assert decoder.feed(PUBACK) == [Puback(1)]
    assert error_of(lambda: decoder.feed(WILDCARD)).reason_code == ReasonCode.TOPIC_NAME_INVALID


@codecs
def test_error_stays_whatever_is_fed_later(codec: Codec) -> None:
    decoder = codec.decoder(protocol_level=4)
    first = error_of(lambda: decoder.feed(WILDCARD))
    for data in (b"", PUBACK, WILDCARD, wire("00"), b"x" * 100_000):
        again = error_of(lambda data=data: decoder.feed(data))
        assert (again.reason_code, again.detail, str(again)) == (first.reason_code, first.detail, str(first))
    assert decoder.pending_bytes <= len(WILDCARD)
    assert isinstance(first.reason_code, ReasonCode)


@codecs
def test_error_text_never_holds_bytes_of_the_peer(codec: Codec) -> None:
    secret = "Geheim"
    for level, data in [
        (0, "10 15 0004 'MQTT' 04 02 0000 0006 'Geheim' 'XYZ'"),
        (0, "10 0F 0006 'Geheim' 04 02 0000 0001 'c'"),
        (0, "10 1B 0004 'MQTT' 04 42 0000 0001 'c' 0006 'Geheim' 'XYZ' 'XYZ'"),
        (4, "30 0A 0007 'Geheim#' 00"),
        (5, "30 11 0001 't' 0D 08 0007 'Geheim#' 01 02 00"),
        (5, "82 0E 0001 00 0006 'Geheim' 30 0000"),
    ]:
        decoder = codec.decoder(protocol_level=level)
        error = error_of(lambda decoder=decoder, data=data: decoder.feed(wire(data)))
        assert secret not in str(error) and secret not in error.detail, data


# --- Limits ----------------------------------------------------------------------------------------------------------


@codecs
def test_large_packet_is_refused_by_its_header(codec: Codec) -> None:
    for header, limit in (("30 7E", 127), ("30 80 01", 130), ("30 FF FF FF 7F", 268_435_459)):
        decoder = codec.decoder(protocol_level=4, max_packet_bytes=limit)
        for byte in chunks_of(wire(header)[:-1], 1):
            assert decoder.feed(byte) == []
        assert error_of(lambda d=decoder, h=header: d.feed(wire(h)[-1:])).reason_code == ReasonCode.PACKET_TOO_LARGE
        decoder = codec.decoder(protocol_level=4, max_packet_bytes=limit + 1)
        assert decoder.feed(wire(header)) == []


@codecs
def test_limit_holds_for_the_next_packet_when_it_changes(codec: Codec) -> None:
    decoder = codec.decoder(max_packet_bytes=20)
    assert len(decoder.feed(CONNECT_311)) == 1
    decoder.max_packet_bytes = 100
    large = wire("30 62 0001 't' 78*95")
    assert decoder.feed(large) == [Publish("t", b"x" * 95)]
    decoder.max_packet_bytes = 99
    assert error_of(lambda: decoder.feed(large)).reason_code == ReasonCode.PACKET_TOO_LARGE


# --- Memory ----------------------------------------------------------------------------------------------------------


def memory_bytes() -> tuple[int, int]:
    """Address space and resident memory of this process."""
    size, resident, *_ = STATM.read_text().split()
    return int(size) * PAGE_BYTES, int(resident) * PAGE_BYTES


@measures_memory
@codecs
def test_nothing_is_allocated_for_what_a_header_announces(codec: Codec) -> None:
    """Address space, not only resident memory: pages that nobody touched yet would not show there."""
    before, _ = memory_bytes()
    decoders = [codec.decoder(protocol_level=4) for _ in range(200)]
    for decoder in decoders:
        assert decoder.feed(ANNOUNCES_256_MB) == []
        assert decoder.feed(b"\0") == []
        assert decoder.pending_bytes == len(ANNOUNCES_256_MB) + 1
    after, _ = memory_bytes()
    assert after - before < 64 * MEGABYTE


@measures_memory
@pytest.mark.parametrize("piece_bytes", [100, 4096, 65_536])
def test_pending_bytes_take_a_small_multiple_of_what_was_fed(piece_bytes: int) -> None:
    decoder = NATIVE.decoder(protocol_level=4)
    decoder.feed(ANNOUNCES_256_MB)
    piece = b"x" * piece_bytes
    before, resident_before = memory_bytes()
    fed = 0
    while fed < 24 * MEGABYTE:
        decoder.feed(piece)
        fed += piece_bytes
    after, resident_after = memory_bytes()
    assert decoder.pending_bytes == fed + len(ANNOUNCES_256_MB)
    assert after - before < 3 * fed + 16 * MEGABYTE
    assert resident_after - resident_before < 3 * fed + 16 * MEGABYTE


@measures_memory
def test_memory_comes_back_when_decoders_end() -> None:
    def leave_some_pending() -> None:
        for vector in ALL:
            if len(vector.data) < 2000:
                for end in (len(vector.data), len(vector.data) - 1):
                    decode(NATIVE.decoder(**vector.decoder_arguments), [vector.data[:end]])
        NATIVE.decoder(protocol_level=4).feed(ANNOUNCES_256_MB + b"x" * 100_000)

    for _ in range(3):
        leave_some_pending()
    _, before = memory_bytes()
    for _ in range(30):
        leave_some_pending()
    _, after = memory_bytes()
    assert after - before < 8 * MEGABYTE


# --- Time ------------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def packet(first: str, body: bytes) -> bytes:
    return wire(first) + varint(len(body)) + body


def with_user_properties(count: int) -> bytes:
    section = wire("26 0001 'k' 0001 'v'") * count
    return packet("30", wire("0001 't'") + varint(len(section)) + section)


def seconds_to_feed(level: int, chunks: list[bytes]) -> float:
    """Without the garbage collector: it walks all objects of the process again and again, not the codec's work."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(5):
            decoder = NATIVE.decoder(protocol_level=level, max_properties=10_000_000, max_topic_levels=1_000_000)
            start = time.process_time()
            for chunk in chunks:
                decoder.feed(chunk)
            best = min(best, time.process_time() - start)
    finally:
        gc.enable()
    return best


TWICE_AS_LARGE: dict[str, Callable[[int], tuple[int, list[bytes]]]] = {
    # name: factor 1 or 2 -> level, pieces
    "user properties": lambda n: (5, [with_user_properties(40_000 * n)]),
    "user properties in pieces": lambda n: (5, chunks_of(with_user_properties(40_000 * n), 64)),
    "lines of SUBSCRIBE": lambda n: (4, [packet("82", wire("0001") + wire("0001 'a' 00") * 60_000 * n)]),
    "filters of UNSUBSCRIBE": lambda n: (4, [packet("A2", wire("0001") + wire("0001 'a'") * 100_000 * n)]),
    "levels of a topic": lambda n: (4, [packet("30", wire("7FFF 2F*32767" if n == 1 else "FFFF 2F*65535"))] * 200),
    "one packet byte by byte": lambda n: (4, chunks_of(packet("30", wire("0001 't'") + b"x" * 200_000 * n), 1)),
    "small packets in one piece": lambda n: (4, [PUBACK * 40_000 * n]),
    "small packets behind a started one": lambda n: (4, [PUBACK[:1], PUBACK[1:] + PUBACK * 40_000 * n]),
}


@measures_time
@pytest.mark.parametrize("name", TWICE_AS_LARGE)
def test_twice_the_bytes_take_about_twice_the_time(name: str) -> None:
    """Quadratic work would take four times as long. Machines are noisy, so a bad figure gets two more chances."""
    ratios = []
    for _ in range(3):
        once, twice = (seconds_to_feed(*TWICE_AS_LARGE[name](factor)) for factor in (1, 2))
        ratios.append(twice / max(once, 1e-4))
        if ratios[-1] <= 3:
            return
    pytest.fail(f"{name}: twice the bytes took {ratios} times as long")


# --- Buffers ---------------------------------------------------------------------------------------------------------


@codecs
@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(bytearray(data)),
        lambda data: memoryview(b"ab" + data + b"cd")[2:-2],
        lambda data: array.array("B", data),
    ],
    ids=["bytes", "bytearray", "memoryview", "memoryview of bytearray", "slice of memoryview", "array"],
)
def test_any_buffer_can_be_fed(codec: Codec, wrap: Callable[[bytes], object]) -> None:
    decoder = codec.decoder(protocol_level=4)
    assert decoder.feed(wrap(PUBACK + wire("C000") + PUBACK[:2])) == [Puback(1), Pingreq()]
    assert decoder.feed(wrap(PUBACK[2:])) == [Puback(1)]


@codecs
def test_buffer_belongs_to_its_owner_after_the_call(codec: Codec) -> None:
    data = bytearray(wire("30 05 0001 't' 'hi' 30 05 0001"))
    decoder = codec.decoder(protocol_level=4)
    packets = decoder.feed(data)
    data[:] = b"\xff" * len(data)
    data.clear()  # fails while somebody holds the buffer
    assert packets == [Publish("t", b"hi")]
    assert decoder.feed(b"uyo") == [Publish("u", b"yo")]


@pytest.mark.parametrize("data", ["text", 5, None, [0x40]], ids=repr)
def test_anything_but_a_buffer_is_a_type_error(data: object) -> None:
    with pytest.raises(TypeError):
        NATIVE.decoder(protocol_level=4).feed(data)


# --- scan ------------------------------------------------------------------------------------------------------------

JUDGED_IN_FULL = {3, 4, 5, 6, 7}  # PUBLISH and the four acks; of the others scan reads the header


def scannable(vector: Vector) -> bool:
    return vector.level >= 3 and not vector.limits and vector.data != b"" and vector.data[0] >> 4 in JUDGED_IN_FULL


@pytest.mark.parametrize("vector", list(filter(scannable, ALL)), ids=lambda vector: vector.name)
def test_scan_counts_what_feed_returns(vector: Vector) -> None:
    outcome = decode(NATIVE.decoder(**vector.decoder_arguments), [vector.data])
    if outcome.error is not None:
        error = error_of(lambda: _codec.scan(vector.data, vector.level, client=vector.client))
        assert error.reason_code == outcome.error
        return
    publishes = [packet for packet in outcome.packets if isinstance(packet, Publish)]
    assert _codec.scan(vector.data, vector.level, client=vector.client) == (
        len(outcome.packets),
        len(publishes),
        sum(len(publish.payload) for publish in publishes),
        len(vector.data) - outcome.pending_bytes,
    )


def test_scan_counts_a_long_mixed_stream() -> None:
    rng = random.Random(11)
    for client in (False, True):
        for level in (3, 4, 5):
            good = [v for v in ALL if (v.client, v.level) == (client, level) and v.packet is not None and not v.limits]
            stream = b"".join(rng.choice(good).data for _ in range(500)) + PUBACK[:3]
            outcome = decode(NATIVE.decoder(client=client, protocol_level=level), [stream])
            publishes = [packet for packet in outcome.packets if isinstance(packet, Publish)]
            for data in (stream, bytearray(stream), memoryview(stream)):
                result = _codec.scan(data, level, client=client)
                assert (result.packets, result.publishes) == (len(outcome.packets), len(publishes))
                assert result.payload_bytes == sum(len(publish.payload) for publish in publishes)
                assert result.consumed_bytes == len(stream) - 3
