"""Fixtures of the black-box tests: one broker per worker count for the whole run, fresh names for each test.

Every test runs against one worker and against three. With three, the clients of a test are put on different workers,
one after the other, so that whatever passes between two clients crosses processes.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tbmq.protocol import MQTT_5
from tests.helpers import Broker, Client, is_mosquitto, run_broker

WORKER_COUNTS = [1] if is_mosquitto() else [1, 3]

LIMITS = {
    "mqtt.max_packet_bytes": 4_096,
    "mqtt.max_connect_packet_bytes": 1_024,
    "mqtt.connect_timeout_s": 1,
    "mqtt.max_keep_alive_s": 2,
    "mqtt.receive_maximum": 4,
}
"""Settings of `limited_broker`: every bound low enough to be reached in a test."""

_numbers = itertools.count(1)


class Clients:
    """Makes the clients of one test, and closes them after it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._made: list[Client] = []

    def new_id(self, worker: int | None = None) -> str:
        """A client id that nobody had. By default the next worker owns it: 0, 1, 2, 0, ..."""
        wanted = (len(self._made) if worker is None else worker) % self._broker.workers
        while True:
            client_id = f"c{next(_numbers)}"
            if zlib.crc32(client_id.encode()) % self._broker.workers == wanted:
                return client_id

    def new(self, level: int = MQTT_5, client_id: str | None = None, worker: int | None = None) -> Client:
        """A client that is not connected yet."""
        if client_id is None:
            client_id = self.new_id(worker)
        client = Client(self._broker.address, client_id, level=level)
        self._made.append(client)
        return client

    def connected(
        self, level: int = MQTT_5, client_id: str | None = None, worker: int | None = None, **fields: Any
    ) -> Client:
        client = self.new(level, client_id, worker)
        client.connect(**fields)
        return client

    def close(self) -> None:
        for client in self._made:
            client.close()


@pytest.fixture(scope="session", params=WORKER_COUNTS, ids=lambda count: f"{count}worker")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with run_broker(tmp_path_factory.mktemp("broker"), workers=request.param) as running:
        yield running


@pytest.fixture(scope="session")
def limited_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with run_broker(tmp_path_factory.mktemp("limited"), settings=LIMITS) as running:
        yield running


@pytest.fixture(autouse=True)
def broker_stays_healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may make a broker crash or print a traceback, whatever else it looks at."""
    names = [name for name in ("broker", "limited_broker") if name in request.fixturenames]
    brokers: list[Broker] = [request.getfixturevalue(name) for name in names]
    starts = [running.log_bytes() for running in brokers]
    yield
    for running, start in zip(brokers, starts, strict=True):
        running.assert_healthy(since=start)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its broker printed last."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Broker):
                report.sections.append(("end of the broker's log", value.log()[-3_000:]))
    return report


@pytest.fixture
def clients(broker: Broker) -> Iterator[Clients]:
    with contextlib.closing(Clients(broker)) as made:
        yield made


@pytest.fixture
def limited_clients(limited_broker: Broker) -> Iterator[Clients]:
    with contextlib.closing(Clients(limited_broker)) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses; tests may build on it (`topic/a`)."""
    return f"test{next(_numbers)}"
