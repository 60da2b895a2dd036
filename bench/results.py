"""What a run measured, as data: one `Measurement` per benchmark, and the run's JSON with commit and machine.

The layout of the file is RESULT_VERSION's: whoever reads old results (reports over commits) looks there first.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.calibration import CALIBRATION_VERSION

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
RESULT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str  # "codec/scan_publish_qos0"
    node_id: str  # as pytest wants it
    operations: int  # in one call of the benchmark's function
    loops: int  # calls in one round
    round_ns: tuple[float, ...]  # per operation, by round
    calibration: str  # name in bench/calibration.py
    calibration_ns: tuple[float, ...]  # per unit, around the same round
    extra: Mapping[str, Any]  # what else the benchmark told

    @property
    def median_ns(self) -> float:
        return median(self.round_ns)

    @property
    def operations_per_s(self) -> float:
        return 1e9 / self.median_ns

    @property
    def ratios(self) -> list[float]:
        return [ours / fixed for ours, fixed in zip(self.round_ns, self.calibration_ns, strict=True)]

    @property
    def ratio(self) -> float:
        """An operation costs as much as this many units of its calibration."""
        return median(self.ratios)

    @property
    def ratio_spread(self) -> float:
        """Interquartile range of the rounds' ratios, as a fraction of their median."""
        return _iqr(self.ratios) / self.ratio

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "operations": self.operations,
            "loops": self.loops,
            "rounds": len(self.round_ns),
            "median_ns": self.median_ns,
            "iqr_ns": _iqr(self.round_ns),
            "operations_per_s": self.operations_per_s,
            "calibration": self.calibration,
            "ratio": self.ratio,
            "ratio_spread": self.ratio_spread,
            "round_ns": list(self.round_ns),
            "calibration_round_ns": list(self.calibration_ns),
            "extra": dict(self.extra),
        }


def name_of(node_id: str) -> str:
    """`bench/test_codec.py::test_scan` is `codec/scan`."""
    path, _, function = node_id.partition("::")
    return f"{Path(path).stem.removeprefix('test_')}/{function.removeprefix('test_')}"


def measurement(entry: Mapping[str, Any]) -> Measurement:
    """From an entry of pytest-benchmark's JSON, as bench/conftest.py filled it."""
    extra = dict(entry["extra_info"])
    operations, loops = extra.pop("operations", 1), extra.pop("loops")
    return Measurement(
        name=name_of(entry["fullname"]),
        node_id=entry["fullname"],
        operations=operations,
        loops=loops,
        round_ns=tuple(seconds * 1e9 / (operations * loops) for seconds in entry["stats"]["data"]),
        calibration=extra.pop("calibration"),
        calibration_ns=tuple(extra.pop("calibration_ns")),
        extra=extra,
    )


def _iqr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = quantiles(values, n=4, method="inclusive")
    return third - first


# --- The run: where, when, which source ------------------------------------------------------------------------------


def run_facts(*, is_quick: bool) -> dict[str, Any]:
    changed = _output("git", "status", "--porcelain")
    return {
        "time_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _output("git", "rev-parse", "--short=12", "HEAD") or "unknown",
        "dirty": None if changed is None else bool(changed),  # None: not a git checkout
        "quick": is_quick,
        "machine": machine_facts(),
    }


def machine_facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": _compiler(),
        "cython": metadata.version("cython"),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _compiler() -> str:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    version = _output(command.split()[0], "--version")
    return version.splitlines()[0] if version else "unknown"


def _output(*command: str) -> str | None:
    """Standard output of a command in the checkout; None when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def to_json(facts: Mapping[str, Any], measured: Sequence[Measurement]) -> dict[str, Any]:
    seen: dict[str, list[float]] = {}
    for one in measured:
        seen.setdefault(one.calibration, []).extend(one.calibration_ns)
    return {
        "format": "tbmq-bench",
        "version": RESULT_VERSION,
        **facts,
        "calibration": {
            "version": CALIBRATION_VERSION,
            "median_ns": {name: median(values) for name, values in sorted(seen.items())},
        },
        "benchmarks": [one.to_json() for one in measured],
    }


def write(facts: Mapping[str, Any], measured: Sequence[Measurement], path: Path | None = None) -> Path:
    """To `path`, or to bench/results/ under the run's time and commit."""
    if path is None:
        time = facts["time_utc"].replace("-", "").replace(":", "")
        path = RESULTS / f"{time}-{facts['commit']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(facts, measured), indent=1) + "\n")
    return path
