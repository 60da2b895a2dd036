"""Changes of who may do what, brought to the clients that are here: connected or away.

credentials removed            the connection ends, and the session with its queue
their proof or type changed    the connection ends; the client has to log in anew
their rules changed            judged again: publishing from now on, subscriptions, messages that wait
a client is blocked            the connection ends
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tbmq.auth.model import Login
from tbmq.packets import Disconnect
from tbmq.protocol import MQTT_5, ReasonCode

if TYPE_CHECKING:
    from tbmq.auth.gate import Gate
    from tbmq.auth.model import Principal
    from tbmq.session.client import Client, Clients

log = logging.getLogger(__name__)


class Access:
    def __init__(self, gate: Gate, clients: Clients, end_session: Callable[[Client], None]) -> None:
        self._gate = gate
        self._clients = clients
        self._end_session = end_session

    async def credentials_changed(self, ids: set[str] | None) -> None:
        """These credentials are not what they were; None: any of them."""
        affected: dict[str, list[Client]] = {}
        for client in self._clients:
            credentials_id = client.principal.credentials_id
            if credentials_id is not None and (ids is None or credentials_id in ids):
                affected.setdefault(credentials_id, []).append(client)
        for credentials_id, clients in affected.items():
            credentials = await self._gate.get_credentials(credentials_id)
            for client in clients:
                if (
                    client.principal.credentials_id != credentials_id
                    or self._clients.get(client.client_id) is not client
                ):
                    continue  # it has gone, or come anew, while we waited
                if credentials is None:
                    self._disconnect(client, ReasonCode.NOT_AUTHORIZED, "its credentials were removed")
                    if self._clients.get(client.client_id) is client:
                        self._end_session(client)
                elif (
                    credentials.proof != client.principal.proof
                    or credentials.client_type != client.principal.client_type
                ):
                    self._disconnect(client, ReasonCode.ADMINISTRATIVE_ACTION, "its credentials were changed")
                elif credentials.rules != client.principal.rules:
                    # Who it is stays: of an X.509 client the name is that of its certificate.
                    self.apply(client, replace(client.principal, rules=credentials.rules))

    def apply(self, client: Client, principal: Principal) -> None:
        """New rules for a client that is who it was."""
        client.set_rules(principal)
        denied = [
            name
            for name, granted in client.subscriptions.items()
            if not client.rules.may_subscribe(granted.topic_filter)
        ]
        for name in denied:
            self._clients.unsubscribe(client, name)
        dropped = client.session.drop_messages(lambda topic: not client.rules.may_subscribe(topic.decode()))
        if denied or dropped:
            log.info(
                "%s: its rules were changed: %d subscriptions ended, %d waiting messages dropped",
                client.name,
                len(denied),
                dropped,
            )

    def blocked_changed(self) -> None:
        for client in self._clients:
            connection = client.connection
            if connection is None:
                continue
            if self._gate.find_blocked(Login(client.client_id, client.username, peer=connection.peer)) is not None:
                self._disconnect(client, ReasonCode.ADMINISTRATIVE_ACTION, "it is blocked")

    def _disconnect(self, client: Client, reason_code: ReasonCode, reason: str) -> None:
        connection = client.connection
        if connection is not None:
            log.info("%s: closing: %s", client.name, reason)
            if connection.protocol_level == MQTT_5:
                connection.send(Disconnect(reason_code))
            connection.close()

    def login_expired(self, client: Client) -> None:
        """What it showed at its login holds no longer."""
        self._disconnect(client, ReasonCode.MAXIMUM_CONNECT_TIME, "its login has expired")
