"""`python -m bench`, or `./dev bench`: runs the benchmarks and shows, writes and judges what they measured.

Exit codes: 0 done; 1 a benchmark failed, or `--check` found one slower or gone; 2 wrong arguments or baseline.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import check, report, results, suite
from bench.results import Measurement, name_of

BASELINE_PASSES = 3
SPREAD_WARNING = 0.15  # accepted ratios that moved more than this between passes were saved in a noisy moment


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "compare":
        # Needs whole brokers and their clients: loaded only for those who ask.
        return int(importlib.import_module("bench.compare").main(argv[1:]))
    options = parse(argv)
    console = report.console()
    try:
        return run(options, console)
    except suite.SuiteError as error:
        console.print(str(error))
        console.print("the benchmarks failed", style="bold red")
        return 1
    except check.BaselineError as error:
        console.print(str(error), style="bold red", soft_wrap=True)
        return 2


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Runs the benchmarks of the compiled core.",
        epilog="`bench compare ...` compares whole brokers; it has its own --help.",
    )
    parser.add_argument("--only", metavar="NAME", help="only benchmarks whose name contains NAME, such as codec/scan")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first look, not a verdict")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results here, not into bench/results/")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail on a slowdown over 25 %% against bench/baseline.json")
    what.add_argument("--save-baseline", action="store_true", help="accept the ratios of this run (three passes)")
    options = parser.parse_args(argv)
    if options.quick and options.save_baseline:
        parser.error("a baseline needs all rounds: leave out --quick")
    return options


def run(options: argparse.Namespace, console: Console) -> int:
    baseline = check.read_baseline() if options.check else None
    only = options.only or ""
    node_ids = [node_id for node_id in suite.collect() if only in name_of(node_id)]
    if not node_ids:
        console.print(f"no benchmark has {only!r} in its name", style="bold red")
        return 2
    facts = results.run_facts(is_quick=options.quick)

    def measure(node_ids: Sequence[str], what: str) -> list[Measurement]:
        with console.status(what, refresh_per_second=4) as status:
            return suite.measure(
                node_ids,
                is_quick=options.quick,
                on_start=lambda node_id: status.update(f"{what}: {name_of(node_id)}"),
            )

    measured = measure(node_ids, "measuring")
    report.show_measurements(console, measured)
    if not only:
        report.show_missing_figures(console, measured)
    console.print(f"results: {results.write(facts, measured, options.json)}", soft_wrap=True)

    if options.save_baseline:
        passes = [measured, *(measure(node_ids, f"pass {n}") for n in range(2, BASELINE_PASSES + 1))]
        save_baseline(console, facts, passes, keeps_others=bool(only))
    if baseline is None:
        return 0
    if baseline.machine.get("cpu") != facts["machine"]["cpu"]:
        console.print(
            f"the baseline is from another machine ({baseline.machine.get('cpu')}): ratios carry over only roughly",
            style="yellow",
        )
    verdicts = check.judge_with_second_look(
        measured,
        {name: accepted for name, accepted in baseline.benchmarks.items() if only in name},
        lambda slower: measure([one.node_id for one in slower], "measuring the slower ones again"),
    )
    report.show_verdicts(console, verdicts)
    failures = [verdict for verdict in verdicts if verdict.outcome in check.FAILURES]
    if failures:
        console.print(
            f"{len(failures)} of {len(verdicts)} failed: slower by more than {check.LIMIT - 1:.0%} in "
            f"{1 + check.MORE_ATTEMPTS} attempts, or gone. If that is intended: ./dev bench --save-baseline",
            style="bold red",
        )
    return 1 if failures else 0


def save_baseline(
    console: Console, facts: dict[str, object], passes: Sequence[Sequence[Measurement]], *, keeps_others: bool
) -> None:
    kept = check.read_baseline().benchmarks if keeps_others and check.BASELINE.exists() else {}
    baseline = check.make_baseline(facts, passes, kept)
    check.write_baseline(baseline)
    console.print(f"saved: {check.BASELINE}", soft_wrap=True)
    for name, accepted in baseline.benchmarks.items():
        if accepted.spread > SPREAD_WARNING:
            console.print(f"{name} moved by {accepted.spread:.0%} between passes: save again when the machine is quiet")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
