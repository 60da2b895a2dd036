"""Rules against the reference: cover, overlap, regular expressions as automata, and that subscribing is sound."""

import itertools
import re

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tbmq.auth.expressions import Expression
from tbmq.auth.languages import Language
from tbmq.auth.model import Action, Effect, PatternKind, Rule
from tbmq.auth.patterns import Matching, TopicFilter, asked_for
from tbmq.auth.regex_tree import Unclear
from tbmq.auth.rules import Rules
from tests.reference import rules as reference
from tests.reference.matcher import matches

LEVELS = ["a", "b", "", "$", "+"]


def filters(max_levels: int) -> st.SearchStrategy[str]:
    plain = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=max_levels).map("/".join)
    whole = st.lists(st.sampled_from(LEVELS), max_size=max_levels - 1).map(lambda levels: "/".join([*levels, "#"]))
    return st.one_of(plain, whole).filter(bool)


PAIRS = ["/".join(levels) for size in (1, 2) for levels in itertools.product(["a", "$", "", "+"], repeat=size)]
SHORT_FILTERS = [*filter(None, PAIRS), "#", *(f"{pair}/#" for pair in PAIRS)]

ATOMS = [*"ab/$+#", ".", "[^/]", "[ab]", "[^a/]", "[a-b$]", r"\+", r"\$", r"\w", r"[\W]", "^", "$", "()"]


def spelled(letter: str) -> str:
    return letter if letter not in "$+#" or letter == "#" else "\\" + letter


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """Expressions that Python and RE2 read alike."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([atom if len(atom) > 1 or atom in ".^" else spelled(atom) for atom in ATOMS]))
    parts = [draw(expressions(depth=depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    form = draw(st.sampled_from(["{}", "({})*", "(?:{})+", "({})?", "({}){{0,2}}", "({})*?", "|"]))
    return f"(?:{'|'.join(parts)})" if form == "|" else form.format("".join(parts))


ORDINARY = st.sampled_from(
    [
        ".*",
        "a.*",
        "a/.*",
        "a/[^/]*",
        "[^/]*/b",
        "[^/]+/.*",
        "[^+#]*",
        ".*b.*",
        "a|b",
        "[^a].*",
        "a/b",
        ".+",
        "$.*",
        "^a$",
    ]
)
REGEXES = st.one_of(expressions(), ORDINARY.map(lambda text: text.replace("$.*", r"\$.*")))


def language_of(pattern: str) -> Language:
    try:
        return Language(pattern)
    except Unclear as reason:  # one random expression in thousands
        assert "too complex" in str(reason)
        reject()


@given(filters(3), filters(3))
def test_filters_are_compared_exactly(wide, narrow):
    asked = asked_for(narrow)
    assert TopicFilter(wide).covers(asked) == reference.covers(wide, narrow)
    assert TopicFilter(wide).overlaps(asked) == reference.overlap(wide, narrow)


def test_all_short_filters_are_compared_exactly():
    for wide, narrow in itertools.product(SHORT_FILTERS, repeat=2):
        assert TopicFilter(wide).covers(asked_for(narrow)) == reference.covers(wide, narrow), (wide, narrow)
        assert TopicFilter(wide).overlaps(asked_for(narrow)) == reference.overlap(wide, narrow), (wide, narrow)


@given(REGEXES, st.lists(st.text("ab/$ \n\u017f", min_size=1, max_size=8), min_size=1, max_size=20))
def test_automaton_matches_what_re2_matches(pattern, topics):
    expression, language = Expression(pattern), language_of(pattern)
    for topic in topics:
        assert language.overlaps(topic) == expression.matches(topic.encode()), topic
        assert (language.missing_topic(topic) is None) == expression.matches(topic.encode()), topic


@pytest.mark.parametrize(
    "pattern",
    ["(?i)ks", "(?is)[a-k]+", "(?i)[^ks]*", r"(?i)\w+", r"(?i)\W+", r"(?i)[\W]", "(?i)[Z-a]", "(?i).", r"(?i)\x4b"]
    + [r"\d+", r"\D", r"\s", r"\S\S", r"[\d-]", r"[]a]", r"[^]a]", r"[a\]]", r"\x{4b}", r"\x4B{2}", r"\n|\t", r"\Aa\z"]
    + [
        "[+--]",
        "a{2}",
        "a{2,}",
        "a{0}",
        "(?P<name>k)s",
        "(?<name>k)?",
        "a|",
        "|",
        "(k|s)*?S",
        "[a-c-e]",
        "]",
        "a{1,3}?",
    ],
)
def test_automaton_reads_the_syntax_as_re2_does(pattern):
    expression, language = Expression(pattern), Language(pattern)
    letters = "aAkKsSzZ09-_]é.é\u212a\u017f \n\t^"
    for text in map("".join, itertools.chain(letters, itertools.product(letters, repeat=2), ["aaa", "aaaa", "ksS"])):
        assert language.overlaps(text) == expression.matches(text.encode()), text


@pytest.mark.parametrize(
    "pattern",
    [r"\bx", r"\pL", "[[:alpha:]]", r"\Qa\E", "(?m)^a$", "a(?i)b", "(?i)é", "(?i)[é]", "(?i:a)", r"\07", "a{,2}"],
)
def test_automaton_says_that_it_does_not_know(pattern):
    Expression(pattern)
    with pytest.raises(Unclear):
        Language(pattern)


@given(REGEXES, filters(3))
def test_expression_is_compared_exactly_with_a_filter(pattern, topic_filter):
    language = language_of(pattern)
    inside = [topic for topic in reference.topics_of(topic_filter) if re.fullmatch(pattern, topic, re.DOTALL)]
    if inside:
        assert language.overlaps(topic_filter)
    missing = language.missing_topic(topic_filter)
    if missing is None:
        parent = topic_filter.removesuffix("/#")
        below = [topic for topic in reference.topics_of(topic_filter) if not matches(parent, topic)]
        assert all(re.fullmatch(pattern, topic, re.DOTALL) for topic in (below if parent != topic_filter else inside))
        assert parent != topic_filter or len(inside) == len(reference.topics_of(topic_filter))
    else:
        assert matches(topic_filter, missing)
        assert not Expression(pattern).matches(missing.encode())


@given(REGEXES)
def test_expression_that_has_all_topics_matches_all_of_them(pattern):
    if Matching(pattern).has_all_topics:
        assert all(re.fullmatch(pattern, topic, re.DOTALL) for topic in reference.TOPICS)


RULES = st.lists(
    st.one_of(
        st.builds(Rule, st.sampled_from(Effect), st.sampled_from(Action), st.just(PatternKind.FILTER), filters(3)),
        st.builds(Rule, st.sampled_from(Effect), st.sampled_from(Action), st.just(PatternKind.REGEX), REGEXES),
    ),
    max_size=4,
)


@given(RULES)
def test_each_topic_of_an_allowed_filter_is_allowed(rules):
    judge = Rules(rules, "c")
    allowed = [topic for topic in reference.TOPICS if reference.is_allowed(rules, Action.SUBSCRIBE, topic)]
    for topic_filter in filter(judge.may_subscribe, SHORT_FILTERS):
        assert set(reference.topics_of(topic_filter)) <= set(allowed), topic_filter


@given(RULES, st.sampled_from(reference.TOPICS))
def test_topics_are_judged_as_the_reference_does(rules, topic):
    judge = Rules(rules, "c")
    assert judge.may_publish(topic) == reference.is_allowed(rules, Action.PUBLISH, topic)
    assert judge.may_subscribe(topic) == reference.is_allowed(rules, Action.SUBSCRIBE, topic)
    if judge.allows_everything_to_publish:
        assert reference.is_allowed(rules, Action.PUBLISH, topic)
    for action in (Action.PUBLISH, Action.SUBSCRIBE):
        asked = judge.may_publish(topic) if action is Action.PUBLISH else judge.may_subscribe(topic)
        assert judge.explain(action, topic).allowed == asked
