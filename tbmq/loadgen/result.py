"""What a run measured, added up over its processes, and whether it was good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tbmq._loadgen import Histogram
from tbmq.loadgen.broker import Sample
from tbmq.loadgen.options import Options, Scenario

SUMS = (
    "connections",
    "ready",
    "opening",
    "opened",
    "connected",
    "sending",
    "sent",
    "acked",
    "inflight",
    "received",
    "arrived",
    "duplicates",
    "late",
    "strays",
    "redelivered",
    "sent_bytes",
    "received_bytes",
)


@dataclass(slots=True)
class Totals:
    """The statistics of all processes added up."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMS, 0))
    failures: dict[tuple[str, int | str], int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.counts[name]


def add_up(statistics: Sequence[dict[str, Any]]) -> Totals:
    totals = Totals()
    for one in statistics:
        for name in SUMS:
            totals.counts[name] += one[name]
        for kind, code, times in one["failures"]:
            totals.failures[kind, code] = totals.failures.get((kind, code), 0) + times
    return totals


@dataclass(frozen=True, slots=True)
class Latency:
    samples: int
    p50_us: float
    p99_us: float
    p99_9_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    scenario: str
    seconds: float  # that were measured: after the warm-up, until publishing stopped
    connections: int
    connected: int  # CONNACKs
    sent: int  # of the whole run, warm-up included
    received: int
    expected: int  # deliveries: what was sent, times the subscribers that hear it
    lost: int
    duplicates: int
    out_of_order: int | None  # None: not to be seen in this scenario, or payloads too short
    redelivered: int
    strays: int
    sent_per_s: float
    received_per_s: float
    connects_per_s: float
    latency: Latency | None
    broker_cpu_s: float | None = None
    broker_cpu_us_per_message: float | None = None  # per delivered message; conn: per connect
    broker_rss_bytes: int | None = None
    broker_rss_bytes_per_connection: float | None = None
    failures: list[dict[str, int | str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # why the run counts as failed

    @property
    def is_ok(self) -> bool:
        return not self.problems


def make_result(
    options: Options,
    finished: Sequence[dict[str, Any]],
    before: Sample | None,
    after: Sample | None,
    rss: Sample | None,
) -> Result:
    """`before` and `after` enclose the traffic; `rss` is a sample from before the first connection."""
    totals = add_up(finished)
    histogram = Histogram()
    for one in finished:
        histogram.merge(one["histogram"])
    seconds = max((one["measured"]["time_ns"] for one in finished), default=0) / 1e9
    measured = {name: sum(one["measured"][name] for one in finished) for name in ("sent", "received", "connected")}
    expected = totals["sent"] * options.copies
    per_s = {name: count / seconds if seconds > 0 else 0.0 for name, count in measured.items()}
    done = totals["connected"] if options.scenario is Scenario.CONN else totals["received"]
    cpu_s = after.cpu_s - before.cpu_s if before and after else None
    grown = after.rss_bytes - rss.rss_bytes if rss and after else None
    # A second copy that another process of ours got is not seen as one there: the sum shows it.
    hidden = max(0, totals["arrived"] - expected)
    is_numbered = options.is_stamped and options.scenario.publishes
    result = Result(
        scenario=options.scenario.value,
        seconds=seconds,
        connections=totals["connections"],
        connected=totals["connected"],
        sent=totals["sent"],
        received=totals["received"],
        expected=expected,
        lost=max(0, expected - totals["arrived"]),
        duplicates=totals["duplicates"] + hidden,
        out_of_order=totals["late"] if is_numbered and options.is_ordered else None,
        redelivered=totals["redelivered"],
        strays=totals["strays"],
        sent_per_s=per_s["sent"],
        received_per_s=per_s["received"],
        connects_per_s=per_s["connected"],
        latency=_latency(histogram),
        broker_cpu_s=cpu_s,
        broker_cpu_us_per_message=cpu_s * 1e6 / done if cpu_s is not None and done else None,
        broker_rss_bytes=after.rss_bytes if after else None,
        broker_rss_bytes_per_connection=grown / totals["ready"] if grown is not None and totals["ready"] else None,
        failures=[{"kind": kind, "code": code, "times": times} for (kind, code), times in totals.failures.items()],
    )
    result.problems.extend(_problems(options, result, totals))
    return result


def _latency(histogram: Histogram) -> Latency | None:
    if not histogram.count:
        return None
    p50, p99, p99_9 = (histogram.percentile(percent) / 1e3 for percent in (50, 99, 99.9))
    return Latency(samples=histogram.count, p50_us=p50, p99_us=p99, p99_9_us=p99_9, max_us=histogram.max / 1e3)


def _problems(options: Options, result: Result, totals: Totals) -> list[str]:
    problems = []
    if options.scenario.publishes and not result.received:
        problems.append("no message arrived")
    if options.qos and result.lost:
        problems.append(f"{result.lost:,} messages were lost at QoS {options.qos}")
    if options.qos == 2 and result.duplicates:
        problems.append(f"{result.duplicates:,} messages arrived twice at QoS 2")
    if options.scenario is Scenario.CONN:
        if not result.connected:
            problems.append("no connection was made")
    elif totals["ready"] < totals["connections"]:
        problems.append(f"{totals['connections'] - totals['ready']:,} of {totals['connections']:,} connections failed")
    return problems
