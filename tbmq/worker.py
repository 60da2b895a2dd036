"""One worker: one process, one uvloop loop, one core. The composition root of everything that handles MQTT.

    startup -> run until told to stop -> shutdown, each bounded in time
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from typing import TYPE_CHECKING

import uvloop

from tbmq._engine import Engine
from tbmq.net.listener import TcpListener
from tbmq.packets import Disconnect
from tbmq.pipeline.retained import RetainedReplay
from tbmq.protocol import MQTT_5, ReasonCode
from tbmq.session.client import Clients
from tbmq.session.connect import Connector
from tbmq.session.handler import Handler
from tbmq.session.subscribe import Subscriber
from tbmq.session.timers import TimerWheel
from tbmq.session.wills import Wills

if TYPE_CHECKING:
    from tbmq.config import Bind, Config

log = logging.getLogger(__name__)

TICK_S = 0.5
GOODBYES_PER_TURN = 500
DRAIN_S = 5.0  # time for clients to read our DISCONNECT


class Worker:
    def __init__(self, config: Config, index: int, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self._stopping = asyncio.Event()
        self.service_id = f"{config.node.name}-{index}"
        handler = Handler(wake=lambda engine: loop.call_soon(engine.run))
        self.engine = Engine(handler, receive_maximum=config.mqtt.receive_maximum, max_inflight=config.mqtt.max_inflight)
        self.timers = TimerWheel(loop.time())
        self.clients = Clients(self.engine, config.mqtt.max_queued_messages)
        handler.timers = self.timers
        handler.clients = self.clients
        handler.wills = Wills(self.engine, self.timers)
        handler.connector = Connector(config, self.clients, handler.wills)
        handler.subscriber = Subscriber(config, self.clients, RetainedReplay(self.engine, loop).start)
        self.handler = handler
        self._listeners: list[TcpListener] = []

    def listen(self, address: Bind) -> None:
        listener = TcpListener(self._loop, address.host, address.port, self._accepted)
        listener.start()
        self._listeners.append(listener)

    def _accepted(self, descriptor: int, peer: str) -> None:
        mqtt = self._config.mqtt
        self.engine.adopt(
            descriptor,
            peer,
            max_connect_packet_bytes=mqtt.max_connect_packet_bytes,
            max_topic_levels=mqtt.max_topic_levels,
            connect_timeout_ms=mqtt.connect_timeout_s * 1000,
        )

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Serves until `stop`, then says goodbye to everybody."""
        self._loop.add_reader(self.engine.fileno(), self.engine.run)
        self._tick()
        await self._stopping.wait()
        await self._drain()
        self._loop.remove_reader(self.engine.fileno())

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self.engine.tick()
        self.timers.turn(self._loop.time())

    async def _drain(self) -> None:
        """Accepts nobody any more, tells everybody (paced, so that they do not all come back at once), and flushes."""
        for listener in self._listeners:
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
        while self.engine.statistics()["connections"] and self._loop.time() < deadline:
            await asyncio.sleep(0.02)


def run_worker(config: Config, index: int, addresses: list[Bind], ready_fd: int) -> None:
    """The life of a worker process. Writes one byte to `ready_fd` when it accepts connections."""
    uvloop.install()
    asyncio.run(_main(config, index, addresses, ready_fd))


async def _main(config: Config, index: int, addresses: list[Bind], ready_fd: int) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(config, index, loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    for address in addresses:
        worker.listen(address)
    gc.freeze()  # what exists now stays: no collection has to look at it again
    os.write(ready_fd, b"\1")
    os.close(ready_fd)
    await worker.run()
