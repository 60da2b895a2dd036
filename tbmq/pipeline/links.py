"""What the pipeline needs of the other workers: who is there, and a way to talk to them. `net.mesh` provides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Message = dict[str, Any]
Listener = Callable[[int, Message, bytes], None]
"""Called with the worker that sent it, the message, and bytes that came along."""


class Links(Protocol):
    joined: list[Callable[[int], None]]  # called when our link to a worker stands
    left: list[Callable[[int], None]]  # called when a worker is gone

    @property
    def others(self) -> list[int]:
        """The workers that we have a link to."""

    def subscribe(self, subject: str, listener: Listener) -> None:
        """Messages of this subject go to `listener`."""

    def send(self, index: int, subject: str, message: Message, attachment: bytes = b"") -> bool:
        """False while that worker is away."""
