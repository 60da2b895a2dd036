"""`./dev soak [--minutes 10]`: exit code 0 when memory stayed flat and nothing was lost; 1 when not, with the reason.

Writes into build/soak/: soak.json (every sample, flow and finding), soak.svg (memory over time), the broker's log.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tests.soak.chart import draw
from tests.soak.measure import Sample
from tests.soak.plan import Plan, make_plan
from tests.soak.run import Soak
from tests.soak.verdict import MB, Finding, Recording, judge

FOLDER = Path(__file__).parents[2] / "build" / "soak"
LINE_EVERY_S = 5.0  # when nobody watches


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev soak", description="A broker under mixed load: its memory must stay flat."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of load (10)")
    parser.add_argument("--seed", type=int, default=None, help="of what clients do; a new one unless given")
    parser.add_argument("--workers", type=int, default=2, help="of the broker (2)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for results; emptied first (build/soak)")
    options = parser.parse_args(argv)
    if options.minutes <= 0 or options.workers < 1:
        parser.error("--minutes and --workers must be above 0")
    return options


class Progress:
    """A line that is redrawn on a terminal; else a line every five seconds and for every phase."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._phase = ""
        self._line_at = 0.0
        self._last: tuple[float, dict[str, int]] = (0.0, {})
        self._rate = 0.0

    def observe(self, phase: str, at_s: float, sample: Sample | None) -> None:
        text = self._text(phase, at_s, sample)
        now = time.monotonic()
        if self.live:
            self.live.update(Text(text, style="cyan"))
        elif phase != self._phase or now >= self._line_at:
            self._line_at = now + LINE_EVERY_S
            self._console.print(text, soft_wrap=True)
        self._phase = phase

    def _text(self, phase: str, at_s: float, sample: Sample | None) -> str:
        limits = {"load": self._plan.load_s, "prelude": self._plan.prelude_s}
        parts = [f"{phase} {at_s:.0f}" + (f"/{limits[phase]:.0f} s" if phase in limits else " s")]
        if sample is None:
            return parts[0]
        parts.append("memory " + " ".join(f"{one.rss_bytes / MB:.1f}" for one in sample.processes.values()) + " MB")
        parts.append(f"descriptors {sum(one.descriptors for one in sample.processes.values())}")
        counts = sample.counts
        if phase == "load":
            last_at, last = self._last
            if sample.at_s > last_at and last:
                self._rate = (counts["received"] - last["received"]) / (sample.at_s - last_at)
            self._last = (sample.at_s, counts)
            parts.append(f"received {self._rate:,.0f}/s")
        parts.append(f"sent {counts['sent']:,}, connects {counts['connects']:,}, turns {counts['turns']:,}")
        return "   ".join(parts)


def show(findings: Sequence[Finding], console: Console) -> None:
    table = Table("What", "Found", "Asked", "Met")
    for finding in findings:
        table.add_row(
            finding.what,
            finding.found,
            finding.bound,
            "yes" if finding.is_met else "NO",
            style="" if finding.is_met else "bold red",
        )
    console.print(table)


def write(folder: Path, soak: Soak, recording: Recording, findings: Sequence[Finding]) -> None:
    plan = soak.plan
    content = {
        "plan": asdict(plan),
        "failures": recording.failures,
        "met": all(finding.is_met for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "names": recording.names,
        "before": asdict(recording.before),
        "during": [asdict(one) for one in recording.during],
        "after": asdict(recording.after),
        **soak.as_json(),
    }
    (folder / "soak.json").write_text(json.dumps(content, indent=1) + "\n")
    title = f"{plan.load_s / 60:g} minutes, {plan.workers} workers, seed {plan.seed}"
    (folder / "soak.svg").write_text(draw(recording, title))


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    plan = make_plan(options.minutes, workers=options.workers, seed=seed)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 150)
    console.print(f"soak: {options.minutes:g} minutes of load, {plan.workers} workers, --seed {seed}")
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    progress = Progress(plan, console)
    soak = Soak(plan, options.folder, progress.observe)
    try:
        with progress.live or nullcontext():
            recording = soak.run()
    except AssertionError as error:
        console.print(f"the soak could not be done: {error}", style="bold red", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted", style="bold red")
        return 130
    findings = judge(recording)
    write(options.folder, soak, recording, findings)
    show(findings, console)
    for name in ("soak.json", "soak.svg"):
        console.print(str(options.folder / name), soft_wrap=True)
    for text in recording.failures:
        console.print(text, style="yellow", soft_wrap=True)
    broken = [finding for finding in findings if not finding.is_met]
    for finding in broken:
        console.print(f"FAILED: {finding.what}: {finding.found} ({finding.bound})", style="bold red", soft_wrap=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
