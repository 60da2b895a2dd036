"""Links between the workers of one node: who dials whom, and what their handlers say to each other.

Every worker listens on a Unix socket in the node's private folder and dials every other one; the engine moves batches
over the links in C. Here are only the slow things: coming and going, and messages in JSON between the handlers.

    subjects: "hello" (who I am), "routes" and "routed" (pipeline/routes), "retained ..." (pipeline/retained)
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tbmq._engine import Connection, Engine
    from tbmq.pipeline.links import Listener, Message

log = logging.getLogger(__name__)

REDIAL_S = 0.05
SEND_BUFFER_BYTES = 1_048_576  # room for a few runs, so that they are not copied once more


def mesh_path(folder: Path, index: int) -> str:
    return str(folder / f"mesh-{index}")


class Mesh:
    """The links of one worker. With one worker there are none, and everything here is trivially true."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self._engine = engine
        self._loop = loop
        self._folder = folder
        self._listeners: dict[str, Listener] = {}
        self._present: dict[int, Connection] = {}  # our links
        self._incoming: dict[int, Connection] = {}  # the others' links to us
        self._is_open = True
        self.joined: list[Callable[[int], None]] = []  # called when our link to a worker stands
        self.left: list[Callable[[int], None]] = []  # called when a worker is gone
        self._server: socket.socket | None = None

    @property
    def others(self) -> list[int]:
        """The workers that we have a link to."""
        return list(self._present)

    def listen(self) -> None:
        if self._engine.workers == 1:
            return
        path = mesh_path(self._folder, self._engine.index)
        Path(path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._server.bind(path)
        self._server.listen(64)
        self._loop.add_reader(self._server.fileno(), self._accept)

    def dial(self) -> None:
        for index in range(self._engine.workers):
            if index != self._engine.index:
                self._dial(index)

    async def wait_for_all(self, timeout_s: float) -> bool:
        """True when every other worker is linked in both directions, so that what we ask is answered.

        A worker that is down must not keep us from serving for ever.
        """
        deadline = self._loop.time() + timeout_s
        while min(len(self._present), len(self._incoming)) < self._engine.workers - 1:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def close(self) -> None:
        self._is_open = False
        if self._server is not None:
            self._loop.remove_reader(self._server.fileno())
            self._server.close()

    def subscribe(self, subject: str, listener: Listener) -> None:
        self._listeners[subject] = listener

    def send(self, index: int, subject: str, message: Message, attachment: bytes = b"") -> bool:
        """False while that worker is away."""
        head = json.dumps({"subject": subject, **message}, separators=(",", ":")).encode()
        return self._engine.send_message(index, len(head).to_bytes(4, "little") + head + attachment)

    # --- called by the handler ---

    def on_message(self, link: Connection, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        message = json.loads(data[4 : 4 + size])
        subject = message.pop("subject")
        if subject == "hello":
            link.peer_index = message["index"]
            self._incoming[link.peer_index] = link
        else:
            self._listeners[subject](link.peer_index, message, data[4 + size :])

    def on_link_closed(self, link: Connection) -> None:
        index = link.peer_index
        if self._incoming.get(index) is link:
            del self._incoming[index]
        elif self._present.get(index) is link:
            del self._present[index]
            log.info("worker %d: lost the link to worker %d", self._engine.index, index)
            for callback in self.left:
                callback(index)
            self._redial(index)

    # --- coming and going ---

    def _accept(self) -> None:
        assert self._server is not None
        try:
            sock, _ = self._server.accept()
        except BlockingIOError:
            return
        self._engine.adopt_link(sock.detach(), -1)

    def _dial(self, index: int) -> None:
        if not self._is_open:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            sock.connect(mesh_path(self._folder, index))
        except OSError:
            sock.close()
            self._redial(index)
            return
        sock.setblocking(False)
        self._present[index] = self._engine.adopt_link(sock.detach(), index)
        self.send(index, "hello", {"index": self._engine.index})
        for callback in self.joined:
            callback(index)

    def _redial(self, index: int) -> None:
        if self._is_open:
            self._loop.call_later(REDIAL_S, self._dial, index)
