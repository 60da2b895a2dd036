"""Who wants what: this worker's topic filters, told to the other workers, and theirs, told to us.

    local    topic filter -> [number of subscriptions here, change in which it was announced]
    engine.routes   topic filter -> other workers; a dispatcher sends a batch once to each that matches
    engine.groups   members of shared subscriptions on all workers

Only the first subscriber of a filter and the last are told. Changes are collected for one turn of the loop and
numbered; the others answer with the number when they have applied it, and a SUBACK waits for that: after it, nothing
published anywhere on the node misses the subscriber.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tbmq.session.client import CONNECTED

if TYPE_CHECKING:
    from tbmq._engine import Engine
    from tbmq.pipeline.links import Links, Message

MEMBER_BITS = 24  # as in the engine: a member is worker << 24 | session number

Change = list[object]
"""["add" | "remove", topic filter] or ["join" | "leave", group, topic filter, member, options]."""


class Routes:
    def __init__(self, engine: Engine, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._links = links
        self._loop = loop
        self._local: dict[str, list[int]] = {}
        self._members: dict[tuple[str, str, int], int] = {}  # ours: (group, filter, member) -> options
        self._theirs: dict[int, set[str]] = {}  # routes by worker, to take back when it goes
        self._their_members: dict[int, set[tuple[str, str, int]]] = {}
        self._changes: list[Change] = []
        self._sequence = 0  # of the last changes that were sent
        self._confirmed: dict[int, int] = {}  # by worker: what it has applied of ours
        self._applied: dict[int, int] = {}  # by worker: what we have applied of its
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        links.subscribe("routes", self._on_routes)
        links.subscribe("routed", self._on_routed)
        links.joined.append(self._on_joined)
        links.left.append(self._on_left)

    def add(self, topic_filter: str) -> None:
        entry = self._local.get(topic_filter)
        if entry is not None:
            entry[0] += 1
            return
        self._local[topic_filter] = [1, self._change(["add", topic_filter])]

    def remove(self, topic_filter: str) -> None:
        entry = self._local[topic_filter]
        entry[0] -= 1
        if entry[0] == 0:
            del self._local[topic_filter]
            self._change(["remove", topic_filter])

    def join(self, group: str, topic_filter: str, number: int, options: int) -> None:
        """A member of a shared subscription, `group` with its sign: @ connected, - away."""
        member = self._engine.index << MEMBER_BITS | number
        self._members[group, topic_filter, member] = options
        _apply_join(self._engine, group, topic_filter, member, options)
        self._change(["join", group, topic_filter, member, options])

    def leave(self, group: str, topic_filter: str, number: int) -> None:
        member = self._engine.index << MEMBER_BITS | number
        self._members.pop((group, topic_filter, member), None)
        _apply_leave(self._engine, group, topic_filter, member)
        self._change(["leave", group, topic_filter, member, 0])

    def when_known(self, callback: Callable[[], None]) -> None:
        """Calls back when every other worker knows all changes made until now; at once when they do already."""
        wanted = self._sequence + (1 if self._changes else 0)
        if self._least_confirmed() >= wanted:
            callback()
        else:
            self._waiting.append((wanted, callback))

    def _change(self, change: Change) -> int:
        """Notes a change; answers the number of the message that will tell it."""
        if self._engine.workers > 1:
            if not self._changes:
                self._loop.call_soon(self._send_changes)
            self._changes.append(change)
        return self._sequence + 1

    def _send_changes(self) -> None:
        changes, self._changes = self._changes, []
        self._sequence += 1
        for index in self._links.others:
            self._links.send(index, "routes", {"sequence": self._sequence, "changes": changes})
        self._release()

    # --- what others say ---

    def _on_routes(self, index: int, message: Message, _: bytes) -> None:
        if message.get("fresh"):
            self._forget(index)
        routes = self._theirs.setdefault(index, set())
        members = self._their_members.setdefault(index, set())
        for change in message["changes"]:
            match change:
                case ["add", topic_filter]:
                    self._engine.routes.add(topic_filter, index)
                    routes.add(topic_filter)
                case ["remove", topic_filter]:
                    self._engine.routes.remove(topic_filter, index)
                    routes.discard(topic_filter)
                case ["join", group, topic_filter, member, options]:
                    _apply_join(self._engine, group, topic_filter, member, options)
                    members.add((group, topic_filter, member))
                case ["leave", group, topic_filter, member, _]:
                    _apply_leave(self._engine, group, topic_filter, member)
                    members.discard((group, topic_filter, member))
        self._applied[index] = message["sequence"]
        self._links.send(index, "routed", {"sequence": message["sequence"]})

    def _on_routed(self, index: int, message: Message, _: bytes) -> None:
        if index in self._confirmed:
            self._confirmed[index] = message["sequence"]
            self._release()

    def _on_joined(self, index: int) -> None:
        """Tells a worker everything: it is new, or has forgotten us."""
        self._confirmed[index] = 0
        changes: list[Change] = [["add", topic_filter] for topic_filter in self._local]
        changes += [["join", *key, options] for key, options in self._members.items()]
        self._links.send(index, "routes", {"sequence": self._sequence, "changes": changes, "fresh": True})
        if index in self._applied:  # its link to us was faster than ours to it, and our answer was lost
            self._links.send(index, "routed", {"sequence": self._applied[index]})

    def _on_left(self, index: int) -> None:
        self._confirmed.pop(index, None)
        self._applied.pop(index, None)
        self._forget(index)
        self._release()

    def _forget(self, index: int) -> None:
        for topic_filter in self._theirs.pop(index, ()):
            self._engine.routes.remove(topic_filter, index)
        for group, topic_filter, member in self._their_members.pop(index, ()):
            _apply_leave(self._engine, group, topic_filter, member)

    def _least_confirmed(self) -> int:
        return min(self._confirmed.values(), default=self._sequence + 1)

    def _release(self) -> None:
        known = self._least_confirmed()
        while self._waiting and self._waiting[0][0] <= known:
            self._waiting.popleft()[1]()


def _apply_join(engine: Engine, group: str, topic_filter: str, member: int, options: int) -> None:
    engine.groups.add_shared(
        group,
        topic_filter,
        member,
        qos=options & 3,
        retain_as_published=bool(options & 8),
        identifier=options >> 4,
    )
    if group.startswith(CONNECTED):
        engine.member_came(group[1:].encode())


def _apply_leave(engine: Engine, group: str, topic_filter: str, member: int) -> None:
    engine.groups.remove_shared(group, topic_filter, member)
    engine.group_changed(group[1:].encode())
