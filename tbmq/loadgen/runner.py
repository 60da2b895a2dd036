"""The parent of a run: starts the processes, leads them through the phases, and adds up what they measured.

    connecting ──all ready──▶ running ──time or number reached──▶ draining ──all arrived, or 2 s of silence──▶ finished
        └── a connection failed, or nothing moves: the run is given up, with advice

The processes keep their clocks: the parent names the moments (CLOCK_MONOTONIC is the same for all of them) and only
listens. It samples the broker's CPU time before the first message and after the last one, so what a broker does late is
counted too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Self

from tbmq.loadgen.advice import explain
from tbmq.loadgen.broker import BrokerProcesses, Sample
from tbmq.loadgen.options import Options, Scenario, Share, split, to_json
from tbmq.loadgen.result import Result, Totals, add_up, make_result

START_DELAY_NS = 100_000_000  # from the command to the first message: time for it to reach all processes
SILENCE_S = 2.0  # a drain ends when nothing has arrived for so long
SETTLE_S = 1.0  # idle: from the last connection to the measurement of memory
CONNECT_STALL_S = 15.0  # connecting is given up when no connection became ready for so long

Observer = Callable[[str, Totals], None]  # phase and totals so far, about ten times a second


class BenchError(Exception):
    """The run could not be done; the text says why and what to do."""


def run(options: Options, *, broker: Sequence[str] = (), observe: Observer | None = None) -> Result:
    """Runs the scenario. `broker` names processes whose CPU time and memory are to be measured."""
    try:
        watched = BrokerProcesses(broker) if broker else None
    except ProcessLookupError as error:
        raise BenchError(f"{error}: see --broker-pid") from None
    options = dataclasses.replace(options, address=_look_up(options))
    with _Processes(options) as processes:
        return _Run(options, processes, watched, observe or (lambda phase, totals: None)).execute()


def _look_up(options: Options) -> str:
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BenchError(f"cannot find the host {options.host}: {error.strerror}. Correct --host.") from None
    # IPv4 first: brokers that listen on one family only mostly listen there.
    return str(sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0][4][0])


class _Run:
    def __init__(
        self, options: Options, processes: _Processes, watched: BrokerProcesses | None, observe: Observer
    ) -> None:
        self._options = options
        self._processes = processes
        self._watched = watched
        self._observe = observe

    def execute(self) -> Result:
        options = self._options
        empty = self._sample()
        if options.scenario is not Scenario.CONN:
            self._connect()
        before = self._sample()
        self._start()
        self._wait("running", lambda totals: "running" not in self._processes.phases())
        self._drain()
        after = self._sample()
        self._processes.tell({"do": "finish"})
        self._wait("finished", lambda totals: self._processes.phases() == {"finished"})
        return make_result(options, self._processes.latest(), before, after, empty)

    def _sample(self) -> Sample | None:
        return self._watched.sample() if self._watched else None

    def _connect(self) -> None:
        wanted = self._options.connections
        ready, moved_at = 0, time.monotonic()

        def is_connected(totals: Totals) -> bool:
            nonlocal ready, moved_at
            self._give_up_on_failure(totals)
            if totals["ready"] > ready:
                ready, moved_at = totals["ready"], time.monotonic()
            elif time.monotonic() > moved_at + CONNECT_STALL_S + self._options.connect_timeout_s:
                raise BenchError(f"only {ready:,} of {wanted:,} connections were made, and no more come")
            return ready == wanted

        self._wait("connecting", is_connected)

    def _give_up_on_failure(self, totals: Totals) -> None:
        if totals.failures:
            texts = [
                explain(self._options, kind, code) + (f" ({times:,} times)" if times > 1 else "")
                for (kind, code), times in totals.failures.items()
            ]
            raise BenchError("\n".join(texts))

    def _start(self) -> None:
        options = self._options
        at = time.monotonic_ns() + START_DELAY_NS
        if options.scenario is Scenario.IDLE:
            measure, stop = at, at + int(max(options.duration_s, SETTLE_S) * 1e9)
        elif options.messages:
            measure, stop = at, 0  # the first message counts: there is no warm-up
        else:
            measure = at + int(options.warmup_s * 1e9)
            stop = measure + int(options.duration_s * 1e9)
        self._processes.tell({"do": "start", "at_ns": at, "measure_ns": measure, "stop_ns": stop})
        self._wait("running", lambda totals: "connecting" not in self._processes.phases())

    def _drain(self) -> None:
        """Until every message has arrived and every ack came, or nothing has moved for a while."""
        if not self._options.scenario.publishes:
            return
        arrived, moved_at = -1, 0.0
        deadline = time.monotonic() + self._options.drain_s

        def is_drained(totals: Totals) -> bool:
            nonlocal arrived, moved_at
            now = self._processes.heard_at()
            if totals["received"] + totals["acked"] != arrived:
                arrived, moved_at = totals["received"] + totals["acked"], now
            is_complete = totals["arrived"] >= totals["sent"] * self._options.copies and not totals["inflight"]
            return is_complete or now > moved_at + SILENCE_S or time.monotonic() > deadline

        self._wait("draining", is_drained)

    def _wait(self, phase: str, is_over: Callable[[Totals], bool]) -> None:
        while True:
            self._processes.listen()
            totals = add_up(self._processes.latest())
            self._observe(phase, totals)
            if is_over(totals):
                return


class _Processes:
    """The worker processes, and the latest line of each."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._shares = split(options)
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        for share in self._shares:
            worker = _Worker(self._options, share)
            self._workers.append(worker)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)
        while any(not worker.latest for worker in self._workers):
            self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.stop()

    def tell(self, command: dict[str, Any]) -> None:
        for worker in self._workers:
            worker.tell(command)

    def phases(self) -> set[str]:
        return {worker.latest["phase"] for worker in self._workers}

    def latest(self) -> list[dict[str, Any]]:
        return [worker.latest for worker in self._workers]

    def heard_at(self) -> float:
        """The time of the oldest of their latest lines: what a process is too busy to tell us is not silence."""
        return min(float(worker.latest["time_ns"]) for worker in self._workers) / 1e9

    def listen(self) -> None:
        """Waits until one of them has said something, a fifth of a second at most."""
        for key, _ in self._selector.select(0.2):
            worker = key.data
            if not worker.read() and worker.latest.get("phase") != "finished":
                raise BenchError(worker.last_words())
            if worker.latest.get("phase") == "finished":
                self._selector.unregister(worker.output)


class _Worker:
    def __init__(self, options: Options, share: Share) -> None:
        self.latest: dict[str, Any] = {}
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tbmq.loadgen.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.tell(to_json(options, share))  # over the pipe: a password never stands on a command line

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            raise BenchError(self.last_words()) from None

    def read(self) -> bool:
        """Takes what it said; False when it has ended."""
        data = os.read(self.output.fileno(), 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self.latest = json.loads(lines[-1])
        return bool(data)

    def last_words(self) -> str:
        assert self._process.stderr is not None
        text = self._process.stderr.read().decode(errors="replace").strip()
        self._process.wait(timeout=10)
        return text or f"a process of the load generator ended with code {self._process.returncode}"

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stderr is not None
        self._process.stdin.close()
        self.output.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()
