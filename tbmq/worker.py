"""One worker: one process, one uvloop loop, one core. The composition root of everything that handles MQTT.

Its life: startup, then running until told to stop, then shutdown; each is bounded in time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
from collections import deque
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from tbmq._codec import encode
from tbmq._engine import Engine
from tbmq.auth.flapping import Flapping
from tbmq.auth.gate import Gate
from tbmq.net.admission import LoopLag
from tbmq.net.handover import Handover, owner_of
from tbmq.net.listener import TcpListener
from tbmq.net.listeners import make_listener
from tbmq.net.mesh import Mesh
from tbmq.packets import Connect, Disconnect
from tbmq.pipeline.retained import RetainedReplay
from tbmq.pipeline.routes import Routes
from tbmq.protocol import MQTT_5, ReasonCode
from tbmq.rate_limits import parse_rate_limits
from tbmq.session.access import Access
from tbmq.session.client import Clients
from tbmq.session.connect import Connector
from tbmq.session.enhanced import Exchanges
from tbmq.session.handler import Handler
from tbmq.session.subscribe import Subscriber
from tbmq.session.timers import TimerWheel
from tbmq.session.wills import Wills
from tbmq.storage.sql import open_entities

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.config import Bind, Config
    from tbmq.net.stream import Stream

log = logging.getLogger(__name__)

TICK_S = 0.5
JOIN_S = 5.0  # a worker that starts waits this long for the others
WILLS_S = 2.0  # time to publish the wills, here and on the other workers
WILLS_PER_TURN = 200
GOODBYES_S = 3.0  # time to close all clients; few of them take less
GOODBYES_PER_TURN = 500
TURN_S = 0.05
DRAIN_S = 4.0  # time for clients to read our DISCONNECT; with the others less than the supervisor's STOP_S


class Worker:
    def __init__(self, config: Config, index: int, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        """`folder` is private to the node: the sockets between its workers are there."""
        self._config = config
        self._loop = loop
        self._index = index
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # logins under way
        self._listeners: dict[str, TcpListener] = {}
        self.service_id = f"{config.node.name}-{index}"
        handler = Handler(wake=self._wake)
        self.engine = Engine(
            handler,
            index=index,
            workers=config.workers,
            receive_maximum=config.mqtt.receive_maximum,
            max_inflight=config.mqtt.max_inflight,
            strict=config.mqtt.strict,
            max_retained=self._part_of(config.mqtt.max_retained_messages),
            max_retained_payload_bytes=config.mqtt.max_retained_payload_bytes,
            max_retained_total_bytes=self._part_of(config.mqtt.max_retained_total_bytes),
            rates=self._rates(),
        )
        self.timers = TimerWheel(loop.time())
        self.mesh = Mesh(self.engine, loop, folder)
        self._done_with_wills: set[int] = set()  # other workers that stop, too
        self.mesh.subscribe("wills published", lambda index, *_: self._done_with_wills.add(index))
        self.handover = Handover(loop, folder, index, self._take)
        routes = Routes(self.engine, self.mesh, loop)
        replay = RetainedReplay(self.engine, self.mesh, loop)
        self.clients = Clients(
            self.engine, routes, config.mqtt.max_queued_messages, self._part_of(config.mqtt.max_sessions)
        )
        handler.links = self.mesh
        handler.timers = self.timers
        handler.clients = self.clients
        handler.wills = Wills(self.engine, self.timers)
        auth = config.auth
        self.gate = handler.gate = Gate(
            Flapping(auth.flapping_max_disconnects, auth.flapping_window_s, auth.flapping_block_s)
        )
        access = Access(self.gate, self.clients, handler.end_session)
        self.gate.credentials_changed = access.credentials_changed
        self.gate.blocked_changed = access.blocked_changed
        handler.exchanges = Exchanges(self.gate, self._spawn)
        handler.connector = Connector(
            config,
            self.clients,
            handler.wills,
            self.timers,
            self.gate,
            access,
            handler.exchanges,
            ownership=self,
            spawn=self._spawn,
        )
        handler.subscriber = Subscriber(config, self.clients, routes.when_known, replay.start)
        self.handler = handler

    def _part_of(self, node_limit: int) -> int:
        """What a worker may have of something that is limited for the node. Clients and topics are spread by hash, so
        that one worker is full a little before the node is."""
        return -(-node_limit // self._config.workers)

    def _rates(self) -> dict[str, Sequence[tuple[float, float]]]:
        mqtt = self._config.mqtt
        return {
            "client_messages": parse_rate_limits(mqtt.client_rate_limit),
            "client_bytes": parse_rate_limits(mqtt.client_bytes_rate_limit),
            "client_out": parse_rate_limits(mqtt.client_outgoing_rate_limit),
            "total": [
                (max(limit / self._config.workers, 1), seconds)  # below 1 nothing would ever pass
                for limit, seconds in parse_rate_limits(mqtt.total_rate_limit)
            ],
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("worker %d: internal error", self._index, exc_info=task.exception())

    async def start(self, addresses: dict[str, Bind]) -> None:
        """Opens the entity store, joins the other workers, then accepts connections."""
        await self.gate.open(await open_entities(self._config))
        self._loop.add_reader(self.engine.fileno(), self.engine.run)
        self._tick()
        if self._config.workers > 1:
            self.handover.listen()  # first, so that whoever is linked to us can also pass connections
            self.mesh.listen()
            self.mesh.dial()
            await self.mesh.wait_for_all(JOIN_S)
            self.handover.start()
        lag = LoopLag(self._loop, self._config.auth.max_loop_lag_ms / 1000)
        for name, bind in addresses.items():
            self._listeners[name] = make_listener(self._loop, name, bind, self._adopt, self._config, lag)
            self._listeners[name].start()

    def _take(self, descriptor: int, peer: str, common_names: tuple[str, ...], initial: bytes) -> None:
        """A connection that another worker has passed on with the bytes that it had read."""
        if "tcp" in self._listeners:
            self._listeners["tcp"].take(descriptor, peer, common_names, initial)
        else:
            self._adopt(descriptor, peer, common_names, initial)

    def _adopt(
        self,
        descriptor: int,
        peer: str,
        common_names: tuple[str, ...] = (),
        initial: bytes = b"",
        transport: Stream | None = None,
    ) -> Connection:
        mqtt = self._config.mqtt
        connection = self.engine.adopt(
            descriptor,
            peer,
            max_connect_packet_bytes=mqtt.max_connect_packet_bytes,
            max_topic_levels=mqtt.max_topic_levels,
            connect_timeout_ms=mqtt.connect_timeout_s * 1000,
            initial=initial,
            transport=transport,
        )
        connection.common_names = common_names
        return connection

    # --- ownership: a client lives on the worker of its id ---

    def is_mine(self, client_id: str) -> bool:
        return self._config.workers == 1 or owner_of(client_id, self._config.workers) == self._index

    def pass_on(self, connection: Connection, packet: Connect) -> None:
        connection.suspend()  # what follows the CONNECT is for the owner
        self._loop.call_soon(self._pass_on, connection, packet)

    def _pass_on(self, connection: Connection, packet: Connect) -> None:
        if connection.is_open:
            descriptor, rest = connection.abandon()
            if connection.listener is not None:
                connection.listener.leave(connection.peer)  # its new worker counts it
            data = encode(packet, packet.protocol_level, client=True) + rest
            owner = owner_of(packet.client_id, self._config.workers)
            self.handover.pass_on(owner, descriptor, connection.peer, connection.common_names, data)

    def _wake(self, engine: Engine) -> None:
        self._loop.call_soon(engine.run)

    def reload(self) -> None:
        for listener in self._listeners.values():
            listener.reload()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Serves until `stop`, then says goodbye to everybody."""
        await self._stopping.wait()
        await self._drain()
        self.mesh.close()
        self.handover.close()
        for task in self._tasks:
            task.cancel()
        await self.gate.close()
        self._loop.remove_reader(self.engine.fileno())

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self.engine.tick()
        self.timers.turn(self._loop.time())

    async def _drain(self) -> None:
        """Accepts nobody any more, publishes the wills, tells everybody, and flushes. Bounded in time."""
        for listener in self._listeners.values():
            listener.close()
        self.handler.connector.is_closing = True
        self.engine.close_strangers()
        await self._publish_wills(self._loop.time() + WILLS_S)
        await self._say_goodbye(self._loop.time() + GOODBYES_S)
        deadline = self._loop.time() + DRAIN_S
        links = 2 * len(self.mesh.others)
        while self._loop.time() < deadline and (
            self.engine.statistics()["connections"] > links or any(x.connections for x in self._listeners.values())
        ):
            await asyncio.sleep(0.02)

    async def _publish_wills(self, deadline: float) -> None:
        """Closed by us is closed without a DISCONNECT of the client [MQTT-3.1.2-8]; and as sessions end with us, so do
        the delays of wills. It happens while all clients of the node are still connected, so that they get them: each
        worker tells the others when no more will come from it, and waits for them."""
        waiting = deque(client for client in self.clients if client.will is not None)
        while waiting and self._loop.time() < deadline:
            for _ in range(min(len(waiting), WILLS_PER_TURN)):
                self.handler.wills.publish(waiting.popleft())
            await asyncio.sleep(0)  # the engine's turn
        if waiting:
            log.error("worker %d: stopping: no time left to publish %d wills", self._index, len(waiting))
        for index in self.mesh.others:
            self.mesh.send(index, "wills published", {})
        while self._loop.time() < deadline and not self._done_with_wills.issuperset(self.mesh.others):
            await asyncio.sleep(0.005)

    async def _say_goodbye(self, deadline: float) -> None:
        """Paced, so that clients do not all come back at once, and so fast that all are told before the deadline."""
        left = deque(client for client in self.clients if client.connection is not None)
        while left:
            turns = max((deadline - self._loop.time()) / TURN_S, 1)
            for _ in range(min(len(left), max(GOODBYES_PER_TURN, math.ceil(len(left) / turns)))):
                connection = left.popleft().connection
                if connection is not None:  # else it went by itself meanwhile
                    if connection.protocol_level == MQTT_5:
                        connection.send(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
                    connection.close()
            if left:
                await asyncio.sleep(TURN_S)


def run_worker(config: Config, index: int, addresses: dict[str, Bind], folder: Path, ready_fd: int) -> None:
    """The life of a worker process. Writes one byte to `ready_fd` when it accepts connections."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(config, index, addresses, folder, ready_fd))


async def _main(config: Config, index: int, addresses: dict[str, Bind], folder: Path, ready_fd: int) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(config, index, folder, loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    loop.add_signal_handler(signal.SIGHUP, worker.reload)
    await worker.start(addresses)
    gc.freeze()  # what exists now stays: no collection has to look at it again
    os.write(ready_fd, b"\1")
    os.close(ready_fd)
    await worker.run()
