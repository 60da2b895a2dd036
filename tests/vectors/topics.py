"""Named cases of topics and topic filters: what is valid, what matches what, what a prefix means.

MATCHES are pairs with their answer, most of them from chapter 4.7 of the specification; FILTERS are filters with the
answer of `check_topic_filter`; LINES are what a SUBSCRIBE may say, with the group and the filter that it means.
"""

from __future__ import annotations

from typing import NamedTuple

INVALID = 0x8F


class MatchCase(NamedTuple):
    topic_filter: str
    topic: str
    matches: bool


class FilterCase(NamedTuple):
    name: str
    topic_filter: bytes | str
    answer: int  # 0 or 0x8F, with at most 128 levels


class LineCase(NamedTuple):
    name: str
    line: str
    group: str | None
    topic_filter: str | None  # None: 0x8F


_YES = """
    a                             a
    a/b/c                         a/b/c
    sport/tennis/player1/#        sport/tennis/player1
    sport/tennis/player1/#        sport/tennis/player1/ranking
    sport/tennis/player1/#        sport/tennis/player1/score/wimbledon
    sport/#                       sport
    sport/#                       sport/
    sport/#                       sport/a/b/c/d/e/f/g
    #                             a
    #                             a/b/c
    #                             /
    #                             /a
    sport/tennis/+                sport/tennis/player1
    sport/tennis/+                sport/tennis/player2
    sport/+                       sport/
    sport/+/player1               sport/tennis/player1
    +                             finance
    +/+                           /finance
    /+                            /finance
    +/+                           /
    /                             /
    a//b                          a//b
    a/+/b                         a//b
    a/+/                          a/x/
    +/tennis/#                    x/tennis
    +/tennis/#                    x/tennis/y/z
    +/#                           a
    +/#                           a/b
    +/#                           /
    +/+/#                         a/b
    a/+/+/d                       a/b/c/d
    +/b/+/d                       a/b/c/d
    $SYS/#                        $SYS/monitor/Clients
    $SYS/#                        $SYS
    $SYS/monitor/+                $SYS/monitor/Clients
    $SYS                          $SYS
    $/+                           $/a
    a/$b                          a/$b
    +/$b                          a/$b
    a/#                           a/$b
    a/+                           a/$b
    /#                            /$b
    /+                            /$b
    +/+                           /$b
    ACCOUNTS                      ACCOUNTS
    Accounts payable              Accounts payable
    température/+                 température/été
    温度/#                        温度/東京
    0123456789012345678901/+      0123456789012345678901/x
    01234567890123456789012/+     01234567890123456789012/x
"""

_NO = """
    a                             b
    a                             a/b
    a/b                           a
    a                             a/
    a/                            a
    a                             /a
    /a                            a
    ab                            a
    a                             ab
    sport/tennis/+                sport/tennis/player1/ranking
    sport/+                       sport
    +                             /finance
    +                             a/b
    +                             /
    /                             //
    a/b                           a//b
    a//b                          a/b
    a/+/c                         a/b/d
    a/+/c                         a/b
    a/b/#                         a
    a/b/#                         a/bc
    sport/#                       sports
    +/tennis/#                    tennis
    #                             $SYS
    #                             $SYS/monitor/Clients
    #                             $
    +/monitor/Clients             $SYS/monitor/Clients
    +                             $SYS
    +/#                           $SYS
    +/#                           $SYS/x
    $SYS/+                        $SYS/a/b
    $SYS/#                        $SYSTEM
    $SYS/#                        SYS/a
    ACCOUNTS                      Accounts
    a/B                           a/b
    0123456789012345678901        0123456789012345678902
    01234567890123456789012       01234567890123456789013
"""


def _pairs(text: str, matches: bool) -> list[MatchCase]:
    """Columns are apart by two spaces or more; a topic may have single ones."""
    return [
        MatchCase(columns[0], columns[-1].strip(), matches)
        for line in text.strip().splitlines()
        if (columns := line.strip().split("  "))
    ]


MATCHES = _pairs(_YES, True) + _pairs(_NO, False) + [MatchCase("\u00e9", "e\u0301", False)]  # no normal forms

_GOOD_FILTERS: list[tuple[str, bytes | str]] = [
    ("one level", "a"),
    ("empty levels", "/"),
    ("empty levels inside", "a//b"),
    ("trailing slash", "a/"),
    ("plus", "+"),
    ("hash", "#"),
    ("plus at the end", "a/+"),
    ("hash at the end", "a/#"),
    ("plus everywhere", "+/+/+"),
    ("plus, then hash", "+/#"),
    ("dollar", "$SYS/#"),
    ("space", " "),
    ("control characters", "a\x01\x1f\x7f"),
    ("two bytes", "é"),
    ("four bytes", "\U0010ffff"),
    ("byte order mark", "\ufeff"),
    ("bytes", b"a/+/#"),
    ("longest", "a" * 65_535),
    ("128 levels", "/" * 127),
    ("128 levels of plus", "/".join(["+"] * 128)),
    ("looks like a group but is not", "$shared/g/t"),
]
_BAD_FILTERS: list[tuple[str, bytes | str]] = [
    ("empty", ""),
    ("empty bytes", b""),
    ("hash not last", "a/#/b"),
    ("hash not last, nothing after", "#/"),
    ("hash first of two", "#/a"),
    ("hash after text", "a#"),
    ("hash before text", "a/#b"),
    ("two hashes", "##"),
    ("two levels of hash", "#/#"),
    ("plus before text", "+a"),
    ("plus after text", "a+"),
    ("plus after text in a level", "a/b+/c"),
    ("plus before text in a level", "a/+b/c"),
    ("two pluses", "++"),
    ("plus and hash in one level", "+#"),
    ("hash and plus in one level", "a/#+"),
    ("U+0000", "a\0b"),
    ("U+0000 alone", "\0"),
    ("surrogate", "a\ud800"),
    ("pair of surrogates", "\ud83d\ude00"),
    ("surrogate as bytes", b"\xed\xa0\x80"),
    ("overlong slash", b"a\xc0\xafb"),
    ("overlong U+0000", b"\xc0\x80"),
    ("above U+10FFFF", b"\xf4\x90\x80\x80"),
    ("cut character", b"a\xe2\x82"),
    ("lone continuation", b"\x80"),
    ("not UTF-8 at all", b"\xff\xfe"),
    ("one byte too long", "a" * 65_536),
    ("too long in bytes, not in characters", "é" * 32_768),
    ("129 levels", "/" * 128),
    ("10,000 levels of plus", "+/" * 10_000),
    ("65,535 slashes", "/" * 65_535),
]
FILTERS = [FilterCase(name, text, 0) for name, text in _GOOD_FILTERS] + [
    FilterCase(name, text, INVALID) for name, text in _BAD_FILTERS
]
# Filters whose structure is wrong whatever their levels and characters: a trie refuses these itself.
MALFORMED = [
    case
    for case in FILTERS
    if case.name.startswith(("empty", "hash", "plus", "two", "one byte too long", "too long"))
    and case.answer == INVALID
]

LINES = [
    LineCase("plain", "a/b", None, "a/b"),
    LineCase("plain with wildcards", "a/+/#", None, "a/+/#"),
    LineCase("system topic", "$SYS/#", None, "$SYS/#"),
    LineCase("shared", "$share/g/t", "g", "t"),
    LineCase("shared, deep", "$share/g/a/+/b/#", "g", "a/+/b/#"),
    LineCase("shared, filter of one empty first level", "$share/g//t", "g", "/t"),
    LineCase("shared, system topic", "$share/g/$SYS/#", "g", "$SYS/#"),
    LineCase("shared, group with a dollar", "$share/$g/t", "$g", "t"),
    LineCase("shared, group not ASCII", "$share/été/t", "été", "t"),
    LineCase("queue", "$queue/t", "$queue", "t"),
    LineCase("queue, everything", "$queue/#", "$queue", "#"),
    LineCase("queue, empty first level", "$queue//t", "$queue", "/t"),
    LineCase("the word alone is a topic", "$share", None, "$share"),
    LineCase("the other word alone, too", "$queue", None, "$queue"),
    LineCase("only at the start", "a/$share/g/t", None, "a/$share/g/t"),
    LineCase("prefix is case-sensitive", "$Share/g/t", None, "$Share/g/t"),
    LineCase("a longer word", "$shares/g/t", None, "$shares/g/t"),
    LineCase("exclusive is left to others", "$exclusive/t", None, "$exclusive/t"),
    LineCase("empty", "", None, None),
    LineCase("empty group", "$share//t", None, None),
    LineCase("no filter", "$share/g", None, None),
    LineCase("empty filter", "$share/g/", None, None),
    LineCase("nothing at all", "$share/", None, None),
    LineCase("group is plus", "$share/+/t", None, None),
    LineCase("group is hash", "$share/#/t", None, None),
    LineCase("group has hash", "$share/g#/t", None, None),
    LineCase("group has plus", "$share/g+/t", None, None),
    LineCase("group has a surrogate", "$share/\ud800/t", None, None),
    LineCase("group has U+0000", "$share/g\0/t", None, None),
    LineCase("share in share", "$share/g/$share/h/t", None, None),
    LineCase("share in queue", "$queue/$share/h/t", None, None),
    LineCase("queue in share", "$share/g/$queue/t", None, None),
    LineCase("queue in queue", "$queue/$queue/t", None, None),
    LineCase("exclusive in share", "$share/g/$exclusive/t", None, None),
    LineCase("empty queue", "$queue/", None, None),
    LineCase("shared with a bad filter", "$share/g/a#", None, None),
    LineCase("queue with a bad filter", "$queue/#/a", None, None),
    LineCase("shared with too many levels", "$share/g" + "/a" * 129, None, None),
    LineCase("shared with as many levels as may be", "$share/g" + "/a" * 128, "g", "a" + "/a" * 127),
]
