"""Clients that send and do not read: what is held for them is bounded, and an end is an end."""

import contextlib
import socket
import time

import pytest

from tbmq._codec import encode
from tbmq.packets import Connack, Connect, Publish
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client, is_mosquitto, run_broker

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="our own bounds")
PATIENCE_S = 20.0
MEBIBYTE = 1_048_576
PUBLISH = b"\x32\x06\x00\x02t/\x00\x01"
QUESTIONS = {"ping": (b"\xc0\x00", b"\xd0\x00"), "puback": (PUBLISH, b"\x40\x02\x00\x01")}


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def deaf_client(address, level):
    """A connected socket with small buffers that never blocks."""
    client = Client(address, "deaf", level=level).open(receive_buffer_bytes=4_096)
    client.send(Connect("deaf", protocol_level=level))
    client.expect(Connack, reason_code=0)
    sock = socket.socket(fileno=socket.dup(client._open_socket().fileno()))
    client.close()
    sock.setblocking(False)
    with sock:
        yield sock


def send_until_full(sock, question, most):
    """Sends it again and again until the broker has taken nothing for a second; answers how many bytes went."""
    block = question * (65_536 // len(question))
    sent, last = 0, time.monotonic()
    while sent < most and time.monotonic() - last < 1.0:
        try:
            sent += sock.send(block[sent % len(question) :])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    return sent


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_client_that_does_not_read_our_answers_is_not_read_any_more(tmp_path, workers, kind):
    """64 MiB of questions: the broker stops taking them when some MiB of answers wait, and goes on when they are read.
    Every question that was taken is answered."""
    question, answer = QUESTIONS[kind]
    with run_broker(tmp_path / "broker", workers=workers) as broker, deaf_client(broker.address, MQTT_3_1_1) as sock:
        before = broker.memory_bytes()
        most = 64 * MEBIBYTE
        sent = send_until_full(sock, question, most)
        assert sent < most, "the broker takes all, and keeps the answers"
        grown = broker.memory_bytes() - before
        assert grown < 48 * MEBIBYTE, f"{grown} bytes of answers wait"
        rest = question[sent % len(question) :] if sent % len(question) else b""
        wanted = (sent + len(rest)) // len(question) * len(answer)
        got = 0
        deadline = time.monotonic() + PATIENCE_S
        while got < wanted:
            assert time.monotonic() < deadline, f"{got} of {wanted} bytes came"
            with contextlib.suppress(BlockingIOError):
                got += len(sock.recv(1_048_576))
                rest = rest[sock.send(rest) :] if rest else rest
        assert got == wanted


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("level", [MQTT_3_1_1, MQTT_5])
def test_a_connection_that_is_closed_while_its_output_is_blocked_ends_in_time(tmp_path, workers, level):
    """It is taken over while it reads nothing: neither does it close, so the broker must."""
    with run_broker(tmp_path / "broker", workers=workers) as broker:
        publisher = Client(broker.address, "publisher")
        publisher.connect()
        with deaf_client(broker.address, level) as sock:
            properties = b"\0" if level == MQTT_5 else b""
            sock.send(b"\x82" + bytes((6 + len(properties),)) + b"\0\1" + properties + b"\0\1t\0")
            wait_until(lambda: publisher.publish("t", b"x", qos=1).reason_code == 0, "it is subscribed")
            for _ in range(200):
                publisher.send(Publish("t", b"x" * 60_000))
            publisher.ping()
            heir = Client(broker.address, "deaf", level=level)
            heir.connect()
            held = broker.descriptors()
            wait_until(lambda: broker.descriptors() < held, "the descriptor of a closed connection is given back")
            heir.ping()
            heir.close()
        publisher.close()


def test_a_broken_half_of_a_large_packet_is_freed_with_its_connection(tmp_path):
    """Many clients that announce large packets, send half and vanish leave nothing behind."""
    with run_broker(tmp_path / "broker") as broker:
        half = encode(Publish("t", b"x" * 900_000), MQTT_5, client=True)[:450_000]
        memory = 0
        for n in range(120):
            client = Client(broker.address, f"c{n}")
            client.connect()
            client.send(half)
            client.abort() if n % 2 else client.close()
            if n == 40:
                memory = broker.memory_bytes()
        last = Client(broker.address, "c0")
        last.connect()
        last.disconnect()
        grown = broker.memory_bytes() - memory
        assert grown < 16 * MEBIBYTE, f"{grown} bytes more after 80 more halves"
