"""TLS and WebSocket between a socket and the engine: bytes in, bytes out, no I/O.

    engine ──plain──▶ send() ── WebSocket frame ── TLS record ──▶ raw, for the kernel
    engine ◀──plain── receive() ◀── frames taken off ◀── decrypted ◀── raw, from the kernel

Slower than plain TCP, where the engine touches the bytes itself; a chunk of messages is still one call.
"""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
from collections.abc import Callable

from tbmq.loadgen.options import Options

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FIN = 0x80
MASKED = 0x80
BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
MAX_RESPONSE_BYTES = 16_384
MAX_RECORD_BYTES = 16_384  # of TLS: a read never gives more


class TransportError(Exception):
    """The other end does not do what TLS or WebSocket demand."""


def maker(options: Options) -> Callable[[], Transport] | None:
    """What makes the transport of one connection; None when the engine talks to the socket itself."""
    if not options.tls and not options.websocket:
        return None
    context = _tls_context(options) if options.tls else None
    return lambda: Transport(options, context)


def _tls_context(options: Options) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.ca or None)
    if options.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Transport:
    """One connection. `is_ready` once MQTT may begin."""

    def __init__(self, options: Options, context: ssl.SSLContext | None) -> None:
        self.is_ready = False
        self._tls = _Tls(context, options.host) if context else None
        self._websocket = _WebSocket(options) if options.websocket else None
        self._has_asked = False  # for the WebSocket

    def start(self) -> bytes:
        return self._tls.start() if self._tls else self._go_on()

    def receive(self, raw: bytes) -> tuple[bytes, bytes]:
        """Plain bytes for the engine, and raw bytes that are to be sent at once."""
        data, reply = self._tls.receive(raw) if self._tls else (raw, b"")
        if not self.is_ready:
            reply += self._go_on()
        if self._websocket and data:
            data, answer = self._websocket.receive(data)
            reply += self._wrap(answer)
            self.is_ready = self._websocket.is_open
        return data, reply

    def send(self, data: bytes) -> bytes:
        return self._wrap(frame(BINARY, data) if self._websocket else data)

    def _wrap(self, data: bytes) -> bytes:
        return self._tls.send(data) if self._tls and data else data

    def _go_on(self) -> bytes:
        """The next step of the opening, once the one below is done."""
        if self._tls and not self._tls.is_open:
            return b""
        if self._websocket is None:
            self.is_ready = True
            return b""
        if self._has_asked:
            return b""
        self._has_asked = True
        return self._wrap(self._websocket.request())


class _Tls:
    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.is_open = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def start(self) -> bytes:
        self._shake()
        return self._outgoing.read()

    def receive(self, raw: bytes) -> tuple[bytes, bytes]:
        self._incoming.write(raw)
        if not self.is_open:
            self._shake()
        parts = []
        try:
            while self.is_open:
                part = self._tls.read(MAX_RECORD_BYTES)
                if not part:
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass  # the socket's end follows
        return b"".join(parts), self._outgoing.read()

    def send(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass


class _WebSocket:
    """The client's side: frames out are masked with a zero key, which masks nothing and is allowed."""

    def __init__(self, options: Options) -> None:
        self.is_open = False
        self._key = base64.b64encode(os.urandom(16))
        self._request = (
            f"GET {options.websocket_path} HTTP/1.1\r\n"
            f"Host: {options.host}:{options.port}\r\n"
            "Upgrade: websocket\r\n"
            "Connection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {self._key.decode()}\r\n"
            "Sec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n"
            "\r\n"
        ).encode()
        self._pending = bytearray()

    def request(self) -> bytes:
        return self._request

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """The payloads of all whole frames, and the answers to pings."""
        self._pending += data
        if not self.is_open and not self._read_response():
            return b"", b""
        parts, replies, at = [], [], 0
        while True:
            found = _read_frame(self._pending, at)
            if found is None:
                break
            opcode, start, end = found
            payload = bytes(self._pending[start:end])
            if opcode == PING:
                replies.append(frame(PONG, payload))
            elif opcode == CLOSE:
                code = int.from_bytes(payload[:2], "big")
                raise TransportError(f"the broker closed the WebSocket with code {code}")
            elif opcode != PONG:
                parts.append(payload)
            at = end
        del self._pending[:at]
        return b"".join(parts), b"".join(replies)

    def _read_response(self) -> bool:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > MAX_RESPONSE_BYTES:
                raise TransportError("the answer to the WebSocket request has no end")
            return False
        lines = bytes(self._pending[:end]).split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(b":") for x in lines[1:])}
        if b" 101 " not in lines[0] + b" ":
            raise TransportError(f"the broker refused the WebSocket: {lines[0].decode('latin-1')}")
        expected = base64.b64encode(hashlib.sha1(self._key + WEBSOCKET_GUID).digest())
        if headers.get(b"sec-websocket-accept") != expected:
            raise TransportError("the answer to the WebSocket request has a wrong Sec-WebSocket-Accept")
        if headers.get(b"sec-websocket-protocol") != b"mqtt":
            raise TransportError("the broker did not choose the WebSocket subprotocol mqtt")
        del self._pending[: end + 4]
        self.is_open = True
        return True


def frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((FIN | opcode, MASKED | size))
    elif size < 65_536:
        head = bytes((FIN | opcode, MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FIN | opcode, MASKED | 127)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


def _read_frame(data: bytearray, at: int) -> tuple[int, int, int] | None:
    """Opcode, start and end of the payload of the frame at `at`; None when it is not whole yet."""
    if len(data) < at + 2:
        return None
    if data[at + 1] & MASKED:
        raise TransportError("the broker masks its WebSocket frames")
    size, start = data[at + 1] & 0x7F, at + 2
    if size >= 126:
        length_bytes = 2 if size == 126 else 8
        if len(data) < start + length_bytes:
            return None
        size = int.from_bytes(data[start : start + length_bytes], "big")
        start += length_bytes
    return None if len(data) < start + size else (data[at] & 0x0F, start, start + size)
