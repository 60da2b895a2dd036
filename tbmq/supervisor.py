"""The parent process: starts the workers, restarts what crashes, passes signals on, and ends in bounded time.

It does nothing else, so that nothing can make it fail: no threads, no loop, no MQTT.

    bind ──▶ fork workers ──▶ all ready: say so ──▶ wait for signals and dead children ──▶ SIGTERM, late ones SIGKILL
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tbmq.config import Bind
from tbmq.first_start import FIRST_USER, prepare_entities
from tbmq.net.listener import bind_socket
from tbmq.net.listeners import check_certificates
from tbmq.net.tls import TlsError
from tbmq.storage.interfaces import StoreError
from tbmq.worker import run_worker

if TYPE_CHECKING:
    from tbmq.config import Config

log = logging.getLogger(__name__)

STOP_S = 12.0  # workers that are not gone by then are killed
FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 5.0
STEADY_S = 10.0  # a worker that lived this long starts over with the shortest back-off


@dataclass
class Child:
    index: int
    pid: int = 0  # 0: not running
    started: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    restart_at: float = 0.0
    ready_fd: int = -1  # readable when it is ready, or dead


@dataclass
class Supervisor:
    config: Config
    addresses: dict[str, Bind]
    folder: Path  # private: the sockets between workers
    children: list[Child]
    stopping_since: float = 0.0
    announced: bool = False
    wake_fds: tuple[int, int] = field(default_factory=os.pipe)

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        os.set_blocking(self.wake_fds[0], False)
        os.set_blocking(self.wake_fds[1], False)
        signal.set_wakeup_fd(self.wake_fds[1], warn_on_full_buffer=False)
        for child in self.children:
            self._start(child)
        while not self.stopping_since or any(child.pid for child in self.children):
            self._wait()
            self._reap()
            self._restart()
            self._kill_late()
        return 0

    def _on_signal(self, number: int, _frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT) and not self.stopping_since:
            self.stopping_since = time.monotonic()
            self._signal_all(signal.SIGTERM)
        elif number == signal.SIGHUP:
            self._signal_all(signal.SIGHUP)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self.children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):  # it died, and was reaped, this very moment
                    os.kill(child.pid, number)

    def _start(self, child: Child) -> None:
        read_fd, write_fd = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(child, read_fd, write_fd)
        os.close(write_fd)
        child.pid, child.started, child.ready_fd = pid, time.monotonic(), read_fd

    def _become_worker(self, child: Child, read_fd: int, write_fd: int) -> None:
        """Never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for fd in (*self.wake_fds, read_fd, *(c.ready_fd for c in self.children if c.ready_fd >= 0)):
                os.close(fd)
            run_worker(self.config, child.index, self.addresses, self.folder, write_fd)
            code = 0
        except BaseException:
            log.exception("worker %d: crashed", child.index)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _wait(self) -> None:
        """Until a signal, a ready worker, or the next thing that is due."""
        due = [child.restart_at for child in self.children if not child.pid]
        if self.stopping_since:
            due = [self.stopping_since + STOP_S]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        waiting = {child.ready_fd: child for child in self.children if child.ready_fd >= 0}
        readable, _, _ = select.select([self.wake_fds[0], *waiting], [], [], timeout)
        for fd in readable:
            if fd == self.wake_fds[0]:
                os.read(fd, 4096)
            else:
                is_ready = os.read(fd, 1) == b"\1"
                os.close(fd)
                waiting[fd].ready_fd = -1
                if is_ready:
                    log.debug("worker %d: ready", waiting[fd].index)
        self._announce()

    def _announce(self) -> None:
        """Once, when all workers accept connections."""
        are_ready = all(child.pid and child.ready_fd < 0 for child in self.children)
        if are_ready and not self.announced and not self.stopping_since:
            self.announced = True
            for name, address in self.addresses.items():
                log.info("listening for MQTT on %s (%s)", address, name)
            log.info("ready: %s", _count(len(self.children), "worker"))

    def _reap(self) -> None:
        for child in self.children:
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            lived_s = time.monotonic() - child.started
            child.pid = 0
            if self.stopping_since:
                continue
            child.backoff_s = FIRST_BACKOFF_S if lived_s > STEADY_S else min(child.backoff_s * 2, LAST_BACKOFF_S)
            child.restart_at = time.monotonic() + child.backoff_s
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            log.error("worker %d: %s; starts again in %.1f s", child.index, how, child.backoff_s)

    def _restart(self) -> None:
        for child in self.children:
            if not child.pid and not self.stopping_since and time.monotonic() >= child.restart_at:
                self._start(child)

    def _kill_late(self) -> None:
        if self.stopping_since and time.monotonic() > self.stopping_since + STOP_S:
            for child in self.children:
                if child.pid:
                    log.error("worker %d: did not stop in %.0f s, killing it", child.index, STOP_S)
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
                    child.pid = 0


def serve(config: Config) -> int:
    """Runs the broker; answers the exit code of the process."""
    logging.basicConfig(
        level=config.log.level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if config.profile == "cluster":
        log.error("profile cluster is not in this version; set profile=embedded, which keeps everything on this node")
        return 1
    held: list[socket.socket] = []
    addresses: dict[str, Bind] = {}
    name, address = "", None
    try:
        check_certificates(config)
        for name, listener in config.listeners:
            address = listener.address
            if address is not None:
                # Held, but not listening: it keeps a port chosen by the system while workers come and go.
                held.append(bind_socket(address.host, address.port))
                addresses[name] = Bind(address.host, held[-1].getsockname()[1])
    except OSError as error:
        log.error(
            "cannot listen on %s: %s; stop what uses that address or set listeners.%s.bind",
            address,
            error.strerror,
            name,
        )
        return 1
    except TlsError as error:
        log.error("%s", error)
        return 1
    if not addresses:
        log.error("no listener is switched on; set listeners.tcp.bind")
        return 1
    try:
        prepared = prepare_entities(config)
    except StoreError as error:
        log.error("%s", error)
        return 1
    if prepared.password is not None:
        print(f"First administrator: {FIRST_USER}, password {prepared.password}   (shown only this once)", flush=True)
    if prepared.providers:
        log.info("authentication: %s", ", ".join(prepared.providers))
    else:
        log.info("authentication is off: everybody may enter; `tbmq provider enable basic` switches it on")
    with tempfile.TemporaryDirectory(prefix="tbmq-") as folder:
        children = [Child(index) for index in range(config.workers)]
        return Supervisor(config, addresses, Path(folder), children).run()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
