"""WebSocket: the compiled frame reader against the reference and every rule, and the HTTP request before it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbmq._websocket import FrameReader, encode_frame
from tbmq.config.model import WebSocketOptions
from tbmq.net.websocket import MAX_REQUEST_BYTES, answer, is_origin_allowed
from tests.reference.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Outcome, frame, read_stream

MAX_FRAME_BYTES = 70_000


def read(data: bytes, cuts: list[int] | None = None, max_frame_bytes: int = MAX_FRAME_BYTES) -> Outcome:
    """Feeds the stream in pieces, cut at these places."""
    reader = FrameReader(max_frame_bytes)
    outcome = Outcome()
    edges = [0, *sorted(cuts or []), len(data)]
    for start, end in zip(edges, edges[1:], strict=False):
        buffer = bytearray(data[start:end])
        count = reader.read(buffer, len(buffer))
        outcome.plain += buffer[:count]
        ping = reader.take_ping()
        outcome.last_ping = outcome.last_ping if ping is None else ping
    outcome.close_code, outcome.is_closed_by_peer = reader.close_code, reader.is_closed_by_peer
    assert bool(reader.fault) == (reader.close_code != 0 and not reader.is_closed_by_peer)
    return outcome


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


GOOD = {
    "empty frame": (frame(BINARY), b""),
    "short frame": (frame(BINARY, b"abc"), b"abc"),
    "125 bytes": (frame(BINARY, b"a" * 125), b"a" * 125),
    "126 bytes": (frame(BINARY, b"a" * 126), b"a" * 126),
    "65535 bytes": (frame(BINARY, b"ab" * 32_767 + b"c"), b"ab" * 32_767 + b"c"),
    "65536 bytes": (frame(BINARY, b"ab" * 32_768), b"ab" * 32_768),
    "largest frame": (frame(BINARY, bytes(MAX_FRAME_BYTES)), bytes(MAX_FRAME_BYTES)),
    "mask of zeros": (frame(BINARY, b"abcdefghijk", mask=bytes(4)), b"abcdefghijk"),
    "many frames": (
        b"".join(frame(BINARY, bytes([n]) * n) for n in range(50)),
        b"".join(bytes([n]) * n for n in range(50)),
    ),
    "fragments": (
        frame(BINARY, b"a", fin=False)
        + frame(CONTINUATION, fin=False)
        + frame(CONTINUATION, b"b")
        + frame(BINARY, b"c"),
        b"abc",
    ),
    "message over the largest frame": (
        frame(BINARY, bytes(60_000), fin=False) + frame(CONTINUATION, bytes(60_000)),
        bytes(120_000),
    ),
    "control frames between fragments": (
        frame(BINARY, b"a", fin=False) + frame(PING, b"x") + frame(PONG, b"y") + frame(CONTINUATION, b"b"),
        b"ab",
    ),
    "largest ping": (frame(PING, b"p" * 125) + frame(BINARY, b"a"), b"a"),
}

BAD = {
    "text": (frame(TEXT, b"hello"), 1003),
    "text in fragments": (frame(TEXT, b"hello", fin=False), 1003),
    "not masked": (frame(BINARY, b"a", mask=None), 1002),
    "close not masked": (frame(CLOSE, mask=None), 1002),
    "first reserved bit": (frame(BINARY, b"a", reserved=4), 1002),
    "second reserved bit": (frame(BINARY, b"a", reserved=2), 1002),
    "third reserved bit": (frame(PING, b"a", reserved=1), 1002),
    **{f"opcode {n:X}": (frame(n, b"a"), 1002) for n in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    "ping in fragments": (frame(PING, b"a", fin=False), 1002),
    "close in fragments": (frame(CLOSE, fin=False), 1002),
    "ping of 126 bytes": (frame(PING, b"a" * 126), 1002),
    "ping of 65536 bytes": (frame(PING, length=65_536), 1002),
    "fragment without a beginning": (frame(CONTINUATION, b"a"), 1002),
    "message inside another": (frame(BINARY, b"a", fin=False) + frame(BINARY, b"b"), 1002),
    "2 bytes for 125": (frame(BINARY, b"a" * 125, length_bytes=2), 1002),
    "8 bytes for 65535": (frame(BINARY, b"a" * 65_535, length_bytes=8), 1002),
    "length with the highest bit": (frame(BINARY, length=1 << 63), 1002),
    "one byte over the largest frame": (frame(BINARY, length=MAX_FRAME_BYTES + 1), 1009),
    "longest length": (frame(BINARY, length=(1 << 63) - 1), 1009),
    "fragment over the largest frame": (frame(BINARY, fin=False) + frame(CONTINUATION, length=1 << 40), 1009),
    "close with one byte": (frame(CLOSE, b"a"), 1002),
    **{
        f"close with {code}": (close(code), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65_535)
    },
    "close with a reason that is not UTF-8": (close(1000, b"\xff"), 1007),
}


@pytest.mark.parametrize(("data", "plain"), GOOD.values(), ids=GOOD)
def test_payloads_are_a_stream_when_frames_are_good(data, plain):
    assert read(data).plain == plain
    assert read(data).close_code == 0


@pytest.mark.parametrize(("data", "close_code"), BAD.values(), ids=BAD)
def test_reader_stops_with_the_right_code_when_a_frame_is_bad(data, close_code):
    outcome = read(frame(BINARY, b"before") + frame(PING, b"p") + data + frame(BINARY, b"after"))
    assert outcome.plain.startswith(b"before")
    assert b"after" not in outcome.plain
    assert (outcome.close_code, outcome.is_closed_by_peer) == (close_code, False)


@pytest.mark.parametrize("data", [*(data for data, _ in GOOD.values()), *(data for data, _ in BAD.values())])
def test_nothing_changes_when_a_stream_is_cut_anywhere(data):
    whole = read(data)
    assert whole == read_stream(data, MAX_FRAME_BYTES)
    places = range(len(data)) if len(data) < 300 else [*range(40), *range(len(data) - 40, len(data))]
    for place in places:
        assert read(data, [place]) == whole
    if len(data) < 300:
        assert read(data, list(range(len(data)))) == whole


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999])
def test_close_is_echoed_when_the_peer_closes(code):
    outcome = read(close(code, "bye ü".encode()) + frame(TEXT, b"x"))
    assert (outcome.close_code, outcome.is_closed_by_peer) == (code, True)


def test_close_is_normal_when_the_peer_gives_no_code():
    outcome = read(frame(CLOSE))
    assert (outcome.close_code, outcome.is_closed_by_peer) == (1000, True)


def test_only_the_last_ping_is_answered_when_many_came():
    reader = FrameReader(100)
    buffer = bytearray(b"".join(frame(PING, b"%d" % n) for n in range(10)))
    assert reader.read(buffer, len(buffer)) == 0
    assert reader.take_ping() == b"9"
    assert reader.take_ping() is None


def test_announced_length_is_not_checked_against_the_bound_when_it_is_a_control_frame():
    assert read(frame(PING, b"12345"), max_frame_bytes=2).last_ping == b"12345"
    assert read(frame(BINARY, b"123"), max_frame_bytes=2).close_code == 1009


def test_rest_of_the_buffer_is_left_alone_when_size_is_smaller():
    buffer = bytearray(frame(BINARY, b"abc") + b"\xff" * 20)
    assert FrameReader(10).read(buffer, 9) == 3
    assert buffer[:3] == b"abc" and buffer[9:] == b"\xff" * 20
    with pytest.raises(ValueError):
        FrameReader(10).read(bytearray(3), 4)
    with pytest.raises(BufferError):
        FrameReader(10).read(b"abc", 3)


opcodes = st.sampled_from([BINARY] * 8 + [CONTINUATION] * 8 + [PING, PONG] * 3 + [CLOSE, TEXT, 3, 15])
frames = st.builds(
    frame,
    opcodes,
    st.binary(max_size=300),
    fin=st.sampled_from([True] * 3 + [False]),
    reserved=st.sampled_from([0] * 30 + [1]),
    mask=st.binary(min_size=4, max_size=4) | st.just(bytes(4)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(frames, max_size=12), st.binary(max_size=20), st.lists(st.integers(0, 4_000), max_size=12))
def test_compiled_reader_agrees_with_the_reference_on_random_streams(sequence, tail, cuts):
    data = b"".join(sequence) + tail
    assert read(data, [cut for cut in cuts if cut <= len(data)], 250) == read_stream(data, 250)


def test_unmasking_is_right_for_every_phase_and_length():
    numbers = random.Random(1)
    for size in [*range(70), 1_000, 4_099]:
        payload, mask = numbers.randbytes(size), numbers.randbytes(4)
        data = frame(BINARY, payload, mask=mask)
        cuts = sorted(numbers.randrange(len(data) + 1) for _ in range(5))
        assert read(data, cuts).plain == payload


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_encoded_frame_is_whole_unmasked_and_in_its_shortest_form(size):
    payload = random.Random(size).randbytes(size)
    assert encode_frame(BINARY, payload) == frame(BINARY, payload, mask=None)


# --- the HTTP request

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # the example of RFC 6455, with the answer that it gives
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
HEADERS = {
    "Host": "broker:8083",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}
OPTIONS = WebSocketOptions()


def request(line: str = "GET /mqtt HTTP/1.1", end: str = "\r\n", **changes: str | None) -> bytes:
    """A good request with changes: `Sec_WebSocket_Key=None` leaves a header out."""
    headers = HEADERS | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([line, *lines, end]).encode()


ACCEPTED = {
    "plain": request(),
    "other case": request(Upgrade="WebSocket", Connection="keep-alive, upgrade"),
    "query": request("GET /mqtt?token=x HTTP/1.1"),
    "several subprotocols": request(Sec_WebSocket_Protocol="foo, mqttv3.1, mqtt"),
    "extensions": request(Sec_WebSocket_Extensions="permessage-deflate"),
    "same host": request(Origin="http://BROKER"),
    "same host, other port": request(Origin="https://broker:3000"),
    "empty body": request(Content_Length="0"),
    "header twice": request(Via="a", end="Via: b\r\n\r\n"),
}

REFUSED = {
    "other path": (request("GET / HTTP/1.1"), 404, b""),
    "longer path": (request("GET /mqtt/ HTTP/1.1"), 404, b""),
    "other method": (request("POST /mqtt HTTP/1.1"), 405, b"Allow: GET\r\n"),
    "HTTP/1.0": (request("GET /mqtt HTTP/1.0"), 426, b"Upgrade: websocket\r\n"),
    "HTTP/2": (request("GET /mqtt HTTP/2.0"), 400, b""),
    "no upgrade": (request(Upgrade=None), 426, b"Upgrade: websocket\r\n"),
    "upgrade to something else": (request(Upgrade="h2c"), 426, b"Upgrade: websocket\r\n"),
    "connection does not upgrade": (request(Connection="close"), 426, b"Upgrade: websocket\r\n"),
    "no version": (request(Sec_WebSocket_Version=None), 426, b"Sec-WebSocket-Version: 13\r\n"),
    "old version": (request(Sec_WebSocket_Version="8"), 426, b"Sec-WebSocket-Version: 13\r\n"),
    "no key": (request(Sec_WebSocket_Key=None), 400, b""),
    "short key": (request(Sec_WebSocket_Key="dGhlIA=="), 400, b""),
    "key that is no base64": (request(Sec_WebSocket_Key="!" * 24), 400, b""),
    "no subprotocol": (request(Sec_WebSocket_Protocol=None), 400, b""),
    "other subprotocol": (request(Sec_WebSocket_Protocol="MQTT, amqp"), 400, b""),
    "foreign origin": (request(Origin="https://evil.example"), 403, b""),
    "origin of a file": (request(Origin="null"), 403, b""),
    "origin that only begins so": (request(Origin="https://broker.evil.example"), 403, b""),
    "origin with user": (request(Origin="https://broker@evil.example"), 403, b""),
    "no host": (request(Host=None), 400, b""),
    "two hosts": (request(end="Host: other\r\n\r\n"), 400, b""),
    "two keys": (request(end=f"Sec-WebSocket-Key: {KEY}\r\n\r\n"), 400, b""),
    "body": (request(Content_Length="5"), 400, b""),
    "chunked body": (request(Transfer_Encoding="chunked"), 400, b""),
    "folded header": (request(end=" folded\r\n\r\n"), 400, b""),
    "space before the colon": (request(end="A : b\r\n\r\n"), 400, b""),
    "control character": (request(end="A: \x01\r\n\r\n"), 400, b""),
    "lone line feed": (request(end="A: b\nC: d\r\n\r\n"), 400, b""),
    "no request line": (b"GET\r\n\r\n", 400, b""),
    "an MQTT client": (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", 400, b""),
    "a TLS client": (b"\x16\x03\x01\x02", 400, b""),
    "too long": (request(A="b" * MAX_REQUEST_BYTES), 431, b""),
    "no end": (b"GET /mqtt HTTP/1.1\r\n" + b"a: b\r\n" * 2_000, 431, b""),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_request_is_accepted_when_it_is_right(data):
    reply = answer(data + b"frames", OPTIONS)
    assert reply is not None and reply.fault == "" and reply.taken == len(data)
    assert reply.response.startswith(b"HTTP/1.1 101 ")
    assert ACCEPT in reply.response
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in reply.response
    assert b"Extensions" not in reply.response


@pytest.mark.parametrize(("data", "status", "header"), REFUSED.values(), ids=REFUSED)
def test_request_is_refused_when_it_is_wrong(data, status, header):
    reply = answer(data, OPTIONS)
    assert reply is not None and reply.fault.startswith(str(status))
    head, _, body = reply.response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert header in reply.response
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"


@pytest.mark.parametrize("data", [request(), request("GET / HTTP/1.1"), request(Origin="https://evil.example")])
def test_request_waits_for_more_when_it_is_not_whole(data):
    for size in range(len(data)):
        assert answer(data[:size], OPTIONS) is None


def test_old_subprotocol_is_chosen_when_it_is_the_only_one():
    reply = answer(request(Sec_WebSocket_Protocol="mqttv3.1"), OPTIONS)
    assert reply is not None and b"Sec-WebSocket-Protocol: mqttv3.1\r\n" in reply.response


def test_path_is_the_configured_one():
    options = WebSocketOptions(path="/broker/ws")
    reply = answer(request("GET /broker/ws HTTP/1.1"), options)
    assert reply is not None and reply.fault == ""
    refused = answer(request(), options)
    assert refused is not None and refused.fault.startswith("404")


@pytest.mark.parametrize(
    ("origin", "host", "origins", "is_allowed"),
    [
        (None, "broker", "https://app.example", True),
        ("https://app.example", "broker", "https://app.example", True),
        ("https://APP.example", "broker", "https://App.example", True),
        ("http://app.example", "broker", "https://app.example", False),
        ("https://app.example:444", "broker", "https://app.example", False),
        ("https://broker", "broker", "https://app.example", False),
        ("https://broker", "broker", "https://app.example,same-host", True),
        ("https://x.example", "broker", "*", True),
        ("null", "broker", "*", True),
        ("http://[::1]:3000", "[::1]:8083", "same-host", True),
        ("http://[::2]", "[::1]:8083", "same-host", False),
        ("http://127.0.0.1", "127.0.0.1:8083", "same-host", True),
        ("http://localhost", "127.0.0.1:8083", "same-host", False),
        ("", "broker", "same-host", False),
    ],
)
def test_origin_decides_by_the_list(origin, host, origins, is_allowed):
    assert is_origin_allowed(origin, host, WebSocketOptions(origins=origins).origins) is is_allowed
