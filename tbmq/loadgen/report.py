"""The screen: progress while a run goes on, and its result. Plain lines when nobody watches."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tbmq.loadgen.advice import explain
from tbmq.loadgen.options import Options, Scenario
from tbmq.loadgen.result import Result, Totals

LINE_EVERY_S = 1.0  # plain progress
RATE_OVER_S = 0.5  # rates on the screen are averages of so long


class Progress:
    """Shows what the runner observes: a line that is redrawn on a terminal, else a line per second and phase."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._started = self._rated_at = time.monotonic()
        self._counted = (0, 0)
        self._rates = (0.0, 0.0)
        self._line_at = 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def observe(self, phase: str, totals: Totals) -> None:
        now = time.monotonic()
        self._rate(now, totals)
        if self._live:
            self._live.update(Text(self._text(phase, totals, now), style="cyan"))
        elif phase != self._phase or now >= self._line_at:
            self._line_at = now + LINE_EVERY_S
            self._console.print(self._text(phase, totals, now), soft_wrap=True)
        self._phase = phase

    def _rate(self, now: float, totals: Totals) -> None:
        if now < self._rated_at + RATE_OVER_S:
            return
        counted = (totals[self._outgoing], totals["received"])
        span = now - self._rated_at
        self._rates = ((counted[0] - self._counted[0]) / span, (counted[1] - self._counted[1]) / span)
        self._counted, self._rated_at = counted, now

    @property
    def _outgoing(self) -> str:
        return "sent" if self._options.scenario.publishes else "connected"

    def _text(self, phase: str, totals: Totals, now: float) -> str:
        parts = [f"{now - self._started:6.1f} s  {phase:10}  connected {totals['ready']:,}/{totals['connections']:,}"]
        if self._options.scenario is Scenario.CONN:
            parts = [f"{now - self._started:6.1f} s  {phase:10}  connects {totals['connected']:,}"]
            parts.append(f"{self._rates[0]:,.0f}/s")
        elif self._options.scenario.publishes and phase != "connecting":
            parts.append(f"sent {self._rates[0]:,.0f}/s")
            parts.append(f"received {self._rates[1]:,.0f}/s")
            parts.append(f"on the way {max(0, totals['sent'] * self._options.copies - totals['arrived']):,}")
        if failures := sum(totals.failures.values()):
            parts.append(f"failures {failures:,}")
        return "   ".join(parts)


def show(options: Options, result: Result, console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in _rows(options, result):
        table.add_row(name, value)
    console.print(table)
    for failure in result.failures:
        text = explain(options, str(failure["kind"]), failure["code"])
        console.print(f"{failure['times']:,} x {text}", style="yellow", soft_wrap=True)
    for problem in result.problems:
        console.print(f"FAILED: {problem}", style="bold red", soft_wrap=True)


def _rows(options: Options, result: Result) -> list[tuple[str, str]]:
    rows = [("scenario", _describe(options))]
    if options.scenario is Scenario.CONN:
        rows.append(("connects", f"{result.connects_per_s:,.0f}/s  ({result.connected:,} in all)"))
    elif options.scenario is Scenario.IDLE:
        rows.append(("connections", f"{result.connections:,}"))
    else:
        order = "not checked" if result.out_of_order is None else f"{result.out_of_order:,}"
        rows += [
            ("sent", f"{result.sent_per_s:,.0f}/s  ({result.sent:,} in all)"),
            ("received", f"{result.received_per_s:,.0f}/s  ({result.received:,} of {result.expected:,})"),
            ("lost", f"{result.lost:,}"),
            ("duplicates", f"{result.duplicates:,}"),
            ("out of order", order),
        ]
        if result.strays or result.redelivered:
            rows.append(("strays, redelivered", f"{result.strays:,}, {result.redelivered:,}"))
    if result.latency:
        found = result.latency
        values = (found.p50_us, found.p99_us, found.p99_9_us, found.max_us)
        texts = [
            f"{name} {duration(value)}" for name, value in zip(("p50", "p99", "p99.9", "max"), values, strict=True)
        ]
        rows.append(("latency", f"{'   '.join(texts)}   ({found.samples:,} samples)"))
    rows += _broker_rows(options, result)
    return rows


def _broker_rows(options: Options, result: Result) -> list[tuple[str, str]]:
    rows = []
    if result.broker_cpu_us_per_message is not None:
        unit = "connect" if options.scenario is Scenario.CONN else "message"
        rows.append(
            ("broker CPU", f"{result.broker_cpu_us_per_message:.3f} µs per {unit}  ({result.broker_cpu_s:.2f} s)")
        )
    if result.broker_rss_bytes is not None:
        text = f"{result.broker_rss_bytes / 1e6:,.1f} MB"
        if result.broker_rss_bytes_per_connection is not None:
            text += f", {result.broker_rss_bytes_per_connection:,.0f} bytes more per connection than before them"
        rows.append(("broker memory", text))
    return rows


def _describe(options: Options) -> str:
    clients = {
        Scenario.P2P: f"{options.publishers:,} pairs",
        Scenario.FANIN: f"{options.publishers:,} publishers to {options.subscribers:,} subscriber",
        Scenario.FANOUT: f"{options.publishers:,} publisher to {options.subscribers:,} subscribers",
        Scenario.SHARED: f"{options.publishers:,} publishers to a group of {options.subscribers:,}",
        Scenario.CONN: f"{options.clients:,} at a time",
        Scenario.IDLE: f"{options.clients:,} connections",
    }[options.scenario]
    parts = [options.scenario.value, clients]
    if options.scenario.publishes:
        parts += [f"QoS {options.qos}", f"{options.payload_bytes:,} bytes"]
        parts += [f"window {options.window:,}"] if options.qos else []
    if options.scenario is not Scenario.IDLE:
        parts.append(f"{options.rate:,.0f}/s" if options.rate else "as fast as possible")
    parts.append("MQTT 5" if options.protocol_level == 5 else "MQTT 3.1.1")
    parts += [name for name, is_used in (("TLS", options.tls), ("WebSocket", options.websocket)) if is_used]
    return ", ".join(parts)


def duration(microseconds: float) -> str:
    """`85.2 µs`, `1.25 ms`, `3.10 s`."""
    for limit, divisor, unit, digits in ((1e3, 1.0, "µs", 1), (1e6, 1e3, "ms", 2)):
        if microseconds < limit:
            return f"{microseconds / divisor:.{digits}f} {unit}"
    return f"{microseconds / 1e6:.2f} s"
