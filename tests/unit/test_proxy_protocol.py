"""PROXY protocol: headers good and bad as named vectors, cut anywhere, and out of a real socket."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq._batch import crc32c
from tbmq.net.proxy_protocol import MAX_V2_BYTES, SIGNATURE, Header, ProxyProtocolError, parse, receive

LOCAL, PROXY = 0x20, 0x21
IPV4 = socket.inet_aton("192.0.2.1") + socket.inet_aton("198.51.100.7") + struct.pack(">HH", 51_234, 1_883)
IPV6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::2")
    + struct.pack(">HH", 51_234, 1_883)
)
UNIX = b"/tmp/a".ljust(108, b"\0") * 2


def v2(command: int = PROXY, family: int = 0x11, body: bytes = IPV4, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body) if length is None else length) + body


def tlv(kind: int, value: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BH", kind, len(value) if length is None else length) + value


def with_checksum(header: bytes) -> bytes:
    """Fills the checksum, whose four zero bytes are the last of the header."""
    return header[:-4] + crc32c(header).to_bytes(4, "big")


V4 = ("192.0.2.1", 51_234)
V6 = ("2001:db8::1", 51_234)
SSL_TLV = tlv(0x20, b"\x07\0\0\0\0" + tlv(0x21, b"TLSv1.3") + tlv(0x22, b"client"))

GOOD = {
    "v1 IPv4": (b"PROXY TCP4 192.0.2.1 198.51.100.7 51234 1883\r\n", V4),
    "v1 IPv6": (b"PROXY TCP6 2001:db8::1 2001:db8::2 51234 1883\r\n", V6),
    "v1 IPv6 in full": (b"PROXY TCP6 2001:0db8:0:0:0:0:0:1 ::1 51234 0\r\n", V6),
    "v1 longest": (b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n", None),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown with addresses": (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    "v2 IPv4": (v2(), V4),
    "v2 IPv6": (v2(family=0x21, body=IPV6), V6),
    "v2 with TLVs": (v2(body=IPV4 + tlv(1, b"mqtt") + tlv(0x04, bytes(7)) + tlv(0xEE, b"")), V4),
    "v2 with the TLV about TLS": (v2(body=IPV4 + SSL_TLV), V4),
    "v2 with a checksum": (with_checksum(v2(body=IPV4 + tlv(3, bytes(4)))), V4),
    "v2 local": (v2(LOCAL, 0x00, b""), None),
    "v2 local with addresses": (v2(LOCAL), None),
    "v2 local with what nobody knows": (v2(LOCAL, 0xFF, b"\xff" * 30), None),
    "v2 unspecified": (v2(PROXY, 0x00, b""), None),
    "v2 largest": (v2(body=(IPV4 + tlv(4, bytes(MAX_V2_BYTES - 16 - 12 - 3)))), V4),
}

BAD = {
    "no header": b"\x10\x0c\x00\x04MQTT",
    "a TLS hello": b"\x16\x03\x01\x00\xf0",
    "an HTTP request": b"GET /mqtt HTTP/1.1\r\n\r\n",
    "lower case": b"proxy TCP4 192.0.2.1 198.51.100.7 1 2\r\n",
    "v1 other family": b"PROXY UDP4 192.0.2.1 198.51.100.7 1 2\r\n",
    "v1 nothing": b"PROXY \r\n",
    "v1 missing port": b"PROXY TCP4 192.0.2.1 198.51.100.7 1\r\n",
    "v1 one field more": b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2 3\r\n",
    "v1 two spaces": b"PROXY TCP4  192.0.2.1 198.51.100.7 1 2\r\n",
    "v1 space at the end": b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2 \r\n",
    "v1 tab": b"PROXY TCP4\t192.0.2.1 198.51.100.7 1 2\r\n",
    "v1 address of the other family": b"PROXY TCP4 ::1 ::2 1 2\r\n",
    "v1 destination of the other family": b"PROXY TCP6 ::1 192.0.2.1 1 2\r\n",
    "v1 octet over 255": b"PROXY TCP4 192.0.2.256 198.51.100.7 1 2\r\n",
    "v1 octal octet": b"PROXY TCP4 192.0.2.01 198.51.100.7 1 2\r\n",
    "v1 host name": b"PROXY TCP4 localhost 198.51.100.7 1 2\r\n",
    "v1 zone": b"PROXY TCP6 fe80::1%eth0 ::2 1 2\r\n",
    "v1 not ASCII": "PROXY TCP4 192.0.2.١ 198.51.100.7 1 2\r\n".encode(),
    "v1 port over 65535": b"PROXY TCP4 192.0.2.1 198.51.100.7 65536 2\r\n",
    "v1 negative port": b"PROXY TCP4 192.0.2.1 198.51.100.7 -1 2\r\n",
    "v1 port with zero": b"PROXY TCP4 192.0.2.1 198.51.100.7 01 2\r\n",
    "v1 signed port": b"PROXY TCP4 192.0.2.1 198.51.100.7 +1 2\r\n",
    "v1 empty port": b"PROXY TCP4 192.0.2.1 198.51.100.7  2\r\n",
    "v1 destination port": b"PROXY TCP4 192.0.2.1 198.51.100.7 1 x\r\n",
    "v1 line feed alone": b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2\n" + b"x" * 100,
    "v1 no end": b"PROXY UNKNOWN " + b"x" * 200,
    "v1 one byte too long": b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n",
    "v2 version 1": v2(0x11),
    "v2 version 3": v2(0x31),
    "v2 other command": v2(0x22),
    "v2 UDP": v2(family=0x12),
    "v2 IPv4 of no transport": v2(family=0x10),
    "v2 Unix socket": v2(family=0x31, body=UNIX),
    "v2 unknown family": v2(family=0x41),
    "v2 addresses cut off": v2(body=IPV4[:-1]),
    "v2 IPv6 with room for IPv4": v2(family=0x21, body=IPV4),
    "v2 too large": v2(length=MAX_V2_BYTES - 15),
    "v2 largest length": v2(length=65_535),
    "TLV overruns": v2(body=IPV4 + tlv(4, b"abc", length=4)),
    "TLV overruns far": v2(body=IPV4 + tlv(4, b"", length=65_535)),
    "TLV overruns into the stream": v2(body=IPV4 + tlv(4, b"", length=8)) + b"\x10\x0c\x00\x04MQTT",
    "TLV head cut off": v2(body=IPV4 + b"\x04\x00"),
    "second TLV overruns": v2(body=IPV4 + tlv(1, b"mqtt") + tlv(2, b"", length=1)),
    "inner TLV overruns": v2(body=IPV4 + tlv(0x20, b"\x01\0\0\0\0" + tlv(0x21, b"", length=1)) + tlv(4, b"a")),
    "TLV about TLS cut off": v2(body=IPV4 + tlv(0x20, b"\x01\0\0\0")),
    "checksum wrong": v2(body=IPV4 + tlv(3, bytes(4))),
    "checksum of another size": v2(body=IPV4 + tlv(3, bytes(3))),
}


@pytest.mark.parametrize(("data", "source"), GOOD.values(), ids=GOOD)
def test_source_is_read_when_the_header_is_good(data, source):
    for rest in (b"", b"\x10\x0c\x00\x04MQTT", SIGNATURE, b"\r\n"):
        header = parse(data + rest)
        assert header is not None and header.size == len(data)
        if data != GOOD["v1 longest"][0]:
            assert header.source == source


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_header_is_refused_when_it_is_bad(data):
    with pytest.raises(ProxyProtocolError):
        parse(data)


@pytest.mark.parametrize(("data", "source"), GOOD.values(), ids=GOOD)
def test_header_waits_for_more_when_it_is_cut_anywhere(data, source):
    for size in range(len(data)):
        assert parse(data[:size]) is None


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_header_is_never_taken_when_it_is_cut_anywhere(data):
    for size in range(len(data)):
        try:
            assert parse(data[:size]) is None
        except ProxyProtocolError:
            return


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: SIGNATURE + tail))
def test_only_our_error_comes_when_bytes_are_random(data):
    try:
        header = parse(data)
    except ProxyProtocolError:
        return
    assert header is None or header.size <= len(data)


@given(st.binary(max_size=100))
def test_only_our_error_comes_when_text_is_random(data):
    try:
        header = parse(b"PROXY TCP4 " + data + b"\r\n")
    except ProxyProtocolError:
        return
    assert header is not None


# --- from a socket


async def received(parts: list[bytes], is_closed: bool = False, timeout_s: float = 5.0) -> tuple[Header, bytes]:
    """Sends the parts one by one, each after the one before was taken; answers the header, and what is left."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reading = asyncio.create_task(receive(asyncio.get_running_loop(), ours, timeout_s))
        for part in parts:
            theirs.sendall(part)
            for _ in range(5):
                await asyncio.sleep(0)
        if is_closed:
            theirs.shutdown(socket.SHUT_WR)
        header = await reading
        try:
            return header, ours.recv(1_000)
        except BlockingIOError:
            return header, b""


@pytest.mark.parametrize("name", ["v1 IPv4", "v2 with TLVs", "v2 local"])
def test_stream_after_the_header_is_untouched_however_it_arrives(name):
    data, source = GOOD[name]
    rest = b"\x16\x03\x01 and more"
    for parts in ([data + rest], [data, rest], [data[:3], data[3:] + rest], [bytes([byte]) for byte in data] + [rest]):
        header, left = asyncio.run(received(parts))
        assert header == Header(len(data), source)
        assert left == rest


def test_reading_ends_when_the_peer_is_silent_or_gone_or_wrong():
    with pytest.raises(TimeoutError):
        asyncio.run(received([SIGNATURE], timeout_s=0.05))
    with pytest.raises(ProxyProtocolError, match="closed"):
        asyncio.run(received([SIGNATURE], is_closed=True))
    with pytest.raises(ProxyProtocolError, match="does not start"):
        asyncio.run(received([b"\x10\x0c\x00\x04MQTT"]))
