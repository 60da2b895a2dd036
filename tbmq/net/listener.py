"""Listening sockets of a worker. Every worker has its own on the same address; SO_REUSEPORT spreads the connections.

    accept ──▶ max_connections ──▶ PROXY header, where it is switched on ──▶ max_connections_per_ip ──▶ _open
                                                                                                         │
                                         TcpListener: the engine adopts the descriptor ◀─────────────────┤
                                         StreamListener (stream.py): TLS or WebSocket first ◀────────────┘

A refused connection is closed at once and counted by reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tbmq.config.model import MqttListener, Tcp
from tbmq.net import proxy_protocol
from tbmq.net.admission import Admission, LoopLag
from tbmq.rate_limits import parse_rate_limits

if TYPE_CHECKING:
    from tbmq._engine import Connection

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
BACKLOG = 4096
REST_S = 0.2  # without descriptors: how long the listener rests
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket that other workers can share; it does not listen yet. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _ip_of(peer: str) -> str:
    return peer.rpartition(":")[0]


class TcpListener:
    """Accepts connections and hands each to `accepted(descriptor, peer)`, with peer as `address:port`.

    `accepted` answers the engine's connection, whose `listener` is then set to this object, so that its end can be told
    with `leave(peer)`; or None when the descriptor went elsewhere, and is no longer counted here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        accepted: Callable[..., Connection | None],
        settings: MqttListener | None = None,
        connect_timeout_s: float = 10.0,
        lag: LoopLag | None = None,
    ) -> None:
        settings = settings or Tcp()
        self._loop = loop
        self._accepted = accepted
        self._connect_timeout_s = connect_timeout_s
        self._has_proxy = settings.proxy_protocol
        self._proxies = settings.trusted_proxies
        rate = parse_rate_limits(settings.connect_rate_limit)
        self._admission = Admission(settings.max_connections, settings.max_connections_per_ip, rate, lag)
        self._openings: set[asyncio.Task[None]] = set()  # PROXY headers and handshakes under way
        self._socket = bind_socket(host, port)
        self._socket.setblocking(False)
        self._is_open = True
        self.accepts = 0
        self.rests = 0  # times that descriptors ran out

    def start(self) -> None:
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accepts nobody any more; connections that are open stay, those that are still being opened are closed."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            for opening in self._openings:
                opening.cancel()

    def reload(self) -> None:
        """Takes up new certificates, where there are any."""

    def take(self, descriptor: int, peer: str, common_names: tuple[str, ...], initial: bytes) -> None:
        """A connection that another worker accepted and passed on with the bytes that it had read. It counts here from
        now on; the near end of a Pipe does not, its far end is counted where it came in."""
        with contextlib.closing(socket.socket(fileno=descriptor)) as sock:
            is_counted = sock.family != socket.AF_UNIX
            if is_counted and not (self._admission.enter(is_new=False) and self._admission.claim(_ip_of(peer))):
                return
            sock.detach()
        connection = self._accepted(descriptor, peer, common_names=common_names, initial=initial)
        if is_counted and connection is not None:
            connection.listener = self

    def leave(self, peer: str) -> None:
        """A connection that came through this listener has ended."""
        self._admission.leave(_ip_of(peer))

    @property
    def connections(self) -> int:
        return self._admission.connections

    def statistics(self) -> dict[str, Any]:
        return {
            "accepts": self.accepts,
            "rests": self.rests,
            "connections": self._admission.connections,
            "refused": dict(self._admission.refused),
        }

    # --- accepting ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                descriptor, address = self._socket._accept()  # type: ignore[attr-defined]  # no socket object
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                self._rest(error)
                return
            self.accepts += 1
            self._admit(descriptor, address[0], address[1])

    def _admit(self, descriptor: int, ip: str, port: int) -> None:
        if not self._admission.enter():
            os.close(descriptor)
        elif not self._has_proxy:
            self._claim(descriptor, ip, port)
        elif self._is_trusted(ip):
            self._begin(self._read_proxy_header(descriptor, ip, port))
        else:
            log.info("%s:%d: closing: not in the networks of trusted_proxies", ip, port)
            self._admission.leave_before_claim("untrusted_proxy")
            os.close(descriptor)

    def _claim(self, descriptor: int, ip: str, port: int) -> None:
        if self._admission.claim(ip):
            self._open(descriptor, f"{ip}:{port}")
        else:
            os.close(descriptor)

    def _open(self, descriptor: int, peer: str) -> None:
        connection = self._accepted(descriptor, peer)
        if connection is None:
            self.leave(peer)
        else:
            connection.listener = self

    def _begin(self, opening: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(opening)
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)

    def _rest(self, error: OSError) -> None:
        """Connections wait in the kernel's queue; asking again at once would only burn the core."""
        self.rests += 1
        log.warning("cannot accept connections: %s; raise the limit of open files (ulimit -n)", error.strerror)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(REST_S, self._wake)

    def _wake(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    # --- PROXY protocol ----------------------------------------------------------------------------------------------

    def _is_trusted(self, ip: str) -> bool:
        address = ipaddress.ip_address(ip.partition("%")[0])
        return any(address in network for network in self._proxies)

    async def _read_proxy_header(self, descriptor: int, ip: str, port: int) -> None:
        with contextlib.closing(socket.socket(fileno=descriptor)) as sock:
            try:
                header = await proxy_protocol.receive(self._loop, sock, self._connect_timeout_s)
            except (proxy_protocol.ProxyProtocolError, OSError) as error:  # TimeoutError is an OSError
                fault = "no header came in time" if isinstance(error, TimeoutError) else str(error)
                log.info("%s:%d: closing: PROXY protocol: %s", ip, port, fault)
                self._admission.leave_before_claim("proxy_header")
                return
            except asyncio.CancelledError:
                self._admission.leave_before_claim("stopping")
                raise
            sock.detach()
        self._claim(descriptor, *(header.source or (ip, port)))
