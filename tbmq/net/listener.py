"""Listening sockets of a worker. Every worker has its own on the same address; SO_REUSEPORT spreads the connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64
BACKLOG = 4096
REST_S = 0.2  # without descriptors: how long the listener rests
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound TCP socket that other workers can share; it does not listen yet. Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
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


class TcpListener:
    """Accepts connections and hands each to `accepted(descriptor, peer)`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: str, port: int, accepted: Callable[[int, str], None]
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._socket = bind_socket(host, port)
        self._socket.setblocking(False)
        self._is_open = True
        self.accepts = 0
        self.rests = 0  # times that descriptors ran out

    def start(self) -> None:
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

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
            self._accepted(descriptor, f"{address[0]}:{address[1]}")

    def _rest(self, error: OSError) -> None:
        """Connections wait in the kernel's queue; asking again at once would only burn the core."""
        self.rests += 1
        log.warning("cannot accept connections: %s; raise the limit of open files (ulimit -n)", error.strerror)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(REST_S, self._wake)

    def _wake(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket.fileno(), self._accept)
