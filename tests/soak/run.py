"""The sequence of a soak: warm up, prelude, level before, load with samples, level after. plan.py has its times."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.helpers import Broker
from tests.helpers.transports import Transports, run_transports
from tests.soak.actors import ACTORS, Actor
from tests.soak.flows import Flow, make_flows
from tests.soak.measure import Sample, take_sample
from tests.soak.plan import Plan
from tests.soak.verdict import Recording

END_S = 120.0  # for turns that are under way when the load ends, and for messages that are
CLOSE_S = 30.0  # for the broker to close what clients left open
LOOK_S = 0.25

Observer = Callable[[str, float, Sample | None], None]  # phase, seconds in it, the latest sample


@dataclass
class Soak:
    plan: Plan
    folder: Path
    observe: Observer = lambda phase, at_s, sample: None
    actors: list[Actor] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)

    def run(self) -> Recording:
        """Raises AssertionError when the broker does not even start; all else is in the recording."""
        plan, recording = self.plan, None
        try:
            with run_transports(self.folder, workers=plan.workers, mqtt__max_session_expiry_s=plan.expiry_s) as target:
                recording = self._record(target)
        except AssertionError as error:  # it did not stop as it should
            if recording is None:
                raise
            recording.stop_error = str(error)
        recording.log = (self.folder / "broker" / "broker.log").read_text(errors="replace")
        return recording

    def _record(self, target: Transports) -> Recording:
        plan, broker = self.plan, target.broker
        self.actors = [kind(target, seed=plan.seed, expiry_s=plan.expiry_s) for kind in ACTORS]
        for actor in self.actors:
            self.observe("warming up", 0.0, None)
            actor.attempt(partial(actor.warm, plan.workers))
        self._load(target, "prelude", plan.prelude_s, lambda at_s: None)
        before = self._settle(broker, "settling", None)

        during: list[Sample] = []
        counted = self.counts()

        def look(at_s: float) -> Sample:
            if at_s >= len(during) * plan.sample_s:
                during.append(take_sample(broker, at_s, _minus(self.counts(), counted)))
            return during[-1]

        self._load(target, "load", plan.load_s, look)
        after = self._settle(broker, "falling back", before)
        return Recording(
            before=before,
            during=during,
            after=after,
            problems=self._problems(),
            failures=[text for actor in self.actors for text in actor.failures],
            turns=sum(actor.turns for actor in self.actors),
            failed_turns=sum(actor.failed for actor in self.actors),
        )

    def _load(self, target: Transports, phase: str, seconds: float, look: Callable[[float], Sample | None]) -> None:
        """Flows and actors for so long, and until what they have begun is over."""
        flows = make_flows(target, seconds)
        self.flows += flows
        stop = threading.Event()
        actors = [threading.Thread(target=one.live, args=(stop,), name=one.name, daemon=True) for one in self.actors]
        start = time.monotonic()
        try:
            for thread in [*flows, *actors]:
                thread.start()
            while (at_s := time.monotonic() - start) < seconds:
                self.observe(phase, at_s, look(at_s))
                time.sleep(LOOK_S)
            stop.set()
            deadline = time.monotonic() + END_S
            while late := [thread for thread in [*flows, *actors] if thread.is_alive()]:
                names = ", ".join(thread.name for thread in late)
                assert time.monotonic() < deadline, f"these did not come to an end in {END_S:.0f} s: {names}"
                self.observe("ending", time.monotonic() - start - seconds, None)
                time.sleep(LOOK_S)
        finally:
            stop.set()
            for flow in flows:
                flow.stop()
                flow.join()

    def _settle(self, broker: Broker, phase: str, before: Sample | None) -> Sample:
        """When sessions have expired and connections are closed: as many as before, or no more than a moment ago."""
        start, previous = time.monotonic(), -1
        while True:
            at_s = time.monotonic() - start
            sample = take_sample(broker, self.plan.load_s + at_s, self.counts())
            open_now = sum(one.descriptors for one in sample.processes.values())
            wanted = sum(one.descriptors for one in before.processes.values()) if before else previous
            self.observe(phase, at_s, sample)
            if at_s > self.plan.settle_s and (open_now <= wanted or at_s > self.plan.settle_s + CLOSE_S):
                return sample
            previous = open_now
            time.sleep(LOOK_S)

    def _problems(self) -> dict[str, list[str]]:
        """Of each kind of flow, prelude and load together."""
        found: dict[str, list[str]] = {}
        for flow in self.flows:
            found.setdefault(flow.name, []).extend(flow.problems)
        return found

    def counts(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for counts in [*(actor.counts for actor in self.actors), *(flow.counts for flow in self.flows)]:
            total.update(counts)
        total["turns"] = sum(actor.turns for actor in self.actors)
        return dict(total)

    def as_json(self) -> dict[str, Any]:
        return {
            "flows": [flow.as_json() for flow in self.flows],
            "actors": {
                actor.name: {"turns": actor.turns, "failed": actor.failed, **actor.counts} for actor in self.actors
            },
        }


def _minus(counts: dict[str, int], base: dict[str, int]) -> dict[str, int]:
    return {name: value - base.get(name, 0) for name, value in counts.items()}
