"""Connections that are more than a socket: TLS, and (websocket.py) WebSocket with or without TLS.

    socket ◀──▶ uvloop (TLS) ◀──▶ Stream ◀──▶ engine connection
                                   buffer_updated ──▶ receive       pause_writing, resume_writing ──▶ writable
                                   write, close ◀── engine          connection_lost ──▶ lost

The engine sees no descriptor, but this object as its `transport`. All streams of a worker read into one buffer: uvloop
fills it and hands it over in the same call, so no two reads overlap and an idle connection holds no buffer.

A client of another worker: `hand_over` puts a Pipe in the engine's place, see there.

Who ends what: `close` comes from the engine, which then forgets the stream; `connection_lost` comes from uvloop, and
the engine is told unless it closed first. Whichever comes first, `connection` is None from then on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tbmq.auth.x509 import read_common_names
from tbmq.net.listener import TcpListener
from tbmq.net.tls import TlsError, build_context, verified_chain

if TYPE_CHECKING:
    from tbmq._engine import Connection
    from tbmq.config.model import MqttListener, TlsListener
    from tbmq.net.admission import LoopLag

log = logging.getLogger(__name__)

READ_BYTES = 262_144
HIGH_WATER_BYTES = 131_072  # waiting in uvloop; above it the engine keeps its output
LINGER_S = 2.0  # time for a peer to take our last bytes and close

# The one buffer, see the head of this file.
buffer = bytearray(READ_BYTES)
view = memoryview(buffer)


class Stream(asyncio.BufferedProtocol):
    """MQTT over TLS: the bytes are the engine's as they are."""

    def __init__(self, listener: StreamListener, peer: str) -> None:
        self._listener = listener
        self.peer = peer
        self.connection: Connection | Pipe | None = None  # None: not opened yet, or ended
        self._transport: asyncio.Transport
        self._is_reading = True
        self._can_write = True
        self._is_counted = True
        self._has_ended = False  # nothing more is written or taken; uvloop may still be at it
        self._timer: asyncio.TimerHandle | None = None  # of the opening, then of the closing

    def common_names(self) -> tuple[str, ...]:
        """Of the client's certificate, checked against `ca`, and its chain, its own first; empty: it showed none."""
        try:
            return read_common_names(verified_chain(self._transport.get_extra_info("ssl_object")))
        except ValueError as error:  # OpenSSL took it, our reader does not: a certificate that names nobody
            log.warning("%s: the client's certificate cannot be read: %s", self.peer, error)
            return ("",)

    # --- called by uvloop --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._opened()

    def _opened(self) -> None:
        self._adopt()

    def _adopt(self) -> None:
        self.connection = self._listener.adopt(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.connection is not None:
            self.connection.receive(view[:nbytes])

    def pause_writing(self) -> None:
        self._can_write = False
        if self.connection is not None:
            self.connection.writable(False)

    def resume_writing(self) -> None:
        self._can_write = True
        if self.connection is not None:
            self.connection.writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._has_ended = True
        self.leave()
        self._tell_engine_it_is_lost()

    def leave(self) -> None:
        """The listener no longer counts it. A handshake that fails and the end of a connection may both say so."""
        if self._is_counted:
            self._is_counted = False
            self._listener.leave(self.peer)

    def _tell_engine_it_is_lost(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.lost()

    # --- called by the engine ----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._has_ended:
            self._transport.write(self._frame(data))

    def _frame(self, data: bytes) -> bytes:
        return data

    def pause_reading(self) -> None:
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        """What was written is still sent."""
        if self.connection is not None:
            self.connection = None
            self._finish()

    def hand_over(self) -> int:
        """The client belongs to another worker, but TLS cannot move: answers a descriptor for that worker, with the
        plain bytes. It is one end of a socket pair; a Pipe at the other end stands where the engine was."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        if self._has_ended:
            ours.close()
        else:
            self.connection = Pipe(self, ours, self._listener.loop)
        return theirs.detach()

    def _finish(self) -> None:
        """Nothing more will be written. Closing a socket with unread input would reset it and could destroy our last
        packet: so input is read and dropped until the peer closes, for LINGER_S at most. TLS does that by itself."""
        self._has_ended = True
        self._set_timer(LINGER_S, self._transport.abort)
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def _set_timer(self, after_s: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._listener.loop.call_later(after_s, action)


class Pipe(asyncio.BufferedProtocol):
    """Stands where a stream's engine connection was, and carries its bytes to and from another worker."""

    def __init__(self, stream: Stream, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        stream.pause_reading()
        self._opening = loop.create_task(self._open(loop, sock))

    async def _open(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        transport, _ = await loop.create_unix_connection(lambda: self, sock=sock)
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._transport = transport
        if self._is_lost:
            transport.close()
        else:
            self._stream.resume_reading()

    # --- called by uvloop, for the pair ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> bytearray:
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._stream.write(bytes(view[:nbytes]))

    def pause_writing(self) -> None:
        self._stream.pause_reading()

    def resume_writing(self) -> None:
        self._stream.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The owner closed its end."""
        self._stream.close()

    # --- called by the stream, as it calls an engine connection ------------------------------------------------------

    def receive(self, data: memoryview) -> None:
        assert self._transport is not None  # nothing is read before it is there
        self._transport.write(bytes(data))

    def writable(self, can_write: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if can_write:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def lost(self) -> None:
        self._is_lost = True
        if self._transport is not None:
            self._transport.close()


class StreamListener(TcpListener):
    """Opens a stream for each connection and, when its first handshakes are done, hands it to
    `accepted(-1, peer, transport=stream)`, which must answer the engine's connection.

    With `alpn` it speaks TLS. Without usable certificates it does not listen until `reload` finds some: a worker that
    starts again while an operator exchanges files serves everything else meanwhile.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        accepted: Callable[..., Connection | None],
        settings: MqttListener,
        connect_timeout_s: float,
        make_stream: Callable[[StreamListener, str], Stream] = Stream,
        alpn: str = "",
        lag: LoopLag | None = None,
    ) -> None:
        self._settings = cast("TlsListener", settings)  # which it is when there is `alpn`
        self._alpn = alpn
        self._make_stream = make_stream
        self._context: ssl.SSLContext | None = None
        self._has_started = False
        super().__init__(loop, host, port, accepted, settings, connect_timeout_s, lag)
        self.loop = loop
        self.connect_timeout_s = connect_timeout_s

    def start(self) -> None:
        if not self._alpn or self._load_certificates():
            self._has_started = True
            super().start()

    def reload(self) -> None:
        """Reads the certificates again. New connections use them; when they cannot be used, all stays as it was."""
        if self._alpn and self._load_certificates():
            log.info("certificates were reloaded from %s", self._settings.certificate)
            if not self._has_started:
                self.start()

    def _load_certificates(self) -> bool:
        try:
            self._context = build_context(self._settings, self._alpn)
        except TlsError as error:
            consequence = "the old ones stay in use" if self._has_started else "this listener stays closed"
            log.error("certificates were not loaded, %s: %s; correct it and reload (SIGHUP)", consequence, error)
            return False
        return True

    def adopt(self, stream: Stream) -> Connection | None:
        return self._accepted(-1, stream.peer, common_names=stream.common_names(), transport=stream)

    def refuse(self, stream: Stream, kind: str, fault: str) -> None:
        """Counts and logs why a stream ends."""
        self._admission.refused[kind] += 1
        log.info("%s: closing: %s", stream.peer, fault)

    def _open(self, descriptor: int, peer: str) -> None:
        self._begin(self._shake_hands(descriptor, peer))

    async def _shake_hands(self, descriptor: int, peer: str) -> None:
        sock = socket.socket(fileno=descriptor)
        stream = self._make_stream(self, peer)
        tls: dict[str, Any] = {}
        if self._context is not None:
            tls = {
                "ssl": self._context,
                "ssl_handshake_timeout": float(self._settings.handshake_timeout_s),
                "ssl_shutdown_timeout": LINGER_S,
            }
        try:
            await self.loop.connect_accepted_socket(lambda: stream, sock, **tls)
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError is an OSError
            sock.close()
            stream.leave()
            if isinstance(error, asyncio.CancelledError):
                raise
            self.refuse(stream, "tls_handshake", f"the TLS handshake failed: {_reason(error)}")


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionAbortedError):
        return "it took too long, or the client went away"
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()
