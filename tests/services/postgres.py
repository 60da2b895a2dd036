"""A PostgreSQL for tests: started once for a run, one empty database for each test.

PostgreSQL refuses to run as root, so root starts it as another user; that user must reach the folder, which is why it
is not in pytest's own. Nothing is flushed to disk: the data is worth nothing after the run. The server is told
when pytest dies (PR_SET_PDEATHSIG), so that a killed run leaves nothing behind but a folder in /tmp.
"""

from __future__ import annotations

import asyncio
import ctypes
import glob
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

HOST = "127.0.0.1"
START_S = 60.0
PR_SET_PDEATHSIG = 1
MISSING = "PostgreSQL is not installed, and this test needs it: apt-get install postgresql (./dev test does, as root)"


def find_binaries() -> Path | None:
    """The newest of Debian's, which are not on the PATH, or those that are."""
    versions = glob.glob("/usr/lib/postgresql/*/bin/initdb")
    found = max(versions, key=lambda path: int(path.split("/")[4]), default=shutil.which("initdb"))
    return Path(found).parent if found else None


def not_root() -> dict[str, Any]:
    """Arguments of subprocess that give up root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class Postgres:
    """`with Postgres() as postgres: postgres.new_database()` gives the url of an empty database."""

    def __init__(self) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise RuntimeError(MISSING)
        self._binaries = binaries
        self._numbers = itertools.count(1)
        self._user = not_root()
        self._environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def __enter__(self) -> Postgres:
        # Short on purpose: the path of a Unix socket may have 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="tbmq-pg-", dir="/tmp"))
        if self._user:
            os.chown(self._folder, self._user["user"], self._user["group"])
        try:
            self._password = secrets.token_urlsafe(12)
            self._init()
            self.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _init(self) -> None:
        password = self._folder / "password"
        password.write_text(self._password)
        if self._user:
            os.chown(password, self._user["user"], self._user["group"])
        command = [self._binaries / "initdb", "-D", self._folder / "data", "-U", "postgres", "-A", "scram-sha-256"]
        command += [f"--pwfile={password}", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
        self._run(command)

    def _run(self, command: list[Any]) -> None:
        options = {"cwd": self._folder, "env": self._environment, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=START_S, **options, **self._user)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """On the same data, and after a stop on the same port. A free port can be taken meanwhile: it tries again."""
        for _ in range(5):
            port = getattr(self, "port", None) or _free_port()
            if self._start_on(port):
                self.port = port
                return
        raise RuntimeError(f"PostgreSQL does not start: {self._log()}")

    def _start_on(self, port: int) -> bool:
        options = {"listen_addresses": HOST, "port": port, "unix_socket_directories": self._folder, "fsync": "off"}
        options |= {"synchronous_commit": "off", "full_page_writes": "off", "max_connections": 100}
        command = [self._binaries / "postgres", "-D", self._folder / "data"]
        command += [argument for name, value in options.items() for argument in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **self._user,
            )
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._is_ready():
                return True
            time.sleep(0.02)
        self.stop()
        return False

    def _is_ready(self) -> bool:
        """The eighth line of its pid file says so."""
        try:
            lines = (self._folder / "data/postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and int(lines[0]) == self._process.pid and lines[7].strip() == "ready"

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2_000:]

    def stop(self) -> None:
        """At once: what is connected is cut."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    # --- for tests

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self._password}@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def cut_connections(self, url: str) -> int:
        """Kills the server's side of all connections to one database; how many there were."""
        name = url.rpartition("/")[2]
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        return len(self.execute(query))

    def execute(self, query: str) -> list[Any]:
        async def run() -> list[Any]:
            connection = await asyncpg.connect(self.url())
            try:
                return await connection.fetch(query)
            finally:
                await connection.close()

        return asyncio.run(run())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
