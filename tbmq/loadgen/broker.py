"""CPU time and memory of the broker under test, from /proc: the processes named, and all their descendants."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    cpu_s: float
    rss_bytes: int
    processes: int


class BrokerProcesses:
    """Descendants are looked for at each sample: workers that were started anew count too."""

    def __init__(self, names: Iterable[str]) -> None:
        """Each name is a process id, or the name of a program as /proc/PID/comm shows it."""
        self._roots = {pid for name in names for pid in _find(name)}

    def sample(self) -> Sample:
        processes = {pid: stat for pid in _all_pids() if (stat := _read_stat(pid))}
        members = set(self._roots & processes.keys())
        grew = True
        while grew:
            children = {pid for pid, stat in processes.items() if stat.parent in members} - members
            members |= children
            grew = bool(children)
        chosen = [processes[pid] for pid in members]
        return Sample(
            cpu_s=sum(stat.ticks for stat in chosen) / TICKS_PER_S,
            rss_bytes=sum(stat.rss_pages for stat in chosen) * PAGE_BYTES,
            processes=len(chosen),
        )


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    parent: int
    ticks: int  # own, and of children that have ended
    rss_pages: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None  # it has ended
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()  # the first is field 3 of proc(5): the state
    return _Stat(name, int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _find(name: str) -> list[int]:
    if name.isdigit():
        if _read_stat(int(name)) is None:
            raise ProcessLookupError(f"there is no process {name}")
        return [int(name)]
    found = [pid for pid in _all_pids() if (stat := _read_stat(pid)) and stat.name == name[:15] and pid != os.getpid()]
    if not found:
        raise ProcessLookupError(f"there is no process called {name}")
    return found
