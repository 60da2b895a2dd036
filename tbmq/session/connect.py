"""CONNECT, from top to bottom: validate, authenticate, authorise, take over, load the session, CONNACK, resend.

    handle ──▶ validate ──▶ blocked? ──▶ authenticate: now, or while the connection is suspended, or through AUTH
           ──▶ admit ──▶ authorise ──▶ take over ──▶ CONNACK ──▶ resend

Nothing changes for anybody before the newcomer has been let in: a refused CONNECT leaves an existing session and its
connection as they were. Who is refused learns no more than that; the reason is for the operator.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from tbmq.auth.chain import ANONYMOUS
from tbmq.auth.model import Denied, Granted, Login, Principal
from tbmq.auth.rules import Rules
from tbmq.packets import Connack, Connect, Disconnect, Properties
from tbmq.protocol import MQTT_3_1, MQTT_5, ReasonCode

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.auth.gate import Gate
    from tbmq.config import Config
    from tbmq.session.access import Access
    from tbmq.session.client import Client, Clients
    from tbmq.session.enhanced import Exchanges, Spawn
    from tbmq.session.timers import TimerWheel
    from tbmq.session.wills import Wills

log = logging.getLogger(__name__)

V3_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_ID_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.BAD_USERNAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}
"""MQTT 3 return codes; a reason without one closes the connection without a word."""

UNLIMITED = 0xFFFF_FFFF


class Refused(Exception):
    """The CONNECT is answered with this code, and the connection closed."""

    def __init__(self, reason_code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.reason_code = reason_code
        self.reason = reason


class Ownership(Protocol):
    """Which worker a client lives on, and how to send it there."""

    def is_mine(self, client_id: str) -> bool: ...
    def pass_on(self, connection: Connection, packet: Connect) -> None: ...


class Connector:
    def __init__(
        self,
        config: Config,
        clients: Clients,
        wills: Wills,
        timers: TimerWheel,
        gate: Gate,
        access: Access,
        exchanges: Exchanges,
        ownership: Ownership,
        spawn: Spawn,
    ) -> None:
        self._mqtt = config.mqtt
        self._clients = clients
        self._wills = wills
        self._timers = timers
        self._gate = gate
        self._access = access
        self._exchanges = exchanges
        self._ownership = ownership
        self._spawn = spawn
        exchanges.admit = self.admit
        exchanges.refuse = self._refuse_exchange
        exchanges.reauthenticated = access.apply
        self.is_closing = False  # the worker is about to stop
        self.refused: Counter[str] = Counter()  # by reason

    @property
    def max_session_expiry_s(self) -> int:
        return self._mqtt.max_session_expiry_s

    def handle(self, connection: Connection, packet: Connect) -> None:
        try:
            if self._exchanges.is_under_way(connection):
                raise Refused(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
            client_id = self._validate(packet)
            if not self._ownership.is_mine(client_id):
                self._ownership.pass_on(connection, packet)
                return
        except Refused as refused:
            self._refuse(connection, packet.protocol_level, refused)
            return
        login = Login(client_id, packet.username, packet.password, connection.peer, connection.common_names)
        answer = self._gate.judge_now(login)
        if isinstance(answer, Denied):
            self._deny(connection, packet, login, answer)
        elif "authentication_method" in packet.properties:
            self._exchanges.begin(connection, packet, login)
        elif answer is not None:
            self.admit(connection, packet, login, answer, {})
        else:
            connection.suspend()
            self._spawn(self._authenticate(connection, packet, login))

    async def _authenticate(self, connection: Connection, packet: Connect, login: Login) -> None:
        answer = await self._gate.authenticate(login)
        if not connection.is_open:
            return
        if isinstance(answer, Denied):
            self._deny(connection, packet, login, answer)
        else:
            self.admit(connection, packet, login, answer, {})
            connection.resume()

    def admit(self, connection: Connection, packet: Connect, login: Login, granted: Granted, extra: Properties) -> None:
        """The client is who it says. `extra` goes into the CONNACK."""
        principal = granted.principal
        common_name = login.common_names[0] if login.common_names else None
        rules = Rules(principal.rules, login.client_id, login.username, common_name)
        try:
            self._find_room(login.client_id)
            self._authorise_will(packet, rules)
            self._authorise_take_over(login.client_id, principal)
        except Refused as refused:
            self._refuse(connection, packet.protocol_level, refused)
            return
        client_id = login.client_id
        client, session_present = self._take_over(client_id, packet)
        expiry_s = self._session_expiry_s(packet)
        keep_alive_s = self._keep_alive_s(packet)
        is_judged_alike = (client.principal.rules, client.username, client.common_name) == (
            principal.rules,
            login.username,
            common_name,
        )
        client.username = login.username
        client.common_name = common_name
        client.method = packet.properties.get("authentication_method")
        client.will = packet.will
        client.expiry_s = expiry_s
        client.asked_for_no_expiry = packet.properties.get("session_expiry_interval", 0) == 0
        client.wants_problem_information = packet.properties.get("request_problem_information", 1) == 1
        client.session.keeps_messages = expiry_s > 0
        client.send_quota = min(packet.properties.get("receive_maximum", 65_535), self._mqtt.max_inflight)
        self._clients.connected(client, connection)
        if is_judged_alike or not session_present:
            client.principal, client.rules = principal, rules
            connection.is_restricted = not rules.allows_everything_to_publish
        else:
            self._access.apply(client, principal)
        self._set_login_timer(client, granted.expires_at)
        connection.context = client
        connection.max_outgoing_bytes = packet.properties.get("maximum_packet_size", UNLIMITED)
        has_flag = session_present and packet.protocol_level > MQTT_3_1  # which came with MQTT 3.1.1
        properties = self._properties(packet, client_id, expiry_s, keep_alive_s) | extra
        connection.send(Connack(has_flag, 0, properties))
        connection.accept(
            client.session,
            packet.protocol_level,
            max_packet_bytes=self._mqtt.max_packet_bytes,
            receive_maximum=packet.properties.get("receive_maximum", 65_535),
            keep_alive_ms=keep_alive_s * 1500,
            topic_alias_maximum=self._mqtt.topic_alias_maximum if packet.protocol_level == MQTT_5 else 0,
            alias_out_maximum=min(packet.properties.get("topic_alias_maximum", 0), self._mqtt.topic_alias_maximum),
        )

    def _validate(self, packet: Connect) -> str:
        """The client id to use. Raises Refused."""
        if packet.protocol_level < MQTT_5 and self._is_over_keep_alive(packet.keep_alive_s):
            raise Refused(ReasonCode.CLIENT_ID_NOT_VALID, "the keep-alive is longer than allowed")
        if packet.client_id:
            return packet.client_id
        if packet.protocol_level == MQTT_3_1 or (packet.protocol_level < MQTT_5 and not packet.clean_start):
            raise Refused(ReasonCode.CLIENT_ID_NOT_VALID, "a client id is needed")  # 3.1.1: [MQTT-3.1.3-8]
        while True:  # an id of our own choice is one that lives here
            client_id = f"auto-{secrets.token_hex(10)}"
            if self._ownership.is_mine(client_id):
                return client_id

    def _find_room(self, client_id: str) -> None:
        if self.is_closing:
            raise Refused(ReasonCode.SERVER_UNAVAILABLE, "the server shuts down")
        if self._clients.is_full and self._clients.get(client_id) is None:
            raise Refused(ReasonCode.QUOTA_EXCEEDED, "there are too many sessions")

    def _authorise_will(self, packet: Connect, rules: Rules) -> None:
        if packet.will is None:
            return
        if f"{packet.will.topic}/".startswith("$SYS/") or not rules.may_publish(packet.will.topic):
            raise Refused(ReasonCode.NOT_AUTHORIZED, "the will's topic is not allowed")

    def _authorise_take_over(self, client_id: str, principal: Principal) -> None:
        """A session belongs to who made it; one that was made while everybody could enter, to whoever logs in first.
        While everybody may enter, nobody can be told from anybody else."""
        client = self._clients.get(client_id)
        names = {principal.name} if client is None else {principal.name, client.principal.name}
        if len(names) > 1 and ANONYMOUS.principal.name not in names:
            raise Refused(ReasonCode.NOT_AUTHORIZED, "this client id belongs to somebody else")

    def _set_login_timer(self, client: Client, expires_at: float | None) -> None:
        if client.login_timer is not None:
            client.login_timer.cancel()
            client.login_timer = None
        if expires_at is not None:
            connection = client.connection

            def expire() -> None:
                if client.connection is connection:
                    self._access.login_expired(client)

            client.login_timer = self._timers.after(max(expires_at - time.time(), 0), expire)

    def _take_over(self, client_id: str, packet: Connect) -> tuple[Client, bool]:
        """The client with its session, old or new; an older connection of it is closed first [MQTT-3.1.4-3]."""
        client = self._clients.get(client_id)
        if client is not None and client.connection is not None:
            if client.connection.protocol_level == MQTT_5:
                client.connection.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
            client.connection.close()  # a session without expiry ends with it
            client = self._clients.get(client_id)
        if client is not None and packet.clean_start:
            self._wills.session_ended(client)
            self._clients.end(client)
            client = None
        if client is None:
            return self._clients.create(client_id), False
        self._wills.resumed(client)
        if client.expiry_timer is not None:
            client.expiry_timer.cancel()
            client.expiry_timer = None
        return client, True

    def _session_expiry_s(self, packet: Connect) -> int:
        """How long the session outlives the connection. Without clean start it does so in every version."""
        asked = packet.properties.get("session_expiry_interval", 0)
        if packet.clean_start and asked == 0:
            return 0
        return min(asked or UNLIMITED, self._mqtt.max_session_expiry_s)

    def _is_over_keep_alive(self, keep_alive_s: int) -> bool:
        return (keep_alive_s or 65_536) > self._mqtt.max_keep_alive_s < 65_535

    def _keep_alive_s(self, packet: Connect) -> int:
        return self._mqtt.max_keep_alive_s if self._is_over_keep_alive(packet.keep_alive_s) else packet.keep_alive_s

    def _properties(self, packet: Connect, client_id: str, expiry_s: int, keep_alive_s: int) -> Properties:
        if packet.protocol_level < MQTT_5:
            return {}
        properties: Properties = {
            "receive_maximum": self._mqtt.receive_maximum,
            "maximum_packet_size": self._mqtt.max_packet_bytes,
            "topic_alias_maximum": self._mqtt.topic_alias_maximum,
        }
        if client_id != packet.client_id:
            properties["assigned_client_identifier"] = client_id
        if expiry_s != packet.properties.get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = expiry_s
        if keep_alive_s != packet.keep_alive_s:
            properties["server_keep_alive"] = keep_alive_s
        if packet.properties.get("request_response_information") and self._mqtt.response_information:
            properties["response_information"] = self._mqtt.response_information
        return properties

    def _deny(self, connection: Connection, packet: Connect, login: Login, denied: Denied) -> None:
        log.info("%s: refused, client id %r: %s", connection.peer, login.client_id, denied.reason)
        reason = "try again later" if denied.is_fault else "not let in"
        self._refuse(connection, packet.protocol_level, Refused(denied.reason_code, reason))

    def _refuse(self, connection: Connection, protocol_level: int, refused: Refused) -> None:
        self.refused[refused.reason_code.name.lower()] += 1
        refuse(connection, protocol_level, refused.reason_code, refused.reason)

    def _refuse_exchange(self, connection: Connection, protocol_level: int, code: ReasonCode, reason: str) -> None:
        """`protocol_level` 0: the client is connected already."""
        log.info("%s: enhanced authentication failed: %s", connection.peer, reason)
        if protocol_level:
            self._refuse(connection, protocol_level, Refused(code, "not let in"))
        else:
            connection.send(Disconnect(code))
            connection.close()


def refuse(connection: Connection, protocol_level: int, reason_code: ReasonCode, reason: str) -> None:
    """CONNACK with the reason, as far as the protocol level can say it, then the end."""
    if protocol_level == MQTT_5:
        connection.send(Connack(False, reason_code, {"reason_string": reason}))
    elif reason_code in V3_RETURN_CODES:
        connection.send_raw(bytes((0x20, 2, 0, V3_RETURN_CODES[reason_code])))
    connection.close()
