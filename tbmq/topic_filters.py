"""What a subscriber may write in a SUBSCRIBE line, taken apart: `$share/<group>/<filter>` and `$queue/<filter>`.

Taking the prefix off comes first, so that authorisation and matching always see the real topic filter.
"""

from __future__ import annotations

from typing import NamedTuple

from tbmq._trie import check_topic_filter
from tbmq.protocol import ReasonCode

SHARE = "$share/"
QUEUE = "$queue/"
EXCLUSIVE = "$exclusive/"
QUEUE_GROUP = "$queue"
PREFIXES = (SHARE, QUEUE, EXCLUSIVE)


class TopicFilterError(ValueError):
    """The line is refused with this reason code; the other lines of the packet are not concerned."""

    reason_code = ReasonCode.TOPIC_FILTER_INVALID


class ParsedFilter(NamedTuple):
    group: str | None  # of a shared subscription; `$queue` for `$queue/...`, and `$$queue` for `$share/$queue/...`
    topic_filter: str  # what is left without the prefix, valid


def parse_topic_filter(text: str, max_topic_levels: int = 128) -> ParsedFilter:
    """Take `$share` or `$queue` off and check the rest. A prefix inside a prefix is no topic filter."""
    group = None
    topic_filter = text
    if text.startswith(SHARE):
        group, _, topic_filter = text.removeprefix(SHARE).partition("/")
        if "+" in group or "#" in group or check_topic_filter(group):
            raise TopicFilterError("a shared subscription needs the name of a group, without wildcards")
        if group.startswith("$") and group.lstrip("$") == "queue":
            group = "$" + group  # `$queue` is a legal name here, too, and must not mean the other group
    elif text.startswith(QUEUE):
        group, topic_filter = QUEUE_GROUP, text.removeprefix(QUEUE)
    if group is not None and topic_filter.startswith(PREFIXES):
        raise TopicFilterError("one prefix inside another")
    if check_topic_filter(topic_filter, max_topic_levels):
        raise TopicFilterError("not a valid topic filter")
    return ParsedFilter(group, topic_filter)
