"""The figures to reach on one core of an ordinary server. They are shown, never failed: `--check` is about ratios."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bench.results import Measurement


class Quantity(Enum):
    MILLION_PER_S = "M/s"
    MICROSECONDS = "µs"
    BYTES_PER_SUBSCRIPTION = "bytes/subscription"  # of any benchmark that tells extra_info["bytes_per_subscription"]


AT_LEAST = {Quantity.MILLION_PER_S}  # the others are limits from above


@dataclass(frozen=True, slots=True)
class Figure:
    benchmark: str
    quantity: Quantity
    limit: float

    def __str__(self) -> str:
        return f"{'≥' if self.quantity in AT_LEAST else '≤'} {self.limit:g} {self.quantity.value}"

    def applies_to(self, measured: Measurement) -> bool:
        if self.quantity is Quantity.BYTES_PER_SUBSCRIPTION:
            return "bytes_per_subscription" in measured.extra
        return measured.name == self.benchmark

    def value(self, measured: Measurement) -> float:
        if self.quantity is Quantity.MILLION_PER_S:
            return measured.operations_per_s / 1e6
        if self.quantity is Quantity.MICROSECONDS:
            return measured.median_ns / 1e3
        return float(measured.extra["bytes_per_subscription"])

    def is_met(self, measured: Measurement) -> bool:
        value = self.value(measured)
        return value >= self.limit if self.quantity in AT_LEAST else value <= self.limit


FIGURES = (
    Figure("codec/scan_publish_qos0", Quantity.MILLION_PER_S, 8),
    Figure("trie/match_uncached", Quantity.MICROSECONDS, 1.5),
    Figure("trie/match_cached", Quantity.MICROSECONDS, 0.15),
    Figure("trie/insert", Quantity.MILLION_PER_S, 0.4),
    Figure("trie/remove", Quantity.MILLION_PER_S, 0.4),
    Figure("trie/", Quantity.BYTES_PER_SUBSCRIPTION, 250),
)
