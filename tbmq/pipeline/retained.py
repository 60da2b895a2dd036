"""Retained messages for new subscriptions.

Each retained message is kept by one worker, chosen by its topic. An exact filter asks that one; a wildcard asks all of
them. A wildcard can match a million topics, so the messages go in pages, bounded in number and in bytes.

    Replay   one per client that still has to get some
      sources   (topic filter, worker) -> Source, one after the other; exact filters before wildcards
    Source   a walk over the topics that one worker keeps: of our own, or told by pages of another one

    worker of the client                              worker that keeps the topics
    "retained ask" {token, topic_filter, limit}   ──▶ starts, or goes on with, the walk of that token
                   ◀── "retained page" {token, count, more} + batch
    "retained stop" {token}                       ──▶ the client is gone

Guarantee: none is dropped because there are many of them, or because they are large. A page is given to the client only
when its output is low and its window and queue have room for all of the page; until then it waits here. A client has
one page and one walk at a time, whatever it subscribes to. Room is looked for again after WAIT_S: many clients may be
waiting, and being told would cost every message of every client.

The first pages are asked for before the SUBACK leaves: what is published after it comes once, as a live message, and
not a second time as a retained one. That holds for the first EARLY sources of a SUBSCRIBE and their first pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tbmq._engine import Engine
    from tbmq._trie import TopicWalk
    from tbmq.pipeline.links import Links, Message
    from tbmq.session.client import Client, Granted

PAGE = 200
PAGE_BYTES = 262_144  # a page ends with the message that reaches this
FULL_OUTPUT_BYTES = 262_144  # with a page it stays below the engine's high water mark, above which QoS 0 is dropped
FEW_QUEUED = 32  # a client with more than this in its queue has enough to do
EARLY = 16  # pages that may wait for the others before the SUBACK
VISITS = 20_000  # nodes that one page may look at, for filters that match little of it
WAIT_S = 0.02


@dataclass(slots=True)
class Topics:
    """A walk over our own topics."""

    walk: TopicWalk
    found: list[bytes] = field(default_factory=list)  # and not sent yet

    @property
    def has_more(self) -> bool:
        return bool(self.found) or not self.walk.done

    def find(self, limit: int) -> list[bytes]:
        """Some of the next topics, or none among those looked at; the caller takes what it has sent out of `found`."""
        if not self.found:
            self.found = [topic for topic, _ in self.walk.next(limit, VISITS)]
        return self.found[:limit]


@dataclass(slots=True)
class Source:
    granted: Granted
    keeper: int
    topics: Topics | None = None  # when we are the keeper
    token: int = -1  # of the walk at another keeper; -1: not asked yet
    page: bytes | None = None  # from there, not given to the client yet
    page_count: int = 0
    has_more: bool = True  # behind that page


@dataclass(slots=True)
class Replay:
    client: Client
    exact: dict[tuple[str, int], Source] = field(default_factory=dict)
    wildcards: dict[tuple[str, int], Source] = field(default_factory=dict)
    is_waiting: bool = False  # for room or for a page: `_go_on` will be called
    awaited: Source | None = None  # for its page
    early: set[int] = field(default_factory=set)  # tokens of pages that have to come before `answers`
    answers: list[Callable[[], None]] = field(default_factory=list)  # what was subscribed is acknowledged by these


class RetainedReplay:
    def __init__(self, engine: Engine, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._links = links
        self._loop = loop
        self._tokens = count()
        self._replays: dict[Client, Replay] = {}
        self._asked: dict[int, tuple[Replay, Source]] = {}  # pages under way, by token
        self._serving: dict[tuple[int, int], Topics] = {}  # walks for others, by worker and its token
        links.subscribe("retained ask", self._on_ask)
        links.subscribe("retained page", self._on_page)
        links.subscribe("retained stop", self._on_stop)
        links.left.append(self._on_left)

    def start(self, client: Client, wanted: list[Granted], answer: Callable[[], None]) -> None:
        """Sends the retained messages that match these new subscriptions, behind `answer`."""
        if not wanted:
            answer()
            return
        replay = self._replays.setdefault(client, Replay(client))
        sources = [source for granted in wanted for source in self._add(replay, granted)]
        for source in sources[:EARLY]:
            room = _room(client, source.granted.qos)
            if source.topics is None and room and self._ask(replay, source, room):
                replay.early.add(source.token)
        replay.answers.append(answer)
        if not replay.early:
            self._answer(replay)

    def _answer(self, replay: Replay) -> None:
        answers, replay.answers = replay.answers, []
        for answer in answers:
            answer()
        if not replay.is_waiting:
            self._go_on(replay)

    def _add(self, replay: Replay, granted: Granted) -> list[Source]:
        client, topic_filter = replay.client, granted.topic_filter
        is_wildcard = "+" in topic_filter or "#" in topic_filter
        keepers = [self._engine.owner_of(topic_filter.encode())]
        if is_wildcard:
            keepers = [self._engine.index, *self._links.others]
        sources = replay.wildcards if is_wildcard else replay.exact
        if len(sources) > 2 * self._engine.workers * len(client.subscriptions):  # most were unsubscribed meanwhile
            for key in [key for key, source in sources.items() if not _is_wanted(client, source.granted)]:
                self._end(sources, key)
        for keeper in keepers:
            key = (topic_filter, keeper)
            if key in sources:  # subscribed again: from the start
                self._end(sources, key)
            topics = Topics(self._engine.retained.walk(topic_filter)) if keeper == self._engine.index else None
            sources[key] = Source(granted, keeper, topics)
        return [sources[topic_filter, keeper] for keeper in keepers]

    # --- one client ---

    def _go_on(self, replay: Replay) -> None:
        """Gives the client its next messages, until it is full, a page has to come, or a page has gone."""
        client = replay.client
        replay.is_waiting = False
        sent = 0
        while sources := replay.exact or replay.wildcards:
            key, source = next(iter(sources.items()))
            is_at_end = source.page is None and not source.has_more
            if is_at_end or not _is_wanted(client, source.granted):
                self._end(sources, key)
                continue
            room = _room(client, source.granted.qos)
            if room == 0 or (source.page is not None and source.page_count > room):
                self._wait(replay, WAIT_S)
                return
            if sent >= PAGE:
                self._wait(replay, 0)
                return
            if source.topics is not None:
                sent += self._send_own(client, source, source.topics, min(room, PAGE - sent))
                if source.has_more:
                    self._wait(replay, 0)
                    return
            elif source.page is not None:
                sent += self._send_page(client, source)
            elif source.token in self._asked or self._ask(replay, source, room):
                replay.awaited, replay.is_waiting = source, True
                return
            else:  # its keeper is away, and its messages with it
                source.has_more = False
        self._replays.pop(client, None)

    def _wait(self, replay: Replay, delay_s: float) -> None:
        """Behind the engine's turn, which is asked for already: what was given leaves first."""
        replay.is_waiting = True
        if delay_s:
            self._loop.call_later(delay_s, self._go_on, replay)
        else:
            self._loop.call_soon(self._go_on, replay)

    def _send_own(self, client: Client, source: Source, topics: Topics, limit: int) -> int:
        granted = source.granted
        sent = 0
        for topic in topics.find(limit):
            if sent and _is_output_full(client):
                break
            self._engine.replay_retained(client.session, topic, granted.qos, granted.identifier)
            sent += 1
        del topics.found[:sent]
        source.has_more = topics.has_more
        return sent

    def _send_page(self, client: Client, source: Source) -> int:
        assert source.page is not None
        page, source.page = source.page, None
        granted = source.granted
        if page:
            self._engine.deliver_retained(client.session, page, granted.qos, granted.identifier)
        return source.page_count

    def _end(self, sources: dict[tuple[str, int], Source], key: tuple[str, int]) -> None:
        """The source is at its end, or nobody wants it any more."""
        source = sources.pop(key)
        if source.has_more and source.token >= 0:
            self._links.send(source.keeper, "retained stop", {"token": source.token})

    # --- asking others ---

    def _ask(self, replay: Replay, source: Source, limit: int) -> bool:
        """False when the keeper is away."""
        if source.token < 0:
            source.token = next(self._tokens)
        message = {"token": source.token, "topic_filter": source.granted.topic_filter, "limit": limit}
        if not self._links.send(source.keeper, "retained ask", message):
            return False
        self._asked[source.token] = replay, source
        return True

    def _on_page(self, _: int, message: Message, batch: bytes) -> None:
        if message["token"] in self._asked:  # else we took its worker for gone
            replay, source = self._asked.pop(message["token"])
            source.page, source.page_count, source.has_more = batch, message["count"], message["more"]
            self._came(replay, source)

    def _came(self, replay: Replay, source: Source) -> None:
        """Its page, or the news that there is none."""
        if replay.awaited is source:
            replay.awaited, replay.is_waiting = None, False
        replay.early.discard(source.token)
        if not replay.early:
            self._answer(replay)
        elif not replay.is_waiting:
            self._go_on(replay)

    def _on_left(self, index: int) -> None:
        for key in [key for key in self._serving if key[0] == index]:
            del self._serving[key]
        for token, (replay, source) in list(self._asked.items()):
            if source.keeper == index:
                del self._asked[token]
                source.has_more = False
                self._came(replay, source)

    # --- answering others ---

    def _on_ask(self, index: int, message: Message, _: bytes) -> None:
        key = (index, message["token"])
        topics = self._serving.pop(key, None) or Topics(self._engine.retained.walk(message["topic_filter"]))
        batch, taken = self._engine.retained_batch(topics.find(message["limit"]), PAGE_BYTES)
        del topics.found[:taken]
        if topics.has_more:
            self._serving[key] = topics
        page = {"token": message["token"], "count": taken, "more": topics.has_more}
        self._links.send(index, "retained page", page, batch)

    def _on_stop(self, index: int, message: Message, _: bytes) -> None:
        self._serving.pop((index, message["token"]), None)


def _is_wanted(client: Client, granted: Granted) -> bool:
    return client.connection is not None and client.subscriptions.get(granted.topic_filter) is granted


def _is_output_full(client: Client) -> bool:
    return client.connection is None or client.connection.output_bytes > FULL_OUTPUT_BYTES


def _room(client: Client, qos: int) -> int:
    """How many messages the client can be given now, so that none is dropped; at most a page. Half of its queue is left
    to what is published meanwhile."""
    session = client.session
    if _is_output_full(client):
        return 0
    if qos == 0:
        return PAGE
    if session.queued > FEW_QUEUED:
        return 0
    window = client.send_quota - session.inflight if session.queued == 0 else 0
    return min(PAGE, max(window, 0) + max(session.max_queued // 2 - session.queued, 0))
