"""Calibration: fixed workloads of the standard library that every benchmark is measured against.

A machine is never the same twice: its clock moves, a neighbour takes half of the cache, tomorrow it is another one. So
a benchmark is judged by a ratio: nanoseconds of ours over nanoseconds of a workload that we never change, measured in
the same round. That works as far as both suffer alike; hence one workload for each kind of suffering:

    compute   table look-ups and byte loops in the first cache           codec in C, batches
    objects   small Python objects made and dropped                      packets as objects
    memory    cache misses                                               a trie of a million subscriptions

Time is CPU time of the thread, as in the benchmarks: to be preempted costs nothing.

Left out after a trial: memory copies (they measured the allocator and the neighbour: 50 % between quartiles); the hash
functions of OpenSSL and zlib (as fast as the vector instructions that their builder knew of, which says nothing about
our loops). For `memory`, a chain of pointers, look-ups in a large dict and random reads of a large buffer did about as
well as the sum of numbers in eight processes on a busy machine, too few to tell them apart; the sum is the cheapest.

What it is worth is in bench/README.md: most of the calm comes from CPU time, less from the ratio.

A pass takes about a millisecond. When you change a workload, raise CALIBRATION_VERSION: it makes accepted ratios void.
"""

from __future__ import annotations

import binascii
import functools
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

CALIBRATION_VERSION = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    name: str
    units: int  # what one pass does, in units of a few hundred nanoseconds
    run: Callable[[], object]

    def ns_per_unit(self) -> float:
        start = time.thread_time_ns()
        self.run()
        return (time.thread_time_ns() - start) / self.units


def _compute() -> Calibration:
    """Unit: 64 bytes, hashed (each step waits for the last) and translated four times (no step waits)."""
    data = random.Random(1).randbytes(16_384)
    table = bytes(reversed(range(256)))
    passes = 8

    def run() -> None:
        for _ in range(passes):
            binascii.crc_hqx(data, 0)
            for _ in range(4):
                data.translate(table)

    return Calibration("compute", passes * len(data) // 64, run)


def _objects() -> Calibration:
    """Unit: an object of four members, as the C scanner of `json` builds it."""
    lines = [{"packet_id": n, "topic": f"plant/{n}/temp", "qos": 1, "payload": "x" * 20} for n in range(200)]
    document = json.dumps(lines)
    passes = 8

    def run() -> None:
        for _ in range(passes):
            json.loads(document)

    return Calibration("objects", passes * len(lines), run)


def _memory() -> Calibration:
    """Unit: eight numbers added up that lie anywhere in 64 MB, more than the caches hold."""
    numbers = list(range(1000, 1000 + (1 << 21)))  # from 1000 on: the small ones are shared, the others lie in a row
    random.Random(1).shuffle(numbers)
    count = 16_384
    parts = itertools.cycle([numbers[at : at + count] for at in range(0, len(numbers), count)])
    return Calibration("memory", count // 8, lambda: sum(next(parts)))


_MAKERS = {"compute": _compute, "objects": _objects, "memory": _memory}
NAMES = tuple(_MAKERS)

# By the start of the benchmark's name, the first that fits; `extra_info["calibration"]` of a benchmark comes before.
_DEFAULTS = {
    "trie/match_cached": "objects",  # stays in the caches, if not in the first one
    "trie/": "memory",
    "": "compute",
}


def default_for(benchmark_name: str) -> str:
    return next(name for start, name in _DEFAULTS.items() if benchmark_name.startswith(start))


@functools.cache
def calibration(name: str) -> Calibration:
    """Built when first asked for (the numbers take a second), and run once to warm up."""
    if name not in _MAKERS:
        raise ValueError(f"there is no calibration {name!r}: use one of {', '.join(NAMES)}")
    made = _MAKERS[name]()
    made.run()
    return made
