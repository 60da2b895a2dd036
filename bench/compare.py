"""`./dev bench compare`: our broker beside Mosquitto and others, one core for the broker, one for the load generator.

For each row of the table every broker gets a run in turn, and the turns are repeated: what disturbs the machine for a
while disturbs all of them. A broker is started anew for each run. The table shows medians; a row is met when our
broker's medians are what is asked of them, most of it against Mosquitto's in the same row.

`--extra` adds what only our broker is asked for: see bench/py.

Exit codes: 0 all rows are met; 1 a row is not met or has no figures; 2 wrong arguments, or a broker is missing.
docs/benchmarking.md has the configurations used and what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from bench.compare_brokers import BrokerError, BrokerKind, known_brokers, other_broker, running
from bench.compare_extra import extras
from bench.compare_setup import Extra, Setup, Values, as_json, medians
from bench.results import run_facts
from tbmq.loadgen import BenchError, Options, Result, Scenario, run
from tbmq.loadgen.report import duration
from tbmq.loadgen.result import Totals
from tbmq.loadgen.runner import Observer

OURS, RIVAL = "tbmq", "mosquitto"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, and what is asked of us; a limit of None is not asked."""

    name: str
    title: str
    options: Options
    times_rival: float | None = None  # messages/s, at least
    is_lossless: bool = False
    cpu_of_rival: float | None = None  # CPU per message, at most
    p99_of_rival: float | None = None  # at most
    max_bytes: float | None = None  # of memory per connection
    min_connects: float | None = None  # per second


def rows() -> list[Row]:
    pairs = Options(scenario=Scenario.P2P)
    return [
        Row("p2p0", "50 pairs, QoS 0, 64 B", pairs, times_rival=50, is_lossless=True),
        Row(
            "fanin",
            "50 publishers to 1 subscriber, QoS 0",
            replace(pairs, scenario=Scenario.FANIN, subscribers=1),
            times_rival=50,
            is_lossless=True,
        ),
        Row(
            "fanout",
            "1 publisher to 100 subscribers, QoS 0",
            replace(pairs, scenario=Scenario.FANOUT, publishers=1, subscribers=100),
            times_rival=50,
            is_lossless=True,
        ),
        Row("p2p1", "50 pairs, QoS 1, window 100", replace(pairs, qos=1), times_rival=40, is_lossless=True),
        Row("p2p2", "50 pairs, QoS 2, window 100", replace(pairs, qos=2), times_rival=60, is_lossless=True),
        Row(
            "rate",
            "500 pairs, 50,000 msg/s in all",
            replace(pairs, publishers=500, subscribers=500, rate=50_000),
            cpu_of_rival=0.8,
            p99_of_rival=1.0,
        ),
        Row("idle", "15,000 idle connections", Options(scenario=Scenario.IDLE, clients=15_000), max_bytes=5 * 1_024),
        Row("conn", "connects", Options(scenario=Scenario.CONN, clients=100), min_connects=10_000),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of one broker in one row."""

    runs: int
    per_s: float | None  # messages received, or connects
    lost: int  # in all runs together
    cpu_us: float | None  # per message or connect
    p99_us: float | None
    bytes_per_connection: float | None


def summarise(results: Sequence[Result]) -> Figures:
    def median(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    is_conn = results[0].scenario == Scenario.CONN
    is_idle = results[0].scenario == Scenario.IDLE
    return Figures(
        runs=len(results),
        per_s=None if is_idle else median([one.connects_per_s if is_conn else one.received_per_s for one in results]),
        lost=sum(one.lost for one in results),
        cpu_us=None if is_idle else median([one.broker_cpu_us_per_message for one in results]),
        p99_us=median([one.latency.p99_us if one.latency else None for one in results]),
        bytes_per_connection=median([one.broker_rss_bytes_per_connection for one in results]) if is_idle else None,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    ratio: str  # to the rival, as the row is judged
    required: str
    is_met: bool | None  # None: cannot be told


def judge(row: Row, figures: Figures, rival: Figures | None) -> Verdict:
    """Whether the figures are what the row asks of our broker."""
    ratios: list[str] = []
    required: list[str] = []
    answers: list[bool | None] = []

    def ask(value: float | None, limit: float | None, is_least: bool, shown: str, text: str) -> None:
        if limit is None:
            return
        required.append(text)
        if value is not None and shown:
            ratios.append(shown.format(value))
        answers.append(None if value is None else value >= limit if is_least else value <= limit)

    ask(
        _ratio(figures.per_s, rival.per_s if rival else None),
        row.times_rival,
        True,
        "{:.1f} x",
        f">= {row.times_rival} x",
    )
    ask(figures.lost, 0 if row.is_lossless else None, False, "", "none lost")
    ask(
        _ratio(figures.cpu_us, rival.cpu_us if rival else None),
        row.cpu_of_rival,
        False,
        "CPU {:.2f}",
        f"CPU <= {row.cpu_of_rival}",
    )
    ask(
        _ratio(figures.p99_us, rival.p99_us if rival else None),
        row.p99_of_rival,
        False,
        "p99 {:.2f}",
        f"p99 <= {row.p99_of_rival}",
    )
    ask(figures.bytes_per_connection, row.max_bytes, False, "", f"<= {row.max_bytes or 0:,.0f} B each")
    ask(figures.per_s, row.min_connects, True, "", f">= {row.min_connects or 0:,.0f}/s")
    is_met = False if False in answers else None if None in answers else True
    return Verdict(", ".join(ratios), ", ".join(required), is_met)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


# --- Running --------------------------------------------------------------------------------------------------------


def measure(
    chosen: Sequence[Row], brokers: Sequence[BrokerKind], wanted: argparse.Namespace, console: Console
) -> dict[tuple[str, str], list[Result]]:
    results: dict[tuple[str, str], list[Result]] = {}
    turns = [(row, turn, broker) for row in chosen for turn in range(wanted.runs) for broker in brokers]
    for number, (row, turn, broker) in enumerate(turns, start=1):
        title = f"{row.title}: {broker.name}, run {turn + 1} of {wanted.runs}"
        with console.status(title) as status:
            try:
                result = measure_once(row, broker, wanted, observer(status, f"{number}/{len(turns)}  {title}"))
            except BenchError as error:
                console.print(f"{title}: {error}", style="yellow", soft_wrap=True)
                continue
        results.setdefault((row.name, broker.name), []).append(result)
        for problem in result.problems:
            console.print(f"{title}: {problem}", style="yellow", soft_wrap=True)
        if not console.is_terminal:
            console.print(f"{title}: {_short(result)}", soft_wrap=True)
    return results


def measure_extra(chosen: Sequence[Extra], wanted: argparse.Namespace, console: Console) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for extra in chosen:
        runs = 1 if extra.is_once else wanted.runs
        for turn in range(runs):
            title = f"{extra.title}, run {turn + 1} of {runs}"
            with console.status(title) as status:
                setup = Setup(
                    seconds=wanted.seconds,
                    warmup_s=wanted.warmup,
                    broker_core=wanted.broker_core,
                    generator_core=wanted.generator_core,
                    observe=observer(status, title),
                )
                try:
                    values = extra.measure(setup)
                except (BenchError, BrokerError) as error:
                    console.print(f"{title}: {error}", style="yellow", soft_wrap=True)
                    continue
            found.setdefault(extra.name, []).append(values)
            if not console.is_terminal:
                console.print(f"{title}: {extra.shown.format(**values)}", soft_wrap=True)
    return found


def observer(status: Status, title: str) -> Observer:
    def observe(phase: str, totals: Totals) -> None:
        done = f"{totals['received']:,} received" if totals["received"] else f"{totals['connected']:,} connected"
        status.update(f"{title}: {phase}, {done}")

    return observe


def measure_once(row: Row, broker: BrokerKind, wanted: argparse.Namespace, observe: Observer) -> Result:
    with running(broker, cores=[wanted.broker_core]) as (pid, port):
        options = replace(
            row.options, port=port, duration_s=wanted.seconds, warmup_s=wanted.warmup, cores=(wanted.generator_core,)
        )
        return run(options, broker=[str(pid)], observe=observe)


def _short(result: Result) -> str:
    if result.scenario == Scenario.IDLE:
        return f"{result.broker_rss_bytes_per_connection or 0:,.0f} bytes per connection"
    per_s = result.connects_per_s if result.scenario == Scenario.CONN else result.received_per_s
    return f"{per_s:,.0f}/s, lost {result.lost:,}, CPU {result.broker_cpu_us_per_message or 0:.2f} µs"


def show(chosen: Sequence[Row], names: Sequence[str], found: dict[tuple[str, str], Figures], console: Console) -> bool:
    """Prints the table; True when our broker meets every row."""
    table = Table("Scenario", "Broker", "per s", "Lost", "CPU µs", "p99", "B each", "To Mosquitto", "Required", "Met")
    for number in (2, 3, 4, 5, 6, 7):
        table.columns[number].justify = "right"
    is_all_met = OURS in names
    for row in chosen:
        rival = found.get((row.name, RIVAL))
        for name in names:
            figures = found.get((row.name, name))
            if figures is None:
                table.add_row(row.title, name, *["-"] * 6, "", "no figures")
                is_all_met &= name != OURS
                continue
            verdict = judge(row, figures, rival)
            is_ours = name == OURS
            is_all_met &= not is_ours or verdict.is_met is True
            table.add_row(
                row.title if name == names[0] else "",
                name,
                f"{figures.per_s:,.0f}" if figures.per_s is not None else "",
                f"{figures.lost:,}",
                f"{figures.cpu_us:.2f}" if figures.cpu_us is not None else "",
                duration(figures.p99_us) if figures.p99_us is not None else "",
                f"{figures.bytes_per_connection:,.0f}" if figures.bytes_per_connection is not None else "",
                verdict.ratio if name != RIVAL else "",
                verdict.required if is_ours else "",
                {True: "yes", False: "NO", None: "?"}[verdict.is_met] if is_ours else "",
            )
        table.add_section()
    console.print(table)
    return is_all_met


def show_extra(chosen: Sequence[Extra], found: dict[str, list[Values]], console: Console) -> bool:
    """Prints the table of what only our broker is asked for; True when all of it is met."""
    table = Table("Ours alone", "Median", "Required", "Met")
    is_all_met = True
    for extra in chosen:
        runs = found.get(extra.name)
        if not runs:
            table.add_row(extra.title, "no figures", extra.required, "?")
            is_all_met = False
            continue
        values = medians(runs)
        is_met = extra.is_met(values)
        is_all_met &= is_met
        table.add_row(extra.title, extra.shown.format(**values), extra.required, "yes" if is_met else "NO")
    console.print(table)
    return is_all_met


# --- The command ------------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    names, extra_names = [row.name for row in rows()], [extra.name for extra in extras()]
    parser = argparse.ArgumentParser(prog="bench compare", description="Compares whole brokers.")
    parser.add_argument(
        "--rows", help=f"comma-separated, of: {', '.join(names)}; of ours alone: {', '.join(extra_names)}"
    )
    parser.add_argument("--extra", action="store_true", help="all rows of ours alone too")
    parser.add_argument("--brokers", default=f"{OURS},{RIVAL}", help="comma-separated, of: tbmq, mosquitto")
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more broker; {port} and {dir} in its command are filled in. Repeatable.",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each broker in each row (5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured per run (5)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before that (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--broker-core", type=int, default=cores[0])
    parser.add_argument("--generator-core", type=int, default=cores[-1])
    wanted = parser.parse_args(argv)
    chosen = wanted.rows.split(",") if wanted.rows else names
    if wanted.extra:
        chosen = [*chosen, *extra_names]
    if unknown := [name for name in chosen if name not in [*names, *extra_names]]:
        parser.error(f"there is no row {unknown[0]}; there are {', '.join([*names, *extra_names])}")
    wanted.chosen = [row for row in rows() if row.name in chosen]
    wanted.chosen_extra = [extra for extra in extras() if extra.name in chosen]
    if wanted.runs < 1 or wanted.seconds <= 0:
        parser.error("--runs and --seconds must be above 0")
    if wanted.broker_core == wanted.generator_core:
        parser.error("broker and generator need a core each; this machine lets us use only one")
    return wanted


def main(argv: Sequence[str]) -> int:
    wanted = parse(argv)
    # Cut into a file or a pipe, the table is as wide as it needs; on a screen, as wide as the screen.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 170)
    facts = run_facts(is_quick=False)
    try:
        brokers = [known_brokers()[name] for name in wanted.brokers.split(",") if name]
        brokers += [other_broker(text) for text in wanted.other]
        results = measure(wanted.chosen, brokers, wanted, console)
        more = measure_extra(wanted.chosen_extra, wanted, console)
    except KeyError as error:
        console.print(f"there is no broker {error}; give it by --other NAME=COMMAND", style="bold red")
        return 2
    except BrokerError as error:
        console.print(str(error), style="bold red", soft_wrap=True)
        return 2
    found = {key: summarise(runs) for key, runs in results.items()}
    is_all_met = True
    if wanted.chosen:
        is_all_met &= show(wanted.chosen, [broker.name for broker in brokers], found, console)
    if wanted.chosen_extra:
        is_all_met &= show_extra(wanted.chosen_extra, more, console)
    if wanted.json:
        content = {
            **facts,
            "runs": wanted.runs,
            "seconds": wanted.seconds,
            "cores": {"broker": wanted.broker_core, "generator": wanted.generator_core},
            "met": is_all_met,
            "rows": _as_json(results, found),
            "extra": [as_json(one, more[one.name]) for one in wanted.chosen_extra if one.name in more],
        }
        wanted.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0 if is_all_met else 1


def _as_json(
    results: dict[tuple[str, str], list[Result]], found: dict[tuple[str, str], Figures]
) -> list[dict[str, Any]]:
    return [
        {"row": row, "broker": broker, "medians": asdict(found[row, broker]), "runs": [asdict(one) for one in runs]}
        for (row, broker), runs in results.items()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
