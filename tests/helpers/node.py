"""The real engine in the test's own process, with a small policy, and a thread that runs it.

    test thread: Client ◀── TCP ──▶ engine thread: accept, run, a tick every TICK_S

`Node.lock` is held while the engine runs, so the test may call the engine whenever it has the lock.
"""

import contextlib
import itertools
import select
import socket
import threading
import time
import traceback
from pathlib import Path

from tbmq._codec import encode
from tbmq._engine import Engine
from tbmq.packets import Connack, Connect, Disconnect, Publish, Suback, Subscribe
from tbmq.protocol import MQTT_5
from tests.helpers.client import Client

TICK_S = 0.05
PATIENCE_S = 20.0


class Node:
    """A policy that accepts everybody, and the thread that runs its engine."""

    def __init__(self, **settings):
        self.engine = Engine(self, **settings)
        self.lock = threading.Lock()
        self.judge = lambda topic: 0  # what on_first_publish answers
        self.asked = []  # topics, in the order of asking; a test may put another collection here
        self.timed_out, self.errors = [], []
        self.connections, self.sessions = {}, {}  # by client id
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = self._listener.getsockname()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        next_tick = time.monotonic() + TICK_S
        while not self._is_stopping.is_set():
            select.select([self._listener, self.engine.fileno()], [], [], max(next_tick - time.monotonic(), 0))
            with self.lock:
                with contextlib.suppress(BlockingIOError):
                    accepted, (_, port) = self._listener.accept()
                    accepted.setblocking(False)
                    self.engine.adopt(
                        accepted.detach(),
                        f"port {port}",
                        max_connect_packet_bytes=65_536,
                        max_topic_levels=128,
                        connect_timeout_ms=5_000,
                    )
                self.engine.run()
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_S
                    self.engine.tick()
                    self.engine.run()

    def stop(self):
        self._is_stopping.set()
        self._thread.join(PATIENCE_S)
        self._listener.close()
        for connection in self.connections.values():
            connection.close(flush=False)
        for session in self.sessions.values():
            self.engine.drop_session(session)
        for _ in range(3):  # lets go of what was closed
            self.engine.run()
            self.engine.tick()
        self.engine.handler = None
        assert not self.errors, self.errors

    # --- the policy ---

    def wake(self, engine):
        """The thread comes anyway, at the latest with the next tick."""

    def on_packet(self, connection, packet):
        if isinstance(packet, Connect):
            session = self.sessions.get(packet.client_id)
            if session is None:
                session = self.sessions[packet.client_id] = self.engine.new_session(packet.client_id)
                session.max_queued = 10_000
            self.connections[packet.client_id] = connection
            connection.context = packet.client_id
            connection.is_restricted = packet.username == "restricted"
            connection.send_raw(encode(Connack(), packet.protocol_level))
            connection.accept(
                session,
                packet.protocol_level,
                max_packet_bytes=1_048_576,
                receive_maximum=packet.properties.get("receive_maximum", 65_535),
                keep_alive_ms=packet.keep_alive_s * 1_500,
                topic_alias_maximum=10 if packet.protocol_level == MQTT_5 else 0,
                alias_out_maximum=0,
            )
        elif isinstance(packet, Subscribe):
            for line in packet.subscriptions:
                number = connection.current_session.number
                self.engine.subscriptions.add(line.topic_filter, number, line.qos, line.no_local)
            connection.send(Suback(packet.packet_id, [line.qos for line in packet.subscriptions]))
        else:
            assert isinstance(packet, Disconnect)
            connection.close()

    def on_first_publish(self, connection, topic):
        self.asked.append(topic)
        return self.judge(topic)

    def on_dollar_publish(self, connection, topic):
        return 0

    def on_violation(self, connection, reason_code, detail):
        self.errors.append(f"{connection.context}: {reason_code:#x} {detail}")

    def on_timeout(self, connection, connected):
        self.timed_out.append(connection.context)

    def on_lost(self, connection):
        pass

    def on_closed(self, connection):
        pass

    def on_exception(self, connection):
        self.errors.append(traceback.format_exc())

    # --- for the tests ---

    def statistics(self):
        with self.lock:
            return self.engine.statistics()

    def dropped(self, why):
        return self.statistics()["dropped"][why]


@contextlib.contextmanager
def running_nodes():
    """`node, make = start(rates=...)`: an engine, and what makes connected clients of it; all ends with the test."""
    nodes, clients, numbers = [], [], itertools.count(1)

    def start_node(**settings):
        node = Node(**settings)
        nodes.append(node)

        def make(level=MQTT_5, **fields):
            client = Client(node.address, f"c{next(numbers)}", level=level, timeout_s=PATIENCE_S)
            clients.append(client)
            client.connect(**fields)
            return client

        return node, make

    try:
        yield start_node
    finally:
        for client in clients:
            client.close()
        for node in nodes:
            node.stop()


def numbered(topic, count, qos=0, level=MQTT_5):
    """As many PUBLISH packets in one piece; the payload is the number."""
    return b"".join(
        encode(Publish(topic, b"%d" % n, qos, packet_id=n + 1 if qos else 0), level, client=True) for n in range(count)
    )


def take_numbers(client, count, topic=None):
    """So many messages, acknowledged; their numbers."""
    got = []
    for _ in range(count):
        message = client.take_message()
        assert topic is None or message.topic == topic
        got.append(int(message.payload))
    return got


def memory_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
