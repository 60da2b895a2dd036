"""Passing a client's socket to the worker that owns its id.

SO_REUSEPORT hands a new connection to any worker. That one reads the CONNECT; when the client id belongs to another
worker, it passes the descriptor on (SCM_RIGHTS), with the bytes that it has read. The owner starts anew with them.

    client_id ──crc32──▶ worker        record: u16 size of who | who | u32 size of the bytes | bytes read so far
                                       more records without a descriptor, while bytes are left
                                       who: JSON [peer, common name of its certificate, names up its chain ...]

CONNECT and what follows it at once may be larger than a socket takes in one piece; then they go in several records,
with nothing between them. The owner adopts the socket when it has all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

RECORD_BYTES = 65_536  # well below what a Unix socket takes in one piece
MAX_WAITING = 10_000  # sockets that wait for a busy owner; more are refused
MAX_WAITING_BYTES = 67_108_864  # that wait with them; with more waiting already, the next socket is refused
NO_DESCRIPTOR = -1


def owner_of(client_id: str, workers: int) -> int:
    return zlib.crc32(client_id.encode()) % workers


def handover_path(folder: Path, index: int) -> str:
    return str(folder / f"handover-{index}")


@dataclass(slots=True)
class Outgoing:
    """What waits for one owner."""

    records: deque[tuple[int, bytes]] = field(default_factory=deque)  # descriptor, or NO_DESCRIPTOR: goes on
    sockets: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Arriving:
    """A connection of which not all bytes have come."""

    descriptor: int  # NO_DESCRIPTOR: we had none left to take it
    peer: str
    common_names: tuple[str, ...]
    data: bytearray
    size: int  # of all of it


class Handover:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        index: int,
        adopt: Callable[[int, str, tuple[str, ...], bytes], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._index = index
        self._adopt = adopt
        self._server: socket.socket | None = None
        self._outgoing: dict[int, socket.socket] = {}
        self._waiting: dict[int, Outgoing] = {}
        self._incoming: dict[socket.socket, Arriving | None] = {}
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
        for sock in list(self._incoming):
            self._end(sock)

    # --- sending -----------------------------------------------------------------------------------------------------

    def pass_on(self, owner: int, descriptor: int, peer: str, common_names: tuple[str, ...], data: bytes) -> None:
        """Gives a socket away. When the owner cannot take it, the client is disconnected and may try again."""
        waiting = self._waiting.setdefault(owner, Outgoing())
        if waiting.sockets >= MAX_WAITING or waiting.size_bytes > MAX_WAITING_BYTES:
            self._refuse(descriptor)
            return
        who = json.dumps([peer, *common_names]).encode()
        head = len(who).to_bytes(2, "little") + who + len(data).to_bytes(4, "little")
        waiting.records.append((descriptor, head + data[:RECORD_BYTES]))
        for start in range(RECORD_BYTES, len(data), RECORD_BYTES):
            waiting.records.append((NO_DESCRIPTOR, data[start : start + RECORD_BYTES]))
        waiting.sockets += 1
        waiting.size_bytes += len(head) + len(data)
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
            while waiting.records:
                descriptor, record = waiting.records[0]
                if descriptor == NO_DESCRIPTOR:
                    sock.send(record)
                else:
                    socket.send_fds(sock, [record], [descriptor])
                    os.close(descriptor)
                    waiting.sockets -= 1
                    self.passed += 1
                waiting.records.popleft()
                waiting.size_bytes -= len(record)
            self._loop.remove_writer(sock.fileno())
        except BlockingIOError:
            assert sock is not None
            self._loop.add_writer(sock.fileno(), self._send, owner)
        except OSError as error:
            log.warning("worker %d: cannot pass connections to worker %d: %s", self._index, owner, error.strerror)
            del self._waiting[owner]
            for descriptor, _ in waiting.records:
                if descriptor != NO_DESCRIPTOR:
                    self._refuse(descriptor)
            if sock is not None:
                del self._outgoing[owner]
                self._loop.remove_writer(sock.fileno())
                sock.close()

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._server is not None
        try:
            sock, _ = self._server.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        self._incoming[sock] = None
        self._loop.add_reader(sock.fileno(), self._receive, sock)

    def _receive(self, sock: socket.socket) -> None:
        for _ in range(64):
            try:
                record, descriptors, _, _ = socket.recv_fds(sock, 2 * RECORD_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                record, descriptors = b"", []
            if not record:
                self._end(sock)
                return
            arriving = self._incoming[sock]
            if arriving is None:
                arriving = self._incoming[sock] = _begin(record, *descriptors)
            else:
                arriving.data += record
            if len(arriving.data) >= arriving.size:
                self._incoming[sock] = None
                self._take(arriving)

    def _take(self, arriving: Arriving) -> None:
        if arriving.descriptor == NO_DESCRIPTOR:
            self.refused += 1
            log.warning(
                "worker %d: cannot take connections from other workers: Too many open files; raise the limit of open "
                "files (ulimit -n)",
                self._index,
            )
            return
        with contextlib.suppress(OSError):  # the client may be gone already
            self._adopt(arriving.descriptor, arriving.peer, arriving.common_names, bytes(arriving.data))

    def _end(self, sock: socket.socket) -> None:
        """The other worker is gone, or we go; a connection that has not come as a whole is lost."""
        arriving = self._incoming.pop(sock)
        if arriving is not None and arriving.descriptor != NO_DESCRIPTOR:
            os.close(arriving.descriptor)
        self._loop.remove_reader(sock.fileno())
        sock.close()


def _begin(record: bytes, descriptor: int = NO_DESCRIPTOR) -> Arriving:
    at = 2 + int.from_bytes(record[:2], "little")
    size = int.from_bytes(record[at : at + 4], "little")
    peer, *common_names = json.loads(record[2:at])
    return Arriving(descriptor, peer, tuple(common_names), bytearray(record[at + 4 :]), size)
