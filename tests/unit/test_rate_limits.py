"""Rate limits: what may be written, and what the buckets promise."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq.rate_limits import Limits, RateLimit, Window, parse_rate_limits


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("", ()),
        (" ", ()),
        ("100:1", (Window(100, 1),)),
        ("100:1,2000:60", (Window(100, 1), Window(2000, 60))),
        (" 1:1 , 1000000000:31536000 ", (Window(1, 1), Window(1_000_000_000, 31_536_000))),
    ],
)
def test_limits_are_read(text, windows):
    assert parse_rate_limits(text) == windows
    assert parse_rate_limits(",".join(map(str, windows))) == windows


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("100", "limit:seconds, such as 100:1,2000:60; got '100'"),
        ("100:", "got '100:'"),
        ("1:1,", "got ''"),
        ("1:1;2:2", "got '1:1;2:2'"),
        ("-1:1", "got '-1:1'"),
        ("1.5:1", "got '1.5:1'"),
        ("\u0661:1", "limit:seconds"),
        ("0:1", "limit of 0:1 must be 1 to 1,000,000,000"),
        ("1000000001:1", "must be 1 to"),
        ("1:0", "seconds of 1:0 must be 1 to 31,536,000"),
        ("1:31536001", "must be 1 to"),
        ("9" * 5_000 + ":1", "limit:seconds"),
        ("1:1,5:1", "two limits for 1 s"),
        (",".join(f"1:{seconds}" for seconds in range(1, 6)), "at most 4"),
    ],
)
def test_limits_are_refused_with_a_reason(text, reason):
    with pytest.raises(ValueError, match=".") as refused:
        parse_rate_limits(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 200


def test_burst_passes_and_then_what_flows_back():
    limit = RateLimit(parse_rate_limits("3:1,5:10"), now=0.0)
    assert [limit.try_take(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [limit.try_take(1, 1.0) for _ in range(3)] == [True, True, False], "5 in 10 seconds, and half of one back"
    assert not limit.try_take(1, 1.9)
    assert limit.try_take(1, 2.0)


def test_nothing_is_taken_when_one_window_refuses():
    limit = RateLimit([Window(10, 1), Window(2, 100)], now=0.0)
    assert not limit.try_take(3, 0.0)
    assert limit.try_take(2, 0.0)


def test_more_than_the_limit_never_passes():
    limit = RateLimit([Window(10, 1)], now=0.0)
    assert not limit.try_take(11, 1_000_000.0)
    assert limit.try_take(10, 1_000_000.0)


def test_clock_that_goes_back_gives_nothing():
    limit = RateLimit([Window(1, 1)], now=100.0)
    assert limit.try_take(1, 100.0)
    assert not limit.try_take(1, 0.0)
    assert not limit.try_take(1, 100.5)
    assert limit.try_take(1, 101.0)


WINDOWS = st.lists(st.builds(Window, st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=3)
EVENTS = st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 3)), max_size=60)  # pause in 1/1000 s, how many
STARTS = st.sampled_from([0, 7, 86_400_000, 31_536_000_000])  # ms; floating point is coarser after a year


@given(WINDOWS, EVENTS, STARTS)
def test_no_span_lets_more_pass_than_promised(windows, events, start_ms):
    limit = RateLimit(windows, start_ms / 1000)
    passed: list[tuple[int, int]] = []
    now_ms = start_ms
    for pause_ms, n in events:
        now_ms += pause_ms
        if limit.try_take(n, now_ms / 1000):
            passed.append((now_ms, n))
    for first in range(len(passed)):
        total = 0
        for time_ms, n in passed[first:]:
            total += n
            span_s = Fraction(time_ms - passed[first][0], 1000)
            assert all(total <= window.limit * (1 + span_s / window.seconds) for window in windows)


@given(WINDOWS, EVENTS, STARTS)
def test_who_stays_within_the_limits_is_never_refused(windows, events, start_ms):
    """Sends only what no span of `seconds` (its end not included) exceeds, as a log of all that was sent knows."""
    limit = RateLimit(windows, start_ms / 1000)
    sent: list[tuple[int, int]] = []
    now_ms = start_ms
    for pause_ms, n in events:
        now_ms += pause_ms
        if all(sum(m for t, m in sent if t > now_ms - w.seconds * 1000) + n <= w.limit for w in windows):
            assert limit.try_take(n, now_ms / 1000)
            sent.append((now_ms, n))


@given(WINDOWS, EVENTS)
def test_buckets_are_those_of_exact_arithmetic(windows, events):
    """Times and sums as fractions: the two may only differ where a bucket holds all but a hair of what is asked."""
    limit = RateLimit(windows, 0.0)
    levels = [Fraction(window.limit) for window in windows]
    now_ms = 0
    for pause_ms, n in events:
        now_ms += pause_ms
        refilled = [
            level + Fraction(pause_ms * w.limit, w.seconds * 1000) for level, w in zip(levels, windows, strict=True)
        ]
        levels = [min(level, Fraction(w.limit)) for level, w in zip(refilled, windows, strict=True)]
        is_enough = all(level >= n for level in levels)
        assert limit.try_take(n, now_ms / 1000) == is_enough
        if is_enough:
            levels = [level - n for level in levels]


def test_each_key_has_its_own_limit():
    limits = Limits(parse_rate_limits("1:1"))
    assert limits.try_take("a", 1, 0.0)
    assert not limits.try_take("a", 1, 0.0)
    assert limits.try_take("b", 1, 0.0)
    limits.forget("a")
    assert limits.try_take("a", 1, 0.0)


def test_keys_are_bounded_and_the_longest_unused_is_forgotten():
    limits = Limits([Window(1, 1000)], max_keys=3)
    for key in ("a", "b", "c"):
        assert limits.try_take(key, 1, 0.0)
    assert not limits.try_take("a", 1, 1.0)
    assert limits.try_take("d", 1, 1.0)
    assert len(limits) == 3
    assert not limits.try_take("a", 1, 1.0), "it was used last, so b was forgotten"
    assert limits.try_take("b", 1, 1.0)


def test_nothing_is_kept_when_there_are_no_limits():
    limits = Limits(())
    assert all(limits.try_take(key, 1_000_000, 0.0) for key in range(1_000))
    assert len(limits) == 0
