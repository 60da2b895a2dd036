"""WebSocket: the request, frames good and bad, and the limits of a listener."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tbmq._codec import encode
from tbmq.packets import Connack, Connect, Pingreq, Pingresp, Will
from tbmq.protocol import MQTT_5, ReasonCode
from tests.helpers import Client, covers, is_mosquitto
from tests.helpers.transports import (
    TransportClient,
    Transports,
    WebSocket,
    request,
    run_transports,
    seconds_until_closed,
)
from tests.reference.websocket import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="the listeners and their settings are ours")

FAST_S = 3.0
"""What is closed at once is closed before this; timeouts are either 1 s or over 5 s."""


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    with run_transports(
        tmp_path_factory.mktemp("transports"), request.param, mqtt__max_packet_bytes=2_000_000
    ) as started:
        yield started


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    """A short timeout and small limits."""
    with run_transports(
        tmp_path_factory.mktemp("strict"),
        mqtt__connect_timeout_s=1,
        listeners__ws__max_connections=4,
        listeners__ws__max_connections_per_ip=2,
        listeners__ws__origins="https://app.example.org",
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def brokers_stay_healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """And serve: after every test a plain client is answered."""
    names = [name for name in ("running", "strict") if name in request.fixturenames]
    setups: list[Transports] = [request.getfixturevalue(name) for name in names]
    yield
    for used in setups:
        used.assert_serving()


# --- WebSocket -------------------------------------------------------------------------------------------------------

CONNECT = encode(Connect("ws"), MQTT_5, client=True)
PINGREQ = encode(Pingreq(), MQTT_5, client=True)


@covers("MQTT-6.0.0-2", "v3:MQTT-6.0.0-2")
@pytest.mark.parametrize("kind", ["ws", "wss"])
@pytest.mark.parametrize("how", ["a byte per frame", "all in one frame", "fragments and pings", "one write"])
def test_frames_and_packets_need_not_agree(running, kind, how, topic):
    stream = encode(Connect(topic), MQTT_5, client=True) + PINGREQ * 20
    pieces = {
        "a byte per frame": [frame(BINARY, bytes([byte])) for byte in stream],
        "all in one frame": [frame(BINARY, stream)],
        "fragments and pings": [
            frame(BINARY, stream[:3], fin=False),
            frame(PING, b"in between"),
            frame(CONTINUATION, stream[3:20], fin=False),
            frame(CONTINUATION, b"", fin=False),
            frame(CONTINUATION, stream[20:]),
        ],
        "one write": [b"".join(frame(BINARY, stream[n : n + 7]) for n in range(0, len(stream), 7))],
    }[how]
    client = running.client(kind, topic).open()
    for piece in pieces:
        client.send_as_it_is(piece)
    client.expect(Connack, reason_code=0)
    for _ in range(20):
        client.expect(Pingresp)
    client.disconnect()
    assert client._socket is None


def test_frames_that_follow_the_request_at_once_are_read(running, topic):
    with running.socket("ws") as sock:
        data, _ = request()
        sock.sendall(data + frame(BINARY, encode(Connect(topic), MQTT_5, client=True)) + frame(BINARY, PINGREQ))
        web_socket = WebSocket(sock)
        assert web_socket.read_head().startswith(b"HTTP/1.1 101 ")
        answers = b""
        while not answers.endswith(b"\xd0\x00"):
            answers += web_socket.recv(1_000)


def test_ping_of_the_web_socket_is_answered(running, topic):
    client = running.client("ws", topic)
    client.connect()
    client.web_socket.ping(b"are you there")
    client.ping()
    assert client.web_socket.pongs == [b"are you there"]
    client.disconnect()


BAD_FRAMES = {
    "text": (frame(TEXT, CONNECT), 1003),
    "not masked": (frame(BINARY, CONNECT, mask=None), 1002),
    "reserved bit": (frame(BINARY, CONNECT, reserved=4), 1002),
    "unknown opcode": (frame(5, CONNECT), 1002),
    "ping in fragments": (frame(PING, fin=False), 1002),
    "fragment without a beginning": (frame(CONTINUATION, CONNECT), 1002),
    "huge": (frame(BINARY, length=1 << 40), 1009),
    "just too large": (frame(BINARY, length=2_000_001), 1009),
    "close with a bad code": (frame(CLOSE, b"\x00\x00"), 1002),
}


@covers("MQTT-6.0.0-1", "v3:MQTT-6.0.0-1")
@pytest.mark.parametrize("is_connected", [False, True], ids=["before CONNECT", "connected"])
@pytest.mark.parametrize(("data", "code"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_web_socket_is_closed_with_a_code_when_a_frame_is_bad(running, topic, data, code, is_connected):
    subscriber = Client(running.broker.address, f"{topic}-s")
    subscriber.connect()
    subscriber.subscribe(topic)
    client = running.client("ws", topic)
    if is_connected:
        client.connect(will=Will(topic, b"gone"))
    else:
        client.open()
    client.send_as_it_is(data)
    client.expect_closed(FAST_S)
    assert client.web_socket.close_code == code
    if is_connected:
        subscriber.take_message(payload=b"gone")
    subscriber.disconnect()
    client.close()


@pytest.mark.parametrize("kind", ["ws", "wss"])
def test_close_frame_is_answered_and_the_will_published(running, kind, topic):
    subscriber = Client(running.broker.address, f"{topic}-s")
    subscriber.connect()
    subscriber.subscribe(topic)
    client = running.client(kind, topic)
    client.connect(will=Will(topic, b"gone"))
    client.send_as_it_is(frame(CLOSE, b"\x03\xe9going away"))
    client.expect_closed(FAST_S)
    assert client.web_socket.close_code == 1001
    subscriber.take_message(payload=b"gone")
    subscriber.disconnect()


def test_close_frame_comes_first_when_the_broker_ends_the_connection(running, topic):
    client = running.client("ws", topic)
    client.connect()
    client.send(Connect(topic))  # a second CONNECT
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    assert client.web_socket.close_code == 1000
    client.close()


REQUESTS = {
    "no subprotocol": (request(Sec_WebSocket_Protocol=None)[0], 400),
    "other subprotocol": (request(Sec_WebSocket_Protocol="amqp")[0], 400),
    "foreign origin": (request(Origin="https://evil.example")[0], 403),
    "other path": (request("/")[0], 404),
    "other method": (request(method="POST")[0], 405),
    "no upgrade": (request(Upgrade=None)[0], 426),
    "old version": (request(Sec_WebSocket_Version="8")[0], 426),
    "an MQTT client": (CONNECT, 400),
    "too long": (b"GET /mqtt HTTP/1.1\r\n" + b"a: b\r\n" * 2_000, 431),
}


@covers("MQTT-6.0.0-3", "MQTT-6.0.0-4", "v3:MQTT-6.0.0-3", "v3:MQTT-6.0.0-4")
@pytest.mark.parametrize(("data", "status"), REQUESTS.values(), ids=REQUESTS)
def test_request_is_refused_and_closed_when_it_is_wrong(running, data, status):
    with running.socket("ws") as sock:
        sock.sendall(data)
        assert WebSocket(sock).read_head().startswith(b"HTTP/1.1 %d " % status)
        sock.shutdown(socket.SHUT_WR)
        assert seconds_until_closed(sock) < FAST_S


@pytest.mark.parametrize(
    ("origin", "status"), [(None, 101), ("https://app.example.org", 101), ("https://localhost", 403)]
)
def test_origin_must_be_in_the_list(strict, origin, status):
    with strict.socket("ws") as sock:
        sock.sendall(request(Origin=origin)[0])
        assert WebSocket(sock).read_head().startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("sent", [b"", b"GET /mqtt HT", request()[0]], ids=["silent", "half a request", "no CONNECT"])
def test_web_socket_is_closed_when_it_does_not_get_on(strict, sent):
    with strict.socket("ws") as sock:
        sock.sendall(sent)
        assert 0.5 < seconds_until_closed(sock) < 6


# --- limits of a listener --------------------------------------------------------------------------------------------


def opened(running: Transports, source: str) -> TransportClient | None:
    client = running.client("ws", source=source)
    try:
        return client.open()
    except (AssertionError, OSError):
        return None


def until_opened(running: Transports, source: str) -> TransportClient:
    """The broker notices the end of another connection a moment later."""
    deadline = time.monotonic() + 5
    while True:
        client = opened(running, source)
        if client is not None:
            return client
        assert time.monotonic() < deadline, "no connection was admitted again"
        time.sleep(0.02)


def test_connections_over_the_limits_are_closed_at_once(strict):
    held = [until_opened(strict, source) for source in ("127.0.0.1", "127.0.0.1", "127.0.0.2")]
    assert opened(strict, "127.0.0.1") is None  # two of one address
    held.append(until_opened(strict, "127.0.0.2"))
    assert opened(strict, "127.0.0.3") is None  # four in all
    held.pop(0).close()
    held.append(until_opened(strict, "127.0.0.3"))
    for client in held:
        client.close()
