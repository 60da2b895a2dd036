"""Passing a client's socket to the worker that owns its id.

SO_REUSEPORT hands a new connection to any worker. That one reads the CONNECT; when the client id belongs to another
worker, it passes the descriptor on (SCM_RIGHTS), with the bytes that it has read. The owner starts anew with them.

    client_id ──crc32──▶ worker        record: u16 size of peer | peer | bytes read so far
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 160_000  # what a Unix socket takes in one piece
MAX_WAITING = 10_000  # sockets that wait for a busy owner; more are refused


def owner_of(client_id: str, workers: int) -> int:
    return zlib.crc32(client_id.encode()) % workers


def handover_path(folder: Path, index: int) -> str:
    return str(folder / f"handover-{index}")


class Handover:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        index: int,
        adopt: Callable[[int, str, bytes], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._index = index
        self._adopt = adopt
        self._server: socket.socket | None = None
        self._outgoing: dict[int, socket.socket] = {}
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}
        self.passed = 0
        self.refused = 0

    def listen(self) -> None:
        """What others pass on waits in the socket until `start`."""
        path = handover_path(self._folder, self._index)
        Path(path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._server.bind(path)
        self._server.listen(64)

    def start(self) -> None:
        assert self._server is not None
        self._loop.add_reader(self._server.fileno(), self._accept)

    def close(self) -> None:
        for sock in (*self._outgoing.values(), self._server):
            if sock is not None:
                self._loop.remove_reader(sock.fileno())
                self._loop.remove_writer(sock.fileno())
                sock.close()
        self._outgoing.clear()

    def pass_on(self, owner: int, descriptor: int, peer: str, data: bytes) -> None:
        """Gives a socket away. When the owner cannot take it, the client is disconnected and may try again."""
        name = peer.encode()
        record = len(name).to_bytes(2, "little") + name + data
        waiting = self._waiting.setdefault(owner, deque())
        if len(record) > MAX_RECORD_BYTES or len(waiting) >= MAX_WAITING:
            self._refuse(descriptor)
            return
        waiting.append((descriptor, record))
        self._send(owner)

    def _refuse(self, descriptor: int) -> None:
        self.refused += 1
        os.close(descriptor)

    def _send(self, owner: int) -> None:
        waiting = self._waiting[owner]
        sock = self._outgoing.get(owner)
        try:
            if sock is None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                self._outgoing[owner] = sock
                sock.connect(handover_path(self._folder, owner))
            while waiting:
                descriptor, record = waiting[0]
                socket.send_fds(sock, [record], [descriptor])
                waiting.popleft()
                os.close(descriptor)
                self.passed += 1
            self._loop.remove_writer(sock.fileno())
        except BlockingIOError:
            assert sock is not None
            self._loop.add_writer(sock.fileno(), self._send, owner)
        except OSError as error:
            log.warning("worker %d: cannot pass connections to worker %d: %s", self._index, owner, error.strerror)
            while waiting:
                self._refuse(waiting.popleft()[0])
            if sock is not None:
                del self._outgoing[owner]
                self._loop.remove_writer(sock.fileno())
                sock.close()

    def _accept(self) -> None:
        assert self._server is not None
        try:
            sock, _ = self._server.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._receive, sock)

    def _receive(self, sock: socket.socket) -> None:
        for _ in range(64):
            try:
                record, descriptors, _, _ = socket.recv_fds(sock, MAX_RECORD_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                record, descriptors = b"", []
            if not record:
                self._loop.remove_reader(sock.fileno())
                sock.close()
                return
            size = int.from_bytes(record[:2], "little")
            for descriptor in descriptors:
                with contextlib.suppress(OSError):  # the client may be gone already
                    self._adopt(descriptor, record[2 : 2 + size].decode(), record[2 + size :])
