"""Tables for people. The JSON of bench/results.py is for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.check import FAILURES, Outcome, Verdict
from bench.figures import FIGURES, Figure
from bench.results import Measurement


def console() -> Console:
    """As wide as the tables when the output goes to a file or a log."""
    made = Console(markup=False, highlight=False)
    return made if made.is_terminal else Console(markup=False, highlight=False, width=120)


def show_measurements(console: Console, measured: Sequence[Measurement]) -> None:
    table = _table("Median of the rounds; CPU time on one core")
    for heading in ("ns/op", "million/s", "ratio", "±"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("figure to reach", no_wrap=True)
    for one in measured:
        table.add_row(
            one.name,
            f"{one.median_ns:.3g}" if one.median_ns < 100 else f"{one.median_ns:,.0f}",
            f"{one.operations_per_s / 1e6:,.3g}",
            f"{one.ratio:.3g}",
            f"{one.ratio_spread:.0%}",
            one.calibration,
            Text("\n").join(_figure(figure, one) for figure in FIGURES if figure.applies_to(one)),
        )
    console.print(table)


def show_missing_figures(console: Console, measured: Sequence[Measurement]) -> None:
    missing = [f"{figure.benchmark} {figure}" for figure in FIGURES if not any(map(figure.applies_to, measured))]
    if missing:
        console.print("figures not measured: " + "; ".join(missing), style="dim")


def _figure(figure: Figure, measured: Measurement) -> Text:
    value = f"{figure.value(measured):,.3g}"
    return Text(f"{figure}: {value}", "green") if figure.is_met(measured) else Text(f"{figure}: missed, {value}", "red")


def _table(title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("benchmark", no_wrap=True)
    return table


def show_verdicts(console: Console, verdicts: Iterable[Verdict]) -> None:
    styles = {Outcome.OK: "green", Outcome.FASTER: "cyan", Outcome.NEW: "yellow"}
    table = _table("Ratios against bench/baseline.json")
    for heading in ("accepted", "±", "now", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in sorted(verdicts, key=lambda one: one.outcome not in FAILURES):
        table.add_row(
            verdict.name,
            f"{verdict.accepted.ratio:.3g}" if verdict.accepted else "",
            f"{verdict.accepted.spread:.0%}" if verdict.accepted else "",
            f"{verdict.ratio:.3g}" if verdict.ratio is not None else "",
            f"{verdict.change:+.0%}" if verdict.change is not None else "",
            Text(verdict.outcome.value, styles.get(verdict.outcome, "bold red")),
        )
    console.print(table)
