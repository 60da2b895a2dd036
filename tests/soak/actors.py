"""What clients do beside steady load. An actor has a thread, repeats its turn, and tells what went otherwise.

All that a turn does comes from the seed; how turns of different actors mix is left to the machine. A turn leaves
nothing behind but sessions that expire and, until `end`, retained messages.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from tbmq._codec import encode
from tbmq.net.handover import owner_of
from tbmq.packets import Connack, Connect, Disconnect, Puback, Publish, Will
from tbmq.protocol import MQTT_3_1_1, MQTT_5
from tests.helpers import Client
from tests.helpers.transports import TransportClient, Transports
from tests.vectors import ALL, Vector

PATIENCE_S = 30.0  # for an answer; the machine may have other things to do
MAX_FAILURES = 10  # that are kept in words, of each actor
CACHED_TOPICS = 70_000  # more than a match cache holds
LEVELS = (MQTT_3_1_1, MQTT_5)


class Actor:
    pause_s = 0.1  # between two turns

    def __init__(self, target: Transports, *, seed: int, expiry_s: int) -> None:
        self.name = type(self).__name__
        self.turns = 0
        self.counts = {"sent": 0, "received": 0, "connects": 0}
        self.failures: list[str] = []
        self.failed = 0
        self.random = random.Random(f"{seed}/{self.name}")
        self.expiry_s = expiry_s
        self._target = target
        self._numbers = itertools.count(1)
        self._opened: list[TransportClient] = []

    def turn(self) -> None:
        raise NotImplementedError

    def warm(self, workers: int) -> None:
        """Before the first turn: makes each worker grow what it keeps on purpose, so that it does not grow later."""

    def end(self) -> None:
        """After the last turn: takes back what stayed."""

    def live(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.attempt(self.turn)
            self.turns += 1
            stop.wait(self.pause_s * self.random.uniform(0.5, 1.5))
        self.attempt(self.end)

    def attempt(self, do: Callable[[], None]) -> None:
        """A failure costs this turn only, and in the end the verdict. Clients of the turn are closed."""
        try:
            do()
        except Exception as error:
            self.failed += 1
            if self.failed <= MAX_FAILURES:
                is_expected = isinstance(error, AssertionError | OSError)
                text = f"{type(error).__name__}: {error}" if is_expected else traceback.format_exc()
                self.failures.append(f"{self.name}, turn {self.turns}: {text}")
        finally:
            for client in self._opened:
                client.close()
            self._opened.clear()

    # --- what turns are made of ---

    def unique(self, prefix: str) -> str:
        return f"soak/{self.name}/{prefix}{next(self._numbers)}"

    def id_on(self, worker: int, workers: int) -> str:
        """A new client id that lives on this worker."""
        while True:
            client_id = f"{self.name}-{next(self._numbers)}"
            if owner_of(client_id, workers) == worker:
                return client_id

    def client(self, client_id: str = "", *, kind: str = "tcp", level: int = 0) -> TransportClient:
        """Not yet connected; closed after the turn."""
        target = self._target
        client = TransportClient(
            ("127.0.0.1", target.ports[kind]),
            client_id or f"{self.name}-{next(self._numbers)}",
            kind=kind,
            context=target.context,
            level=level or self.random.choice(LEVELS),
            timeout_s=PATIENCE_S,
        )
        self._opened.append(client)
        self.counts["connects"] += 1
        return client

    def connected(self, client_id: str = "", *, kind: str = "tcp", level: int = 0, **fields: Any) -> TransportClient:
        client = self.client(client_id, kind=kind, level=level)
        client.connect(**fields)
        return client

    def publish(self, client: Client, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        client.publish(topic, payload, qos=qos, retain=retain)
        self.counts["sent"] += 1

    def take(self, client: Client, **fields: Any) -> Publish:
        message = client.take_message(**fields)
        self.counts["received"] += 1
        return message

    def leave(self, client: Client) -> None:
        """In one of the ways in which clients leave; what is on its way to them is not read."""
        self.random.choice((disconnect, Client.close, Client.abort))(client)


class Sessions(Actor):
    """A persistent session is left, messages wait for it, and it is taken up again, or left to expire."""

    def turn(self) -> None:
        level = self.random.choice(LEVELS)
        client_id = f"session-{level}-{self.random.randrange(100)}"
        topic = self.unique("")
        away = self.connected(client_id, level=level, clean=True)  # an old one ends
        disconnect(away)
        away = self.connected(client_id, level=level, persistent=True)
        away.subscribe(topic, qos=2)
        self.leave(away)
        left_at = time.monotonic()
        publisher = self.connected()
        payloads = [self.random.randbytes(self.random.randrange(16, 2_000)) for _ in range(self.random.randint(1, 20))]
        for payload in payloads:
            self.publish(publisher, topic, payload, qos=self.random.choice((1, 2)))
        if self.random.random() < 0.3:
            return  # the session and its queue expire
        back = self.connected(client_id, level=level, persistent=True)
        is_present = back.connack is not None and back.connack.session_present
        if time.monotonic() - left_at > self.expiry_s / 2 and not is_present:
            return  # the machine stood still for too long
        for payload in payloads:
            self.take(back, payload=payload)
        self.leave(back)


class TakeOvers(Actor):
    """An id is used again while it is connected; clients die and their wills are heard."""

    def turn(self) -> None:
        topic = self.unique("will")
        watcher = self.connected()
        watcher.subscribe(topic, qos=1)
        first = self.connected(will=Will(topic, b"taken over", 1))
        second = self.connected(first.client_id, level=first.level, will=Will(topic, b"died", 1))
        first.expect_disconnect(0x8E)
        assert self.take(watcher).payload == b"taken over"
        second.ping()
        second.abort()
        assert self.take(watcher).payload == b"died"


class Subscriptions(Actor):
    """Subscriptions of all shapes come and go while messages are sent to them."""

    def turn(self) -> None:
        base = self.unique("")
        subscriber, publisher = self.connected(), self.connected()
        shapes = {f"{base}/{n}/x": f"{base}/{n}/{self.random.choice(('x', '+', '#'))}" for n in range(20)}
        subscriber.subscribe(*shapes.values(), qos=self.random.randrange(3))
        subscriber.subscribe(f"{base}/#")
        if self.random.random() < 0.5:
            subscriber.unsubscribe(f"{base}/#")
            for topic in shapes:
                self.publish(publisher, topic, topic.encode(), qos=self.random.randrange(3))
            for topic in shapes:
                self.take(subscriber, topic=topic, payload=topic.encode())
            subscriber.unsubscribe(*self.random.sample(list(shapes.values()), 10))
        self.leave(subscriber)


class Groups(Actor):
    """Members of a shared group die with messages that they have not acknowledged: others get them."""

    MESSAGES = 40

    def turn(self) -> None:
        topic = self.unique("")
        members = [self.connected() for _ in range(3)]
        for member in members:
            member.subscribe(f"$share/group/{topic}", qos=1)
        publisher = self.connected(level=MQTT_5)
        for number in range(1, self.MESSAGES + 1):
            publisher.send(Publish(topic, b"%d" % number, 1, packet_id=number))
        for _ in range(self.MESSAGES):
            publisher.take(Puback)
        self.counts["sent"] += self.MESSAGES
        leaver = members.pop()
        got = {self.take(leaver).payload for _ in range(self.random.randint(0, 5))}
        self.leave(leaver)
        deadline = time.monotonic() + PATIENCE_S
        while len(got) < self.MESSAGES:
            assert time.monotonic() < deadline, f"{self.MESSAGES - len(got)} messages to a group did not come"
            for member in members:
                with contextlib.suppress(TimeoutError):
                    got.add(self.take(member, timeout_s=0.05).payload)


class Retained(Actor):
    """Retained messages on topics that are always new; the oldest are cleared."""

    LIVE = 300

    def __init__(self, target: Transports, **fields: Any) -> None:
        super().__init__(target, **fields)
        self._live: deque[str] = deque()

    def turn(self) -> None:
        publisher = self.connected()
        for _ in range(10):
            topic = self.unique("topic/")
            self.publish(publisher, topic, self.random.randbytes(self.random.randint(1, 2_000)), qos=1, retain=True)
            self._live.append(topic)
        self._clear(publisher, self.LIVE)
        reader = self.connected()
        reader.subscribe(f"soak/{self.name}/#", qos=self.random.randrange(2))
        got = {self.take(reader).topic for _ in self._live}
        assert got == set(self._live), f"retained messages: {len(got)} of {len(self._live)} came"
        self.leave(reader)

    def _clear(self, publisher: Client, remaining: int) -> None:
        while len(self._live) > remaining:
            self.publish(publisher, self._live.popleft(), b"", qos=1, retain=True)

    def end(self) -> None:
        self._clear(self.connected(), 0)


class SlowReaders(Actor):
    """They subscribe, do not read, and are cut when their keep-alive has passed."""

    pause_s = 0.5
    MESSAGES = 400
    PAYLOAD = bytes(16_384)

    def warm(self, workers: int) -> None:
        """Buffers of the sizes that a slow reader needs: a worker keeps them when they are free."""
        for worker in range(workers):
            self._flood(self.id_on(worker, workers), qos=0).abort()

    def turn(self) -> None:
        slow = self._flood("", qos=self.random.randrange(3))
        if self.random.random() < 0.5:
            slow.abort()
        else:
            until_closed(slow)

    def _flood(self, client_id: str, qos: int) -> TransportClient:
        topic = self.unique("")
        slow = self.client(client_id)
        slow.open(receive_buffer_bytes=4_096)
        slow.send(Connect(slow.client_id, slow.level, keep_alive_s=1))
        slow.expect(Connack, reason_code=0)
        slow.subscribe(topic, qos=qos)
        publisher = self.connected(level=MQTT_5)
        packet = encode(Publish(topic, self.PAYLOAD), MQTT_5, client=True)
        for _ in range(self.MESSAGES):
            publisher.send(packet)  # held up by the broker while the reader is congested
        publisher.ping()
        self.counts["sent"] += self.MESSAGES
        return slow


class LargePayloads(Actor):
    pause_s = 1.0
    BYTES = 1_000_000

    def turn(self) -> None:
        topic = self.unique("")
        subscriber, publisher = self.connected(), self.connected()
        subscriber.subscribe(topic, qos=2)
        payload = self.random.randbytes(self.BYTES)
        self.publish(publisher, topic, payload, qos=self.random.randrange(3))
        assert self.take(subscriber).payload == payload, "a large payload arrived changed"
        self.leave(subscriber)


class OtherTransports(Actor):
    """TLS and WebSocket clients that come and go, with messages from one to the other."""

    def turn(self) -> None:
        topic = self.unique("")
        subscriber, publisher = (self.connected(kind=self.random.choice(("tls", "ws", "wss", "tcp"))) for _ in range(2))
        subscriber.subscribe(topic, qos=2)
        for qos in range(3):
            payload = self.random.randbytes(self.random.choice((0, 100, 70_000)))
            self.publish(publisher, topic, payload, qos=qos)
            self.take(subscriber, payload=payload, qos=qos)
        self.leave(subscriber)
        self.leave(publisher)


class Malformed(Actor):
    """Packets that break the rules, noise, and packets that never become whole."""

    BAD: list[Vector] = [one for one in ALL if one.error is not None and not one.client and not one.limits]

    def turn(self) -> None:
        kind = self.random.randrange(4)
        if kind == 0:
            half = self.client().open()
            half.send(
                encode(Connect(half.client_id, half.level), half.level, client=True)[: self.random.randrange(1, 12)]
            )
            half.abort()
            return
        if kind == 1:
            noisy = self.client().open()
            noisy.send(b"\xff" + self.random.randbytes(200))
        else:
            bad = self.random.choice(self.BAD)
            noisy = self.client(level=bad.level or MQTT_5)
            if bad.level:
                noisy.connect()
            else:
                noisy.open()
            noisy.send(bad.data)
        until_closed(noisy)


class NewTopics(Actor):
    """Messages to topics that nobody has used before, and nobody listens to: they pass through the match caches."""

    def turn(self) -> None:
        publisher = self.connected(level=MQTT_5)
        self.flood(publisher, 200)
        disconnect(publisher)

    def warm(self, workers: int) -> None:
        """Fills the match caches. Somebody subscribes on each worker: a trie that is empty is not asked."""
        for worker in range(workers):
            holder = self.connected(self.id_on(worker, workers))
            holder.subscribe(self.unique("held"), f"$share/group/{self.unique('held')}")
        for worker in range(workers):
            publisher = self.connected(self.id_on(worker, workers), level=MQTT_5)
            for _ in range(CACHED_TOPICS // 1_000):
                self.flood(publisher, 1_000)
            disconnect(publisher)

    def flood(self, publisher: Client, topics: int) -> None:
        """Each twice: a match cache takes what comes again."""
        packets = [encode(Publish(self.unique(""), b"x"), MQTT_5, client=True) for _ in range(topics)]
        publisher.send(b"".join(packets * 2))
        publisher.ping()
        self.counts["sent"] += 2 * topics


def disconnect(client: Client) -> None:
    client.send(Disconnect())
    until_closed(client)
    client.close()


def until_closed(client: Client) -> None:
    """The broker must end it; what it sends before is not looked at."""
    connection = client._open_socket()
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass


ACTORS = (
    Sessions,
    TakeOvers,
    Subscriptions,
    Groups,
    Retained,
    SlowReaders,
    LargePayloads,
    OtherTransports,
    Malformed,
    NewTopics,
)
