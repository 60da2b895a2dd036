"""What a soak must show. Every rule is a function of the recording; `judge` answers all of them, met or not.

Flat memory is judged by the Theil-Sen slope over the second half of the load: the median of the slopes between all
pairs of samples. A peak here and there, as a slow reader makes it, does not move it; a leak does.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.helpers.broker import SIGNS_OF_A_CRASH
from tests.soak.measure import Sample

MB = 1_000_000
MAX_SLOPE_BYTES = 2 * MB  # per minute, of each process
MAX_SLOPE_SHARE = 0.01  # per minute, of the level of the process
GRAIN_BYTES = 4 * MB  # less in the whole second half is no growth: buffers come and go
SHORT_GRAIN_BYTES = 16 * MB  # when that half is less than a minute: a leak of seconds is all that can be seen
MAX_REMAINDER_BYTES = 32 * MB  # after the load, above the level before it: half of the free buffers a worker may keep

SIGNS_OF_AN_ERROR = re.compile(SIGNS_OF_A_CRASH.pattern + r"|internal error| ERROR | CRITICAL ")


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    found: str
    bound: str
    is_met: bool


@dataclass(slots=True)
class Recording:
    before: Sample
    during: list[Sample]
    after: Sample
    problems: dict[str, list[str]] = field(default_factory=dict)  # of each flow
    failures: list[str] = field(default_factory=list)  # of actors, in words
    turns: int = 0
    failed_turns: int = 0
    log: str = ""
    stop_error: str = ""  # the broker did not end as it should

    @property
    def names(self) -> dict[int, str]:
        """By process id: the supervisor, then the workers."""
        pids = list(self.before.processes)
        return {pid: "supervisor" if n == 0 else f"worker {n - 1}" for n, pid in enumerate(pids)}


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """The median slope; 0 for less than two points."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    return statistics.median(slopes) if slopes else 0.0


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    middle = (samples[0].at_s + samples[-1].at_s) / 2 if samples else 0.0
    return [one for one in samples if one.at_s >= middle]


def slope_bytes_per_min(samples: Sequence[Sample], pid: int) -> float:
    points = [(one.at_s / 60, float(one.processes[pid].rss_bytes)) for one in samples if pid in one.processes]
    return theil_sen(points)


def max_slope(level_bytes: float, minutes: float) -> float:
    """Bytes per minute that count as flat."""
    grain = GRAIN_BYTES if minutes >= 1 else SHORT_GRAIN_BYTES
    return max(min(MAX_SLOPE_BYTES, MAX_SLOPE_SHARE * level_bytes), grain / max(minutes, 0.01))


def judge(recording: Recording) -> list[Finding]:
    found = [*_memory(recording), *_remainder(recording), _descriptors(recording), _processes(recording)]
    for name, problems in recording.problems.items():
        found.append(Finding(name, "; ".join(problems) or "nothing", "no QoS 1 or 2 lost", not problems))
    text = f"{recording.failed_turns:,} of {recording.turns:,} turns failed"
    found.append(Finding("clients", text, "all turns as expected", not recording.failed_turns))
    sign = SIGNS_OF_AN_ERROR.search(recording.log)
    line = recording.log[sign.start() :].partition("\n")[0] if sign else "clean"
    found.append(Finding("log", line, "no error in it", sign is None))
    ending = recording.stop_error.partition("\n")[0]
    found.append(Finding("stop", ending or "clean", "exit code 0 in time", not ending))
    return found


def _memory(recording: Recording) -> list[Finding]:
    half = second_half(recording.during)
    minutes = (half[-1].at_s - half[0].at_s) / 60 if half else 0.0
    found = []
    for pid, name in recording.names.items():
        levels = [float(one.processes[pid].rss_bytes) for one in half if pid in one.processes]
        if len(levels) < 2:
            found.append(Finding(f"memory of {name}", "no samples", "two at least", False))
            continue
        level = statistics.median(levels)
        slope, bound = slope_bytes_per_min(half, pid), max_slope(level, minutes)
        text = f"{slope / MB:+.2f} MB/min at {level / MB:.1f} MB"
        found.append(Finding(f"memory of {name}", text, f"at most +{bound / MB:.2f} MB/min", slope <= bound))
    return found


def _remainder(recording: Recording) -> list[Finding]:
    found = []
    for pid, name in recording.names.items():
        before = recording.before.processes[pid].rss_bytes
        process = recording.after.processes.get(pid)
        if process is None:
            continue  # told by _processes
        bound = before + MAX_REMAINDER_BYTES
        text = f"{process.rss_bytes / MB:.1f} MB, before {before / MB:.1f} MB"
        found.append(
            Finding(f"{name} after the load", text, f"at most {bound / MB:.1f} MB", process.rss_bytes <= bound)
        )
    return found


def _descriptors(recording: Recording) -> Finding:
    before, after = (
        {pid: one.descriptors for pid, one in sample.processes.items()}
        for sample in (recording.before, recording.after)
    )
    text = ", ".join(f"{name} {before[pid]} -> {after.get(pid, 0)}" for pid, name in recording.names.items())
    is_met = all(after.get(pid, 0) <= count for pid, count in before.items())
    return Finding("descriptors", text, "back to those before", is_met)


def _processes(recording: Recording) -> Finding:
    wanted = set(recording.before.processes)
    others = [one for one in [*recording.during, recording.after] if set(one.processes) != wanted]
    text = f"not the same at {others[0].at_s:.0f} s" if others else "the same all the time"
    return Finding("processes", text, "none restarted", not others)
