"""Runs the benchmarks: pytest in a process of its own, on one core, so that each attempt starts afresh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.results import ROOT, Measurement, measurement

FULL_ROUNDS = 40
QUICK_ROUNDS = 8
NO_TESTS_COLLECTED = 5  # pytest's exit code

# A warning of pytest-benchmark ("nothing to save") would hide the failure that it follows from.
_PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest_benchmark.logger.PytestBenchmarkWarning",
]
# The layout of dictionaries is the same in every attempt.
_ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}


class SuiteError(Exception):
    """pytest failed: a benchmark raised, gave a wrong result, or could not be imported. The text is its output."""


def collect() -> list[str]:
    """Node ids of all benchmarks, in the order in which they run."""
    done = subprocess.run(
        [*_PYTEST, "bench", "--collect-only", "-q"],
        cwd=ROOT,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in (0, NO_TESTS_COLLECTED):
        raise SuiteError(done.stdout)
    return [line for line in done.stdout.splitlines() if line.startswith("bench/") and "::" in line]


def measure(
    node_ids: Sequence[str], *, is_quick: bool, on_start: Callable[[str], None] = lambda node_id: None
) -> list[Measurement]:
    """`on_start` hears of each benchmark before it runs."""
    if not node_ids:
        return []
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            *_PYTEST,
            "--verbose",
            "--benchmark-disable-gc",
            "--benchmark-timer=time.thread_time",
            "--benchmark-quiet",
            f"--benchmark-json={results}",
            f"--bench-rounds={QUICK_ROUNDS if is_quick else FULL_ROUNDS}",
            *([f"--bench-cpu={cpu}"] if (cpu := quiet_cpu()) is not None else []),
            *node_ids,
        ]
        output = _run_and_listen(command, set(node_ids), on_start)
        if output is not None:
            raise SuiteError(output)
        return [measurement(entry) for entry in json.loads(results.read_bytes())["benchmarks"]]


def _run_and_listen(command: Sequence[str], node_ids: set[str], on_start: Callable[[str], None]) -> str | None:
    """None, or what the command said before it failed."""
    said = []
    with subprocess.Popen(
        command, cwd=ROOT, env=_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            first_word = line.partition(" ")[0]
            if first_word in node_ids:
                on_start(first_word)
    return None if process.returncode == 0 else "".join(said)


def quiet_cpu(watch_s: float = 0.2) -> int | None:
    """The core that idled most while we watched; None where cores cannot be chosen."""
    if not hasattr(os, "sched_getaffinity") or not Path("/proc/stat").exists():
        return None
    before = _idle_ticks()
    time.sleep(watch_s)
    after = _idle_ticks()
    return max(os.sched_getaffinity(0), key=lambda cpu: after.get(cpu, 0) - before.get(cpu, 0))


def _idle_ticks() -> dict[int, int]:
    ticks = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks[int(name.removeprefix("cpu"))] = int(fields[3])  # user, nice, system, idle, ...
    return ticks
