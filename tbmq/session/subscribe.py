"""SUBSCRIBE and UNSUBSCRIBE: each line is judged by itself, so that the good ones are granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tbmq.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from tbmq.protocol import MQTT_5, ReasonCode
from tbmq.session.client import Granted
from tbmq.topic_filters import EXCLUSIVE, TopicFilterError, parse_topic_filter

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.config import Config
    from tbmq.session.client import Client, Clients

Replay = Callable[["Client", list[Granted], Callable[[], None]], None]
"""Sends the retained messages of new subscriptions, behind an answer that is sent by the callable."""

WhenKnown = Callable[[Callable[[], None]], None]
"""Calls back when the other workers know what was subscribed."""


class Subscriber:
    def __init__(self, config: Config, clients: Clients, when_known: WhenKnown, replay: Replay) -> None:
        self._mqtt = config.mqtt
        self._clients = clients
        self._when_known = when_known
        self._replay = replay

    def handle_subscribe(self, connection: Connection, client: Client, packet: Subscribe) -> None:
        identifier = packet.properties.get("subscription_identifier", 0)
        codes: list[int] = []
        wanted: list[Granted] = []  # whose retained messages follow the SUBACK
        for line in packet.subscriptions:
            granted = self._judge(client, line, identifier)
            if isinstance(granted, ReasonCode):
                codes.append(granted if connection.protocol_level == MQTT_5 else 0x80)
                continue
            is_new = self._clients.subscribe(client, line.topic_filter, granted)
            codes.append(granted.qos)
            if granted.group is None and (line.retain_handling == 0 or (line.retain_handling == 1 and is_new)):
                wanted.append(granted)
        self._answer_when_known(connection, client, Suback(packet.packet_id, codes), wanted)

    def _answer_when_known(
        self, connection: Connection, client: Client, answer: Suback | Unsuback, wanted: list[Granted]
    ) -> None:
        """When all workers know the change. What the client sends meanwhile is handled after that."""

        def send_answer() -> None:
            if connection.is_open:
                connection.send(answer)
                connection.resume()

        connection.suspend()
        self._when_known(lambda: self._replay(client, wanted, send_answer))

    def _judge(self, client: Client, line: Subscription, identifier: int) -> Granted | ReasonCode:
        try:
            parsed = parse_topic_filter(line.topic_filter, self._mqtt.max_topic_levels)
        except TopicFilterError as error:
            return error.reason_code
        if parsed.topic_filter.startswith(EXCLUSIVE):
            return ReasonCode.TOPIC_FILTER_INVALID
        if not client.rules.may_subscribe(parsed.topic_filter):
            return ReasonCode.NOT_AUTHORIZED
        is_new = line.topic_filter not in client.subscriptions
        if is_new and len(client.subscriptions) >= self._mqtt.max_subscriptions:
            return ReasonCode.QUOTA_EXCEEDED
        return Granted(
            parsed.topic_filter,
            parsed.group,
            line.qos,
            line.no_local and parsed.group is None,
            line.retain_as_published,
            line.retain_handling,
            identifier,
        )

    def handle_unsubscribe(self, connection: Connection, client: Client, packet: Unsubscribe) -> None:
        codes = [
            ReasonCode.SUCCESS if self._clients.unsubscribe(client, name) else ReasonCode.NO_SUBSCRIPTION_EXISTED
            for name in packet.topic_filters
        ]
        answer = Unsuback(packet.packet_id, list(codes) if connection.protocol_level == MQTT_5 else [])
        self._answer_when_known(connection, client, answer, [])
