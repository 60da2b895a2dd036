"""What a client may publish to and subscribe to. The rules are compiled once per client, when it connects.

    Rules ──▶ line, line, ...   each a Rule with its pattern ready: TopicFilter, Matching, or NOTHING / EVERYTHING
                 │
                 └─ lines without placeholders are shared by all clients; so is the whole list, when no rule has one

The first rule that applies decides; when none does, the answer is no. For a topic a rule applies when its pattern
matches. A topic filter stands for many topics, so there
  - an ALLOW rule applies when its pattern covers the filter: it matches every topic that the filter matches,
  - a DENY rule applies when they overlap: there is a topic that both match.
Then whoever may subscribe to a filter may subscribe to each topic it matches: the deciding ALLOW matches the topic, and
no DENY before it does. Where the question cannot be answered, ALLOW does not apply and DENY does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tbmq._trie import check_topic_filter
from tbmq.auth.expressions import expression
from tbmq.auth.model import Action, Effect, PatternKind, Rule
from tbmq.auth.patterns import EVERYTHING, NOTHING, Asked, Matching, Pattern, TopicFilter, asked_for

PLACEHOLDERS = ("clientid", "username", "cn")
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
UNUSABLE = re.compile(r"[+#/\x00]")  # in the value of a placeholder, which is part of one level
PREFIXES = ("$share/", "$queue/", "$exclusive/", "$delayed/")
MAX_LEVELS = 65_535  # a topic filter has no room for more

Values = Mapping[str, str | None]  # of the placeholders, by name


class Line:
    """A rule with its pattern ready for one client, or for all."""

    __slots__ = ("rule", "is_allow", "on_publish", "on_subscribe", "pattern", "note")

    def __init__(self, rule: Rule, pattern: Pattern, note: str = "") -> None:
        self.rule = rule
        self.is_allow = rule.effect is Effect.ALLOW
        self.on_publish = rule.action is not Action.SUBSCRIBE
        self.on_subscribe = rule.action is not Action.PUBLISH
        self.pattern = pattern
        self.note = note  # for the operator: why the pattern is unusable

    def applies_to_filter(self, asked: Asked) -> bool:
        return self.pattern.covers(asked) if self.is_allow else self.pattern.overlaps(asked)

    def __str__(self) -> str:
        rule = self.rule
        notes = [self.note] if self.note else []
        if _has_placeholder(rule) and isinstance(self.pattern, TopicFilter):
            notes.insert(0, f"here {self.pattern.text}")
        text = f"{rule.effect} {rule.action} {rule.kind} {rule.pattern}"
        return f"{text} ({'; '.join(notes)})" if notes else text


class Verdict(NamedTuple):
    allowed: bool
    rule: int | None  # which one decided, counted from 0; None if none did
    text: str  # for the operator


class Rules:
    """The rules of one client. Prefixes such as `$share/<group>/` are taken off before anything is asked here.

    The questions run on the worker's loop: they do not await and do not log. Topics and filters are valid ones.
    """

    __slots__ = ("_lines", "allows_everything_to_publish")

    def __init__(
        self, rules: Sequence[Rule], client_id: str, username: str | None = None, common_name: str | None = None
    ) -> None:
        shared = _shared(tuple(rules))
        self.allows_everything_to_publish = shared.allows_everything_to_publish
        self._lines = shared.lines
        if shared.with_placeholder:
            values = {"clientid": client_id, "username": username, "cn": common_name}
            lines = list(shared.lines)
            for index in shared.with_placeholder:
                lines[index] = _own_line(rules[index], values)
            self._lines = tuple(lines)

    def may_publish(self, topic: str) -> bool:
        if self.allows_everything_to_publish:
            return True
        deciding = self._for_publish(topic)
        return deciding is not None and self._lines[deciding].is_allow

    def may_subscribe(self, topic_filter: str) -> bool:
        deciding = self._for_subscribe(topic_filter)
        return deciding is not None and self._lines[deciding].is_allow

    def explain(self, action: Action, topic_or_filter: str) -> Verdict:
        """Which rule decides and why, for people. The action is PUBLISH or SUBSCRIBE."""
        is_publish = action is Action.PUBLISH
        deciding = self._for_publish(topic_or_filter) if is_publish else self._for_subscribe(topic_or_filter)
        if deciding is not None:
            line = self._lines[deciding]
            return Verdict(line.is_allow, deciding, f"rule {deciding + 1} decides: {line}")
        text = "no rule applies, so it is denied" if self._lines else "there are no rules, so everything is denied"
        if not is_publish:
            asked = asked_for(topic_or_filter)
            text += "".join(_near_miss(number, line, asked) for number, line in enumerate(self._lines, 1))
        return Verdict(False, None, text)

    def _for_publish(self, topic: str) -> int | None:
        encoded = topic.encode()
        for index, line in enumerate(self._lines):
            if line.on_publish and line.pattern.matches(encoded):
                return index
        return None

    def _for_subscribe(self, topic_filter: str) -> int | None:
        asked = asked_for(topic_filter)
        for index, line in enumerate(self._lines):
            if line.on_subscribe and line.applies_to_filter(asked):
                return index
        return None


def check_rule(rule: Rule) -> None:
    """Raises ValueError, with a reason for the operator, when a rule could never do what it seems to say."""
    reason = _fault(rule)
    if reason:
        raise ValueError(f"the {'topic filter' if rule.kind is PatternKind.FILTER else 'pattern'} {reason}")


def _fault(rule: Rule) -> str:
    """Why the pattern is unusable, whoever the client is; empty if it is fine."""
    if rule.kind is PatternKind.REGEX:
        if PLACEHOLDER.search(rule.pattern):
            return "holds a placeholder; those work in topic filters only"
        try:
            expression(rule.pattern)
        except ValueError as error:
            return str(error)
        return ""
    unknown = [name for name in PLACEHOLDER.findall(rule.pattern) if name not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"${{{name}}}" for name in PLACEHOLDERS)
        return f"holds the unknown placeholder ${{{unknown[0]}}}; there are {known}"
    if rule.pattern.startswith(PREFIXES):
        return f"starts with {rule.pattern.partition('/')[0]}/; leave it out, rules judge the topic behind it"
    if check_topic_filter(PLACEHOLDER.sub("x", rule.pattern), MAX_LEVELS):
        return "is not valid: + and # stand alone in their level, # is last, and it is neither empty nor too long"
    return ""


# --- compiling


def _has_placeholder(rule: Rule) -> bool:
    return rule.kind is PatternKind.FILTER and "${" in rule.pattern


class Shared(NamedTuple):
    """What is the same for all clients with equal rules."""

    lines: tuple[Line, ...]  # those with a placeholder are to be replaced
    with_placeholder: tuple[int, ...]  # their places
    allows_everything_to_publish: bool


@lru_cache(maxsize=1_024)
def _shared(rules: tuple[Rule, ...]) -> Shared:
    lines = tuple(Line(rule, NOTHING) if _has_placeholder(rule) else _shared_line(rule) for rule in rules)
    with_placeholder = tuple(index for index, rule in enumerate(rules) if _has_placeholder(rule))
    return Shared(lines, with_placeholder, _allow_everything_to_publish(lines))


def _allow_everything_to_publish(lines: Sequence[Line]) -> bool:
    """No value of a placeholder makes a difference: a topic filter never matches every topic."""
    for line in lines:
        if line.on_publish and not line.is_allow:
            return False
        if line.on_publish and line.pattern.has_all_topics:
            return True
    return False


@lru_cache(maxsize=4_096)
def _shared_line(rule: Rule) -> Line:
    fault = _fault(rule)
    if fault:
        return _unusable_line(rule, fault)
    return Line(rule, TopicFilter(rule.pattern) if rule.kind is PatternKind.FILTER else Matching(rule.pattern))


def _unusable_line(rule: Rule, fault: str) -> Line:
    """`check_rule` refuses such rules when they are entered; one that came another way opens nothing."""
    if rule.effect is Effect.ALLOW:
        return Line(rule, NOTHING, f"applies to nothing: it {fault}")
    return Line(rule, EVERYTHING, f"applies to everything: it {fault}")


def _own_line(rule: Rule, values: Values) -> Line:
    """Put the client's values in, as literal text.

    A value is part of one level. One that is missing or empty, or holds `+`, `#`, `/` or U+0000, would make another
    pattern of it: then ALLOW applies to nothing, and DENY to all that any value could stand for, as if `+` were there.
    """
    fault = _fault(rule)
    if fault:
        return _unusable_line(rule, fault)
    levels = rule.pattern.split("/")
    problems = []
    for position, level in enumerate(levels):
        names = PLACEHOLDER.findall(level)
        found = [name for name in names if not values.get(name) or UNUSABLE.search(values[name] or "")]
        levels[position] = "+" if found else PLACEHOLDER.sub(lambda name: values[name[1]] or "", level)
        problems += found
    # `${username}/#` would otherwise give `$SYS/#` to whoever calls itself `$SYS`.
    if rule.effect is Effect.ALLOW and levels[0].startswith("$") and PLACEHOLDER.match(rule.pattern):
        problems.append(PLACEHOLDER.findall(rule.pattern)[0])
    topic_filter = "/".join(levels)
    if check_topic_filter(topic_filter, MAX_LEVELS):
        return _unusable_line(rule, "is too long with the client's values")
    if not problems:
        return Line(rule, TopicFilter(topic_filter))
    unusable = f"the client's ${{{problems[0]}}} is missing or not plain text for one level"
    if rule.effect is Effect.ALLOW:
        return Line(rule, NOTHING, f"applies to nothing: {unusable}")
    return Line(rule, TopicFilter(topic_filter), unusable)


# --- explaining


def _near_miss(number: int, line: Line, asked: Asked) -> str:
    """Why an ALLOW rule that fits in part does not apply to a filter with wildcards."""
    if not (line.is_allow and line.on_subscribe and asked.has_wildcard and line.pattern.overlaps(asked)):
        return ""
    reason = "it does not cover every topic of the filter"
    if isinstance(line.pattern, Matching):
        if not line.pattern.matches(asked.encoded):
            reason = "it does not match the text of the filter"
        elif topic := line.pattern.missing_topic(asked.text):
            reason = f"the filter matches {topic}, the rule does not"
        elif line.pattern.unclear:
            reason = f"with wildcards it cannot be used, since the expression {line.pattern.unclear}"
    return f"; rule {number} does not apply: {reason}"
