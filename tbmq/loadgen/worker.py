"""One process of the load generator: an engine, driven by the parent over pipes, one JSON object per line.

    parent ──▶ {"options": ..., "share": ...}                                   first line: connect
           ◀── {"phase": "connecting", ...statistics}                           ten times a second, in every phase
           ──▶ {"do": "start", "at_ns": ..., "measure_ns": ..., "stop_ns": ...}   all times are CLOCK_MONOTONIC
           ◀── {"phase": "running" | "draining", ...}                           draining: nothing new is published
           ──▶ {"do": "finish"}
           ◀── {"phase": "finished", "measured": ..., "histogram": ..., ...}    then it exits

A pipe that closes means that the parent is gone: so does the process.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from typing import Any

from tbmq._loadgen import Engine
from tbmq.loadgen import packets, transports
from tbmq.loadgen.options import MAX_NUMBER, Options, Scenario, Share, from_json

SLICE_NS = 20_000_000  # how long the engine runs before Python looks at its pipe
REPORT_NS = 100_000_000
DESCRIPTORS = 64  # beside the sockets
HEARS = {Scenario.P2P: "own", Scenario.FANIN: "all", Scenario.FANOUT: "all", Scenario.SHARED: "group"}
WINDOW_OF_GROUP = 1 << 20  # numbers that a stream remembers: messages of a group arrive in no order
WINDOW = 4_096
SAMPLE_EVERY = 16  # messages per latency sample when small ones are sent as fast as possible; else every one is
SMALL_PAYLOAD = 1_024


def raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(
            f"{wanted} descriptors are needed, but the limit is {hard}: raise it (ulimit -n {wanted}), "
            "or spread them by --processes"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def make_engine(options: Options, share: Share) -> Engine:
    templates = packets.make(options)
    engine = Engine(
        host=options.address or options.host,
        port=options.port,
        protocol_level=options.protocol_level,
        qos=options.qos,
        connect_packet=templates.connect,
        subscribe_packet=templates.subscribe,
        publish_packet=templates.publish,
        payload_at=templates.payload_at,
        sources=list(options.sources),
        send_buffer_bytes=options.send_buffer_bytes,
        make_transport=transports.maker(options),
        timeout_s=options.connect_timeout_s,
        keep_alive_s=options.keep_alive_s,
    )
    engine.add(
        publishers=share.publishers,
        subscribers=share.subscribers,
        first_publisher=share.first_publisher,
        first_subscriber=share.first_subscriber,
        all_publishers=options.publishers if options.scenario.publishes else 0,
        hears=HEARS.get(options.scenario, "own"),
        window=options.window if options.qos else 0,
        stream_window={Scenario.SHARED: WINDOW_OF_GROUP, Scenario.IDLE: 64}.get(options.scenario, WINDOW),
    )
    return engine


class Worker:
    def __init__(self, options: Options, share: Share) -> None:
        self._options = options
        self._share = share
        self._engine = make_engine(options, share)
        self._phase = "connecting"
        self._measure_ns = 0  # when the warm-up ends; 0: done, or not yet known
        self._stop_ns = 0
        self._before: dict[str, Any] = {}  # statistics at the end of the warm-up
        self._after: dict[str, Any] = {}  # and when publishing stopped
        self._commands = b""

    def run(self) -> None:
        options = self._options
        if options.scenario is not Scenario.CONN:
            self._engine.open(max_opening=options.connecting, rate=options.connect_rate / options.processes)
        report_ns = 0
        while self._phase != "finished":
            now = time.monotonic_ns()
            marks = [mark for mark in (self._measure_ns, self._stop_ns) if mark]
            self._engine.run(min([now + SLICE_NS, *marks]))
            self._pass_marks(time.monotonic_ns())
            for command in self._read_commands():
                self._obey(command)
            now = time.monotonic_ns()
            if now >= report_ns and self._phase != "finished":
                report_ns = now + REPORT_NS
                self._report(self._engine.statistics())

    def _pass_marks(self, now: int) -> None:
        if self._measure_ns and now >= self._measure_ns:
            self._measure_ns = 0
            self._engine.begin_measuring()
            self._before = self._engine.statistics()
        if self._phase != "running":
            return
        if self._stop_ns and now >= self._stop_ns:
            self._stop()
        elif self._options.messages:
            statistics = self._engine.statistics()
            is_done = (
                statistics["opened"] >= self._own_messages() and not statistics["opening"]
                if self._options.scenario is Scenario.CONN
                else not statistics["sending"]
            )
            if is_done:
                self._stop()

    def _stop(self) -> None:
        self._stop_ns = 0
        self._phase = "draining"
        if self._options.scenario is Scenario.CONN:
            self._engine.stop_opening()
        self._engine.stop()
        self._after = self._engine.statistics()

    def _read_commands(self) -> list[dict[str, Any]]:
        if not select.select([0], [], [], 0)[0]:
            return []
        data = os.read(0, 65_536)
        if not data:
            raise SystemExit("the parent is gone")
        *lines, self._commands = (self._commands + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "finish":
            self._finish()
            return
        options = self._options
        self._phase = "running"
        self._measure_ns, self._stop_ns = command["measure_ns"], command["stop_ns"]
        if options.scenario is Scenario.CONN:
            self._engine.open(
                max_opening=self._share.subscribers,
                rate=options.rate / options.processes,
                limit=self._own_messages(),
                recycle=True,
                number=self._share.index * (MAX_NUMBER // options.processes),
                at_ns=command["at_ns"],
            )
        elif options.scenario.publishes:
            is_flood = not options.rate and not options.qos and options.payload_bytes < SMALL_PAYLOAD
            self._engine.start(
                at_ns=command["at_ns"],
                rate=options.rate,
                messages=options.messages,
                sample_every=SAMPLE_EVERY if is_flood else 1,
            )

    def _own_messages(self) -> int:
        """Scenario conn: how many of the connects asked for are ours; 0: no end."""
        if not self._options.messages:
            return 0
        share = self._share.subscribers / self._options.clients
        return max(1, round(self._options.messages * share))

    def _finish(self) -> None:
        statistics = self._engine.statistics()
        self._phase = "finished"
        measured = {
            name: self._after.get(name, statistics[name]) - self._before.get(name, 0)
            for name in ("time_ns", "sent", "received", "connected")
        }
        if self._options.messages:
            # A number of messages ends when the last one has arrived, not when it was sent.
            end_ns = max(statistics["last_arrival_ns"], self._after.get("time_ns", 0))
            measured = {name: statistics[name] - self._before.get(name, 0) for name in measured}
            measured["time_ns"] = end_ns - self._before.get("time_ns", 0)
        self._report({**statistics, "measured": measured, "histogram": self._engine.histogram().dump()})
        self._engine.close()

    def _report(self, statistics: dict[str, Any]) -> None:
        print(json.dumps({"phase": self._phase, **statistics}), flush=True)


def main() -> None:
    options, share = from_json(json.loads(_read_line()))
    if options.cores:
        os.sched_setaffinity(0, {options.cores[share.index % len(options.cores)]})
    try:
        raise_descriptor_limit(share.publishers + share.subscribers + DESCRIPTORS)
        worker = Worker(options, share)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    worker.run()


def _read_line() -> bytes:
    """The first line, byte by byte: what follows belongs to the worker, which reads the descriptor itself."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("the parent is gone")
        line += byte
    return bytes(line)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
