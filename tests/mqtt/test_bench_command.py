"""`tbmq bench` against a broker: what it says it sent is what arrives. TBMQ_TEST_BROKER=mosquitto runs it there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import Broker

MESSAGES = 4_000
COMMAND = [sys.executable, "-c", "import typer; from tbmq.cli.bench import bench; typer.run(bench)"]


def run_bench(*arguments: object, expected_code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == expected_code, done.stdout + done.stderr
    return done


def measured(broker: Broker, tmp_path: Path, *arguments: object) -> dict[str, Any]:
    file = tmp_path / "result.json"
    run_bench(*arguments, "--port", broker.port, "--json", file)
    report = json.loads(file.read_text())
    assert report["ok"] is True
    found: dict[str, Any] = report["result"]
    assert found["failures"] == [] and found["strays"] == 0
    return found


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_that_was_sent_arrives_once_and_in_order(broker: Broker, tmp_path: Path, qos: int, protocol: str) -> None:
    found = measured(
        broker, tmp_path, "p2p", "--pairs", 7, "-n", MESSAGES, "--qos", qos, "--window", 20, "--protocol", protocol
    )
    assert found["sent"] == found["received"] == MESSAGES
    assert (found["lost"], found["duplicates"], found["out_of_order"]) == (0, 0, 0)
    assert 0 < found["latency"]["p50_us"] <= found["latency"]["p99_us"] <= found["latency"]["max_us"]


@pytest.mark.parametrize(
    ("arguments", "copies"),
    [
        (["fanin", "--publishers", 8], 1),
        (["fanout", "--subscribers", 9], 9),
        (["shared", "--publishers", 6, "--subscribers", 3], 1),
        (["shared", "--publishers", 6, "--subscribers", 4, "--processes", 2], 1),
        (["p2p", "--pairs", 6, "--processes", 3], 1),
    ],
)
def test_every_subscriber_gets_its_copy(broker: Broker, tmp_path: Path, arguments: list[object], copies: int) -> None:
    found = measured(broker, tmp_path, *arguments, "-n", MESSAGES, "--qos", 1)
    assert (found["sent"], found["received"], found["lost"]) == (MESSAGES, MESSAGES * copies, 0)


def test_the_rate_is_kept(broker: Broker, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "p2p", "--pairs", 10, "--rate", 2_000, "-d", 2, "--warmup", 0.2, "--qos", 1)
    assert found["sent"] == pytest.approx(2_000 * 2.2, rel=0.05)
    assert found["lost"] == 0


@pytest.mark.parametrize("payload", [0, 8, 16, 70_000])
def test_payloads_of_any_size_arrive(broker: Broker, tmp_path: Path, payload: int) -> None:
    found = measured(broker, tmp_path, "p2p", "--pairs", 2, "-n", 200, "--payload", payload, "--qos", 1)
    assert (found["sent"], found["received"]) == (200, 200)
    assert (found["out_of_order"] is None) == (payload < 16)


def test_connects_are_counted(broker: Broker, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "conn", "--clients", 10, "-n", 500, "--broker-pid", broker.process.pid)
    assert found["connected"] == 500
    assert found["connects_per_s"] > 0


def test_memory_per_connection_is_told_when_the_process_is_known(broker: Broker, tmp_path: Path) -> None:
    found = measured(broker, tmp_path, "idle", "--clients", 200, "-d", 1, "--broker-pid", broker.process.pid)
    assert found["connected"] == 200
    assert found["broker_rss_bytes"] > 0


def test_the_password_is_in_no_output(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    arguments = ["conn", "--clients", 1, "-n", 1, "--port", broker.port, "--username", "u", "--password-file", file]
    done = run_bench(*arguments, "--json", "-")
    assert json.loads(done.stdout)["result"]["connected"] == 1
    assert "s3cret" not in done.stdout + done.stderr


def test_it_says_what_to_do_when_nothing_listens() -> None:
    done = run_bench("p2p", "--port", 1, "-d", 1, expected_code=3)
    assert "Nothing listens there" in done.stdout


def test_it_says_what_to_do_when_the_host_is_unknown() -> None:
    done = run_bench("p2p", "--host", "no-such-host.invalid", expected_code=3)
    assert "Correct --host" in done.stdout


def test_options_that_do_not_fit_are_refused() -> None:
    done = run_bench("p2p", "--subscribers", 3, expected_code=2)
    assert "p2p has no --subscribers; it has --pairs" in done.stdout
