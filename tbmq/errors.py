"""Errors that carry their MQTT reason code, so that whoever catches one knows what to tell the peer."""

from __future__ import annotations

from tbmq.protocol import ReasonCode


class PacketError(Exception):
    """The peer sent bytes that the specification does not allow.

    ``reason_code`` is what a v5 peer is told before the connection closes; ``detail`` is for the log and never holds
    bytes that the peer sent.
    """

    def __init__(self, reason_code: int, detail: str) -> None:
        self.reason_code = ReasonCode(reason_code)
        self.detail = detail
        super().__init__(f"{detail} (0x{reason_code:02X} {self.reason_code.name.lower()})")


class BatchError(Exception):
    """A batch cannot be read: it is cut, damaged, or of a version that this program does not know."""
