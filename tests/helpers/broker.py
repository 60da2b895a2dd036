"""A broker as the tests see it: processes, a port, a log.

`run_broker` starts ours with `python -m tbmq serve` on a free port and a data folder of its own, waits until a client
is answered, and at the end stops it by SIGTERM: it must exit with 0, in bounded time, without a traceback in its log.

TBMQ_TEST_BROKER=mosquitto puts Mosquitto in its place. Where both agree with the specification a test passes on both;
that is how the tests themselves were proven.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tbmq.packets import Connack, Connect
from tests.helpers.client import Client

START_S = 20.0
STOP_S = 15.0

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1

SIGNS_OF_A_CRASH = re.compile(
    r"Traceback \(most recent call last\)|never retrieved|Fatal Python error|AddressSanitizer|Segmentation fault"
    r"|Exception ignored|internal error|Exception in callback|was never awaited|Assertion .* failed"
)

MOSQUITTO_NAMES = {
    "mqtt.max_packet_bytes": "max_packet_size",
    "mqtt.max_keep_alive_s": "max_keepalive",
    "mqtt.receive_maximum": "max_inflight_messages",
}
"""Our settings that Mosquitto has too."""


def is_mosquitto() -> bool:
    return os.environ.get("TBMQ_TEST_BROKER") == "mosquitto"


@dataclass
class Broker:
    process: subprocess.Popen[bytes]
    port: int
    workers: int
    log_path: Path

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def log(self, since: int = 0) -> str:
        """What it printed after that many bytes."""
        return self.log_path.read_bytes()[since:].decode(errors="replace")

    def log_bytes(self) -> int:
        return self.log_path.stat().st_size

    def assert_healthy(self, since: int = 0) -> None:
        """It runs, and printed nothing that looks like a crash."""
        code = self.process.poll()
        log = self.log(since)
        assert code is None, f"the broker exited with {code}; its log ends:\n{log[-5000:]}"
        assert_no_crash(log)

    def processes(self) -> list[int]:
        """The supervisor and all that it started."""
        found, new = [], [self.process.pid]
        while new:
            pid = new.pop()
            found.append(pid)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    new.extend(int(child) for child in (task / "children").read_text().split())
        return found

    def process_of(self, client: Client) -> int:
        """Which of its processes holds the broker's end of this client's connection."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError):
                if _socket_inode(self.port, client.local_port) in _socket_inodes(pid):
                    return pid
        raise AssertionError(f"no process of the broker holds the connection of {client}")

    def descriptors(self) -> int:
        """How many descriptors its processes have open."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.processes())

    def cpu_s(self) -> float:
        """Processor time that its processes have used."""
        ticks = 0
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident memory of all its processes."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
        return total

    def stop(self) -> None:
        """SIGTERM; asserts a clean and timely end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the broker did not stop in {STOP_S} s; its log ends:\n{self.log()[-5000:]}"
            ) from None
        assert code == 0, f"the broker exited with {code}; its log ends:\n{self.log()[-5000:]}"
        assert_no_crash(self.log())


def assert_no_crash(log: str) -> None:
    sign = SIGNS_OF_A_CRASH.search(log)
    assert sign is None, f"the broker's log holds:\n{log[max(sign.start() - 1000, 0) : sign.start() + 4000]}"


@contextlib.contextmanager
def run_broker(
    data_dir: Path,
    *,
    workers: int = 1,
    settings: Mapping[str, object] | None = None,
    max_descriptors: int | None = None,
    stops_cleanly: bool = True,
) -> Iterator[Broker]:
    data_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = _mosquitto if is_mosquitto() else _tbmq
    log_path = data_dir / "broker.log"

    def before_exec() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # a killed test run leaves no broker behind
        if max_descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))

    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command(port, data_dir, workers, settings or {}),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=data_dir,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # so that what is left of it can be killed, and a Ctrl-C stays ours
            preexec_fn=before_exec,
        )
    broker = Broker(process, port, workers, log_path)
    try:
        _wait_until_it_answers(broker)
        yield broker
        if stops_cleanly:
            broker.stop()
        assert_no_crash(broker.log())
    except BaseException:
        print(f"end of the broker's log:\n{broker.log()[-5_000:]}")
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tbmq(port: int, data_dir: Path, workers: int, settings: Mapping[str, object]) -> list[str]:
    values: dict[str, object] = {
        "listeners.tcp.bind": f"127.0.0.1:{port}",
        "listeners.ws.bind": "",
        "admin.bind": "",
        "workers": workers,
        "data_dir": data_dir / "data",
        **settings,
    }
    pairs = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "tbmq", "serve", *pairs]


def _mosquitto(port: int, data_dir: Path, workers: int, settings: Mapping[str, object]) -> list[str]:
    lines = [
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "max_queued_messages 0",
        "set_tcp_nodelay true",
        "max_topic_alias 16",
    ]
    for key, value in settings.items():
        if key == "mqtt.max_keep_alive_s":
            value = max(int(str(value)), 10)  # the least it takes
        if key in MOSQUITTO_NAMES:
            lines.append(f"{MOSQUITTO_NAMES[key]} {value}")
    path = data_dir / "mosquitto.conf"
    path.write_text("\n".join(lines) + "\n")
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert found, "mosquitto is not installed"
    return [found, "-c", str(path)]


def _wait_until_it_answers(broker: Broker) -> None:
    deadline = time.monotonic() + START_S
    client = Client(broker.address, "is-it-up", timeout_s=2.0)
    while True:
        client.close()
        assert broker.process.poll() is None, f"the broker exited with {broker.process.returncode}:\n{broker.log()}"
        assert time.monotonic() < deadline, f"the broker does not answer after {START_S} s; its log:\n{broker.log()}"
        try:
            client.open()
            client.send(Connect("is-it-up"))
            client.expect(Connack, reason_code=0)
        except (OSError, AssertionError):
            time.sleep(0.02)
        else:
            client.disconnect()
            return


def _socket_inode(local_port: int, remote_port: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{local_port:04X}") and fields[2].endswith(f":{remote_port:04X}"):
            return fields[9]
    raise AssertionError(f"no connection {local_port} <- {remote_port}")


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found
