"""The four listeners by name, each made from its section of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tbmq.net.listener import TcpListener
from tbmq.net.stream import StreamListener
from tbmq.net.tls import build_context
from tbmq.net.websocket import WebSocketStream

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.config import Bind, Config
    from tbmq.net.admission import LoopLag

ALPN = {"tls": "mqtt", "wss": "http/1.1"}


def make_listener(
    loop: asyncio.AbstractEventLoop,
    name: str,
    bind: Bind,
    accepted: Callable[..., Connection | None],
    config: Config,
    lag: LoopLag | None = None,
) -> TcpListener:
    """The listener `name` (tcp, tls, ws or wss), bound and not started. Raises OSError.

    `accepted(descriptor, peer)` for tcp, `accepted(-1, peer, transport=stream)` for the others.
    """
    settings = getattr(config.listeners, name)
    connect_timeout_s = config.mqtt.connect_timeout_s
    if name == "tcp":
        return TcpListener(loop, bind.host, bind.port, accepted, settings, connect_timeout_s, lag)
    if name == "tls":
        return StreamListener(
            loop, bind.host, bind.port, accepted, settings, connect_timeout_s, alpn=ALPN[name], lag=lag
        )
    return StreamListener(
        loop,
        bind.host,
        bind.port,
        accepted,
        settings,
        connect_timeout_s,
        WebSocketStream.maker(settings, max(config.mqtt.max_packet_bytes, config.mqtt.max_connect_packet_bytes)),
        ALPN.get(name, ""),
        lag,
    )


def check_certificates(config: Config) -> None:
    """For the supervisor, before there are workers: raises TlsError when a listener's files cannot be used."""
    for name, alpn in ALPN.items():
        settings = getattr(config.listeners, name)
        if settings.address is not None:
            build_context(settings, alpn)
