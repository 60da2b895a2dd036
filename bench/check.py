"""The regression check: ratios of this run against the accepted ones in bench/baseline.json.

Everything here is a function of its arguments; measuring again is a function that the caller hands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.calibration import CALIBRATION_VERSION
from bench.results import ROOT, Measurement

BASELINE = ROOT / "bench" / "baseline.json"
LIMIT = 1.25  # a ratio of more than the accepted one times this is a slowdown
MORE_ATTEMPTS = 2  # a suspicion is measured again this often, and the best counts

# --- Baseline --------------------------------------------------------------------------------------------------------


class BaselineError(Exception):
    """The file is missing or cannot be used; the text says what to do."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Accepted(_Strict):
    calibration: str
    ratio: float = Field(gt=0, allow_inf_nan=False)
    spread: float = Field(ge=0, allow_inf_nan=False)  # of the passes when it was saved: (largest - smallest) / median


class Baseline(_Strict):
    format: Literal["tbmq-bench-baseline"] = "tbmq-bench-baseline"
    version: Literal[1] = 1
    calibration_version: int
    time_utc: str
    commit: str
    machine: dict[str, Any]
    benchmarks: dict[str, Accepted]


def read_baseline(path: Path = BASELINE) -> Baseline:
    advice = "`./dev bench --save-baseline` writes a new one"
    try:
        baseline = Baseline.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BaselineError(f"{path} is missing; {advice}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BaselineError(f"{path} is malformed: {place}: {first['msg']}; repair it, or {advice}") from None
    if baseline.calibration_version != CALIBRATION_VERSION:
        raise BaselineError(
            f"{path} was saved with calibration {baseline.calibration_version}, this is {CALIBRATION_VERSION}: "
            f"the ratios do not compare; {advice}"
        )
    return baseline


def make_baseline(
    facts: Mapping[str, Any], passes: Sequence[Sequence[Measurement]], kept: Mapping[str, Accepted]
) -> Baseline:
    """From several passes over the same benchmarks; `kept` are accepted ratios of benchmarks that were not run."""
    by_name: dict[str, list[Measurement]] = {}
    for measured in passes:
        for one in measured:
            by_name.setdefault(one.name, []).append(one)
    accepted = dict(kept)
    for name, seen in by_name.items():
        ratios = [one.ratio for one in seen]
        middle = median(ratios)
        accepted[name] = Accepted(
            calibration=seen[0].calibration,
            ratio=float(f"{middle:.4g}"),
            spread=round((max(ratios) - min(ratios)) / middle, 3),
        )
    return Baseline(
        calibration_version=CALIBRATION_VERSION,
        time_utc=facts["time_utc"],
        commit=facts["commit"],
        machine=facts["machine"],
        benchmarks=dict(sorted(accepted.items())),
    )


def write_baseline(baseline: Baseline, path: Path = BASELINE) -> None:
    path.write_text(baseline.model_dump_json(indent=1) + "\n")


# --- Verdicts --------------------------------------------------------------------------------------------------------


class Outcome(Enum):
    OK = "ok"
    SLOWER = "slower"
    GONE = "gone"
    FASTER = "faster: update the baseline?"
    NEW = "not in the baseline"


FAILURES = {Outcome.SLOWER, Outcome.GONE}


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    outcome: Outcome
    accepted: Accepted | None  # None: new
    ratio: float | None  # None: gone

    @property
    def change(self) -> float | None:
        """0.3 is 30 % slower."""
        return self.ratio / self.accepted.ratio - 1 if self.ratio and self.accepted else None


def judge(measured: Iterable[Measurement], accepted: Mapping[str, Accepted]) -> list[Verdict]:
    """`accepted` holds only what this run had to measure: what it does not find there, or here, it tells."""
    found = {one.name: one for one in measured}
    verdicts = [_judge_one(one, accepted.get(name)) for name, one in found.items()]
    gone = [Verdict(name, Outcome.GONE, known, None) for name, known in accepted.items() if name not in found]
    return verdicts + gone


def _judge_one(measured: Measurement, accepted: Accepted | None) -> Verdict:
    if accepted is None or accepted.calibration != measured.calibration:
        return Verdict(measured.name, Outcome.NEW, None, measured.ratio)
    if measured.ratio > accepted.ratio * LIMIT:
        outcome = Outcome.SLOWER
    elif measured.ratio < accepted.ratio / LIMIT:
        outcome = Outcome.FASTER
    else:
        outcome = Outcome.OK
    return Verdict(measured.name, outcome, accepted, measured.ratio)


def judge_with_second_look(
    measured: Sequence[Measurement],
    accepted: Mapping[str, Accepted],
    measure_again: Callable[[Sequence[Measurement]], Iterable[Measurement]],
) -> list[Verdict]:
    """A slowdown must show in every attempt; whoever is slow only once was disturbed."""
    best = {one.name: one for one in measured}
    for _ in range(MORE_ATTEMPTS):
        slower = [verdict.name for verdict in judge(best.values(), accepted) if verdict.outcome is Outcome.SLOWER]
        if not slower:
            break
        for one in measure_again([best[name] for name in slower]):
            best[one.name] = min(one, best[one.name], key=lambda attempt: attempt.ratio)
    return judge(best.values(), accepted)
