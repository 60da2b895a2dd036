"""Packets that the broker handles one at a time, sent as fast as the socket takes them: they wait in the socket."""

import time

import pytest

from tbmq._codec import encode
from tbmq.packets import Subscribe, Subscription, Unsubscribe
from tbmq.protocol import MQTT_5
from tests.helpers import Client, is_mosquitto, run_broker

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="our own bounds")
MEBIBYTE = 1_048_576


@pytest.mark.parametrize("workers", [1, 3])
def test_a_flood_of_subscribes_is_left_in_the_socket(tmp_path, workers):
    """With several workers each SUBSCRIBE waits for the others. 128 MiB are offered, and answers are read."""
    pair = [Subscribe(1, [Subscription("t", 0)]), Unsubscribe(2, ["t"])]
    block = b"".join(encode(packet, MQTT_5, client=True) for packet in pair) * 5_000
    with run_broker(tmp_path / "broker", workers=workers) as broker:
        client, other = Client(broker.address, "greedy"), Client(broker.address, "other")
        client.connect()
        other.connect()
        before = broker.memory_bytes()
        connection = client._open_socket()
        connection.setblocking(False)
        sent, most, started = 0, 0, time.monotonic()
        while sent < 128 * MEBIBYTE and time.monotonic() - started < 3:
            try:
                sent += connection.send(block[sent % len(block) :])
            except BlockingIOError:
                most = max(most, broker.memory_bytes() - before)
                time.sleep(0.01)
            try:
                assert connection.recv(1_048_576), "the broker closed the connection"
            except BlockingIOError:
                continue
        most = max(most, broker.memory_bytes() - before)
        other.ping()
        client.abort()
        other.close()
        assert most < 16 * MEBIBYTE, f"{most} bytes are held of {sent} offered"
