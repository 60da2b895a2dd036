"""Mutated packets: the compiled codec and the reference must agree in every packet and every reason code.

A normal run tries 30,000 inputs, TBMQ_FULL=1 a million on all cores. Inputs come in blocks of 1,000, and a block is a
function of TBMQ_SEED and its number: a failure names both, `python -m tests.fuzz.compare SEED BLOCK` repeats it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import pytest

from tests.fuzz.compare import BLOCK_INPUTS, run_block, shrink

INPUTS = 1_000_000 if os.environ.get("TBMQ_FULL") == "1" else 30_000
SEED = int(os.environ.get("TBMQ_SEED") or 20_260_701)
PROGRESS_S = 5.0


def test_native_agrees_with_the_reference_when_packets_are_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, so that a crash is a failure with a seed and not the end of the test run."""
    blocks = -(-INPUTS // BLOCK_INPUTS)
    tried = fruitful = 0
    start = last_line = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1, mp_context=context) as pool:
        running = {pool.submit(run_block, SEED, block): block for block in range(blocks)}
        while running:
            done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                block = running.pop(future)
                try:
                    block_tried, block_fruitful, found = future.result()
                except BrokenProcessPool:
                    unfinished = sorted([block, *running.values()])[: 2 * (os.cpu_count() or 1)]
                    pytest.fail(f"the codec crashed: seed {SEED}, one of the blocks {unfinished}")
                if found is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
                    pytest.fail(found)
                tried += block_tried
                fruitful += block_fruitful
            if time.monotonic() - last_line >= PROGRESS_S:
                last_line = time.monotonic()
                with capsys.disabled():
                    print(f"\ncodec fuzz: {tried:,} of {INPUTS:,} inputs, {tried / (last_line - start):,.0f}/s", end="")
    assert tried >= INPUTS
    # A fuzzer whose inputs all fail at the first byte proves little.
    assert fruitful > tried * 0.15, f"only {fruitful} of {tried} inputs gave a packet"


def test_shrink_keeps_only_what_makes_the_difference() -> None:
    data = bytes(range(1, 60)) + b"\xaa\xbb" + bytes(range(60, 120))
    assert shrink(data, lambda candidate: b"\xaa\xbb" in candidate) == b"\xaa\xbb"
