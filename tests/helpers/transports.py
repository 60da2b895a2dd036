"""TLS and WebSocket in tests: `TransportClient` is `Client` over another socket; `run_transports` has all listeners."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tbmq._codec import Decoder
from tests.helpers.broker import Broker, free_port, run_broker
from tests.helpers.certificates import Authority
from tests.helpers.client import Client
from tests.reference.websocket import BINARY, CLOSE, PING, PONG, frame

KINDS = ["tls", "ws", "wss"]
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def request(path: str = "/mqtt", method: str = "GET", **changes: str | None) -> tuple[bytes, str]:
    """A WebSocket request with changes (`Sec_WebSocket_Protocol=None` leaves a header out), and its key."""
    key = base64.b64encode(os.urandom(16)).decode()
    headers: dict[str, str | None] = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    headers |= {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode(), key


class WebSocket:
    """As much of a socket as Client uses. `recv` answers payloads, b"" at the end; then `close_code` is what came."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.close_code = 0
        self.pongs: list[bytes] = []
        self._input = b""

    def open(self, **changes: str | None) -> Self:
        data, key = request(**changes)
        self.sock.sendall(data)
        head = self.read_head()
        accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest())
        assert head.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Accept: " + accept + b"\r\n" in head, head
        return self

    def read_head(self) -> bytes:
        """The HTTP response, up to the empty line."""
        while b"\r\n\r\n" not in self._input:
            data = self.sock.recv(65_536)
            assert data, f"the broker closed after {self._input!r}"
            self._input += data
        head, _, self._input = self._input.partition(b"\r\n\r\n")
        return head + b"\r\n"

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(frame(BINARY, data, mask=os.urandom(4)))

    def recv(self, size: int) -> bytes:
        while not self.close_code:
            found = self._read_frame()
            if found is None:
                data = self.sock.recv(size)
                if not data:
                    return b""
                self._input += data
                continue
            opcode, payload = found
            if opcode == BINARY and payload:
                return payload
            if opcode == PONG:
                self.pongs.append(payload)
            elif opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big")
        return b""

    def _read_frame(self) -> tuple[int, bytes] | None:
        data = self._input
        if len(data) < 2:
            return None
        assert data[0] & 0x80 and not data[0] & 0x70 and not data[1] & 0x80, f"a bad frame: {data[:2].hex()}"
        length, start = data[1] & 0x7F, 2
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(data[2:start], "big")
        if len(data) < start + length:
            return None
        self._input = data[start + length :]
        return data[0] & 0x0F, data[start : start + length]

    def ping(self, payload: bytes) -> None:
        self.sock.sendall(frame(PING, payload))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)  # settimeout, close, getsockname ...


class TransportClient(Client):
    """`kind` is tcp, tls, ws or wss."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str = "",
        *,
        kind: str,
        context: ssl.SSLContext | None = None,
        source: str = "",
        before: bytes = b"",
        **more: Any,
    ) -> None:
        super().__init__(address, client_id, **more)
        self._kind = kind
        self._context = context
        self._source = source  # address to come from
        self._before = before  # sent first of all: a PROXY header

    def open(self, *, receive_buffer_bytes: int = 0, max_packet_bytes: int = 1 << 28) -> Self:
        self.close()
        sock = socket.socket()
        try:
            if receive_buffer_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.settimeout(self.timeout_s)
            if self._source:
                sock.bind((self._source, 0))
            sock.connect(self.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._before:
                sock.sendall(self._before)
            if self._kind in ("tls", "wss"):
                assert self._context is not None
                sock = self._context.wrap_socket(sock, server_hostname="localhost")
            self._socket = WebSocket(sock).open() if self._kind in ("ws", "wss") else sock  # type: ignore[assignment]
        except BaseException:
            sock.close()
            raise
        self._decoder = Decoder(client=True, protocol_level=self.level, max_packet_bytes=max_packet_bytes)
        self.inbox.clear()
        self._is_closed = False
        return self

    @property
    def web_socket(self) -> WebSocket:
        assert isinstance(self._socket, WebSocket)
        return self._socket

    @property
    def tls_socket(self) -> ssl.SSLSocket:
        assert isinstance(self._socket, ssl.SSLSocket)
        return self._socket

    def send_as_it_is(self, data: bytes) -> None:
        """Past the framing."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.web_socket.sock.sendall(data)

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


@dataclass
class Transports:
    """A broker with its listeners, and who trusts whom."""

    broker: Broker
    ports: dict[str, int]
    authority: Authority
    context: ssl.SSLContext
    made: list[TransportClient] = field(default_factory=list)  # clients, closed after the test

    def client(self, kind: str, client_id: str = "", **more: Any) -> TransportClient:
        more.setdefault("context", self.context)
        self.made.append(TransportClient(("127.0.0.1", self.ports[kind]), client_id, kind=kind, **more))
        return self.made[-1]

    def assert_serving(self) -> None:
        """Its clients are gone, the broker is well, and a plain client is answered."""
        self.close_clients()
        self.broker.assert_healthy()
        client = Client(self.broker.address, "after-the-test")
        client.connect()
        client.disconnect()

    def close_clients(self) -> None:
        for client in self.made:
            client.close()
        self.made.clear()

    def socket(self, kind: str, source: str = "127.0.0.1") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.ports[kind]), 10, source_address=(source, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def wait_for_log(broker: Broker, text: str, count: int, since: int) -> None:
    deadline = time.monotonic() + 10
    while broker.log(since).count(text) < count:
        assert time.monotonic() < deadline, f"{text!r} did not come {count} times in\n{broker.log(since)}"
        time.sleep(0.02)


@contextlib.contextmanager
def run_transports(folder: Path, workers: int = 1, **changes: object) -> Iterator[Transports]:
    """`changes` are settings, with `__` for dots."""
    authority = Authority(folder / "certificates")
    certificate = authority.issue("server")
    ports = {kind: free_port() for kind in KINDS}
    settings: dict[str, object] = {f"listeners.{kind}.bind": f"127.0.0.1:{ports[kind]}" for kind in KINDS}
    for kind in ("tls", "wss"):
        settings[f"listeners.{kind}.certificate"] = certificate.path
        settings[f"listeners.{kind}.private_key"] = certificate.key_path
    settings |= {name.replace("__", "."): value for name, value in changes.items()}
    with run_broker(folder / "broker", workers=workers, settings=settings) as broker:
        started = Transports(broker, ports | {"tcp": broker.port}, authority, authority.client_context())
        wait_for_log(broker, "ready: ", 1, 0)
        try:
            yield started
        finally:
            started.close_clients()


def seconds_until_closed(sock: socket.socket, limit_s: float = 8.0) -> float:
    """Reads until the broker closes."""
    start = time.monotonic()
    sock.settimeout(limit_s)
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while sock.recv(65_536):
            pass
    return time.monotonic() - start
