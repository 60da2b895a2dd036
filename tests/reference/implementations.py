"""The codecs that every codec test runs over. A compiled one that is missing is a failure, not a skip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tbmq import _codec
from tbmq.errors import PacketError
from tbmq.packets import Connect, Packet
from tests.reference.codec import ReferenceDecoder
from tests.reference.encoder import reference_encode


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    decoder: Callable[..., Any]
    encode: Callable[..., bytes]

    def __str__(self) -> str:
        return self.name


NATIVE = Codec("native", _codec.Decoder, _codec.encode)
REFERENCE = Codec("reference", ReferenceDecoder, reference_encode)
CODECS = [NATIVE, REFERENCE]


@dataclass(slots=True)
class Outcome:
    """All that a decoder makes of a stream. Two decoders agree when their outcomes are equal."""

    packets: list[Packet] = field(default_factory=list)
    error: int | None = None  # reason code
    pending_bytes: int = 0  # 0 after an error
    protocol_level: int = 0  # 0 after an error


def chunks_of(data: bytes, size: int) -> list[bytes]:
    """Pieces of their own, exactly as large as their bytes: so AddressSanitizer sees a read past their end."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def decode(decoder: Any, chunks: list[bytes]) -> Outcome:
    """Feeds a fresh decoder. The last, empty piece lets an error out that waited behind packets."""
    outcome = Outcome()
    try:
        for chunk in [*chunks, b""]:
            outcome.packets += decoder.feed(chunk)
    except PacketError as error:
        outcome.error = int(error.reason_code)
    else:
        outcome.pending_bytes, outcome.protocol_level = decoder.pending_bytes, decoder.protocol_level
    return outcome


def level_of(packet: Packet, level: int) -> int:
    """The level to encode ``packet`` with: CONNECT brings its own."""
    return packet.protocol_level if isinstance(packet, Connect) else level
