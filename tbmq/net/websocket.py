"""MQTT over WebSocket (RFC 6455): the HTTP request, then frames around the byte stream of MQTT.

    Stream ◀── WebSocketStream    REQUEST ──request is right: 101──▶ FRAMES ──close frame of either side──▶ ended
                                     └──wrong: 4xx──▶ ended

`answer` reads the request and does no I/O; frames are read and made by tbmq._websocket, which see. Compression is not
offered: MQTT payloads are small, and a compressed bomb would get past every bound.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tbmq._websocket import BINARY, CLOSE, NORMAL, PONG, FrameReader, encode_frame
from tbmq.net import stream
from tbmq.net.stream import Stream, StreamListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from tbmq.config.model import WebSocketOptions

MAX_REQUEST_BYTES = 8_192
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
SUBPROTOCOLS = ("mqtt", "mqttv3.1")  # the first that a client offers, in our order [MQTT-6.0.0-3]
ANY_ORIGIN, SAME_HOST = "*", "same-host"

REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.([0-9])")
HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^/:?#@\[\]]+)(:[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the request gets. `taken` is the size of the request: what follows it are frames."""

    response: bytes
    fault: str = ""  # empty: accepted
    taken: int = 0


def answer(data: bytes, options: WebSocketOptions) -> Answer | None:
    """Reads the HTTP request at the start of a stream; None: more bytes are needed."""
    if data and not data[:1].isalpha():
        return _refuse(400, "the stream does not start with an HTTP request")
    end = data.find(b"\r\n\r\n", 0, MAX_REQUEST_BYTES)
    if end < 0:
        if len(data) >= MAX_REQUEST_BYTES:
            return _refuse(431, f"the request is over {MAX_REQUEST_BYTES} bytes")
        return None
    request_line, *lines = data[:end].split(b"\r\n")
    request = REQUEST_LINE.fullmatch(request_line)
    headers = _headers(lines)
    if request is None or headers is None:
        return _refuse(400, "the request is not HTTP/1.1")
    method, target, minor_version = request.groups()
    if target.partition(b"?")[0].decode() != options.path:
        return _refuse(404, f"there is nothing at this path; MQTT is at {options.path}")
    if method != b"GET":
        return _refuse(405, "the method must be GET", "Allow: GET")
    if (
        "websocket" not in _tokens(headers, "upgrade")
        or "upgrade" not in _tokens(headers, "connection")
        or minor_version == b"0"
    ):
        return _refuse(426, "this is a WebSocket", "Upgrade: websocket")
    if headers.get("sec-websocket-version") != "13":
        return _refuse(426, "the version of WebSocket must be 13", "Sec-WebSocket-Version: 13")
    if "host" not in headers or headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return _refuse(400, "the request has no Host, or a body")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        return _refuse(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    offered = [name.strip() for name in headers.get("sec-websocket-protocol", "").split(",")]
    subprotocol = next((name for name in SUBPROTOCOLS if name in offered), None)
    if subprotocol is None:
        return _refuse(400, "the subprotocol mqtt is not offered")  # [MQTT-6.0.0-4]
    if not is_origin_allowed(headers.get("origin"), headers["host"], options.origins):
        return _refuse(403, "pages of this origin may not connect; see the setting origins")
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()
    response = (
        "HTTP/1.1 101 Switching Protocols\r\n"
        "Upgrade: websocket\r\n"
        "Connection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n"
        f"Sec-WebSocket-Protocol: {subprotocol}\r\n"
        "\r\n"
    )
    return Answer(response.encode(), taken=end + 4)


def is_origin_allowed(origin: str | None, host: str, allowed: list[str]) -> bool:
    """Browsers say which site a page came from; programs are not bound to, and an absent Origin is no browser.

    This protects brokers that trust their network or client certificates, which a browser lends to every page it shows.
    """
    if origin is None or ANY_ORIGIN in allowed:
        return True
    origin = origin.lower()
    if origin in allowed:
        return True
    found = ORIGIN.fullmatch(origin)
    return SAME_HOST in allowed and found is not None and found[1] == re.sub(r":[0-9]+$", "", host.lower())


def _headers(lines: list[bytes]) -> dict[str, str] | None:
    """By lower-case name; None when a line is no header, or one that must be single is there twice."""
    headers: dict[str, str] = {}
    for line in lines:
        found = HEADER_LINE.fullmatch(line)
        if found is None:
            return None
        name, value = found[1].decode().lower(), found[2].decode("latin-1")
        if name not in headers:
            headers[name] = value
        elif name in ("connection", "upgrade", "sec-websocket-protocol") or not name.startswith(
            ("host", "origin", "sec-websocket-", "content-length")
        ):
            headers[name] += f", {value}"
        else:
            return None
    return headers


def _tokens(headers: dict[str, str], name: str) -> list[str]:
    return [token.strip().lower() for token in headers.get(name, "").split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


STATUS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


def _refuse(status: int, fault: str, header: str = "") -> Answer:
    lines = [
        f"HTTP/1.1 {status} {STATUS[status]}",
        *([header] if header else []),
        "Connection: close, Upgrade" if header.startswith("Upgrade") else "Connection: close",
        "Content-Type: text/plain",
        f"Content-Length: {len(fault) + 1}",
        "",
        f"{fault}\n",
    ]
    return Answer("\r\n".join(lines).encode(), f"{status}: {fault}")


class WebSocketStream(Stream):
    def __init__(self, listener: StreamListener, peer: str, options: WebSocketOptions, max_frame_bytes: int) -> None:
        super().__init__(listener, peer)
        self._options = options
        self._request = b""  # what has come of it
        self._frames = FrameReader(max_frame_bytes)

    @classmethod
    def maker(cls, options: WebSocketOptions, max_frame_bytes: int) -> Callable[[StreamListener, str], Stream]:
        """For StreamListener. A frame may be as large as the largest packet."""
        return lambda listener, peer: cls(listener, peer, options, max_frame_bytes)

    def _opened(self) -> None:
        self._set_timer(self._listener.connect_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._listener.refuse(self, "websocket_request", "no WebSocket request came in time")
        self._transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self.connection is not None:
            self._read_frames(stream.buffer, stream.view, nbytes)
        elif not self._has_ended:
            self._read_request(stream.view[:nbytes])

    # --- the request -------------------------------------------------------------------------------------------------

    def _read_request(self, data: memoryview) -> None:
        self._request += data
        reply = answer(self._request, self._options)
        if reply is None:
            return
        self._transport.write(reply.response)
        if reply.fault:
            self._listener.refuse(self, "websocket_request", f"WebSocket request refused, {reply.fault}")
            self._finish()
            return
        rest = bytearray(self._request[reply.taken :])
        self._request = b""
        if self._timer is not None:
            self._timer.cancel()
        self._adopt()
        if rest:
            self._read_frames(rest, memoryview(rest), len(rest))

    # --- frames ------------------------------------------------------------------------------------------------------

    def _read_frames(self, buffer: bytearray, view: memoryview, size: int) -> None:
        """Runs for every read."""
        frames = self._frames
        plain_bytes = frames.read(buffer, size)
        if plain_bytes and self.connection is not None:
            self.connection.receive(view[:plain_bytes])
        ping = frames.take_ping()
        if ping is not None and self._can_write and not self._has_ended:  # a peer that does not read gets no pongs
            self._transport.write(encode_frame(PONG, ping))
        if frames.close_code and not self._has_ended:
            if frames.fault:
                self._listener.refuse(self, f"websocket_{frames.close_code}", f"WebSocket: {frames.fault}")
            self._send_close(frames.close_code, frames.fault)
            self._tell_engine_it_is_lost()
            self._finish()

    def _send_close(self, code: int, reason: str = "") -> None:
        self._transport.write(encode_frame(CLOSE, code.to_bytes(2, "big") + reason.encode()))

    # --- called by the engine ----------------------------------------------------------------------------------------

    def _frame(self, data: bytes) -> bytes:
        return encode_frame(BINARY, data)

    def close(self) -> None:
        if self.connection is not None and not self._has_ended:
            self._send_close(NORMAL)
        super().close()
