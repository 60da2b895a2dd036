"""The regression check of the benchmarks: what fails, what passes, what is only told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.calibration import CALIBRATION_VERSION, NAMES, calibration, default_for
from bench.check import (
    FAILURES,
    MORE_ATTEMPTS,
    Accepted,
    Baseline,
    BaselineError,
    Outcome,
    judge,
    judge_with_second_look,
    make_baseline,
    read_baseline,
    write_baseline,
)
from bench.figures import FIGURES, Figure, Quantity
from bench.results import Measurement, measurement, name_of, to_json

FACTS: dict[str, Any] = {"time_utc": "2026-01-01T00:00:00Z", "commit": "0123456789ab", "machine": {"cpu": "a"}}


def measured(name: str, ratio: float, *, calibration: str = "compute", **extra: Any) -> Measurement:
    """Ten rounds on a machine whose speed drifts by half while they run: the calibration drifts with them."""
    drift = [1 + n / 20 for n in range(10)]
    return Measurement(
        name=name,
        node_id=f"bench/test_x.py::test_{name}",
        operations=1000,
        loops=5,
        round_ns=tuple(100 * ratio * speed for speed in drift),
        calibration=calibration,
        calibration_ns=tuple(100 * speed for speed in drift),
        extra=extra,
    )


def accepted(ratio: float, calibration: str = "compute") -> Accepted:
    return Accepted(calibration=calibration, ratio=ratio, spread=0.02)


def baseline(**ratios: float) -> Baseline:
    return Baseline(
        calibration_version=CALIBRATION_VERSION,
        **FACTS,
        benchmarks={name: accepted(ratio) for name, ratio in ratios.items()},
    )


def outcomes(run: Iterable[Measurement], known: dict[str, Accepted]) -> dict[str, Outcome]:
    return {verdict.name: verdict.outcome for verdict in judge(run, known)}


# --- verdicts


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (1.30, Outcome.SLOWER),
        (1.26, Outcome.SLOWER),
        (1.24, Outcome.OK),
        (1.10, Outcome.OK),
        (1.00, Outcome.OK),
        (0.90, Outcome.OK),
        (0.70, Outcome.FASTER),
    ],
)
def test_outcome_follows_the_change_of_the_ratio(change: float, outcome: Outcome):
    (verdict,) = judge([measured("scan", 0.5 * change)], {"scan": accepted(0.5)})
    assert verdict.outcome is outcome
    assert verdict.change == pytest.approx(change - 1)


def test_only_slower_and_gone_fail():
    assert {Outcome.SLOWER, Outcome.GONE} == FAILURES


def test_new_benchmark_is_told_when_the_baseline_does_not_know_it():
    assert outcomes([measured("scan", 1), measured("new", 1)], {"scan": accepted(1)}) == {
        "scan": Outcome.OK,
        "new": Outcome.NEW,
    }


def test_benchmark_is_gone_when_only_the_baseline_knows_it():
    assert outcomes([measured("scan", 1)], {"scan": accepted(1), "old": accepted(1)}) == {
        "scan": Outcome.OK,
        "old": Outcome.GONE,
    }


def test_ratio_does_not_compare_when_the_calibration_is_another():
    assert outcomes([measured("scan", 9, calibration="memory")], {"scan": accepted(1)}) == {"scan": Outcome.NEW}


# --- a second look


class Machine:
    """Answers each new attempt with the next ratio."""

    def __init__(self, *ratios: float) -> None:
        self.ratios = list(ratios)
        self.asked: list[list[str]] = []

    def measure_again(self, slower: Sequence[Measurement]) -> list[Measurement]:
        self.asked.append([one.name for one in slower])
        ratio = self.ratios.pop(0)
        return [measured(one.name, ratio) for one in slower]


def test_slowdown_fails_when_every_attempt_shows_it():
    machine = Machine(1.4, 1.3)
    (verdict,) = judge_with_second_look([measured("scan", 1.5)], {"scan": accepted(1)}, machine.measure_again)
    assert verdict.outcome is Outcome.SLOWER
    assert verdict.ratio == pytest.approx(1.3)
    assert machine.asked == [["scan"]] * MORE_ATTEMPTS


def test_slowdown_passes_when_the_next_attempt_does_not_show_it():
    machine = Machine(1.1)
    run = [measured("scan", 1.5), measured("feed", 1)]
    verdicts = judge_with_second_look(run, {"scan": accepted(1), "feed": accepted(1)}, machine.measure_again)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.OK, Outcome.OK]
    assert machine.asked == [["scan"]]


def test_worse_attempt_does_not_replace_a_better_one():
    machine = Machine(2.0, 1.9)
    (verdict,) = judge_with_second_look([measured("scan", 1.3)], {"scan": accepted(1)}, machine.measure_again)
    assert verdict.ratio == pytest.approx(1.3)


def test_nothing_is_measured_again_when_nothing_is_slower():
    machine = Machine()
    known = {"scan": accepted(1), "old": accepted(1)}
    judge_with_second_look([measured("scan", 0.5), measured("new", 1)], known, machine.measure_again)
    assert machine.asked == []


# --- baseline


def test_baseline_reads_back_what_was_written(tmp_path: Path):
    path = tmp_path / "baseline.json"
    write_baseline(baseline(scan=0.5, feed=2), path)
    assert read_baseline(path) == baseline(scan=0.5, feed=2)


def test_baseline_takes_the_median_of_the_passes_and_their_spread():
    passes = [[measured("scan", ratio)] for ratio in (1.0, 1.2, 1.1)]
    made = make_baseline(FACTS, passes, {"kept": accepted(7)})
    assert made.benchmarks["scan"].ratio == pytest.approx(1.1)
    assert made.benchmarks["scan"].spread == pytest.approx(0.2 / 1.1, abs=0.001)
    assert made.benchmarks["kept"] == accepted(7)


def test_small_ratio_keeps_its_digits_in_the_baseline():
    made = make_baseline(FACTS, [[measured("crc", 0.000012344)]], {})
    assert made.benchmarks["crc"].ratio == pytest.approx(0.00001234)


GOOD = baseline(scan=0.5).model_dump()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file: Invalid JSON"),
        ("[]", "the file"),
        ("{", "Invalid JSON"),
        (json.dumps({**GOOD, "format": "else"}), "format"),
        (json.dumps({**GOOD, "version": 2}), "version"),
        (json.dumps({**GOOD, "surplus": 2}), "surplus"),
        (json.dumps({key: value for key, value in GOOD.items() if key != "benchmarks"}), "benchmarks: Field required"),
        (json.dumps({**GOOD, "benchmarks": {"scan": {"ratio": 1}}}), "benchmarks.scan.calibration"),
        (
            json.dumps({**GOOD, "benchmarks": {"scan": accepted(1).model_dump() | {"ratio": 0}}}),
            "benchmarks.scan.ratio",
        ),
        (json.dumps({**GOOD, "benchmarks": {"scan": accepted(1).model_dump() | {"ratio": "fast"}}}), "scan.ratio"),
        (json.dumps({**GOOD, "calibration_version": -1}), "saved with calibration -1"),
    ],
)
def test_baseline_is_refused_with_the_place_when_it_is_malformed(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match="--save-baseline") as raised:
        read_baseline(path)
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value)


def test_baseline_is_refused_when_it_is_missing(tmp_path: Path):
    with pytest.raises(BaselineError, match="missing"):
        read_baseline(tmp_path / "baseline.json")


def test_baseline_of_the_repository_is_well_formed_when_there_is_one():
    try:
        known = read_baseline().benchmarks
    except BaselineError as error:
        assert "missing" in str(error)
        return
    assert {one.calibration for one in known.values()} <= set(NAMES)


# --- measurements


def test_drift_of_the_machine_cancels_out_of_the_ratio():
    one = measured("scan", 0.5)
    assert max(one.round_ns) / min(one.round_ns) > 1.4
    assert one.ratio == pytest.approx(0.5)
    assert one.ratio_spread == pytest.approx(0, abs=1e-9)


def test_times_are_per_operation():
    entry = {
        "fullname": "bench/test_codec.py::test_scan",
        "stats": {"data": [0.002, 0.004, 0.003]},
        "extra_info": {
            "operations": 100,
            "loops": 10,
            "calibration": "compute",
            "calibration_ns": [300.0, 600.0, 300.0],
            "bytes_per_subscription": 90,
        },
    }
    one = measurement(entry)
    assert one.name == "codec/scan"
    assert one.round_ns == pytest.approx((2000, 4000, 3000))
    assert one.median_ns == pytest.approx(3000)
    assert one.ratio == pytest.approx(2000 / 300)
    assert one.extra == {"bytes_per_subscription": 90}


def test_result_file_holds_every_round():
    written = json.loads(json.dumps(to_json(FACTS, [measured("scan", 0.5)])))
    (one,) = written["benchmarks"]
    assert written["commit"] == FACTS["commit"]
    assert written["calibration"] == {"version": CALIBRATION_VERSION, "median_ns": {"compute": pytest.approx(122.5)}}
    assert (one["name"], one["rounds"], one["operations"]) == ("scan", 10, 1000)
    assert len(one["round_ns"]) == len(one["calibration_round_ns"]) == 10


@pytest.mark.parametrize(
    ("node_id", "name"),
    [
        ("bench/test_codec.py::test_scan", "codec/scan"),
        ("bench/test_trie.py::test_match[cached]", "trie/match[cached]"),
    ],
)
def test_name_leaves_out_what_pytest_needs(node_id: str, name: str):
    assert name_of(node_id) == name


def test_calibration_says_which_ones_there_are_when_asked_for_another():
    with pytest.raises(ValueError, match="compute, objects, memory"):
        calibration("gpu")
    assert calibration("compute").ns_per_unit() > 0
    assert {default_for("trie/match"), default_for("batch/append")} == {"memory", "compute"}


@pytest.mark.parametrize(
    ("quantity", "limit", "is_met"),
    [
        (Quantity.MILLION_PER_S, 15, True),  # 61 ns are 16 million per second
        (Quantity.MILLION_PER_S, 17, False),
        (Quantity.MICROSECONDS, 0.07, True),
        (Quantity.MICROSECONDS, 0.05, False),
        (Quantity.BYTES_PER_SUBSCRIPTION, 100, True),
        (Quantity.BYTES_PER_SUBSCRIPTION, 80, False),
    ],
)
def test_figure_is_met_on_its_side_of_the_limit(quantity: Quantity, limit: float, is_met: bool):
    one = measured("scan", 0.5, bytes_per_subscription=90)
    assert Figure("scan", quantity, limit).is_met(one) is is_met


def test_figure_applies_to_its_benchmark_or_to_whoever_tells_the_bytes():
    teller = measured("insert", 0.5, bytes_per_subscription=90)
    memory = Figure("trie/", Quantity.BYTES_PER_SUBSCRIPTION, 250)
    speed = Figure("scan", Quantity.MICROSECONDS, 1)
    assert memory.applies_to(teller) and not memory.applies_to(measured("scan", 0.5))
    assert speed.applies_to(measured("scan", 0.5)) and not speed.applies_to(teller)


def test_each_figure_stands_once():
    assert len({(figure.benchmark, figure.quantity) for figure in FIGURES}) == len(FIGURES)
