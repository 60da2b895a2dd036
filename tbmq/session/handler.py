"""What the engine calls: every packet that is not on the hot path, and everything that happens to a connection.

All of it runs on the worker's loop and does not wait. An exception here costs only the connection that caused it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tbmq.packets import Auth, Connect, Disconnect, Packet, Subscribe, Unsubscribe
from tbmq.protocol import MQTT_5, ReasonCode
from tbmq.session.connect import refuse

if TYPE_CHECKING:
    from tbmq._engine import Connection, Engine
    from tbmq.auth.gate import Gate
    from tbmq.session.client import Client, Clients
    from tbmq.session.connect import Connector
    from tbmq.session.enhanced import Exchanges
    from tbmq.session.subscribe import Subscriber
    from tbmq.session.timers import TimerWheel
    from tbmq.session.wills import Wills

log = logging.getLogger(__name__)


class Links(Protocol):
    """The links to other workers."""

    def on_message(self, link: Connection, data: bytes) -> None: ...
    def on_link_closed(self, link: Connection) -> None: ...


class Handler:
    """The engine's policy. The parts it hands packets to are set by the worker, which builds them all."""

    connector: Connector
    exchanges: Exchanges
    subscriber: Subscriber
    gate: Gate
    clients: Clients
    wills: Wills
    timers: TimerWheel
    links: Links

    def __init__(self, wake: Callable[[Engine], None]) -> None:
        self.wake = wake
        self.disconnects: Counter[str] = Counter()  # by reason

    # --- packets ---

    def on_packet(self, connection: Connection, packet: Packet) -> None:
        client: Client | None = connection.context
        if isinstance(packet, Connect):
            self.connector.handle(connection, packet)
        elif isinstance(packet, Auth):
            fault = self.exchanges.handle(connection, client, packet)
            if fault is not None:
                self.on_violation(connection, ReasonCode.PROTOCOL_ERROR, fault)
                connection.close()
        elif client is None and isinstance(packet, Disconnect):  # it gives up before it was let in
            connection.close(flush=False)
        elif client is None:
            self.on_violation(connection, ReasonCode.PROTOCOL_ERROR, "a packet came before CONNACK")
            connection.close()
        elif isinstance(packet, Subscribe):
            self.subscriber.handle_subscribe(connection, client, packet)
        elif isinstance(packet, Unsubscribe):
            self.subscriber.handle_unsubscribe(connection, client, packet)
        elif isinstance(packet, Disconnect):
            self._handle_disconnect(connection, client, packet)

    def _handle_disconnect(self, connection: Connection, client: Client, packet: Disconnect) -> None:
        expiry_s = packet.properties.get("session_expiry_interval")
        if expiry_s is not None:
            if client.asked_for_no_expiry and expiry_s:
                self.on_violation(connection, ReasonCode.PROTOCOL_ERROR, "a session expiry that CONNECT did not have")
                connection.close()
                return
            client.expiry_s = min(expiry_s, self.connector.max_session_expiry_s)
            client.session.keeps_messages = client.expiry_s > 0
        if packet.reason_code == ReasonCode.SUCCESS:
            client.will = None  # [MQTT-3.14.4-3]
        self.disconnects["client"] += 1
        connection.close(flush=False)

    def on_dollar_publish(self, connection: Connection, topic: bytes) -> int:
        """0 when a client may publish to this topic that starts with `$`."""
        if topic == b"$SYS" or topic.startswith(b"$SYS/"):
            return ReasonCode.NOT_AUTHORIZED
        return self.on_first_publish(connection, topic)

    def on_first_publish(self, connection: Connection, topic: bytes) -> int:
        """0 when the client's rules allow it; the engine remembers the answer."""
        client: Client = connection.context
        return 0 if client.rules.may_publish(topic.decode()) else ReasonCode.NOT_AUTHORIZED

    # --- connections ---

    def on_violation(self, connection: Connection, reason_code: int, detail: str) -> None:
        self.disconnects[ReasonCode(reason_code).name.lower()] += 1
        client: Client | None = connection.context
        log.info("%s: closing: %s", _name(client, connection), detail)
        if client is None:
            if connection.protocol_level:
                refuse(connection, connection.protocol_level, ReasonCode(reason_code), detail)
        elif connection.protocol_level == MQTT_5:
            properties = {"reason_string": detail} if client.wants_problem_information else {}
            connection.send(Disconnect(reason_code, properties))

    def on_tolerated(self, connection: Connection, what: str) -> None:
        log.warning("%s: tolerated, as mqtt.strict is off: %s", _name(connection.context, connection), what)

    def on_timeout(self, connection: Connection, connected: bool) -> None:
        client: Client | None = connection.context
        self.disconnects["keep_alive_timeout" if connected else "connect_timeout"] += 1
        log.info(
            "%s: closing: %s",
            _name(client, connection),
            "nothing was heard for 1.5 times the keep-alive" if connected else "no CONNECT came in time",
        )
        if connected and connection.protocol_level == MQTT_5:
            connection.send(Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT))

    def on_lost(self, connection: Connection) -> None:
        self.disconnects["lost"] += 1

    def on_closed(self, connection: Connection) -> None:
        if connection.listener is not None:
            connection.listener.leave(connection.peer)
        self.exchanges.forget(connection)
        client: Client | None = connection.context
        if client is None or client.connection is not connection:
            return
        if self.gate.flapping.note_disconnect(client.client_id, time.monotonic()):
            log.warning("%s: blocked for a while: it comes and goes too often", client.name)
        self.clients.disconnected(client)
        self.wills.connection_ended(client)
        if client.expiry_s == 0:
            self.end_session(client)
        else:
            client.expiry_timer = self.timers.after(client.expiry_s, lambda: self.end_session(client))

    def on_peer_message(self, link: Connection, data: bytes) -> None:
        self.links.on_message(link, data)

    def on_link_closed(self, link: Connection) -> None:
        self.links.on_link_closed(link)

    def on_exception(self, connection: Connection) -> None:
        client: Client | None = connection.context
        self.disconnects["internal_error"] += 1
        log.exception("%s: internal error, closing", _name(client, connection))

    def end_session(self, client: Client) -> None:
        self.wills.session_ended(client)
        self.clients.end(client)


def _name(client: Client | None, connection: Connection) -> str:
    return connection.peer if client is None else client.name
