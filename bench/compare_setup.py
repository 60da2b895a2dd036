"""What the rows of `bench compare --extra` have in common: how they are run, and how they are judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tbmq.loadgen.runner import Observer

Values = dict[str, float]  # what one run measured, by name


@dataclass(frozen=True, slots=True)
class Setup:
    seconds: float
    warmup_s: float
    broker_core: int
    generator_core: int
    observe: Observer | None = None


@dataclass(frozen=True, slots=True)
class Extra:
    name: str
    title: str
    measure: Callable[[Setup], Values]
    judged: str  # which of the values
    limit: float
    is_least: bool  # the limit is the least that is asked, else the most
    required: str
    shown: str  # how the medians are told
    is_once: bool = False  # nothing in it varies: one run tells all

    def is_met(self, medians: Values) -> bool:
        value = medians[self.judged]
        return value >= self.limit if self.is_least else value <= self.limit


def medians(runs: Sequence[Values]) -> Values:
    return {name: statistics.median(one[name] for one in runs) for name in runs[0]}


def as_json(extra: Extra, runs: Sequence[Values]) -> dict[str, Any]:
    found = medians(runs)
    return {"row": extra.name, "medians": found, "met": extra.is_met(found), "runs": list(runs)}
