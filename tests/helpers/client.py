"""A raw MQTT client for tests: one blocking socket, packets in, packets out, nothing behind the test's back.

Good packets go through the project's codec, bad ones are sent as bytes. Nothing is answered unless the test asks for it
(`take_message` acknowledges, `expect` does not), so every step of a flow is visible in the test.

    socket -> Decoder -> inbox (packets in order of arrival) -> expect(...)   the next packet must be this one
                                                            -> take(...)     the next one of this kind; others wait

`ping` is the barrier: when PINGRESP is here, the broker has read all that was sent before PINGREQ, and what it sent
us before is in the inbox.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from typing import Any, Self, TypeVar

from tbmq._codec import Decoder, encode
from tbmq.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tbmq.protocol import MQTT_5

P = TypeVar("P")

TIMEOUT_S = 5.0
"""Longest wait for something that must come. A broker that works answers in a millisecond; a loaded machine may not."""

PERSISTENT_S = 600
"""Session expiry of a v5 client that says `persistent`: outlives every test."""


class Closed(AssertionError):
    """The broker closed the connection while the test waited for a packet."""


class Client:
    def __init__(
        self, address: tuple[str, int], client_id: str = "", *, level: int = MQTT_5, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.level = level
        self.timeout_s = timeout_s
        self.connack: Connack | None = None
        self.inbox: deque[Packet] = deque()
        self._socket: socket.socket | None = None
        self._is_closed = True  # by the broker, or never opened
        self._packet_id = 0

    # --- the connection ---------------------------------------------------------------------------------------------

    def open(self, *, receive_buffer_bytes: int = 0, max_packet_bytes: int = 1 << 28) -> Self:
        """Connects the socket and sends nothing. A packet over `max_packet_bytes` from the broker fails the test."""
        self.close()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(self.timeout_s)
        self._socket.connect(self.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(client=True, protocol_level=self.level, max_packet_bytes=max_packet_bytes)
        self.inbox.clear()
        self._is_closed = False
        return self

    @property
    def local_port(self) -> int:
        return int(self._open_socket().getsockname()[1])

    def close(self) -> None:
        """Closes the socket without DISCONNECT; with nothing unread the broker sees an orderly end of the stream."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._is_closed = True

    def abort(self) -> None:
        """Closes the socket with a reset, as a crashed client or a cut line does."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def _open_socket(self) -> socket.socket:
        assert self._socket is not None, f"{self}: the test uses a client that is not open"
        return self._socket

    # --- packets ----------------------------------------------------------------------------------------------------

    def send(self, *packets: Packet | bytes) -> None:
        """Sends packets, or bytes as they are. That the broker has already closed shows at the next `expect`."""
        data = b"".join(p if isinstance(p, bytes) else encode(p, self.level, client=True) for p in packets)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._open_socket().sendall(data)

    def receive(self, timeout_s: float | None = None) -> Packet:
        """The next packet, whatever it is."""
        self._fill(self.timeout_s if timeout_s is None else timeout_s)
        return self.inbox.popleft()

    def expect(self, want: type[P] | P, timeout_s: float | None = None, **fields: Any) -> P:
        """The next packet must be of this class with these fields, or equal this packet."""
        what = _describe(want, fields)
        try:
            packet = self.receive(timeout_s)
        except (Closed, TimeoutError) as error:
            raise type(error)(f"{self}: expected {what}; {error}") from None
        if isinstance(want, type):
            assert isinstance(packet, want), f"{self}: expected {what}, got {_short(packet)}"
        else:
            assert packet == want, f"{self}: expected {what}, got {_short(packet)}"
        for name, value in fields.items():
            assert getattr(packet, name) == value, f"{self}: expected {what}, got {_short(packet)}"
        return packet  # type: ignore[return-value]

    def take(self, kind: type[P], timeout_s: float | None = None) -> P:
        """The first packet of this class; packets before it stay in the inbox. For acks that may cross deliveries."""
        seen = 0
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            for index in range(seen, len(self.inbox)):
                packet = self.inbox[index]
                if isinstance(packet, kind):
                    del self.inbox[index]
                    return packet
            seen = len(self.inbox)
            try:
                self._fill(deadline - time.monotonic(), more_than=seen)
            except (Closed, TimeoutError) as error:
                pending = ", ".join(_short(packet) for packet in self.inbox) or "nothing"
                raise type(error)(f"{self}: expected {kind.__name__}, got {pending}; {error}") from None

    def _fill(self, timeout_s: float, more_than: int = 0) -> None:
        """Reads until the inbox holds more than `more_than` packets."""
        deadline = time.monotonic() + timeout_s
        while len(self.inbox) <= more_than:
            if self._is_closed:
                raise Closed("the broker closed the connection")
            connection = self._open_socket()
            connection.settimeout(max(deadline - time.monotonic(), 0.000_001))
            try:
                data = connection.recv(1 << 18)
            except TimeoutError:
                raise TimeoutError(f"nothing came in {timeout_s:.1f} s") from None
            except ConnectionResetError:
                data = b""
            finally:
                connection.settimeout(self.timeout_s)
            if not data:
                self._is_closed = True
                continue
            self.inbox.extend(self._decoder.feed(data))

    # --- what must not come, and the end ----------------------------------------------------------------------------

    def expect_nothing(self) -> None:
        """Nothing has come up to a ping. For what may still be under way elsewhere, expect a marker instead."""
        self.ping()
        assert not self.inbox, f"{self}: expected nothing, got {', '.join(map(_short, self.inbox))}"

    def expect_closed(self, timeout_s: float | None = None) -> None:
        """The broker closes, and sends nothing before."""
        try:
            packet = self.receive(timeout_s)
        except Closed:
            return
        except TimeoutError as error:
            raise TimeoutError(f"{self}: expected the broker to close; {error}") from None
        raise AssertionError(f"{self}: expected the broker to close, got {_short(packet)}")

    def expect_disconnect(
        self, reason_code: int, timeout_s: float | None = None, *, may_come_before: type | tuple[type, ...] = ()
    ) -> None:
        """The broker ends the connection: v5 with a DISCONNECT that says why, below just so."""
        with contextlib.suppress(Closed):
            self._fill(self.timeout_s if timeout_s is None else timeout_s)
            while self.inbox and isinstance(self.inbox[0], may_come_before):
                self.inbox.popleft()
                self._fill(self.timeout_s)
        if self.level == MQTT_5:
            packet = self.expect(Disconnect, timeout_s)
            assert packet.reason_code == reason_code, (
                f"{self}: expected DISCONNECT 0x{reason_code:02X}, got {_short(packet)}"
            )
        self.expect_closed(timeout_s)

    # --- flows ------------------------------------------------------------------------------------------------------

    def connect(
        self,
        *,
        clean: bool = True,
        persistent: bool = False,
        keep_alive_s: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        code: int = 0,
        **properties: Any,
    ) -> Connack:
        """Opens, sends CONNECT, expects CONNACK with this code. `persistent`: resume, and keep the session after."""
        if persistent:
            clean = False
            if self.level == MQTT_5:
                properties.setdefault("session_expiry_interval", PERSISTENT_S)
        self.open(max_packet_bytes=properties.get("maximum_packet_size", 1 << 28))
        self.send(
            Connect(
                client_id=self.client_id,
                protocol_level=self.level,
                clean_start=clean,
                keep_alive_s=keep_alive_s,
                will=will,
                username=username,
                password=password,
                properties=properties,
            )
        )
        self.connack = self.expect(Connack, reason_code=code)
        return self.connack

    def next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def ping(self) -> None:
        self.send(Pingreq())
        self.take(Pingresp)

    def subscribe(self, *filters: str | Subscription, qos: int = 0, **properties: Any) -> Suback:
        """Subscribes to all of them in one packet, and expects them to be granted."""
        lines = [f if isinstance(f, Subscription) else Subscription(f, qos) for f in filters]
        suback = self.try_subscribe(*lines, **properties)
        assert suback.reason_codes == [line.qos for line in lines], f"{self}: not granted: {suback}"
        return suback

    def try_subscribe(self, *lines: Subscription, **properties: Any) -> Suback:
        packet_id = self.next_packet_id()
        self.send(Subscribe(packet_id, list(lines), properties))
        suback = self.take(Suback)
        assert suback.packet_id == packet_id, f"{self}: SUBACK for {suback.packet_id}, sent {packet_id}"
        return suback

    def unsubscribe(self, *filters: str) -> Unsuback:
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id, list(filters)))
        unsuback = self.take(Unsuback)
        assert unsuback.packet_id == packet_id, f"{self}: UNSUBACK for {unsuback.packet_id}, sent {packet_id}"
        return unsuback

    def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False, **properties: Any
    ) -> Puback | Pubrec | None:
        """Publishes and completes the flow of its QoS; returns the first answer. QoS 0 is followed by a ping."""
        packet_id = self.next_packet_id() if qos else 0
        self.send(Publish(topic, payload, qos, retain, False, packet_id, properties))
        if qos == 0:
            self.ping()
            return None
        if qos == 1:
            puback = self.take(Puback)
            assert puback.packet_id == packet_id, f"{self}: PUBACK for {puback.packet_id}, sent {packet_id}"
            return puback
        pubrec = self.take(Pubrec)
        assert pubrec.packet_id == packet_id, f"{self}: PUBREC for {pubrec.packet_id}, sent {packet_id}"
        if pubrec.reason_code < 0x80:
            self.send(Pubrel(packet_id))
            pubcomp = self.take(Pubcomp)
            assert pubcomp.packet_id == packet_id, f"{self}: PUBCOMP for {pubcomp.packet_id}, sent {packet_id}"
        return pubrec

    def take_message(self, timeout_s: float | None = None, **fields: Any) -> Publish:
        """The next packet must be a PUBLISH with these fields; its flow is completed."""
        message = self.expect(Publish, timeout_s, **fields)
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            released = self.take(Pubrel)
            assert released.packet_id == message.packet_id, f"{self}: {released} for {_short(message)}"
            self.send(Pubcomp(message.packet_id))
        return message

    def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        """Says goodbye and waits until the broker has closed too: it is then done with this connection."""
        self.send(Disconnect(reason_code, properties))
        self.expect_closed()
        self.close()

    def __repr__(self) -> str:
        return f"<{self.client_id or 'anonymous'} v{self.level}>"


def raw_packet(first_byte: int, body: bytes) -> bytes:
    """A packet as bytes, with the right length and whatever else the test wants."""
    length, header = len(body), bytearray([first_byte])
    while True:
        length, digit = length >> 7, length & 0x7F
        header.append(digit | 0x80 if length else digit)
        if not length:
            return bytes(header) + body


def raw_string(value: str | bytes) -> bytes:
    """A string or binary field, with its length before it."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def _describe(want: object, fields: dict[str, Any]) -> str:
    if not isinstance(want, type):
        return _short(want)
    return f"{want.__name__}({', '.join(f'{name}={_short(value)}' for name, value in fields.items())})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}... ({len(text)} characters)"
