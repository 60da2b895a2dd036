"""What a process of the broker holds, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tbmq.loadgen.broker import BrokerProcesses
from tests.helpers import Broker


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    rss_bytes: int
    private_bytes: int  # not shared with the processes it was forked from
    descriptors: int


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float  # since the load began
    processes: dict[int, Process]  # by process id: the supervisor first, then its workers as they were started
    cpu_s: float  # of all processes, since they started
    counts: dict[str, int]  # of all clients together, since the load began


def read_process(pid: int) -> Process:
    """From smaps_rollup, which counts pages; statm may be off by some hundred of them on many cores."""
    kilobytes = {"Rss:": 0, "Private_Dirty:": 0, "Private_Clean:": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        if name in kilobytes:
            kilobytes[name] = int(value)
    return Process(
        rss_bytes=kilobytes["Rss:"] * 1_024,
        private_bytes=(kilobytes["Private_Dirty:"] + kilobytes["Private_Clean:"]) * 1_024,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
    )


def take_sample(broker: Broker, at_s: float, counts: dict[str, int]) -> Sample:
    processes: dict[int, Process] = {}
    supervisor, *workers = broker.processes()
    for pid in [supervisor, *sorted(workers)]:
        try:
            processes[pid] = read_process(pid)
        except OSError:
            continue  # it died just now: its absence will be seen
    return Sample(at_s, processes, BrokerProcesses([str(supervisor)]).sample().cpu_s, counts)
