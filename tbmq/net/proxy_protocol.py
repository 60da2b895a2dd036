"""PROXY protocol, versions 1 and 2: a load balancer tells, in front of the stream, who the client is.

    v1   PROXY TCP4 192.0.2.1 198.51.100.7 51234 1883\\r\\n                       at most 107 bytes
    v2   signature(12) | version, command | family, transport | length(2) | addresses | TLVs: type(1) length(2) value

Whoever may send this header can claim any address. So it is read only where the operator switched it on, only from
the networks that he trusts, and then it must be there and be right: the connection is closed otherwise. There is no
guessing whether a header is there.

`parse` does no I/O. `receive` takes exactly the header out of a socket: it peeks, and what belongs to the header is
read; so TLS, WebSocket and MQTT after it find the stream untouched.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from dataclasses import dataclass

from tbmq._batch import crc32c

MAX_V1_BYTES = 107  # the longest that the specification allows, with CRLF
MAX_V2_BYTES = 4_096  # 16 + 216 without TLVs; real ones carry some hundred bytes
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1_START = b"PROXY "
V2_HEAD_BYTES = 16
LOCAL, PROXY = 0x20, 0x21  # version 2 in the upper half, the command in the lower
UNSPECIFIED, TCP4, TCP6 = 0x00, 0x11, 0x21  # address family in the upper half, transport in the lower
TLV_CRC32C = 0x03
TLV_SSL = 0x20
SSL_HEAD_BYTES = 5  # client flags, verify result; TLVs of its own follow


class ProxyProtocolError(Exception):
    """The header is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Header:
    size: int  # bytes of the stream that it took
    source: tuple[str, int] | None = None  # the client; None: the proxy speaks for itself, the socket's address counts


def parse(data: bytes) -> Header | None:
    """Reads the header at the start of a stream; None: more bytes are needed. Raises ProxyProtocolError."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _parse_v2(data)
    if data[: len(V1_START)] == V1_START[: len(data)]:
        return _parse_v1(data)
    raise ProxyProtocolError("the stream does not start with a PROXY header")


# --- version 1 -------------------------------------------------------------------------------------------------------


def _parse_v1(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, MAX_V1_BYTES)
    if end < 0:
        if len(data) >= MAX_V1_BYTES:
            raise ProxyProtocolError(f"a version 1 header is over {MAX_V1_BYTES} bytes")
        return None
    size = end + 2
    _, family, *fields = data[:end].split(b" ")
    if family == b"UNKNOWN":  # whatever follows is to be ignored
        return Header(size)
    if family not in (b"TCP4", b"TCP6") or len(fields) != 4:
        raise ProxyProtocolError("a version 1 header is not PROXY TCP4|TCP6 source destination port port")
    source, destination, source_port, destination_port = fields
    _address(destination, family)
    _port(destination_port)
    return Header(size, (_address(source, family), _port(source_port)))


def _address(text: bytes, family: bytes) -> str:
    try:
        if family == b"TCP4":
            return str(ipaddress.IPv4Address(text.decode("ascii")))
        if b"%" not in text:  # no zones: they mean nothing on another machine
            return str(ipaddress.IPv6Address(text.decode("ascii")))
    except ValueError:
        pass
    raise ProxyProtocolError(f"{text!r} is not an address of {family.decode()}")


def _port(text: bytes) -> int:
    if text.isdigit() and len(text) <= 5 and int(text) <= 65_535 and (text == b"0" or text[:1] != b"0"):
        return int(text)
    raise ProxyProtocolError(f"{text!r} is not a port")


# --- version 2 -------------------------------------------------------------------------------------------------------


def _parse_v2(data: bytes) -> Header | None:
    if len(data) < V2_HEAD_BYTES:
        return None
    command, family, length = struct.unpack_from(">BBH", data, len(SIGNATURE))
    size = V2_HEAD_BYTES + length
    if command not in (LOCAL, PROXY):
        raise ProxyProtocolError(f"0x{command:02X} is no version and command of the PROXY protocol")
    if size > MAX_V2_BYTES:
        raise ProxyProtocolError(f"a version 2 header of {size} bytes is over {MAX_V2_BYTES}")
    if len(data) < size:
        return None
    if command == LOCAL:  # the proxy's own connection, a health check; the rest of the header is to be skipped
        return Header(size)
    if family == TCP4:
        address_bytes, layout, address = 12, ">4s4sHH", socket.AF_INET
    elif family == TCP6:
        address_bytes, layout, address = 36, ">16s16sHH", socket.AF_INET6
    elif family == UNSPECIFIED:  # as UNKNOWN in version 1
        return Header(size)
    else:
        raise ProxyProtocolError(f"0x{family:02X} is neither TCP over IPv4 nor TCP over IPv6")
    if length < address_bytes:
        raise ProxyProtocolError("a version 2 header is too short for its addresses")
    source, _, port, _ = struct.unpack_from(layout, data, V2_HEAD_BYTES)
    _check_tlvs(data[:size], V2_HEAD_BYTES + address_bytes, size)
    return Header(size, (socket.inet_ntop(address, source), port))


def _check_tlvs(header: bytes, at: int, end: int) -> None:
    """Walks the TLVs up to `end`: none may overrun it, and the checksum, if there is one, must be right."""
    while at < end:
        if end - at < 3:
            raise ProxyProtocolError("a TLV is cut off")
        kind, length = struct.unpack_from(">BH", header, at)
        at += 3
        if length > end - at:
            raise ProxyProtocolError("a TLV overruns its header")
        if kind == TLV_CRC32C:
            if length != 4 or crc32c(header[:at] + bytes(4) + header[at + 4 :]) != int.from_bytes(
                header[at : at + 4], "big"
            ):
                raise ProxyProtocolError("the checksum of the header is wrong")
        elif kind == TLV_SSL:
            if length < SSL_HEAD_BYTES:
                raise ProxyProtocolError("the TLV about TLS is cut off")
            _check_tlvs(header, at + SSL_HEAD_BYTES, at + length)
        at += length


# --- from a socket ---------------------------------------------------------------------------------------------------


async def receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, timeout_s: float) -> Header:
    """Takes the header, and nothing after it, out of a non-blocking socket.

    Raises ProxyProtocolError, TimeoutError, or OSError. Never spins: what was peeked is consumed before it waits again.
    """
    data = b""
    async with asyncio.timeout(timeout_s):
        while True:
            await _readable(loop, sock)
            try:
                peeked = sock.recv(MAX_V2_BYTES, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                continue
            if not peeked:
                raise ProxyProtocolError("the proxy closed before its header was whole")
            header = parse(data + peeked)
            taken = sock.recv(len(peeked) if header is None else header.size - len(data))
            if header is not None:
                return header
            data += taken


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())
