"""The patterns of rules: does one match a topic, cover a topic filter, overlap it?

    covers(filter)    every topic that the filter matches is matched here; what cannot be decided is not covered
    overlaps(filter)  some topic is matched by both; what cannot be decided overlaps

Both are exact for topic filters, and for regular expressions as far as `languages.py` understands them. A topic by
itself is a filter that matches one topic, so for it both are plain matching.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

from tbmq._trie import topic_matches
from tbmq.auth.expressions import expression
from tbmq.auth.languages import Language
from tbmq.auth.regex_tree import Unclear


class Asked(NamedTuple):
    """The topic or topic filter in question, in the forms that the patterns need."""

    text: str
    encoded: bytes
    levels: list[str]  # by `levels_of`
    has_wildcard: bool


def asked_for(topic_filter: str) -> Asked:
    levels = levels_of(topic_filter)
    return Asked(topic_filter, topic_filter.encode(), levels, levels[-1] == "#" or "+" in levels)


def levels_of(topic_filter: str) -> list[str]:
    """Two filters that match the same topics have the same levels, and then comparing level by level is exact."""
    if topic_filter == "+/#":
        return ["#"]
    if topic_filter == "/#":
        return ["", "+", "#"]  # above it there is only the empty text, which is no topic
    return topic_filter.split("/")


class Pattern(Protocol):
    @property
    def has_all_topics(self) -> bool:
        """True only if every topic matches, also those that start with `$`."""

    def matches(self, topic: bytes) -> bool: ...
    def covers(self, asked: Asked) -> bool: ...
    def overlaps(self, asked: Asked) -> bool: ...


class TopicFilter:
    """MQTT's own matching. Cover and overlap compare level by level: linear, whatever the wildcards."""

    __slots__ = ("_encoded",)  # and nothing else: with placeholders each of 100,000 clients has its own
    has_all_topics = False  # even `#` matches no topic that starts with `$`

    def __init__(self, text: str) -> None:
        self._encoded = text.encode()

    @property
    def text(self) -> str:
        return self._encoded.decode()

    def matches(self, topic: bytes) -> bool:
        return topic_matches(self._encoded, topic)

    def covers(self, asked: Asked) -> bool:
        if not asked.has_wildcard:
            return self.matches(asked.encoded)
        own, theirs = levels_of(self.text), asked.levels
        if own[0] in ("+", "#") and theirs[0].startswith("$"):
            return False
        for position, level in enumerate(own):
            if level == "#":
                return True
            if position == len(theirs) or theirs[position] == "#" or level not in ("+", theirs[position]):
                return False
        return len(own) == len(theirs)

    def overlaps(self, asked: Asked) -> bool:
        if not asked.has_wildcard:
            return self.matches(asked.encoded)
        own, theirs = levels_of(self.text), asked.levels
        wildcard_meets_dollar = (own[0] in ("+", "#") and theirs[0].startswith("$")) or (
            theirs[0] in ("+", "#") and own[0].startswith("$")
        )
        if wildcard_meets_dollar:
            return False
        for ours, other in zip(own, theirs, strict=False):
            if "#" in (ours, other):
                return True
            if ours != other and "+" not in (ours, other):
                return False
        shared = min(len(own), len(theirs))
        return own[shared:] in ([], ["#"]) and theirs[shared:] in ([], ["#"])


class Matching:
    """A regular expression. A filter with wildcards is compared as text too, so `[^+#]*` allows no wildcards."""

    __slots__ = ("_expression", "_language", "unclear")

    def __init__(self, pattern: str) -> None:
        """Raises ValueError when the pattern is not a regular expression."""
        self._expression = expression(pattern)
        self._language: Language | None = None  # built when a wildcard is first compared with it
        self.unclear = ""  # why it cannot be compared with filters at all

    @property
    def has_all_topics(self) -> bool:
        if not all(self.matches(sample) for sample in (b"a", b"$a/b", b"/")):  # most are done with here
            return False
        language = self._compiled()
        return language is not None and language.has_all_topics

    def matches(self, topic: bytes) -> bool:
        return self._expression.matches(topic)

    def covers(self, asked: Asked) -> bool:
        if asked.has_wildcard:
            return self.matches(asked.encoded) and self.missing_topic(asked.text) is None
        # `city/#` stands for `city` and all below, but who writes the expression `city/.*` for it does not think of the
        # first. So what allows everything below a topic allows to subscribe to the topic itself.
        return self.matches(asked.encoded) or self.missing_topic(f"{asked.text}/#") is None

    def overlaps(self, asked: Asked) -> bool:
        if self.matches(asked.encoded):
            return True
        if not asked.has_wildcard:
            return False
        language = self._compiled()
        try:
            if language is not None:
                return language.overlaps(asked.text)
        except Unclear:
            pass  # this one filter is too long for it
        return self._expression.may_match_after(literal_prefix(asked.levels).encode())

    def missing_topic(self, topic_filter: str) -> str | None:
        """A topic of the filter that the expression does not match, empty if nobody knows, None if there is none."""
        language = self._compiled()
        try:
            return "" if language is None else language.missing_topic(topic_filter)
        except Unclear:
            return ""

    def _compiled(self) -> Language | None:
        if self._language is None and not self.unclear:
            try:
                self._language = _language(self._expression.pattern)
            except Unclear as reason:
                self.unclear = str(reason)
        return self._language


class Fixed:
    """Stands in for a pattern that cannot be used: an ALLOW applies to nothing, a DENY to everything."""

    __slots__ = ("_answer",)
    has_all_topics = False

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def matches(self, topic: bytes) -> bool:
        return self._answer

    def covers(self, asked: Asked) -> bool:
        return self._answer

    def overlaps(self, asked: Asked) -> bool:
        return self._answer


NOTHING, EVERYTHING = Fixed(False), Fixed(True)


def literal_prefix(levels: list[str]) -> str:
    """What every topic of a filter with wildcards begins with. `a/#` matches `a`, so its prefix has no slash."""
    first = next(position for position, level in enumerate(levels) if level in ("+", "#"))
    slash = "/" if first and levels[first] == "+" else ""
    return "/".join(levels[:first]) + slash


@lru_cache(maxsize=256)
def _language(pattern: str) -> Language:
    return Language(pattern)
