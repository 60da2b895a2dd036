"""`bench compare`: what is chosen, what the rows of ours alone measure, how they are judged. No broker is started."""

import os

import pytest

from bench.compare import OURS, RIVAL, Figures, judge, parse, rows
from bench.compare_brokers import BrokerError, other_broker
from bench.compare_extra import (
    CROSSING_PAIRS,
    LOCAL_PAIRS,
    SUBSCRIPTIONS,
    crossing,
    extras,
    memcpy_bytes_per_s,
    topic_filter,
)
from bench.compare_setup import medians
from tbmq.loadgen import Options, Scenario
from tbmq.loadgen.packets import make


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """The choice of rows is tried on machines with one core too."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


def chosen(*arguments: str) -> list[str]:
    wanted = parse(arguments)
    return [one.name for one in [*wanted.chosen, *wanted.chosen_extra]]


def test_rows_are_all_of_the_comparison_unless_chosen():
    assert chosen() == [row.name for row in rows()]
    assert chosen("--extra") == [*chosen(), "cross0", "cross1", "handover", "large", "subs", "rules", "logins", "storm"]
    assert chosen("--rows", "subs,p2p1") == ["p2p1", "subs"]
    wanted = parse([])
    assert (wanted.runs, wanted.brokers) == (5, f"{OURS},{RIVAL}")


@pytest.mark.parametrize("arguments", [["--rows", "p2p3"], ["--runs", "0"], ["--broker-core", "1"]])
def test_wrong_arguments_end_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_other_broker_has_its_port_and_folder_filled_in(tmp_path):
    kind = other_broker("peer=/opt/a\\ peer --port {port} --data {dir}/x")
    assert kind.name == "peer"
    assert kind.command(1234, tmp_path) == ["/opt/a peer", "--port", "1234", "--data", f"{tmp_path}/x"]
    with pytest.raises(BrokerError, match="with {port} in the command"):
        other_broker("peer=/opt/peer")


@pytest.mark.parametrize("run_id", ["000000", "a1b2c3", "ffffff"])
def test_pairs_are_all_on_both_workers_or_all_on_one(run_id):
    assert crossing(CROSSING_PAIRS, run_id) == 1.0
    assert crossing(LOCAL_PAIRS, run_id) == 0.0


def test_client_ids_of_the_generator_are_those_that_were_computed():
    packet, at = make(Options(scenario=Scenario.P2P, run_id="a1b2c3")).connect
    assert packet[:at].endswith(b"bench-a1b2c3-") and len(packet) == at + 7


def test_subscriptions_are_all_different():
    assert len({topic_filter(number) for number in range(0, SUBSCRIPTIONS)}) == SUBSCRIPTIONS


def test_extra_rows_are_judged_by_their_median():
    by_name = {extra.name: extra for extra in extras()}
    cross, subs, handover = by_name["cross0"], by_name["subs"], by_name["handover"]
    runs = [{"local_us": 1.0, "cross_us": times, "times": times} for times in (2.4, 9.0, 2.0)]
    assert medians(runs)["times"] == 2.4
    assert cross.is_met(medians(runs))
    assert not cross.is_met(medians(runs[:2]))
    assert "2.40 x" in cross.shown.format(**medians(runs))
    assert subs.is_met({"bytes": 400e6}) and not subs.is_met({"bytes": 400e6 + 1})
    assert handover.is_met({"per_core_s": 10_000}) and not handover.is_met({"per_core_s": 9_999})


def test_row_is_met_only_when_all_that_it_asks_is():
    row = next(row for row in rows() if row.name == "rate")
    rival = Figures(runs=5, per_s=50_000, lost=0, cpu_us=10.0, p99_us=300.0, bytes_per_connection=None)
    good = Figures(runs=5, per_s=50_000, lost=0, cpu_us=7.9, p99_us=300.0, bytes_per_connection=None)
    late = Figures(runs=5, per_s=50_000, lost=0, cpu_us=7.9, p99_us=301.0, bytes_per_connection=None)
    assert judge(row, good, rival).is_met is True
    assert judge(row, late, rival).is_met is False
    assert judge(row, good, None).is_met is None


def test_speed_of_memcpy_is_that_of_a_memory(monkeypatch):
    monkeypatch.undo()
    cores = os.sched_getaffinity(0)
    assert 1e8 < memcpy_bytes_per_s(min(cores)) < 1e12
    assert os.sched_getaffinity(0) == cores
