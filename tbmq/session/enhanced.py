"""Enhanced authentication of MQTT 5: SCRAM through AUTH packets, at CONNECT and again while connected.

    CONNECT method, first message ──▶ begin ── AUTH 0x18 server-first ──▶ client
                                                 client ── AUTH 0x18 final message ──▶ handle ──▶ admitted, CONNACK
    connected: AUTH 0x19 first message ──▶ handle ── AUTH 0x18 ... AUTH 0x18 ──▶ handle ── AUTH 0x00 server-final

An exchange belongs to its connection and ends with it. Before CONNACK nothing but AUTH and DISCONNECT may come; after
it the client goes on meanwhile [MQTT-4.12.1-1]. Who fails at CONNECT is refused, who fails later is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tbmq.auth.model import Granted, Login, Principal
from tbmq.auth.scram import ScramError, ScramExchange
from tbmq.packets import Auth, Connect, Properties
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import ScramKeys
from tbmq.storage.interfaces import StoreError

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.auth.gate import Gate
    from tbmq.session.client import Client

Spawn = Callable[[Coroutine[Any, Any, None]], None]
Admit = Callable[["Connection", Connect, Login, Granted, Properties], None]
Refuse = Callable[["Connection", int, ReasonCode, str], None]

WHEN_CONNECTED = {
    ReasonCode.BANNED: ReasonCode.ADMINISTRATIVE_ACTION,
    ReasonCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_BUSY,
}
"""CONNACK knows these reasons, DISCONNECT does not."""


@dataclass(slots=True)
class Exchange:
    method: str
    scram: ScramExchange
    login: Login
    connect: Connect | None  # None: the client is connected already
    principal: Principal | None = None  # who it will be if the proof fits; None: nobody
    keys: ScramKeys | None = None  # that the proof must fit
    version: int = 0  # of all credentials, when these were read
    is_asked: bool = False  # our challenge is out, and not answered yet


class Exchanges:
    def __init__(self, gate: Gate, spawn: Spawn) -> None:
        self._gate = gate
        self._spawn = spawn
        self._by_connection: dict[Connection, Exchange] = {}
        self.admit: Admit
        self.refuse: Refuse
        self.reauthenticated: Callable[[Client, Principal], None]

    def begin(self, connection: Connection, packet: Connect, login: Login) -> None:
        method: str = packet.properties["authentication_method"]
        scram = self._gate.start_exchange(method)
        if scram is None:
            self._refuse(
                connection, login, packet, ReasonCode.BAD_AUTHENTICATION_METHOD, "the method is not known here"
            )
            return
        self._start(connection, Exchange(method, scram, login, packet), packet.properties)

    def is_under_way(self, connection: Connection) -> bool:
        return connection in self._by_connection

    def forget(self, connection: Connection) -> None:
        self._by_connection.pop(connection, None)

    def handle(self, connection: Connection, client: Client | None, packet: Auth) -> str | None:
        """AUTH from a client. Answers how it broke the protocol, or None."""
        exchange = self._by_connection.get(connection)
        method = packet.properties.get("authentication_method")
        if client is not None and packet.reason_code == ReasonCode.REAUTHENTICATE:
            if client.method is None:
                return "AUTH without an authentication method"  # [MQTT-4.12.0-6]
            if exchange is not None:
                return "a second authentication began before the first had ended"
            if method != client.method:
                return "another authentication method than that of CONNECT"  # [MQTT-4.12.1-1]
            scram = self._gate.start_exchange(client.method)
            if scram is None:  # it was switched off meanwhile
                self._fail(
                    connection,
                    Exchange(client.method, ScramExchange(client.method, b""), self._login(client), None),
                    "off",
                )
                return None
            self._start(connection, Exchange(client.method, scram, self._login(client), None), packet.properties)
            return None
        if exchange is None or not exchange.is_asked or packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
            return "AUTH that nobody asked for"
        if method != exchange.method:
            return "another authentication method than at the start"  # [MQTT-4.12.0-5]
        self._finish(connection, client, exchange, packet.properties.get("authentication_data", b""))
        return None

    def _login(self, client: Client) -> Login:
        assert client.connection is not None
        return Login(client.client_id, client.username, peer=client.connection.peer)

    def _start(self, connection: Connection, exchange: Exchange, properties: Properties) -> None:
        try:
            username = exchange.scram.first_message(properties.get("authentication_data", b""))
        except ScramError as error:
            self._fail(connection, exchange, str(error))
            return
        self._by_connection[connection] = exchange
        exchange.login = replace(exchange.login, username=username)
        blocked = self._gate.find_blocked(exchange.login)  # by the name that only now is known
        if blocked is not None:
            self._fail(connection, exchange, blocked.reason, ReasonCode.BANNED)
            return
        self._spawn(self._challenge(connection, exchange, username))

    async def _challenge(self, connection: Connection, exchange: Exchange, username: str) -> None:
        exchange.version = self._gate.credentials_version
        try:
            found = await self._gate.find_scram(username, exchange.method)
        except StoreError as error:
            self._fail(connection, exchange, f"the store cannot tell: {error}", ReasonCode.SERVER_UNAVAILABLE)
            return
        if not connection.is_open:
            return
        if found is not None:
            exchange.principal, exchange.keys = found
        challenge = exchange.scram.server_first(exchange.keys)
        exchange.is_asked = True
        self._send(connection, exchange, ReasonCode.CONTINUE_AUTHENTICATION, challenge)

    def _finish(self, connection: Connection, client: Client | None, exchange: Exchange, data: bytes) -> None:
        exchange.is_asked = False
        try:
            final = exchange.scram.final_message(data)
        except ScramError as error:
            self._fail(connection, exchange, str(error))
            return
        if exchange.version == self._gate.credentials_version:
            self._complete(connection, client, exchange, final)
        else:
            self._spawn(self._confirm(connection, client, exchange, final))

    async def _confirm(self, connection: Connection, client: Client | None, exchange: Exchange, final: bytes) -> None:
        """Some credentials have changed since the challenge: are these still what the proof was for?"""
        try:
            found = await self._gate.find_scram(exchange.scram.username, exchange.method)
        except StoreError as error:
            self._fail(connection, exchange, f"the store cannot tell: {error}", ReasonCode.SERVER_UNAVAILABLE)
            return
        if not connection.is_open:
            return
        if found is None or found[1] != exchange.keys:
            self._fail(connection, exchange, "its credentials were changed meanwhile")
            return
        exchange.principal = found[0]
        self._complete(connection, client, exchange, final)

    def _complete(self, connection: Connection, client: Client | None, exchange: Exchange, final: bytes) -> None:
        assert exchange.principal is not None  # without keys no proof fits
        blocked = self._gate.find_blocked(exchange.login)  # since the first message
        if blocked is not None:
            self._fail(connection, exchange, blocked.reason, ReasonCode.BANNED)
            return
        self.forget(connection)
        if client is None:
            assert exchange.connect is not None
            answer: Properties = {"authentication_method": exchange.method, "authentication_data": final}
            self.admit(connection, exchange.connect, exchange.login, Granted(exchange.principal), answer)
        elif exchange.principal.name != client.principal.name:
            self._fail(connection, exchange, "it logged in again as somebody else")
        else:
            self.reauthenticated(client, exchange.principal)
            self._send(connection, exchange, ReasonCode.SUCCESS, final)

    def _send(self, connection: Connection, exchange: Exchange, code: ReasonCode, data: bytes) -> None:
        connection.send(Auth(code, {"authentication_method": exchange.method, "authentication_data": data}))

    def _fail(
        self,
        connection: Connection,
        exchange: Exchange,
        reason: str,
        code: ReasonCode = ReasonCode.NOT_AUTHORIZED,
    ) -> None:
        self.forget(connection)
        if connection.is_open:
            if exchange.connect is None:
                code = WHEN_CONNECTED.get(code, code)
            self._refuse(connection, exchange.login, exchange.connect, code, reason)

    def _refuse(
        self, connection: Connection, login: Login, packet: Connect | None, code: ReasonCode, reason: str
    ) -> None:
        self._gate.deny_exchange(login, f"SCRAM: {reason}", code)
        self.refuse(connection, packet.protocol_level if packet is not None else 0, code, reason)
