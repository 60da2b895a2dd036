"""The oracle of the tries: split at `/`, compare level by level, keep everything in dictionaries. Slow and obvious."""

from __future__ import annotations

from typing import NamedTuple


def is_valid_filter(topic_filter: str, max_topic_levels: int | None = None) -> bool:
    levels = topic_filter.split("/")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            return False
        if "+" in level and level != "+":
            return False
    try:
        size = len(topic_filter.encode())
    except UnicodeEncodeError:  # surrogates
        return False
    too_deep = max_topic_levels is not None and len(levels) > max_topic_levels
    return 0 < size <= 65_535 and "\0" not in topic_filter and not too_deep


def matches(topic_filter: str, topic: str) -> bool:
    wanted, given = topic_filter.split("/"), topic.split("/")
    if given[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(given) < len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in ("+", g) for w, g in zip(wanted, given, strict=True))


class Options(NamedTuple):
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


class Target(NamedTuple):
    qos: int
    no_local: bool
    retain_as_published: bool
    identifiers: list[int]  # sorted


class ReferenceSubscriptions:
    """What SubscriptionTrie promises, by looking at every subscription."""

    def __init__(self) -> None:
        self.plain: dict[tuple[str, int], Options] = {}
        self.shared: dict[tuple[str, str, int], Options] = {}

    def match(self, topic: str) -> dict[int, Target]:
        found: dict[int, list[Options]] = {}
        for (topic_filter, subscriber), options in self.plain.items():
            if matches(topic_filter, topic):
                found.setdefault(subscriber, []).append(options)
        return {
            subscriber: Target(
                max(o.qos for o in options),
                all(o.no_local for o in options),
                any(o.retain_as_published for o in options),
                sorted(o.identifier for o in options if o.identifier),
            )
            for subscriber, options in found.items()
        }

    def match_shared(self, topic: str) -> list[tuple[str, list[tuple[int, Options]]]]:
        """One entry per (group, filter), sorted: two filters of one group that both match are two groups."""
        found: dict[tuple[str, str], list[tuple[int, Options]]] = {}
        for (group, topic_filter, subscriber), options in self.shared.items():
            if matches(topic_filter, topic):
                found.setdefault((group, topic_filter), []).append((subscriber, options))
        return sorted((group, sorted(members)) for (group, _), members in found.items())


class ReferenceTopics:
    """What TopicTrie promises."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def match(self, topic_filter: str) -> dict[str, int]:
        return {topic: value for topic, value in self.values.items() if matches(topic_filter, topic)}
