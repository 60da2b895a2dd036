"""Which texts a regular expression matches, as an automaton, so that a topic filter can be compared with it exactly.

    pattern ──parse──▶ tree ──▶ states with edges ──▶ table: rows[state][atom] -> state, 0 is DEAD
                                                             │
    topic filter "a/+/#" ── walks through it, in all states that one of its topics can lead to

An *atom* is a range of characters that the pattern does not tell apart, so a row is short although Unicode is long.
The filter covers nothing but topics: `+`, `#` and U+0000 never occur in them, a leading wildcard never stands for `$`,
and no topic is empty. After the walk, the expression covers the filter if all states reached accept, and overlaps it
if one does. RE2 answers such questions for single texts only, and to try some texts is to guess.

The table is built whole or not at all, so that an answer never depends on what was asked before. What is not understood
(`(?i)`, `\\b`, `\\p{..}`, ...) or would cost too much raises Unclear: whoever asks must then fail closed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from tbmq.auth.regex_tree import Begin, Choice, End, Node, Repeat, Sequence, Set, Unclear, parse

MAX_STATES = 600  # of the expression, before the table
MAX_EDGES = 20_000  # of the table
MAX_STEPS = 50_000  # of one walk, some milliseconds

DEAD, START = 0, 1

NEVER_IN_TOPICS = [(0, 0), (ord("#"), ord("#")), (ord("+"), ord("+")), (0xD800, 0xDFFF)]
READABLE = "xabcdefghijklmnopqrstuvwyzXABCDEFGHIJKLMNOPQRSTUVWYZ0123456789-_. "

Trail = tuple["Trail | None", int]  # how a state was reached: what came before, and the last character
Reached = dict[int, "Trail | None"]  # state -> one way to it


class Language:
    """All topics that an expression matches. Immutable; shared by everybody who uses the expression."""

    __slots__ = ("_accepts", "_bounds", "_dollar", "_level", "_any", "_rows", "_samples", "_universal")

    def __init__(self, pattern: str) -> None:
        """Raises Unclear."""
        states = _States(parse(pattern))
        self._bounds = _bounds(states.sets)
        self._samples = [self._sample(atom) for atom in range(len(self._bounds) - 1)]
        never = {atom for first, last in NEVER_IN_TOPICS for atom in self._atoms(first, last)}
        slash = self._atom(ord("/"))
        self._dollar = self._atom(ord("$"))
        self._any = [atom for atom in range(len(self._bounds) - 1) if atom not in never]
        self._level = [atom for atom in self._any if atom != slash]
        self._rows: list[dict[int, int]]
        self._accepts: list[bool]
        self._rows, self._accepts = self._table(states)
        self._universal = self._find_universal()

    @property
    def has_all_topics(self) -> bool:
        return all(self._rows[START].get(atom, DEAD) in self._universal for atom in self._any)

    def overlaps(self, topic_filter: str) -> bool:
        """Is there a topic that both match? Raises Unclear."""
        walk = _Walk(self, topic_filter)
        return any(self._accepts[state] for reached in (walk.parents, walk.reached) for state in reached)

    def missing_topic(self, topic_filter: str) -> str | None:
        """A topic of the filter that is not in this language, None if the language covers the filter. Raises Unclear.

        Of `a/#` everything below `a` is asked for, and not `a` itself: see the rules for what follows from that.
        """
        walk = _Walk(self, topic_filter)
        missing = (_text(trail) for state, trail in walk.reached.items() if not self._accepts[state])
        return next((text + walk.rest for text in missing), None)

    # --- the table

    def _table(self, states: _States) -> tuple[list[dict[int, int]], list[bool]]:
        """Every set of states that can be reached becomes one state of the table."""
        edges = [[(self._set_atoms(node), states.closures[to]) for node, to in state] for state in states.edges]
        numbers = {0: DEAD, states.start: START}
        rows: list[dict[int, int]] = [{}]
        waiting = [states.start]
        cost = 0
        for members in waiting:  # grows while it is walked
            row: dict[int, int] = {}
            for state in _bits(members):
                for atoms, target in edges[state]:
                    cost += len(atoms)
                    if cost > MAX_EDGES:
                        raise Unclear("is too complex to be compared with topic filters")
                    for atom in atoms:
                        row[atom] = row.get(atom, 0) | target
            for target in row.values():
                if target not in numbers:
                    numbers[target] = len(numbers)
                    waiting.append(target)
            rows.append({atom: numbers[target] for atom, target in row.items()})
        return rows, [bool(members & states.accepting) for members in numbers]

    def _find_universal(self) -> set[int]:
        """States after which every continuation is accepted: a walk can stop there."""
        come_from: dict[int, list[int]] = {}
        for state, row in enumerate(self._rows):
            for target in {row.get(atom, DEAD) for atom in self._any}:
                come_from.setdefault(target, []).append(state)
        waiting = [state for state, accepts in enumerate(self._accepts) if not accepts]
        others = set(waiting)
        while waiting:
            before = [state for state in come_from.get(waiting.pop(), []) if state not in others]
            others.update(before)
            waiting += before
        return set(range(len(self._rows))) - others

    # --- atoms

    def _atom(self, character: int) -> int:
        return bisect_right(self._bounds, character) - 1

    def _atoms(self, first: int, last: int) -> range:
        return range(self._atom(first), self._atom(last) + 1)

    def _set_atoms(self, node: Set) -> list[int]:
        return [atom for first, last in node.ranges for atom in self._atoms(first, last)]

    def _sample(self, atom: int) -> int:
        """A character of it, if possible one that can be read."""
        first, end = self._bounds[atom], self._bounds[atom + 1]
        return next((ord(character) for character in READABLE if first <= ord(character) < end), first)


class _Walk:
    """Where the topics of a filter lead: to the states `reached`; for `x/#` by way of `parents`, where `x` ends.

    Once nothing that follows can change the answer the walk ends; `rest` completes the texts of the trails to topics.
    """

    __slots__ = ("_language", "_steps", "parents", "reached", "rest")

    def __init__(self, language: Language, topic_filter: str) -> None:
        self._language = language
        self._steps = 0
        self.parents: Reached = {}
        self.reached: Reached = {START: None}
        self.rest = ""
        levels = topic_filter.split("/")
        if levels == ["+", "#"]:
            levels = ["#"]  # which matches the same topics
        for position, level in enumerate(levels):
            if level == "#" and position and levels != ["", "#"]:  # above `/#` there is only the empty text, no topic
                self.parents = self.reached
            if position:
                self._read("/")
            if level not in ("+", "#"):
                self._read(level)
            elif self._is_settled():
                self.rest += "x"
            elif level == "#":
                self._read_any(language._any, may_be_empty=position > 0, is_first=position == 0)
            else:
                self._read_any(language._level, may_be_empty=len(levels) > 1, is_first=position == 0)

    def _is_settled(self) -> bool:
        return all(state == DEAD or state in self._language._universal for state in self.reached)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise Unclear("takes too long to be compared with this topic filter")

    def _read(self, text: str) -> None:
        language = self._language
        for position, character in enumerate(map(ord, text)):
            if self._is_settled():
                self.rest += text[position:]
                return
            self._count(len(self.reached))
            atom = language._atom(character)
            reached: Reached = {}
            for state, trail in self.reached.items():
                after = state if state in language._universal else language._rows[state].get(atom, DEAD)
                reached.setdefault(after, (trail, character))
            self.reached = reached

    def _read_any(self, atoms: list[int], may_be_empty: bool, is_first: bool) -> None:
        """Any run of these atoms. Breadth first, so that the trails are the shortest."""
        language = self._language
        reached: Reached = dict(self.reached) if may_be_empty else {}
        waiting = list(self.reached.items())
        begins_topic = is_first
        while waiting:
            found: Reached = {}
            for state, trail in waiting:
                if state in language._universal:
                    found.setdefault(state, trail)
                    continue
                self._count(len(atoms))
                for atom in atoms:
                    if not (begins_topic and atom == language._dollar):  # a leading wildcard is never a `$`
                        found.setdefault(language._rows[state].get(atom, DEAD), (trail, language._samples[atom]))
            begins_topic = False
            waiting = [(state, trail) for state, trail in found.items() if state not in reached]
            reached.update(waiting)
        self.reached = reached


class _States:
    """The tree as states. Edges that read nothing are followed here, once; sets of states are bits of an integer."""

    def __init__(self, tree: Node) -> None:
        self.edges: list[list[tuple[Set, int]]] = []
        self._free: list[
            list[tuple[Node | None, int]]
        ] = []  # edges that read nothing: always, or at an end of the text
        first, last = self._state(), self._state()
        self._build(tree, first, last)
        self.sets = [node for state in self.edges for node, _ in state]
        self.closures = [self._closure(state, None) for state in range(len(self.edges))]
        self.start = self._closure(first, Begin())
        accepted = 1 << last
        self.accepting = _mask(s for s in range(len(self.edges)) if self._closure(s, End()) & accepted)

    def _state(self) -> int:
        if len(self.edges) == MAX_STATES:
            raise Unclear("is too large to be compared with topic filters")
        self.edges.append([])
        self._free.append([])
        return len(self.edges) - 1

    def _build(self, node: Node, start: int, end: int) -> None:
        match node:
            case Set():
                self.edges[start].append((node, end))
            case Begin() | End():
                self._free[start].append((node, end))
            case Choice(nodes):
                for choice in nodes:
                    self._build(choice, start, end)
            case Sequence(nodes):
                for part in nodes:
                    after = self._state()
                    self._build(part, start, after)
                    start = after
                self._free[start].append((None, end))
            case Repeat(part, least, most):
                for _ in range(least):
                    after = self._state()
                    self._build(part, start, after)
                    start = after
                if most is None:
                    loop = self._state()
                    self._free[start].append((None, loop))
                    self._build(part, loop, loop)
                    start = loop
                else:
                    for _ in range(most - least):
                        self._free[start].append((None, end))
                        after = self._state()
                        self._build(part, start, after)
                        start = after
                self._free[start].append((None, end))

    def _closure(self, state: int, place: Node | None) -> int:
        """All states reached without reading, as bits, when standing at this end of the text (None: inside)."""
        seen = {state}
        waiting = [state]
        while waiting:
            for condition, to in self._free[waiting.pop()]:
                if to not in seen and (condition is None or condition == place):
                    seen.add(to)
                    waiting.append(to)
        return _mask(seen)


def _bounds(sets: Iterable[Set]) -> list[int]:
    """Where one atom ends and the next begins."""
    ranges = [*NEVER_IN_TOPICS, (ord("/"), ord("/")), (ord("$"), ord("$"))]
    ranges += [pair for node in sets for pair in node.ranges]
    return sorted({0, 0x110000} | {first for first, _ in ranges} | {last + 1 for _, last in ranges})


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _text(trail: Trail | None) -> str:
    characters = []
    while trail is not None:
        trail, character = trail
        characters.append(chr(character))
    return "".join(reversed(characters))
