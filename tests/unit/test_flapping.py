"""Flapping: counted exactly, bounded, off by default."""

from hypothesis import given
from hypothesis import strategies as st

from tbmq.auth.flapping import Flapping


def test_nobody_is_blocked_by_default():
    flapping = Flapping()
    assert not any(flapping.note_disconnect("c", 0.0) for _ in range(1_000))
    assert flapping.blocked_until("c", 0.0) is None
    assert flapping.statistics() == {"watched": 0, "blocked": 0, "total_blocked": 0}


def test_client_is_blocked_for_a_while_when_it_disconnects_too_often():
    flapping = Flapping(max_disconnects=3, window_s=10, block_s=100)
    assert [flapping.note_disconnect("c", now) for now in (0.0, 5.0, 9.9)] == [False, False, True]
    assert flapping.blocked_until("c", 9.9) == 109.9
    assert flapping.blocked_until("c", 109.8) == 109.9
    assert flapping.blocked_until("c", 109.9) is None
    assert flapping.blocked_until("other", 9.9) is None


def test_client_starts_anew_after_it_was_blocked():
    flapping = Flapping(max_disconnects=2, window_s=10, block_s=1)
    assert [flapping.note_disconnect("c", now) for now in (0.0, 0.1, 2.0, 2.1)] == [False, True, False, True]


def test_disconnects_outside_the_window_do_not_count():
    flapping = Flapping(max_disconnects=3, window_s=10, block_s=100)
    assert not any(flapping.note_disconnect("c", now) for now in (0.0, 5.0, 10.0, 15.0, 20.0))


def test_operator_forgives():
    flapping = Flapping(max_disconnects=1)
    assert flapping.note_disconnect("c", 0.0)
    assert flapping.forgive("c")
    assert flapping.blocked_until("c", 0.0) is None
    assert not flapping.forgive("c")


def test_tables_are_bounded_and_forget_the_oldest():
    flapping = Flapping(max_disconnects=2, window_s=10, block_s=10, max_clients=3)
    for number in range(10):
        assert not flapping.note_disconnect(f"c{number}", 0.0)
    assert flapping.statistics()["watched"] == 3
    assert not flapping.note_disconnect("c0", 0.1), "it was forgotten"
    assert flapping.note_disconnect("c9", 0.2)
    for number in range(10):
        flapping.note_disconnect(f"d{number}", 0.3)
        assert flapping.note_disconnect(f"d{number}", 0.3)
    assert flapping.statistics() == {"watched": 2, "blocked": 3, "total_blocked": 11}
    assert flapping.blocked_until("d9", 0.3) == 10.3


def test_tables_are_emptied_when_time_passes():
    flapping = Flapping(max_disconnects=2, window_s=10, block_s=20)
    for client in ("a", "b", "b", "c"):
        flapping.note_disconnect(client, 0.0)
    flapping.note_disconnect("d", 15.0)
    assert flapping.statistics() == {"watched": 1, "blocked": 1, "total_blocked": 1}
    flapping.note_disconnect("d", 30.0)
    assert flapping.statistics() == {"watched": 1, "blocked": 0, "total_blocked": 1}


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=40))
def test_counting_is_exact(max_disconnects, events):
    """Against all times of all disconnects since the client was last blocked."""
    flapping = Flapping(max_disconnects, window_s=6, block_s=3)
    history: dict[str, list[int]] = {"a": [], "b": []}
    now = 0
    for client, pause in events:
        now += pause
        history[client].append(now)
        is_expected = sum(time > now - 6 for time in history[client]) >= max_disconnects
        assert flapping.note_disconnect(client, now) == is_expected
        if is_expected:
            history[client].clear()
        assert (flapping.blocked_until(client, now) is not None) or not is_expected
