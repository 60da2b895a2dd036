"""The `benchmark` fixture of pytest-benchmark, with a calibration before and after every round.

    round:   setup of the test, calibration, >>> timed calls <<<, calibration, teardown of the test

A test uses it as it would without: `benchmark(function, ...)` or `benchmark.pedantic(...)`. What was measured beside
the times goes to `extra_info`, and so into the JSON that bench/suite.py reads.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from math import ceil
from typing import Any, cast

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.calibration import calibration, default_for
from bench.results import name_of

ROUND_S = 0.005  # a timed round takes at least this long: far above the clock's grain
BUDGET_S = 2.0  # a benchmark takes at most about this long ...
MIN_ROUNDS = 5  # ... but runs this often


class CalibratedBenchmark(BenchmarkFixture):
    max_rounds: int

    def __call__(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _gc_off():
            call_s = min(_cpu_s(function_to_benchmark, *args, **kwargs) for _ in range(3))  # warms up, too
        loops = max(1, ceil(ROUND_S / call_s))
        rounds = max(MIN_ROUNDS, min(self.max_rounds, int(BUDGET_S / (loops * call_s))))
        return self._measure(function_to_benchmark, args, kwargs, None, None, rounds, 0, loops)

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """The rounds that the test asks for, at most the number that the run allows."""
        rounds = min(rounds, max(MIN_ROUNDS, self.max_rounds))
        return self._measure(target, args, kwargs or {}, setup, teardown, rounds, warmup_rounds, iterations)

    def _measure(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        setup: Callable[[], Any] | None,
        teardown: Callable[..., Any] | None,
        rounds: int,
        warmup_rounds: int,
        loops: int,
    ) -> Any:
        info = self.extra_info
        used = calibration(info.setdefault("calibration", default_for(name_of(self.fullname))))
        info["loops"] = loops
        before: list[float] = []
        after: list[float] = []

        def set_up() -> Any:
            arguments = setup() if setup else None
            before.append(used.ns_per_unit())
            return arguments

        def tear_down(*args: Any, **kwargs: Any) -> None:
            after.append(used.ns_per_unit())
            if teardown:
                teardown(*args, **kwargs)

        def call_in_loop(*args: Any, **kwargs: Any) -> Any:
            result = None
            for _ in repeat(None, loops):
                result = target(*args, **kwargs)
            return result

        with _gc_off():
            result = super().pedantic(  # type: ignore[no-untyped-call]
                target if loops == 1 else call_in_loop,
                args=args,
                kwargs=kwargs,
                setup=set_up,
                teardown=tear_down,
                rounds=rounds,
                warmup_rounds=warmup_rounds,
            )
        around = [(first + second) / 2 for first, second in zip(before, after, strict=True)]
        info["calibration_ns"] = around[warmup_rounds:]
        return result


def _cpu_s(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    start = time.thread_time()
    function(*args, **kwargs)
    return max(time.thread_time() - start, 1e-9)


@contextmanager
def _gc_off() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pytest.fixture
def benchmark(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> CalibratedBenchmark:
    # pytest-benchmark made it and insists on its own kind, so it stays the same object and only learns a new manner.
    calibrated = cast(CalibratedBenchmark, benchmark)
    calibrated.__class__ = CalibratedBenchmark
    calibrated.max_rounds = request.config.getoption("--bench-rounds")
    return calibrated


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bench-rounds", type=int, default=40, help="rounds of a benchmark, at most")
    parser.addoption("--bench-cpu", type=int, default=None, help="the core to stay on")


def pytest_configure(config: pytest.Config) -> None:
    cpu = config.getoption("--bench-cpu", None)
    if cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


# bench/results.py knows the machine and the commit; what pytest-benchmark finds out takes a second and is not used.
def pytest_benchmark_generate_machine_info() -> dict[str, str]:
    return {"see": "bench/results.py"}


def pytest_benchmark_generate_commit_info() -> dict[str, str]:
    return {"see": "bench/results.py"}
