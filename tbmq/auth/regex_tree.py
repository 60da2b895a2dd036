"""A regular expression as a tree, for those parts of RE2's syntax that describe plain sets of texts.

    Choice ─┬─ Sequence ─┬─ Set          one character out of ranges: `a`, `.`, `[^/]`, `\\d`
            │            ├─ Repeat       `*`, `+`, `?`, `{2}`, `{2,}`, `{2,5}`; lazy ones match the same texts
            │            └─ Begin, End   `^`, `$`, `\\A`, `\\z`
            └─ ...

Of flags, `(?i)` and `(?s)` at the very front are known; the first only for patterns in ASCII. Only patterns that RE2
has compiled come here, so a mistake in one is not told in detail. Everything else (other flags, `\\b`, `\\p{Greek}`,
`[[:alpha:]]`, `\\Q`, octal numbers) raises Unclear; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NESTING = 50

Ranges = tuple[tuple[int, int], ...]  # first and last character of each; sorted, apart


class Unclear(Exception):
    """What the expression matches cannot be said. The text tells why, and goes on from "the expression"."""


@dataclass(frozen=True, slots=True)
class Set:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class End:
    pass


@dataclass(frozen=True, slots=True)
class Sequence:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    node: Node
    least: int
    most: int | None


Node = Set | Begin | End | Sequence | Choice | Repeat

LAST = 0x10FFFF
DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}
CONTROLS = {"a": 7, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}

GROUP = re.compile(r"\((?:\?(?::|P?<\w+>))?(?!\?)")
FLAGS = re.compile(r"\(\?([is]+)\)")  # `s` changes nothing: here a dot matches everything anyway
OTHER_CASES = {"k": 0x212A, "s": 0x017F}  # beside upper and lower case: the sign for Kelvin, and the long s
COUNT = re.compile(r"\{(\d{1,4})(,(\d{1,4})?)?\}")
HEX = re.compile(r"x(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{2}))")


def parse(pattern: str) -> Node:
    """The tree of a pattern that RE2 takes. Raises Unclear."""
    parser = _Parser(pattern)
    tree = parser.choice(0)
    if parser.rest:
        raise Unclear("has a form that cannot be compared with topic filters")
    return tree


class _Parser:
    def __init__(self, pattern: str) -> None:
        flags = FLAGS.match(pattern)
        self._pattern = pattern
        self._at = flags.end() if flags else 0
        self._ignores_case = flags is not None and "i" in flags[1]

    @property
    def rest(self) -> int:
        return len(self._pattern) - self._at

    def _peek(self) -> str:
        return self._pattern[self._at] if self.rest else ""

    def _take(self) -> str:
        if not self.rest:
            raise Unclear("ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise Unclear("is nested too deeply to be compared with topic filters")
        choices = [self._sequence(depth)]
        while self._skip("|"):
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else Choice(tuple(choices))

    def _sequence(self, depth: int) -> Node:
        nodes: list[Node] = []
        while self.rest and self._peek() not in "|)":
            nodes.append(self._repeated(self._single(depth)))
        return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))

    def _repeated(self, node: Node) -> Node:
        count = COUNT.match(self._pattern, self._at)
        if count:
            self._at = count.end()
            least = int(count[1])
            most = least if count[2] is None else int(count[3]) if count[3] else None
        elif self._peek() == "{":
            raise Unclear("has a brace that is no count")
        elif self._peek() and self._peek() in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take()]
        else:
            return node
        self._skip("?")
        return Repeat(node, least, most)

    def _single(self, depth: int) -> Node:
        group = GROUP.match(self._pattern, self._at)
        if group:
            self._at = group.end()
            node = self.choice(depth + 1)
            if not self._skip(")"):
                raise Unclear("has an open parenthesis")
            return node
        character = self._take()
        match character:
            case "(":
                raise Unclear("has a flag or group that cannot be compared with topic filters")
            case "*" | "+" | "?" | "{":
                raise Unclear("repeats nothing")
            case "^":
                return Begin()
            case "$":
                return End()
            case ".":
                return Set(((0, LAST),))
            case "[":
                return Set(self._bracket())
            case "\\":
                if self._skip("A"):
                    return Begin()
                if self._skip("z"):
                    return End()
                found = self._escape()
                return Set(self._cased(found, found) if isinstance(found, int) else found)
        return Set(self._cased(ord(character), ord(character)))

    def _cased(self, first: int, last: int) -> Ranges:
        """These characters, with the other cases of their letters if case is ignored."""
        if not self._ignores_case:
            return ((first, last),)
        if last > 0x7F:
            raise Unclear("ignores case and goes beyond ASCII, which cannot be compared with topic filters")
        letters = [chr(code) for code in range(first, last + 1) if chr(code).isalpha()]
        others = [ord(letter.swapcase()) for letter in letters]
        others += [OTHER_CASES[letter.lower()] for letter in letters if letter.lower() in OTHER_CASES]
        return _joined([(first, last), *((code, code) for code in others)])

    def _escape(self) -> int | Ranges:
        """What follows a backslash, inside brackets and outside: one character, or a class."""
        number = HEX.match(self._pattern, self._at)
        if number:
            self._at = number.end()
            code = int(number[1] or number[2], 16)
        else:
            character = self._take()
            if character.lower() in CLASSES:
                ranges = _joined(
                    [pair for first, last in CLASSES[character.lower()] for pair in self._cased(first, last)]
                )
                return ranges if character.islower() else _without(ranges)
            if character.isascii() and not character.isalnum():
                code = ord(character)
            elif character in CONTROLS:
                code = CONTROLS[character]
            else:
                raise Unclear(f"has \\{character}, which cannot be compared with topic filters")
        return code

    def _bracket(self) -> Ranges:
        is_negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._peek() == "[" and self._pattern[self._at + 1 : self._at + 2] == ":":
                raise Unclear("has a named class, which cannot be compared with topic filters")
            found = self._member()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._take()
                last = self._member()
                if not isinstance(found, int) or not isinstance(last, int):
                    raise Unclear("has a range whose end is no character")
                found = self._cased(found, last)
            ranges += self._cased(found, found) if isinstance(found, int) else found
        self._take()
        return _without(tuple(ranges)) if is_negated else _joined(ranges)

    def _member(self) -> int | Ranges:
        character = self._take()
        return self._escape() if character == "\\" else ord(character)


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _without(ranges: Ranges) -> Ranges:
    """All characters but these."""
    result = []
    begin = 0
    for first, last in _joined(list(ranges)):
        if begin < first:
            result.append((begin, first - 1))
        begin = last + 1
    if begin <= LAST:
        result.append((begin, LAST))
    return tuple(result)
