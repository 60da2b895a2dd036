"""Authorisation by trying: rules judged topic by topic over all topics of a small alphabet. Slow and obvious.

Patterns are matched by `tests.reference.matcher` and by Python's own `re`, neither of which the product uses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache

from tbmq.auth.model import Action, Effect, PatternKind, Rule
from tests.reference.matcher import matches

ALPHABET = "ab/$"
LONGEST = 5
TOPICS = ["".join(letters) for size in range(1, LONGEST + 1) for letters in itertools.product(ALPHABET, repeat=size)]


@cache
def topics_of(topic_filter: str) -> list[str]:
    return [topic for topic in TOPICS if matches(topic_filter, topic)]


def covers(wide: str, narrow: str) -> bool:
    """Does one topic filter match all that the other does? Right for filters over the alphabet of up to two levels."""
    return all(matches(wide, topic) for topic in topics_of(narrow))


def overlap(one: str, other: str) -> bool:
    return any(matches(one, topic) for topic in topics_of(other))


def matches_rule(rule: Rule, action: Action, topic: str) -> bool:
    if rule.action not in (action, Action.ALL):
        return False
    if rule.kind is PatternKind.FILTER:
        return matches(rule.pattern, topic)
    if re.fullmatch(rule.pattern, topic, re.DOTALL):
        return True
    # What allows everything below a topic allows to subscribe to the topic itself.
    is_subscribe = rule.effect is Effect.ALLOW and action is Action.SUBSCRIBE
    return is_subscribe and all(re.fullmatch(rule.pattern, f"{topic}/{below}", re.DOTALL) for below in ["", *TOPICS])


def is_allowed(rules: Sequence[Rule], action: Action, topic: str) -> bool:
    """The first rule that matches decides."""
    effects = (rule.effect for rule in rules if matches_rule(rule, action, topic))
    return next(effects, Effect.DENY) is Effect.ALLOW
