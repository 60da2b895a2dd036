"""What `tbmq serve` refuses before it starts anything, and how it bears workers that crash."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError

from tbmq.config import Config
from tbmq.supervisor import Child, Supervisor, serve


def test_serve_refuses_the_cluster_profile_when_this_version_has_none(caplog):
    assert serve(Config(profile="cluster")) == 1
    assert "profile=embedded" in caplog.text


def test_serve_names_the_key_to_change_when_an_address_is_taken(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = {"tcp": {"bind": f"127.0.0.1:{port}"}, "ws": {"bind": ""}}
        assert serve(Config.model_validate({"listeners": listeners, "admin": {"bind": ""}})) == 1
    assert f"127.0.0.1:{port}" in caplog.text
    assert "listeners.tcp.bind" in caplog.text


def test_workers_are_as_many_as_the_number_of_a_member_can_tell_apart():
    """A member of a shared subscription is a worker in 8 bits and a session in 24."""
    assert Config(workers=256).workers == 256
    with pytest.raises(ValidationError, match="256"):
        Config(workers=257)


def test_auto_takes_no_more_workers_than_allowed_when_there_are_more_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(300)))
    assert Config(workers="auto").workers == 256  # type: ignore[arg-type]


def test_a_signal_is_survived_when_a_worker_has_just_been_reaped(tmp_path):
    """It may come between `waitpid` and the note that the process is gone; the others still have to hear it."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as alive:
        children = [Child(0, pid=dead.pid), Child(1, pid=alive.pid)]
        supervisor = Supervisor(Config(workers=2), {}, tmp_path, children)
        supervisor._on_signal(signal.SIGTERM, None)
        assert supervisor.stopping_since
        assert alive.wait(10) == -signal.SIGTERM
    for fd in supervisor.wake_fds:
        os.close(fd)


CRASHING = """
from tbmq import supervisor
from tbmq.config import Config

def crash(config, index, addresses, folder, ready_fd):
    raise RuntimeError("at once")

supervisor.run_worker = crash
listeners = {"tcp": {"bind": "127.0.0.1:0"}, "ws": {"bind": ""}}
raise SystemExit(supervisor.serve(Config.model_validate({"workers": 3, "listeners": listeners, "admin": {"bind": ""}})))
"""


def test_workers_that_crash_at_once_are_started_less_and_less_often_and_a_stop_is_still_obeyed(tmp_path):
    log = tmp_path / "log"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-c", CRASHING], stderr=stderr, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 30
        while log.read_text().count("starts again in 1.6 s") < 3:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    pauses = re.findall(r"worker (\d): exited with 1; starts again in ([0-9.]+) s", log.read_text())
    for index in "012":
        assert [pause for worker, pause in pauses if worker == index][:4] == ["0.2", "0.4", "0.8", "1.6"]
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s < 2.5, f"{used_s:.1f} s of processor time: the supervisor spins"
