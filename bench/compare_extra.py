"""`bench compare --extra`: figures of our broker that have no rival in the table, each against a yardstick of its own.

    cross0, cross1   two workers on two cores: CPU per message when every pair is on both, against every pair on one
    handover         two workers: connects per second and core, half of them handed over
    large            1 MB payloads: bytes through the broker, in units of memcpy measured right before
    subs             1,000,000 subscriptions: how much memory grows
    rules, logins, storm   see compare_auth

A client lives on worker `crc32(id) % 2`. The ids of a run end in its connection's number, subscribers after publishers,
and a checksum is linear: whether a pair is on one worker depends on the number of pairs alone. 50 pairs are all on
both, 40 are all on one; `crossing` computes it anew, and a test holds it to that.
"""

from __future__ import annotations

import ctypes
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.compare_auth import measure_logins, measure_rules, measure_storm
from bench.compare_brokers import BrokerError, our_broker, running
from bench.compare_setup import Extra, Setup, Values
from tbmq.loadgen import Options, Scenario, run
from tbmq.loadgen.broker import BrokerProcesses
from tests.helpers.client import Client

CROSSING_PAIRS, LOCAL_PAIRS = 50, 40
PAYLOAD_BYTES = 1_000_000
SUBSCRIPTIONS, SUBSCRIPTIONS_EACH, SUBSCRIPTIONS_AT_ONCE = 1_000_000, 10_000, 1_000
COPIED_BYTES = 256_000_000  # far more than any cache holds
FORK_S = 10.0

MAX_CROSS, MIN_CONNECTS, MAX_COPIES, MAX_SUBSCRIPTIONS_BYTES = 2.5, 10_000, 6.0, 400_000_000
MAX_RULES, MIN_LOGINS, MAX_STORM_MS = 1.03, 2_000, 50.0


def extras() -> list[Extra]:
    crossing = "{local_us:.3f} µs local, {cross_us:.3f} µs across: {times:.2f} x"
    found = [
        Extra(
            f"cross{qos}",
            f"message across two workers, QoS {qos}",
            partial(measure_cross, qos=qos),
            "times",
            MAX_CROSS,
            False,
            f"<= {MAX_CROSS} x a local one",
            crossing,
        )
        for qos in (0, 1)
    ]
    return [
        *found,
        Extra(
            "handover",
            "connects with two workers, half handed over",
            measure_handover,
            "per_core_s",
            MIN_CONNECTS,
            True,
            f">= {MIN_CONNECTS:,}/s and core",
            "{per_core_s:,.0f}/s and core ({per_s:,.0f}/s, {cpu_us:.1f} µs each)",
        ),
        Extra(
            "large",
            "1 MB payloads, 4 pairs, QoS 0",
            measure_large,
            "copies",
            MAX_COPIES,
            False,
            f"CPU <= {MAX_COPIES:g} copies (2 are the kernel's)",
            "{gb_per_s:.2f} GB/s in and out; memcpy {memcpy_gb_per_s:.1f} GB/s; CPU of {copies:.1f} copies",
        ),
        Extra(
            "subs",
            "1,000,000 subscriptions",
            measure_subscriptions,
            "bytes",
            MAX_SUBSCRIPTIONS_BYTES,
            False,
            f"<= {MAX_SUBSCRIPTIONS_BYTES / 1e6:.0f} MB",
            "{megabytes:,.0f} MB, {each:,.0f} bytes each, {per_s:,.0f}/s",
            is_once=True,
        ),
        Extra(
            "rules",
            "50 pairs, QoS 0, 20 rules per client",
            measure_rules,
            "times",
            MAX_RULES,
            False,
            f"<= {MAX_RULES} x the CPU without",
            "{open_us:.4f} µs open, {ruled_us:.4f} µs with rules: {times:.3f} x",
        ),
        Extra(
            "logins",
            "logins with user name and password, warm",
            measure_logins,
            "per_core_s",
            MIN_LOGINS,
            True,
            f">= {MIN_LOGINS:,}/s and core",
            "{per_core_s:,.0f}/s and core ({per_s:,.0f}/s, {cpu_us:.1f} µs each)",
        ),
        Extra(
            "storm",
            "2,000 msg/s while 5,000 wrong passwords come",
            measure_storm,
            "p99_ms",
            MAX_STORM_MS,
            False,
            f"p99 < {MAX_STORM_MS:.0f} ms",
            "p99 {p99_ms:.1f} ms; {refused:,.0f} logins refused meanwhile",
        ),
    ]


# --- two workers ----------------------------------------------------------------------------------------------------


def crossing(pairs: int, run_id: str = "000000") -> float:
    """Which share of the pairs has its two ends on different ones of two workers."""

    def worker(number: int) -> int:
        return zlib.crc32(f"bench-{run_id}-{number:07}".encode()) % 2

    return sum(worker(number) != worker(number + pairs) for number in range(pairs)) / pairs


def measure_cross(setup: Setup, qos: int) -> Values:
    """Saturated; what counts is CPU time of the broker, for three busy processes share two cores."""
    costs = {}
    for name, pairs in (("local_us", LOCAL_PAIRS), ("cross_us", CROSSING_PAIRS)):
        options = Options(scenario=Scenario.P2P, publishers=pairs, subscribers=pairs, qos=qos)
        costs[name] = _run_on_two(setup, options)["cpu_us"]
    return {**costs, "times": costs["cross_us"] / costs["local_us"]}


def measure_handover(setup: Setup) -> Values:
    found = _run_on_two(setup, Options(scenario=Scenario.CONN, clients=100))
    return {"per_s": found["connects_per_s"], "cpu_us": found["cpu_us"], "per_core_s": 1e6 / found["cpu_us"]}


def _run_on_two(setup: Setup, options: Options) -> Values:
    cores = (setup.broker_core, setup.generator_core)
    with running(our_broker(workers=2), cores=cores) as (pid, port):
        pin_workers(pid, cores)
        options = replace(options, port=port, duration_s=setup.seconds, warmup_s=setup.warmup_s)
        result = run(options, broker=[str(pid)], observe=setup.observe)
    if result.problems or not result.broker_cpu_us_per_message:
        raise BrokerError(f"two workers: {'; '.join(result.problems) or 'too short to see CPU time'}")
    return {"cpu_us": result.broker_cpu_us_per_message, "connects_per_s": result.connects_per_s}


def pin_workers(pid: int, cores: Sequence[int]) -> None:
    """Each child of the supervisor onto a core of its own."""
    deadline = time.monotonic() + FORK_S
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while len(workers := children.read_text().split()) < len(cores):
        if time.monotonic() > deadline:
            raise BrokerError(f"only {len(workers)} of {len(cores)} workers were started in {FORK_S:.0f} s")
        time.sleep(0.02)
    for worker, core in zip(sorted(map(int, workers)), cores, strict=True):
        os.sched_setaffinity(worker, {core})


# --- large payloads ---------------------------------------------------------------------------------------------------


def measure_large(setup: Setup) -> Values:
    memcpy = memcpy_bytes_per_s(setup.broker_core)
    options = Options(
        scenario=Scenario.P2P,
        publishers=4,
        subscribers=4,
        payload_bytes=PAYLOAD_BYTES,
        duration_s=setup.seconds,
        warmup_s=setup.warmup_s,
        cores=(setup.generator_core,),
    )
    with running(our_broker(), cores=[setup.broker_core]) as (pid, port):
        result = run(replace(options, port=port), broker=[str(pid)], observe=setup.observe)
    if result.problems or not result.broker_cpu_us_per_message:
        raise BrokerError(f"large payloads: {'; '.join(result.problems) or 'too short to see CPU time'}")
    return {
        "gb_per_s": result.received_per_s * PAYLOAD_BYTES / 1e9,
        "memcpy_gb_per_s": memcpy / 1e9,
        "copies": result.broker_cpu_us_per_message / (PAYLOAD_BYTES / memcpy * 1e6),
    }


def memcpy_bytes_per_s(core: int) -> float:
    """Payload by payload through an area that no cache holds; the best of three passes."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in (target, source)]
        best = 0.0
        for _ in range(3):
            start = time.process_time()
            for at in range(0, COPIED_BYTES, PAYLOAD_BYTES):
                ctypes.memmove(addresses[0] + at, addresses[1] + at, PAYLOAD_BYTES)
            best = max(best, COPIED_BYTES / (time.process_time() - start))
        return best
    finally:
        os.sched_setaffinity(0, allowed)


# --- subscriptions ----------------------------------------------------------------------------------------------------


def measure_subscriptions(setup: Setup) -> Values:
    clients: list[Client] = []
    with running(our_broker(), cores=[setup.broker_core]) as (pid, port):
        watched = BrokerProcesses([str(pid)])
        try:
            clients.append(_connected(port, "first"))
            before = watched.sample().rss_bytes
            start = time.monotonic()
            for first in range(0, SUBSCRIPTIONS, SUBSCRIPTIONS_EACH):
                clients.append(_connected(port, f"subscriber-{first}"))
                for batch in range(first, first + SUBSCRIPTIONS_EACH, SUBSCRIPTIONS_AT_ONCE):
                    clients[-1].subscribe(*map(topic_filter, range(batch, batch + SUBSCRIPTIONS_AT_ONCE)), qos=1)
            seconds = time.monotonic() - start
            grown = watched.sample().rss_bytes - before
        finally:
            for client in clients:
                client.close()
    each = grown / SUBSCRIPTIONS
    return {"bytes": grown, "megabytes": grown / 1e6, "each": each, "per_s": SUBSCRIPTIONS / seconds}


def _connected(port: int, client_id: str) -> Client:
    client = Client(("127.0.0.1", port), client_id, timeout_s=60.0)
    client.connect()
    return client


def topic_filter(number: int) -> str:
    """All different; every fourth ends in a wildcard."""
    last = ("temperature", "state", "alarm", "+")[number % 4]
    return f"site/{number // 10_000}/device/{number // 4 % 2_500:04}/{last}"
