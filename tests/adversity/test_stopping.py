"""SIGTERM: wills are published, everybody is told, and the end comes in time. Each test has a broker of its own.

TBMQ_FULL=1 runs the long form: 15,000 connections instead of 1,500.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
import zlib

import pytest

from tbmq._codec import encode
from tbmq.packets import Connect, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Broker, Client, is_mosquitto, run_broker
from tests.helpers.broker import assert_no_crash, free_port

pytestmark = pytest.mark.skipif(is_mosquitto(), reason="our own way to stop")
IS_FULL = os.environ.get("TBMQ_FULL") == "1"
STOP_S = 12.0
"""After that the supervisor kills workers."""

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
one_and_three_workers = pytest.mark.parametrize("workers", [1, 3])


@contextlib.contextmanager
def running(tmp_path, workers, **fields):
    """A broker that the test stops itself, and a function that makes clients of it; all are closed at the end."""
    numbers, made = itertools.count(1), []
    with run_broker(tmp_path / "broker", workers=workers, stops_cleanly=False, **fields) as broker:

        def make(level=MQTT_5, worker=None):
            while True:
                client_id = f"c{next(numbers)}"
                if worker is None or zlib.crc32(client_id.encode()) % workers == worker % workers:
                    break
            made.append(Client(broker.address, client_id, level=level))
            return made[-1]

        try:
            yield broker, make
        finally:
            for client in made:
                client.close()


@one_and_three_workers
@pytest.mark.parametrize("qos", [0, 1])
def test_wills_reach_every_subscriber_before_it_is_told_that_the_broker_stops(tmp_path, workers, qos):
    """Those of connected clients, and those that wait for their delay: the sessions end with the broker."""
    with running(tmp_path, workers) as (broker, make):
        watchers = [make(worker=n) for n in range(3)]
        for watcher in watchers:
            watcher.connect()
            watcher.subscribe("wills/#", qos=qos)
        expected = set()
        for n in range(60):
            client = make((MQTT_3_1_1, MQTT_5)[n % 2], worker=n % 3)
            client.connect(will=Will(f"wills/{n}", b"stopped", qos))
            expected.add(f"wills/{n}")
        late = make()
        late.connect(will=Will("wills/late", b"stopped", qos, properties={"will_delay_interval": 500}), persistent=True)
        late.disconnect(0x04)
        expected.add("wills/late")
        polite = make()
        polite.connect(will=Will("wills/polite", b"never", qos))
        polite.disconnect()
        broker.stop()
        for watcher in watchers:
            got = [watcher.take_message(payload=b"stopped").topic for _ in expected]
            assert set(got) == expected
            watcher.expect_disconnect(0x8B)


@one_and_three_workers
def test_a_crowd_is_told_and_the_broker_ends_in_time(tmp_path, workers):
    """As many sessions again are without a connection: they must not cost time."""
    count = 15_000 if IS_FULL else 1_500
    with running(tmp_path, workers) as (broker, make):
        for _ in range(count // 5):
            away = make()
            away.connect(persistent=True)
            away.disconnect()
        crowd = [make() for _ in range(count)]
        for client in crowd:
            client.connect(will=Will("wills", b"stopped"))
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < STOP_S - 2
        for client in crowd:
            client.expect_disconnect(0x8B)
        assert "killing it" not in broker.log()


def test_the_pace_adapts_to_the_number_of_clients_and_the_time_that_is_left(tmp_path):
    """With little time for all of them: at the pace for a few clients, 400 of them would take 20 seconds."""
    port = free_port()
    listeners = {"tcp": {"bind": f"127.0.0.1:{port}"}, "ws": {"bind": ""}}
    settings = {"workers": 1, "data_dir": str(tmp_path), "listeners": listeners, "admin": {"bind": ""}}
    program = f"""
from tbmq import supervisor, worker
from tbmq.config import Config
worker.GOODBYES_PER_TURN, worker.GOODBYES_S = 1, 1.0
raise SystemExit(supervisor.serve(Config.model_validate({settings})))
"""
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=log, stderr=log, cwd=tmp_path, env=ENVIRONMENT
        )
    broker = Broker(process, port, 1, tmp_path / "log")
    clients = [Client(broker.address, f"c{n}") for n in range(400)]
    try:
        while "ready: 1 worker" not in broker.log():
            broker.assert_healthy()
            time.sleep(0.02)
        for client in clients:
            client.connect()
        started = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        for client in clients:
            client.expect_disconnect(0x8B)
            client.close()
        took_s = time.monotonic() - started
        assert took_s < 5, f"{took_s:.1f} s"
        assert process.wait(STOP_S) == 0
        assert_no_crash(broker.log())
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.wait()


@one_and_three_workers
def test_connections_without_a_connect_are_closed_when_the_broker_stops(tmp_path, workers):
    """They would hold it until its last second."""
    with running(tmp_path, workers) as (broker, make):
        first = make()
        first.connect()
        half = [make((MQTT_3_1_1, MQTT_5)[n % 2], worker=n % 3).open() for n in range(6)]
        for client in half:
            client.send(encode(Connect(client.client_id, client.level), client.level, client=True)[:5])
        first.ping()
        os.kill(broker.process.pid, signal.SIGTERM)
        first.expect_disconnect(0x8B)
        for client in half:
            client.expect_closed()
        broker.stop()
