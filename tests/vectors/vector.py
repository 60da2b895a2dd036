"""One named packet case, and the small language that its bytes are written in.

``wire`` turns a text into bytes: hexadecimal digits stand for themselves, 'quoted text' for its UTF-8 bytes, ``2F*300``
repeats what stands before the star, ``#`` starts a comment that ends with the line. Spaces only help the reader:

    wire("30 05  0001 't' 'hi'")  ->  30 05 00 01 74 68 69

The bytes of a vector are written by hand, never by an encoder under test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tbmq.packets import Packet

_TOKEN = re.compile(r"\s+|#[^\n]*|(?:'(?P<text>[^']*)'|(?P<byte>[0-9A-Fa-f]{2}))(?:\*(?P<times>\d+))?")


@dataclass(frozen=True, slots=True)
class Vector:
    """A decoder in a known state gets ``data``: it returns ``before``, then ``packet`` or an error."""

    name: str
    level: int  # protocol level that the decoder knows; 0: a server that has received nothing yet
    data: bytes
    packet: Packet | None = None
    error: int | None = None  # reason code
    needs_more: bool = False  # the bytes end inside a packet that is good so far
    client: bool = False  # True: decoded by a client, so a server sent it
    before: tuple[Packet, ...] = ()  # whole packets ahead of the one in question
    bad_input: int | None = None  # row of the list of bad input that this vector covers
    spec: str = ""  # normative statements, such as "MQTT-3.1.2-3"
    canonical: bool = True  # encoding ``packet`` gives exactly ``data``
    limits: dict[str, int] = field(default_factory=dict)  # further arguments of the decoder

    def __post_init__(self) -> None:
        outcomes = (self.packet is not None) + (self.error is not None) + self.needs_more
        assert outcomes == 1, f"{self.name}: exactly one of packet, error, needs_more"

    @property
    def packets(self) -> list[Packet]:
        return [*self.before, *([self.packet] if self.packet is not None else [])]

    @property
    def decoder_arguments(self) -> dict[str, Any]:
        return {"client": self.client, "protocol_level": self.level, **self.limits}


def wire(text: str) -> bytes:
    data = b""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None, f"not hexadecimal: {text[at : at + 20]!r}"
        if token["text"] is not None:
            data += token["text"].encode() * int(token["times"] or 1)
        elif token["byte"] is not None:
            data += bytes.fromhex(token["byte"]) * int(token["times"] or 1)
        at = token.end()
    return data


SIDES = {"server": (False,), "client": (True,), "both": (False, True)}
ALL_LEVELS = (3, 4, 5)
BELOW_5 = (3, 4)


def vectors(
    name: str, levels: int | tuple[int, ...], data: str | bytes, *, at: str = "server", **fields: Any
) -> Iterator[Vector]:
    """The same case for several levels, decoded by a server, by a client, or by both."""
    for level, client in product((levels,) if isinstance(levels, int) else levels, SIDES[at]):
        full_name = f"{name} [{'client' if client else 'server'}, level {level}]"
        raw = wire(data) if isinstance(data, str) else data
        yield Vector(full_name, level, raw, client=client, **fields)


def good(name: str, levels: int | tuple[int, ...], data: str | bytes, packet: Packet, **fields: Any) -> list[Vector]:
    return list(vectors(name, levels, data, packet=packet, **fields))


def bad(name: str, levels: int | tuple[int, ...], data: str | bytes, error: int, **fields: Any) -> list[Vector]:
    return list(vectors(name, levels, data, error=error, **fields))


def cut(name: str, levels: int | tuple[int, ...], data: str | bytes, **fields: Any) -> list[Vector]:
    return list(vectors(name, levels, data, needs_more=True, **fields))
