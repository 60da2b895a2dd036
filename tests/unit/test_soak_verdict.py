"""The verdict of the soak: what it sees and what it does not mistake for a leak."""

import os
import random
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from tests.soak.chart import draw
from tests.soak.measure import Process, Sample, read_process
from tests.soak.plan import make_plan
from tests.soak.verdict import MB, Recording, judge, max_slope, theil_sen

SUPERVISOR, WORKER = 10, 11


def sample(at_s: float, worker_mb: float, descriptors: int = 20, **changes) -> Sample:
    processes = {
        SUPERVISOR: Process(40 * MB, 10 * MB, 9),
        WORKER: Process(int(worker_mb * MB), 10 * MB, descriptors),
    }
    return replace(Sample(at_s, processes, 0.0, {}), **changes)


def recording(levels: list[float], *, every_s: float = 5.0, **changes) -> Recording:
    during = [sample(n * every_s, level, descriptors=300) for n, level in enumerate(levels)]
    return replace(Recording(before=sample(0, 60), during=during, after=sample(700, 62)), **changes)


def broken(found: Recording) -> list[str]:
    return [finding.what for finding in judge(found) if not finding.is_met]


def noise(count: int = 121) -> list[float]:
    """Ten minutes around 70 MB, with the peaks of slow readers."""
    chance = random.Random(1)
    return [70 + chance.uniform(-1, 1) + (30 if chance.random() < 0.1 else 0) for _ in range(count)]


def test_slope_is_that_of_the_line_when_outliers_are_in_it():
    points = [(float(x), 3.0 * x + 7) for x in range(40)]
    points[5], points[20], points[39] = (5.0, 900.0), (20.0, -900.0), (39.0, 5_000.0)
    assert theil_sen(points) == pytest.approx(3.0)
    assert theil_sen(points[:1]) == 0.0


def test_all_is_met_when_memory_is_flat_with_peaks():
    assert broken(recording(noise())) == []


def test_leak_is_seen_when_it_is_hidden_in_noise():
    assert broken(recording([level + n * 5 / 60 * 1.5 for n, level in enumerate(noise())])) == ["memory of worker 0"]


def test_growth_in_the_first_half_is_no_leak():
    assert broken(recording([level - max(0, 60 - n) / 2 for n, level in enumerate(noise())])) == []


@pytest.mark.parametrize(
    ("level_mb", "minutes", "bound_mb"),
    [(1_000, 5, 2.0), (150, 5, 1.5), (50, 5, 0.8), (50, 0.1, 160.0)],
    ids=["2 MB", "1 %", "grain of ten minutes", "grain of a short soak"],
)
def test_bound_is_the_stricter_one_but_not_below_the_grain(level_mb, minutes, bound_mb):
    assert max_slope(level_mb * MB, minutes) == pytest.approx(bound_mb * MB)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"after": sample(700, 93)}, "worker 0 after the load"),
        ({"after": sample(700, 62, descriptors=21)}, "descriptors"),
        ({"problems": {"pairs QoS 1": ["3 messages were lost at QoS 1"]}}, "pairs QoS 1"),
        ({"failed_turns": 1, "failures": ["Sessions, turn 3: ..."]}, "clients"),
        ({"log": "ready\nTraceback (most recent call last):\n"}, "log"),
        ({"log": "12:00:00 ERROR worker 0: was killed by signal 9"}, "log"),
        ({"log": "Exception ignored in: <function f>"}, "log"),
        ({"log": "client-1: internal error, closing"}, "log"),
        ({"stop_error": "the broker exited with 1; its log ends:\n..."}, "stop"),
    ],
)
def test_what_must_not_happen_is_named_when_it_happened(changes, what):
    assert broken(recording(noise(), **changes)) == [what]


def test_restarted_worker_is_seen():
    one = recording(noise())
    processes = dict(one.during[50].processes)
    processes[99] = processes.pop(WORKER)
    one.during[50] = replace(one.during[50], processes=processes)
    assert broken(one) == ["processes"]


def test_no_samples_are_no_flat_memory():
    assert broken(recording([70.0])) == ["memory of supervisor", "memory of worker 0"]


def test_own_memory_and_descriptors_are_read():
    before = read_process(os.getpid())
    held = bytearray(os.urandom(1 << 20) * 32)
    with open(os.devnull) as extra:
        after = read_process(os.getpid())
        assert after.descriptors == before.descriptors + 1, extra
    assert after.rss_bytes - before.rss_bytes > 0.8 * len(held)
    assert 0 < after.private_bytes <= after.rss_bytes


def test_short_plan_has_all_parts():
    short, full = make_plan(0.2), make_plan(10)
    assert (full.load_s, full.prelude_s, full.sample_s) == (600, 30, 5)
    assert (short.load_s, short.prelude_s, short.sample_s) == (12, 4, 0.5)


def test_chart_is_whole_when_names_hold_signs():
    root = ElementTree.fromstring(draw(recording(noise()), "10 minutes <& more>"))
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [121] * 4
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert "10 minutes <& more>: resident memory, MB" in texts
    heights = [float(point.split(",")[1]) for line in lines for point in line.attrib["points"].split()]
    assert min(heights) >= 0 and max(heights) <= 300


def test_chart_of_one_sample_can_be_drawn():
    assert draw(recording([70.0]), "x").count("<polyline") == 4
