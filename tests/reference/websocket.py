"""A slow, obvious reader of WebSocket frames, and a maker of frames good and bad."""

from __future__ import annotations

from dataclasses import dataclass

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
SENDABLE_CODES = {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    mask: bytes | None = b"\x01\x20\xff\x80",
    length_bytes: int | None = None,
    length: int | None = None,
) -> bytes:
    """A client's frame. `length_bytes` (0, 2 or 8) and `length` make it say what is not so."""
    length = len(payload) if length is None else length
    if length_bytes is None:
        length_bytes = 0 if length < 126 else 2 if length < 65_536 else 8
    short = length if length_bytes == 0 else 126 if length_bytes == 2 else 127
    head = bytes([fin << 7 | reserved << 4 | opcode, (mask is not None) << 7 | short])
    head += length.to_bytes(length_bytes, "big") if length_bytes else b""
    return head + (mask + masked(payload, mask) if mask is not None else payload)


def masked(payload: bytes, mask: bytes) -> bytes:
    return bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


@dataclass
class Outcome:
    """All that a reader makes of a stream. Two readers agree when their outcomes are equal."""

    plain: bytes = b""
    last_ping: bytes | None = None
    close_code: int = 0
    is_closed_by_peer: bool = False


def read_stream(data: bytes, max_frame_bytes: int) -> Outcome:
    """The whole stream at once; what is not complete at its end is unmasked as far as it came."""
    outcome, at, in_message = Outcome(), 0, False
    while at < len(data) and not outcome.close_code:
        if len(data) - at < 2:
            break
        first, second = data[at], data[at + 1]
        opcode, fin, length = first & 15, first >> 7, second & 127
        outcome.close_code = _head_fault(first, second, in_message)
        if outcome.close_code:
            break
        at += 2
        extra = {126: 2, 127: 8}.get(length, 0)
        if len(data) - at < extra + 4:
            break
        if extra:
            length = int.from_bytes(data[at : at + extra], "big")
            if length < (126 if extra == 2 else 65_536) or length >= 1 << 63:
                outcome.close_code = 1002
                break
            if length > max_frame_bytes:
                outcome.close_code = 1009
                break
        elif opcode < 8 and length > max_frame_bytes:
            outcome.close_code = 1009
            break
        mask = data[at + extra : at + extra + 4]
        at += extra + 4
        payload = masked(data[at : at + length], mask)
        at += length
        if opcode < 8:
            outcome.plain += payload
            in_message = not fin
        elif len(payload) == length:
            if opcode == PING:
                outcome.last_ping = payload
            elif opcode == CLOSE:
                _read_close(outcome, payload)
    return outcome


def _head_fault(first: int, second: int, in_message: bool) -> int:
    opcode, fin = first & 15, first >> 7
    if first & 0x70 or second < 128:
        return 1002
    if opcode == TEXT:
        return 1003
    if opcode >= 8:
        return 1002 if opcode > PONG or not fin or second & 127 > 125 else 0
    return 1002 if opcode > BINARY or (opcode == CONTINUATION) != in_message else 0


def _read_close(outcome: Outcome, payload: bytes) -> None:
    code = int.from_bytes(payload[:2], "big") if payload else 1000
    if len(payload) == 1 or code not in SENDABLE_CODES:
        outcome.close_code = 1002
        return
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        outcome.close_code = 1007
        return
    outcome.close_code, outcome.is_closed_by_peer = code, True
