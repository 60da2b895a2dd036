"""One worker: one process, one uvloop loop, one core. The composition root of everything that handles MQTT.

Its life: startup, then running until told to stop, then shutdown; each is bounded in time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tbmq._codec import encode
from tbmq._engine import Engine
from tbmq.net.handover import Handover, owner_of
from tbmq.net.listener import TcpListener
from tbmq.net.listeners import make_listener
from tbmq.net.mesh import Mesh
from tbmq.packets import Connect, Disconnect
from tbmq.pipeline.retained import RetainedReplay
from tbmq.pipeline.routes import Routes
from tbmq.protocol import MQTT_5, ReasonCode
from tbmq.session.client import Clients
from tbmq.session.connect import Connector
from tbmq.session.handler import Handler
from tbmq.session.subscribe import Subscriber
from tbmq.session.timers import TimerWheel
from tbmq.session.wills import Wills

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.config import Bind, Config
    from tbmq.net.stream import Stream

log = logging.getLogger(__name__)

TICK_S = 0.5
JOIN_S = 5.0  # a worker that starts waits this long for the others
GOODBYES_PER_TURN = 500
DRAIN_S = 5.0  # time for clients to read our DISCONNECT


class Worker:
    def __init__(self, config: Config, index: int, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        """`folder` is private to the node: the sockets between its workers are there."""
        self._config = config
        self._loop = loop
        self._index = index
        self._stopping = asyncio.Event()
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
        )
        self.timers = TimerWheel(loop.time())
        self.mesh = Mesh(self.engine, loop, folder)
        self.handover = Handover(loop, folder, index, self._take)
        routes = Routes(self.engine, self.mesh, loop)
        replay = RetainedReplay(self.engine, self.mesh, loop)
        self.clients = Clients(self.engine, routes, config.mqtt.max_queued_messages)
        handler.links = self.mesh
        handler.timers = self.timers
        handler.clients = self.clients
        handler.wills = Wills(self.engine, self.timers)
        handler.connector = Connector(config, self.clients, handler.wills, self)
        handler.subscriber = Subscriber(config, self.clients, routes.when_known, replay.start)
        self.handler = handler

    async def start(self, addresses: dict[str, Bind]) -> None:
        """Joins the other workers, then accepts connections."""
        self._loop.add_reader(self.engine.fileno(), self.engine.run)
        self._tick()
        if self._config.workers > 1:
            self.handover.listen()  # first, so that whoever is linked to us can also pass connections
            self.mesh.listen()
            self.mesh.dial()
            await self.mesh.wait_for_all(JOIN_S)
            self.handover.start()
        for name, bind in addresses.items():
            self._listeners[name] = make_listener(self._loop, name, bind, self._adopt, self._config)
            self._listeners[name].start()

    def _take(self, descriptor: int, peer: str, initial: bytes) -> None:
        """A connection that another worker has passed on with the bytes that it had read."""
        if "tcp" in self._listeners:
            self._listeners["tcp"].take(descriptor, peer, initial)
        else:
            self._adopt(descriptor, peer, initial)

    def _adopt(self, descriptor: int, peer: str, initial: bytes = b"", transport: Stream | None = None) -> Connection:
        mqtt = self._config.mqtt
        return self.engine.adopt(
            descriptor,
            peer,
            max_connect_packet_bytes=mqtt.max_connect_packet_bytes,
            max_topic_levels=mqtt.max_topic_levels,
            connect_timeout_ms=mqtt.connect_timeout_s * 1000,
            initial=initial,
            transport=transport,
        )

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
            self.handover.pass_on(owner, descriptor, connection.peer, data)

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
        self._loop.remove_reader(self.engine.fileno())

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self.engine.tick()
        self.timers.turn(self._loop.time())

    async def _drain(self) -> None:
        """Accepts nobody any more, tells everybody (paced, so that they do not all come back at once), and flushes."""
        for listener in self._listeners.values():
            listener.close()
        for number, client in enumerate(self.clients, start=1):
            connection = client.connection
            if connection is not None:
                client.will = None
                if connection.protocol_level == MQTT_5:
                    connection.send(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
                connection.close()
            if number % GOODBYES_PER_TURN == 0:
                await asyncio.sleep(0.05)
        deadline = self._loop.time() + DRAIN_S
        links = 2 * len(self.mesh.others)
        while self._loop.time() < deadline and (
            self.engine.statistics()["connections"] > links or any(x.connections for x in self._listeners.values())
        ):
            await asyncio.sleep(0.02)


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
