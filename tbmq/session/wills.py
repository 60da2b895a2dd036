"""Wills: published when a connection ends without a proper DISCONNECT.

A will with a delay goes at the earlier of its delay and the session's end, and not at all when the client is back
by then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tbmq._codec import encode_properties
from tbmq.protocol import WILL

if TYPE_CHECKING:
    from tbmq._engine import Engine
    from tbmq.session.client import Client
    from tbmq.session.timers import TimerWheel

log = logging.getLogger(__name__)


class Wills:
    def __init__(self, engine: Engine, timers: TimerWheel) -> None:
        self._engine = engine
        self._timers = timers

    def connection_ended(self, client: Client) -> None:
        """Publishes the will now, or after its delay when the session lives that long."""
        if client.will is None:
            return
        delay_s = client.will.properties.get("will_delay_interval", 0)
        if delay_s == 0 or client.expiry_s == 0:
            self.publish(client)
        elif delay_s < client.expiry_s:
            client.will_timer = self._timers.after(delay_s, lambda: self.publish(client))

    def session_ended(self, client: Client) -> None:
        """A will that still waits for its delay goes now [MQTT-3.1.2-8]."""
        self.publish(client)

    def resumed(self, client: Client) -> None:
        """The client is back in time: its will is not published [MQTT-3.1.3-9]."""
        client.will = None
        self._cancel(client)

    def publish(self, client: Client) -> None:
        will, client.will = client.will, None
        self._cancel(client)
        if will is None:
            return
        if not client.rules.may_publish(will.topic):  # its rules have changed since CONNECT
            log.info("%s: its will is not published: it may no longer publish to its topic", client.name)
            return
        forwarded = {
            name: value
            for name, value in will.properties.items()
            if name not in ("will_delay_interval", "message_expiry_interval")
        }
        self._engine.publish(
            will.topic.encode(),
            will.payload,
            qos=will.qos,
            retain=will.retain,
            properties=encode_properties(forwarded, WILL),
            expiry_s=will.properties.get("message_expiry_interval"),
            publisher=client.session,
        )

    def _cancel(self, client: Client) -> None:
        if client.will_timer is not None:
            client.will_timer.cancel()
            client.will_timer = None
