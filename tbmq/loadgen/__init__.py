"""The load generator behind `tbmq bench`.

    options.py       what to run: scenario, clients, rate; and how it is spread over processes
    runner.py        the parent: starts the processes, leads them through the phases, adds up what they measured
    worker.py        one process: one engine (tbmq._loadgen, compiled), driven by the parent over pipes
    packets.py       the three packets that the engine sends, as templates
    transports.py    TLS and WebSocket between a socket and the engine
    broker.py        CPU time and memory of the broker, from /proc
    result.py        what comes out, and how it is judged
    advice.py        failures in words: what happened and what to do
    report.py        the screen

Read them in this order. docs/benchmarking.md says what the figures mean.
"""

from tbmq.loadgen.options import Options, OptionsError, Scenario
from tbmq.loadgen.result import Result
from tbmq.loadgen.runner import BenchError, run

__all__ = ["BenchError", "Options", "OptionsError", "Result", "Scenario", "run"]
