"""The brokers of `bench compare`: how each is started, on its cores, with a folder and a port of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

START_S = 20.0
STOP_S = 10.0

# Mosquitto as fast and as lossless as it can be made; docs/benchmarking.md says why each line is there.
MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages 100
sys_interval 0
log_type none
"""


class BrokerError(Exception):
    """A broker is missing or does not start; the text says what to do."""


@dataclass(frozen=True, slots=True)
class BrokerKind:
    name: str
    command: Callable[[int, Path], list[str]]  # port, folder of its own


def known_brokers() -> dict[str, BrokerKind]:
    return {kind.name: kind for kind in (our_broker(), BrokerKind("mosquitto", _mosquitto))}


def our_broker(workers: int = 1) -> BrokerKind:
    return BrokerKind("tbmq", lambda port, folder: _tbmq(port, folder, workers))


def other_broker(text: str) -> BrokerKind:
    """From `NAME=COMMAND`."""
    name, equals, command = text.partition("=")
    if not name or not equals or "{port}" not in command:
        raise BrokerError(f"--other {text!r}: it must be NAME=COMMAND, with {{port}} in the command")
    return BrokerKind(
        name,
        lambda port, folder: [part.format(port=port, dir=folder) for part in shlex.split(command)],
    )


def _tbmq(port: int, folder: Path, workers: int) -> list[str]:
    program = Path(sys.executable).with_name("tbmq")
    settings = {
        "workers": str(workers),
        "data_dir": str(folder / "data"),
        "listeners.tcp.bind": f"127.0.0.1:{port}",
        "listeners.ws.bind": "",
        "admin.bind": "",
    }
    command = [str(program)] if program.exists() else [sys.executable, "-m", "tbmq"]
    return [*command, "serve", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def _mosquitto(port: int, folder: Path) -> list[str]:
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise BrokerError("mosquitto is not installed: apt-get install mosquitto (its service need not run)")
    file = folder / "mosquitto.conf"
    file.write_text(MOSQUITTO_CONF.format(port=port))
    return [program, "-c", str(file)]


@contextlib.contextmanager
def running(kind: BrokerKind, *, cores: Collection[int]) -> Iterator[tuple[int, int]]:
    """The broker on these cores, answering: its process id and port. Stopped at the end, with all that it started."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{kind.name}-") as name:
        folder = Path(name)
        port = _free_port()
        log = folder / "broker.log"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    kind.command(port, folder),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    start_new_session=True,
                    preexec_fn=lambda: os.sched_setaffinity(0, cores),
                )
            except OSError as error:
                raise BrokerError(f"cannot start {kind.name}: {error}") from None
        try:
            _wait_until_it_listens(kind, process, port, log)
            yield process.pid, port
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_listens(kind: BrokerKind, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(errors="replace")[-2_000:].strip()
            state = f"ended with code {process.returncode}" if process.poll() is not None else "does not listen"
            raise BrokerError(f"{kind.name} {state}; it said:\n{said}")
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
    process.wait()
