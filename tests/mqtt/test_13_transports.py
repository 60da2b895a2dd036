"""TLS, WebSocket and both: MQTT is the same over each, and what a stranger can send wrong there costs nobody else."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from tbmq._codec import encode
from tbmq.packets import Connect, Publish, Subscribe, Subscription, Will
from tbmq.protocol import MQTT_5, ReasonCode
from tests.helpers import Client, Closed, is_mosquitto
from tests.helpers.certificates import Authority, Certificate
from tests.helpers.transports import KINDS, Transports, run_transports, seconds_until_closed, wait_for_log

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="the listeners and their settings are ours")

CONNECT = encode(Connect("plain"), MQTT_5, client=True)
FAST_S = 3.0
"""What is closed at once is closed before this; all timeouts of brokers here are either 1 s or over 5 s."""


@pytest.fixture(scope="module", params=[1, 3], ids=lambda count: f"{count}worker")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    with run_transports(
        tmp_path_factory.mktemp("transports"), request.param, mqtt__max_packet_bytes=2_000_000
    ) as started:
        yield started


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    """Short timeouts; client certificates on tls, PROXY headers on wss."""
    folder = tmp_path_factory.mktemp("strict")
    authority = Authority(folder / "clients", "Authority of clients")
    revoked = authority.issue("revoked")
    with run_transports(
        folder,
        mqtt__connect_timeout_s=1,
        mqtt__max_packet_bytes=10_000,
        listeners__tls__ca=authority.path,
        listeners__tls__crl=authority.revoke([revoked]),
        listeners__tls__handshake_timeout_s=1,
        listeners__wss__proxy_protocol=True,
        listeners__wss__trusted_proxies="10.0.0.0/8,127.0.0.1",
    ) as started:
        started.clients_authority = authority  # type: ignore[attr-defined]
        started.revoked = revoked  # type: ignore[attr-defined]
        yield started


@pytest.fixture(autouse=True)
def brokers_stay_healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """And serve: after every test a plain client is answered."""
    names = [name for name in ("running", "strict") if name in request.fixturenames]
    setups: list[Transports] = [request.getfixturevalue(name) for name in names]
    yield
    for used in setups:
        used.assert_serving()


# --- the same MQTT over each -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_all_sizes_and_qos_pass_over_each_transport(running, kind, topic):
    client = running.client(kind, f"{topic}-{kind}")
    client.connect()
    client.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        for size in (0, 1, 100, 130, 70_000, 1_000_000):
            payload = bytes([qos]) * size
            other = running.client(kind, f"{topic}-{kind}-publisher")
            other.connect()
            other.publish(topic, payload, qos=qos)
            assert client.take_message(qos=qos).payload == payload
            other.disconnect()
    client.disconnect()


def test_clients_of_different_transports_reach_each_other(running, topic):
    subscribers = [running.client(kind, f"{topic}-{kind}-{n}") for kind in KINDS for n in range(4)]
    for subscriber in subscribers:
        subscriber.connect()
        subscriber.subscribe(topic)
    publisher = Client(running.broker.address, f"{topic}-publisher")
    publisher.connect()
    for n in range(10):
        publisher.publish(topic, b"%d" % n)
    for subscriber in subscribers:
        for n in range(10):
            subscriber.take_message(topic=topic, payload=b"%d" % n)
        subscriber.disconnect()
    publisher.disconnect()


@pytest.mark.parametrize("kind", ["tls", "ws", "wss"])
def test_a_third_party_client_is_served(running, kind, topic):
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id=f"paho-{topic}-{kind}",
        protocol=paho.MQTTv5,
        transport="tcp" if kind == "tls" else "websockets",
    )
    if kind != "ws":
        client.tls_set_context(running.context)
    expected = [b"x" * size for size in (0, 1, 200, 70_000, 300_000)]
    received: list[bytes] = []
    done = threading.Event()

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        received.append(message.payload)
        if len(received) == len(expected):
            done.set()

    def publish_all(*_: object) -> None:
        for payload in expected:
            client.publish(topic, payload, qos=2)

    client.on_connect = lambda *_: client.subscribe(topic, 2)
    client.on_subscribe = publish_all
    client.on_message = on_message
    client.connect("localhost" if kind != "ws" else "127.0.0.1", running.ports[kind])
    client.loop_start()
    try:
        assert done.wait(20), f"only {len(received)} messages came"
        assert received == expected
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("kind", KINDS)
def test_packets_before_the_end_are_handled_when_the_client_leaves_at_once(running, kind, topic):
    subscriber = Client(running.broker.address, f"{topic}-s")
    subscriber.connect()
    subscriber.subscribe(topic)
    for n in range(6):  # of whichever worker
        client = running.client(kind, f"{topic}-{n}").open()
        client.send(Connect(client.client_id), Publish(topic, b"%d" % n))
        client.close()
        subscriber.take_message(payload=b"%d" % n)
    subscriber.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_will_is_published_when_the_connection_is_cut(running, kind, topic):
    subscriber = Client(running.broker.address, f"{topic}-s")
    subscriber.connect()
    subscriber.subscribe(topic)
    client = running.client(kind, f"{topic}-w")
    client.connect(will=Will(topic, b"gone"))
    client.abort()
    subscriber.take_message(payload=b"gone")
    subscriber.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_older_connection_is_told_when_another_takes_over(running, kind, topic):
    first = running.client(kind, topic)
    first.connect()
    second = Client(running.broker.address, topic)
    second.connect()
    first.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    second.ping()
    second.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_bounded_when_a_subscriber_does_not_read(running, kind, topic):
    slow = running.client(kind, f"{topic}-slow").open(receive_buffer_bytes=4_096)
    slow.send(Connect(slow.client_id), Subscribe(1, [Subscription(topic)]))
    slow.receive(), slow.receive()
    publisher = Client(running.broker.address, f"{topic}-p", timeout_s=60)
    publisher.connect()
    before = running.broker.memory_bytes()
    for _ in range(200):  # 100 MB in all
        publisher.send(*[Publish(topic, bytes(50_000)) for _ in range(10)])
    publisher.ping()
    assert running.broker.memory_bytes() - before < 60_000_000
    publisher.disconnect()
    slow.abort()


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_arrives_when_a_subscriber_reads_slowly(running, kind, topic):
    """Back-pressure: QoS 1 is not dropped, whatever waits where."""
    slow = running.client(kind, f"{topic}-slow", timeout_s=30).open(receive_buffer_bytes=4_096)
    slow.send(Connect(slow.client_id), Subscribe(1, [Subscription(topic, 1)]))
    slow.receive(), slow.receive()
    publisher = running.client(kind, f"{topic}-p", timeout_s=60)
    publisher.connect()

    def publish_all() -> None:
        for n in range(100):
            publisher.publish(topic, struct.pack(">I", n) + bytes(50_000), qos=1)

    publishing = threading.Thread(target=publish_all)
    publishing.start()
    for n in range(100):
        assert slow.take_message(qos=1).payload[:4] == struct.pack(">I", n)
    publishing.join()
    publisher.disconnect()
    slow.disconnect()


def test_clients_are_told_when_the_broker_stops(tmp_path):
    with run_transports(tmp_path, workers=2) as started:
        clients = [started.client(kind, f"{kind}-{n}") for kind in KINDS for n in range(3)]
        for client in clients:
            client.connect()
        started.broker.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.expect_disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
            client.close()


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_tls_1_2_and_1_3_are_spoken_and_nothing_older(running, topic):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = running.authority.client_context()
        context.minimum_version = context.maximum_version = version
        client = running.client("tls", topic, context=context)
        client.connect()
        assert client.tls_socket.version() == version.name.replace("_", ".")
        client.disconnect()
    context = running.authority.client_context()
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(OSError):
        running.client("tls", topic, context=context).open()


@pytest.mark.parametrize("kind", ["tls", "wss"])
@pytest.mark.parametrize("data", [CONNECT, b"GET /mqtt HTTP/1.1\r\n\r\n", bytes(100)], ids=["mqtt", "http", "zeros"])
def test_plain_client_is_closed_fast_when_it_takes_the_tls_port(running, kind, data):
    with running.socket(kind) as sock:
        sock.sendall(data)
        assert seconds_until_closed(sock) < FAST_S


@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_tls_client_is_closed_fast_when_it_takes_the_plain_port(running, kind):
    start = time.monotonic()
    with running.socket(kind) as sock, pytest.raises(OSError):
        running.context.wrap_socket(sock, server_hostname="localhost")
    assert time.monotonic() - start < FAST_S


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["silent", "half a hello"])
def test_handshake_is_bounded_in_time(strict, sent):
    with strict.socket("tls") as sock:
        sock.sendall(sent)
        assert 0.5 < seconds_until_closed(sock) < 5


def test_connect_is_bounded_in_time_after_the_handshake(strict):
    client = strict.client("tls").open()
    client.expect_closed(6)


def test_client_certificate_is_checked_when_it_is_shown(strict, tmp_path, topic):
    authority = strict.clients_authority

    def connects(certificate: Certificate | None) -> bool:
        client = strict.client("tls", topic, context=strict.authority.client_context(certificate))
        try:
            client.connect()
        except (OSError, Closed):  # with TLS 1.3 the refusal comes after the client's part of the handshake
            return False
        client.disconnect()
        return True

    assert connects(None)
    assert connects(authority.issue("good"))
    assert not connects(authority.issue("expired", is_expired=True))
    assert not connects(strict.revoked)
    assert not connects(Authority(tmp_path, "Somebody else").issue("foreign"))


def test_certificate_is_demanded_when_configured(tmp_path, topic):
    authority = Authority(tmp_path / "clients")
    with run_transports(
        tmp_path, listeners__wss__ca=authority.path, listeners__wss__requires_client_certificate=True
    ) as started:
        client = started.client("wss", topic, context=started.authority.client_context(authority.issue("device")))
        client.connect()
        client.disconnect()
        with pytest.raises((OSError, AssertionError)):
            started.client("wss", topic).connect()


def served_certificate(started: Transports, kind: str) -> bytes:
    with started.socket(kind) as sock, started.context.wrap_socket(sock, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True) or b""


def test_certificates_are_exchanged_and_connections_stay_when_reloaded(tmp_path, topic):
    with run_transports(tmp_path, workers=2) as started:
        clients = [started.client(kind, f"{topic}-{kind}-{n}") for kind in ("tls", "wss") for n in range(3)]
        for client in clients:
            client.connect()
        old = served_certificate(started, "tls")
        served = tmp_path / "certificates" / "server.pem"
        good = served.read_bytes(), served.with_suffix(".key").read_bytes()

        # A key that does not belong to the certificate: nothing changes.
        other = started.authority.issue("other")
        served.with_suffix(".key").write_bytes(other.key_path.read_bytes())
        start = started.broker.log_bytes()
        started.broker.process.send_signal(signal.SIGHUP)
        wait_for_log(started.broker, "certificates were not loaded, the old ones stay in use", 4, start)
        assert "does not belong to" in started.broker.log(start)
        assert {served_certificate(started, kind) for kind in ("tls", "wss") for _ in range(5)} == {old}

        served.write_bytes(good[0])
        started.authority.issue("new", file="server")
        start = started.broker.log_bytes()
        started.broker.process.send_signal(signal.SIGHUP)
        wait_for_log(started.broker, "certificates were reloaded", 4, start)
        seen = {served_certificate(started, kind) for kind in ("tls", "wss") for _ in range(5)}
        assert len(seen) == 1 and old not in seen

        for client in clients:
            client.ping()
            client.disconnect()


# --- PROXY protocol --------------------------------------------------------------------------------------------------

V1 = b"PROXY TCP4 192.0.2.1 198.51.100.7 51234 8084\r\n"
V2_HEAD = b"\r\n\r\n\0\r\nQUIT\n"
ADDRESSES = socket.inet_aton("192.0.2.77") + socket.inet_aton("198.51.100.7") + struct.pack(">HH", 5_555, 8_084)
V2 = V2_HEAD + b"\x21\x11" + struct.pack(">H", 12 + 7) + ADDRESSES + b"\x01\x00\x04mqtt"
LOCAL = V2_HEAD + b"\x20\x00\x00\x00"
OVERRUN = V2_HEAD + b"\x21\x11" + struct.pack(">H", 12 + 7) + ADDRESSES + b"\x01\x00\x05mqtt"


@pytest.mark.parametrize(
    ("header", "peer"),
    [(V1, "192.0.2.1:51234"), (V2, "192.0.2.77:5555"), (LOCAL, "127.0.0.1:")],
    ids=["v1", "v2", "local"],
)
def test_client_behind_a_proxy_is_known_by_its_own_address(strict, header, peer, topic):
    start = strict.broker.log_bytes()
    client = strict.client("wss", topic, before=header)
    client.connect()
    client.ping()
    client.disconnect()
    bad = strict.client("wss", topic, before=header).open()
    bad.send(b"\x00\x00")
    bad.expect_closed(FAST_S)
    wait_for_log(strict.broker, f"INFO {peer}", 1, start)


@pytest.mark.parametrize(
    "data",
    [b"", OVERRUN, V1[:-2] + b" 1\r\n", b"\x16\x03\x01\x02\x00", CONNECT],
    ids=["nothing", "overrun", "v1", "tls", "mqtt"],
)
def test_connection_is_closed_when_its_proxy_header_is_wrong_or_missing(strict, data):
    with strict.socket("wss") as sock:
        sock.sendall(data)
        assert seconds_until_closed(sock) < (FAST_S if data else 6)


def test_connection_is_closed_when_its_proxy_is_not_trusted(strict):
    with strict.socket("wss", source="127.0.0.2") as sock:
        sock.sendall(V1)
        assert seconds_until_closed(sock) < FAST_S


def test_header_is_no_header_when_the_listener_does_not_take_it(running):
    with running.socket("tcp") as sock:
        sock.sendall(V1 + CONNECT)
        assert seconds_until_closed(sock) < FAST_S
