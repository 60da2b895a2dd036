"""What a SUBSCRIBE line means, and which filters are valid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbmq._trie import check_topic_filter
from tbmq.protocol import ReasonCode
from tbmq.topic_filters import ParsedFilter, TopicFilterError, parse_topic_filter
from tests.reference.matcher import is_valid_filter
from tests.vectors.topics import FILTERS, LINES, FilterCase, LineCase


@pytest.mark.parametrize("case", LINES, ids=lambda case: case.name)
def test_line_is_taken_apart(case: LineCase):
    if case.topic_filter is None:
        with pytest.raises(TopicFilterError) as caught:
            parse_topic_filter(case.line)
        assert caught.value.reason_code == ReasonCode.TOPIC_FILTER_INVALID
    else:
        assert parse_topic_filter(case.line) == ParsedFilter(case.group, case.topic_filter)


def test_groups_that_are_named_like_the_queue_are_not_the_queue():
    lines = ["$queue/t", "$share/queue/t", "$share/$queue/t", "$share/$$queue/t", "$share/$$$queue/t", "$share/$/t"]
    assert len({parse_topic_filter(line) for line in lines}) == len(lines)
    assert {parse_topic_filter(line).topic_filter for line in lines} == {"t"}


def test_number_of_levels_counts_without_the_prefix():
    assert parse_topic_filter("$share/g/a/b", max_topic_levels=2).topic_filter == "a/b"
    with pytest.raises(TopicFilterError):
        parse_topic_filter("$share/g/a/b/c", max_topic_levels=2)


@given(st.text("$sharequ/g+#\0\ud800", max_size=24) | st.text("/+#a", max_size=8).map(lambda end: "$share/" + end))
def test_any_line_gives_a_valid_filter_or_the_error(line: str):
    try:
        group, topic_filter = parse_topic_filter(line)
    except TopicFilterError:
        return
    assert is_valid_filter(topic_filter, 128)
    if group is None:
        assert line == topic_filter
    elif group == "$queue":
        assert line == f"$queue/{topic_filter}"
    else:
        name = group[1:] if group.startswith("$") and group.lstrip("$") == "queue" else group
        assert line == f"$share/{name}/{topic_filter}"
        assert not set(name) & set("+#/\0\ud800")


@pytest.mark.parametrize("case", FILTERS, ids=lambda case: case.name)
def test_filter_is_judged(case: FilterCase):
    assert check_topic_filter(case.topic_filter) == case.answer
    if isinstance(case.topic_filter, str):
        assert is_valid_filter(case.topic_filter, 128) == (case.answer == 0)
        if "surrogate" not in case.name:
            assert check_topic_filter(case.topic_filter.encode()) == case.answer


def test_levels_are_limited_as_asked():
    assert check_topic_filter("a/b/c", 3) == 0
    assert check_topic_filter("a/b/c", 2) == 0x8F
    assert check_topic_filter("/" * 65_534, 65_535) == 0
    assert check_topic_filter("+/" * 10_000, 10_001) == 0


@given(st.text("a/+#é\0\ud800", max_size=12))
def test_judgement_is_that_of_the_reference(topic_filter: str):
    assert (check_topic_filter(topic_filter, 4) == 0) == is_valid_filter(topic_filter, 4)


def test_neither_text_nor_bytes_is_a_type_error():
    with pytest.raises(TypeError):
        check_topic_filter(7)  # type: ignore[arg-type]
