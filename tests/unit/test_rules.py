"""Rules by example: order, wildcards, placeholders, expressions, what is refused, what it costs."""

import time

import pytest

from tbmq.auth.expressions import MAX_PATTERN_CHARACTERS, Expression
from tbmq.auth.languages import Language
from tbmq.auth.model import ALLOW_ALL, Action, Effect, PatternKind, Rule
from tbmq.auth.patterns import TopicFilter, asked_for
from tbmq.auth.regex_tree import Unclear
from tbmq.auth.rules import Rules, check_rule


def rule(text: str) -> Rule:
    """`allow publish filter a/#`"""
    effect, action, kind, pattern = text.split(" ", 3)
    return Rule(Effect(effect), Action(action), PatternKind(kind), pattern)


def judge(*texts: str, client_id="c", username=None, common_name=None) -> Rules:
    return Rules([rule(text) for text in texts], client_id, username, common_name)


# --- order


def test_everything_is_denied_when_there_are_no_rules():
    rules = judge()
    assert not rules.may_publish("a")
    assert not rules.may_subscribe("a")
    assert not rules.allows_everything_to_publish
    assert rules.explain(Action.PUBLISH, "a") == (False, None, "there are no rules, so everything is denied")


def test_first_rule_that_applies_decides():
    rules = judge("deny publish filter a/secret", "allow all filter a/#", "deny all filter a/b")
    assert not rules.may_publish("a/secret")
    assert rules.may_subscribe("a/secret")
    assert rules.may_publish("a/b")
    assert not rules.may_publish("b")


def test_rule_of_one_action_says_nothing_of_the_other():
    rules = judge("allow publish filter a", "allow subscribe filter b")
    assert (rules.may_publish("a"), rules.may_subscribe("a")) == (True, False)
    assert (rules.may_publish("b"), rules.may_subscribe("b")) == (False, True)


@pytest.mark.parametrize(
    ("texts", "is_everything"),
    [
        (["allow all regex .*"], True),
        (["allow publish regex ^.*$"], True),
        (["allow publish regex (?s).+"], True),
        (["allow publish filter a/#", "deny subscribe filter a", "allow publish regex .*"], True),
        (["allow all filter ${clientid}/#", "allow publish regex .*"], True),
        (["allow subscribe regex .*"], False),
        (["allow publish filter #"], False),
        (["allow publish regex [^$].*"], False),
        (["deny publish filter ${clientid}", "allow publish regex .*"], False),
        (["deny all filter a", "allow publish regex .*"], False),
        (["deny all regex .*"], False),
    ],
)
def test_hot_path_may_skip_only_when_everything_is_allowed(texts, is_everything):
    assert judge(*texts).allows_everything_to_publish == is_everything


# --- topic filters


@pytest.mark.parametrize(
    ("pattern", "asked", "is_allowed"),
    [
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/#", "a/+/b", True),
        ("a/#", "+/b", False),
        ("a/#", "#", False),
        ("a/+", "a/#", False),
        ("a/+", "a/+", True),
        ("a/+", "a/b", True),
        ("a/b", "a/+", False),
        ("+/b", "+/b", True),
        ("+/b", "#", False),
        ("#", "#", True),
        ("#", "$SYS/#", False),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/+/y", True),
        ("$SYS/#", "#", False),
        ("+/#", "#", True),
    ],
)
def test_allowed_filter_must_cover_what_is_asked_for(pattern, asked, is_allowed):
    assert judge(f"allow subscribe filter {pattern}").may_subscribe(asked) == is_allowed


@pytest.mark.parametrize(
    ("pattern", "asked", "is_denied"),
    [
        ("a/secret", "a/+", True),
        ("a/secret", "a/#", True),
        ("a/secret", "#", True),
        ("a/secret", "+/b", False),
        ("a/secret", "a/+/c", False),
        ("a/secret/#", "a/+", True),
        ("+/b", "a/#", True),
        ("+/b", "$x/#", False),
        ("$SYS/#", "#", False),
        ("$SYS/#", "$SYS/+", True),
    ],
)
def test_denied_filter_needs_only_to_overlap(pattern, asked, is_denied):
    assert judge(f"deny subscribe filter {pattern}", "allow all regex .*").may_subscribe(asked) == (not is_denied)


def test_comparing_is_fast_when_all_levels_are_wildcards():
    deep = "/".join("+" * 128)
    begin = time.process_time()
    for _ in range(100):
        assert TopicFilter(f"{deep}/#").covers(asked_for(deep))
        assert TopicFilter(deep).overlaps(asked_for(f"{deep}/#"))
        assert not TopicFilter(f"{deep}/x").covers(asked_for(f"{deep}/+"))
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("pattern", ["(.*/)*x(/.*)*", "[^/]*(/[^/]*)*z", ".*a.*/.*b.*/.*c.*"])
def test_expression_is_compared_in_bounded_time_when_all_levels_are_wildcards(pattern):
    rules = judge(f"deny subscribe regex {pattern}", f"allow subscribe regex {pattern}", "allow all regex .*")
    begin = time.process_time()
    for asked in ("/".join("+" * 128), "/".join("+" * 127) + "/#", "/".join(["a", "+"] * 64), "+/" + "x" * 60_000):
        rules.may_subscribe(asked)
    assert time.process_time() - begin < 2


# --- placeholders


def test_placeholders_stand_for_what_the_client_is():
    rules = judge(
        "allow all filter d/${clientid}/#",
        "allow all filter u-${username}/x",
        "allow all filter ${cn}/${clientid}",
        client_id="c1",
        username="u1",
        common_name="n1",
    )
    assert rules.may_publish("d/c1/t") and rules.may_publish("u-u1/x") and rules.may_publish("n1/c1")
    assert not rules.may_publish("d/c2/t")
    assert not rules.may_publish("d/${clientid}/t")
    assert rules.may_subscribe("d/c1/#")
    assert not rules.may_subscribe("d/+/t")


UNUSABLE = ["+", "#", "a+", "a#b", "a/b", "/", "", "a\0", None]


@pytest.mark.parametrize("value", UNUSABLE)
def test_allow_applies_to_nothing_when_a_value_is_unusable(value):
    rules = judge("allow all filter d/${username}/x", username=value)
    for topic in ("d/+/x", "d/#", "d/a/x", "d//x", "d/a/b/x", "d/a+/x", f"d/{value}/x"):
        assert not rules.may_publish(topic)
        assert not rules.may_subscribe(topic)
    assert "not plain text for one level" in str(rules._lines[0])


@pytest.mark.parametrize("value", UNUSABLE)
def test_deny_applies_to_all_that_a_value_could_be_when_it_is_unusable(value):
    rules = judge("deny all filter d/${username}/x", "allow all regex .*", username=value)
    assert not rules.may_publish("d/a/x")
    assert not rules.may_subscribe("d/+/x")
    assert not rules.may_subscribe("d/#")
    assert rules.may_publish("d/a/y")


def test_value_cannot_open_topics_that_start_with_a_dollar():
    assert not judge("allow all filter ${username}/#", username="$SYS").may_subscribe("$SYS/#")
    assert not judge("allow all filter ${username}-x/#", username="$SYS").may_subscribe("$SYS-x/#")
    assert judge("allow all filter d/${username}", username="$SYS").may_subscribe("d/$SYS")
    assert judge("allow all filter $SYS/${username}", username="u").may_subscribe("$SYS/u")
    assert not judge("deny all filter ${username}/#", "allow all regex .*", username="$SYS").may_subscribe("$SYS/x")


def test_value_that_looks_like_a_placeholder_is_text():
    rules = judge("allow all filter d/${username}", client_id="c", username="${clientid}")
    assert rules.may_publish("d/${clientid}")
    assert not rules.may_publish("d/c")


def test_value_that_makes_the_filter_too_long_is_unusable():
    assert not judge("allow all filter d/${username}/#", username="u" * 65_535).may_publish("d/x/y")


# --- regular expressions


@pytest.mark.parametrize(
    ("pattern", "asked", "is_allowed"),
    [
        (".*", "#", True),
        (".*", "$SYS/#", True),
        (".+", "+", True),
        ("city/.*", "city/#", True),
        ("city/.*", "city/+/x", True),
        ("city/.*", "city", True),  # it is part of city/#
        ("city/.*", "cit", False),
        ("city/.*", "+/x", False),
        ("city/.+", "city", False),
        ("city/.+", "city/#", False),  # city/ is not allowed
        ("city/[^/]*", "city/+", True),
        ("city/[^/]*", "city/#", False),
        ("city/[^/]+", "city/+", False),  # city/ is not allowed
        ("city/[^/]+", "city/x", True),
        (r"city/\+", "city/+", False),
        ("city/[^s].*", "city/+", False),
        ("city/(.{0,2}|.{4,})", "city/+", False),
        ("city/(a|[^a].*|a.+|)", "city/+", True),
        ("[^+#]*", "city/+", False),
        ("[^+#]*", "city/x", True),
        ("(?i)city/.*", "CITY/#", True),
        (r"city/\pL*", "city/+", False),  # cannot be compared: fails closed
        (r"city/\pL*", "city/abc", True),
    ],
)
def test_allowed_expression_must_cover_what_is_asked_for(pattern, asked, is_allowed):
    assert judge(f"allow subscribe regex {pattern}").may_subscribe(asked) == is_allowed


@pytest.mark.parametrize(
    ("pattern", "asked", "is_denied"),
    [
        ("a/secret", "a/+", True),
        ("a/secret", "b/+", False),
        ("a/s.*", "a/+/x", True),
        ("a/[0-9]+", "a/+/x", False),
        (r"\$SYS/.*", "#", False),
        (".*[+#].*", "a/+", True),
        (".*[+#].*", "a/b", False),
        (r"a/\pL+", "a/+", True),
        (r"a/\pL+", "b/+", False),  # cannot be compared, but all that it matches begins with a/
        (r"a/\bx", "#", True),
    ],
)
def test_denied_expression_needs_only_to_overlap(pattern, asked, is_denied):
    assert judge(f"deny subscribe regex {pattern}", "allow all regex .*").may_subscribe(asked) == (not is_denied)


def test_expression_must_match_the_whole_topic():
    rules = judge("allow publish regex a|b/c")
    assert [rules.may_publish(topic) for topic in ("a", "b/c", "a/c", "xa", "ab/c")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_line_break_does_not_slip_past_an_expression():
    rules = judge("deny all regex secret/.*", "allow all regex .*")
    assert not rules.may_publish("secret/a\nb")
    assert rules.may_publish("a\nb")


def test_publishing_to_a_parent_needs_a_rule_of_its_own():
    assert not judge("allow all regex city/.*").may_publish("city")


def test_time_is_linear_when_an_expression_is_meant_to_be_slow():
    rules = judge("allow publish regex (a*)*b", "allow publish regex (a|aa)+$")
    begin = time.process_time()
    assert not rules.may_publish("a" * 60_000 + "c")
    assert time.process_time() - begin < 1


def test_expression_too_complex_for_an_automaton_says_so():
    with pytest.raises(Unclear, match="too complex"):
        Language("(a|b)*a(a|b){15}")
    with pytest.raises(Unclear, match="too large"):
        Language("[ab]{1000}")
    with pytest.raises(Unclear, match="nested"):
        Language("(" * 200 + "a" + ")" * 200)
    assert not judge("allow all regex (a|b)*a(a|b){15}").may_subscribe("+")
    assert not judge("deny all regex (a|b)*a(a|b){15}", "allow all regex .*").may_subscribe("+")


# --- what is refused


@pytest.mark.parametrize(
    "text",
    [
        "allow all filter #",
        "allow publish filter a/${clientid}/+/#",
        "deny all filter $SYS/#",
        "allow all filter " + "/".join("+" * 200),
        "allow all regex a/.*",
        "allow all regex a$",
        "allow all regex a{2}",
    ],
)
def test_good_rule_is_taken(text):
    check_rule(rule(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("allow all filter a/#/b", "topic filter is not valid"),
        ("allow all filter a+", "topic filter is not valid"),
        ("allow all filter +${clientid}", "topic filter is not valid"),
        ("allow all filter ", "topic filter is not valid"),
        ("allow all filter a/${clientId}", r"unknown placeholder \$\{clientId\}; there are \$\{clientid\}"),
        ("allow all filter $share/g/a", r"starts with \$share/; leave it out"),
        ("allow all regex (", r"pattern is not a regular expression of RE2: missing \)"),
        ("allow all regex (?=a)", "RE2: invalid perl operator"),
        ("allow all regex a/${clientid}", "placeholder; those work in topic filters only"),
        ("allow all regex " + "a" * (MAX_PATTERN_CHARACTERS + 1), "1025 characters long"),
        ("allow all regex ((a{100}){100}){100}", "RE2: "),
        (r"allow all regex (\pL{300}){3}", "RE2: pattern too large"),
    ],
)
def test_bad_rule_is_refused_with_a_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        check_rule(rule(text))


@pytest.mark.parametrize("bad", ["filter a/#/b", "filter ${x}", "regex (", "regex ${clientid}", "filter $share/g/a"])
def test_bad_rule_that_came_another_way_fails_closed(bad):
    for asked in ("a/#/b", "a", "x/y"):
        assert not judge(f"allow all {bad}").may_publish(asked)
        assert not judge(f"allow all {bad}").may_subscribe(asked)
        assert not judge(f"deny all {bad}", "allow all regex .*").may_publish(asked)
        assert not judge(f"deny all {bad}", "allow all regex .*").may_subscribe(asked)
    assert not judge(f"deny all {bad}", "allow all regex .*").allows_everything_to_publish


# --- explaining

NONE = "no rule applies, so it is denied"


@pytest.mark.parametrize(
    ("texts", "action", "asked", "expected"),
    [
        (
            ["deny publish filter x", "allow all filter d/${clientid}/#"],
            "publish",
            "d/c/t",
            (True, 1, "rule 2 decides: allow all filter d/${clientid}/# (here d/c/#)"),
        ),
        (["deny all regex a.*"], "subscribe", "+", (False, 0, "rule 1 decides: deny all regex a.*")),
        (["allow all filter a"], "publish", "b", (False, None, NONE)),
        (
            ["allow all regex s/[^/]+/t"],
            "subscribe",
            "s/+/t",
            (False, None, f"{NONE}; rule 1 does not apply: the filter matches s//t, the rule does not"),
        ),
        (
            ["allow all filter a/b"],
            "subscribe",
            "a/+",
            (False, None, f"{NONE}; rule 1 does not apply: it does not cover every topic of the filter"),
        ),
        (
            ["allow all regex [^+]*"],
            "subscribe",
            "a/+",
            (False, None, f"{NONE}; rule 1 does not apply: it does not match the text of the filter"),
        ),
    ],
)
def test_verdict_names_the_rule_and_the_reason(texts, action, asked, expected):
    assert judge(*texts).explain(Action(action), asked) == expected


def test_verdict_says_why_an_expression_cannot_be_compared():
    text = judge(r"allow all regex a/\pL*.*").explain(Action.SUBSCRIBE, "a/+").text
    assert r"with wildcards it cannot be used, since the expression has \p" in text


# --- what it costs


def test_clients_with_equal_rules_share_them():
    texts = [*(f"allow all filter a{number}/#" for number in range(10)), "deny all regex x.*"]
    one, other = judge(*texts, client_id="1"), judge(*texts, client_id="2")
    assert one._lines is other._lines


def test_clients_share_all_but_the_rules_with_placeholders():
    texts = ["allow all filter a/#", "allow all filter ${clientid}", "deny all regex x.*"]
    one, other = judge(*texts, client_id="1"), judge(*texts, client_id="2")
    assert [line is same for line, same in zip(one._lines, other._lines, strict=True)] == [True, False, True]


def test_compiling_is_cheap_the_second_time():
    rules = [rule(f"allow all regex site{number}/[^/]*/.*") for number in range(20)]
    Rules(rules, "c")
    begin = time.process_time()
    for number in range(1_000):
        Rules(rules, f"c{number}")
    assert time.process_time() - begin < 1


def test_default_of_new_credentials_allows_everything():
    rules = Rules(ALLOW_ALL, "c")
    assert rules.allows_everything_to_publish
    assert rules.may_subscribe("#") and rules.may_subscribe("$SYS/#") and rules.may_publish("a\nb")


@pytest.mark.parametrize(
    ("pattern", "prefix", "may"),
    [("a/.*", b"a", True), ("a/.*", b"a/x/y", True), ("a/.*", b"b", False), ("b", b"a", False), (".*", b"z", True)],
)
def test_range_of_an_expression_excludes_only_what_cannot_match(pattern, prefix, may):
    assert Expression(pattern).may_match_after(prefix) == may
