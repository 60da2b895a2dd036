"""Retained messages for new subscriptions.

Each retained message is kept by one worker, chosen by its topic. An exact filter asks that one; a wildcard asks all of
them. A wildcard can match a million topics, so answers go in pages: the next page only when the client has taken the
last, so that neither the loops nor the memory suffer.

    worker of the client                      worker that keeps the topics
    "retained ask" {token, topic_filter}  ──▶ starts, or goes on with, the walk of that token
                        ◀── "retained page" {token, more} + batch
    "retained stop" {token}               ──▶ the client is gone
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tbmq._engine import Engine
    from tbmq._trie import TopicWalk
    from tbmq.pipeline.links import Links, Message
    from tbmq.session.client import Client, Granted

PAGE = 200
PAGE_BYTES = 262_144
FULL_OUTPUT_BYTES = 262_144
WAIT_S = 0.02


@dataclass(slots=True)
class Asked:
    """Pages that we wait for."""

    client: Client
    granted: Granted
    keeper: int


@dataclass(slots=True)
class Serving:
    """A walk that we do for another worker."""

    walk: TopicWalk
    topics: list[bytes] = field(default_factory=list)  # found and not sent yet


class RetainedReplay:
    def __init__(self, engine: Engine, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._links = links
        self._loop = loop
        self._tokens = count()
        self._asked: dict[int, Asked] = {}
        self._serving: dict[tuple[int, int], Serving] = {}  # by worker and its token
        links.subscribe("retained ask", self._on_ask)
        links.subscribe("retained page", self._on_page)
        links.subscribe("retained stop", self._on_stop)
        links.left.append(self._on_left)

    def start(self, client: Client, granted: Granted) -> None:
        """Sends the retained messages that match a new subscription."""
        if "+" in granted.topic_filter or "#" in granted.topic_filter:
            self._next_page(client, granted, self._engine.retained.walk(granted.topic_filter))
            for keeper in self._links.others:
                self._ask(client, granted, keeper)
            return
        topic = granted.topic_filter.encode()
        keeper = self._engine.owner_of(topic)
        if keeper == self._engine.index:
            self._engine.replay_retained(client.session, topic, granted.qos, granted.identifier)
        else:
            self._ask(client, granted, keeper)

    # --- ours ---

    def _next_page(self, client: Client, granted: Granted, walk: TopicWalk) -> None:
        if not _is_wanted(client, granted):
            return
        if _is_full(client):
            self._loop.call_later(WAIT_S, self._next_page, client, granted, walk)
            return
        page = walk.next(PAGE)
        for topic, _ in page:
            self._engine.replay_retained(client.session, topic, granted.qos, granted.identifier)
        if len(page) == PAGE:
            self._loop.call_soon(self._next_page, client, granted, walk)

    # --- asking others ---

    def _ask(self, client: Client, granted: Granted, keeper: int) -> None:
        token = next(self._tokens)
        self._asked[token] = Asked(client, granted, keeper)
        self._ask_page(token)

    def _ask_page(self, token: int) -> None:
        asked = self._asked.get(token)
        if asked is None:
            return
        if not _is_wanted(asked.client, asked.granted):
            del self._asked[token]
            self._links.send(asked.keeper, "retained stop", {"token": token})
        elif _is_full(asked.client):
            self._loop.call_later(WAIT_S, self._ask_page, token)
        else:
            message = {"token": token, "topic_filter": asked.granted.topic_filter}
            self._links.send(asked.keeper, "retained ask", message)

    def _on_page(self, _: int, message: Message, batch: bytes) -> None:
        asked = self._asked.get(message["token"])
        if asked is None:
            return
        if batch and _is_wanted(asked.client, asked.granted):
            self._engine.deliver_retained(asked.client.session, batch, asked.granted.qos, asked.granted.identifier)
        if message["more"]:
            self._ask_page(message["token"])
        else:
            del self._asked[message["token"]]

    # --- answering others ---

    def _on_ask(self, index: int, message: Message, _: bytes) -> None:
        key = (index, message["token"])
        serving = self._serving.get(key)
        if serving is None:
            serving = Serving(self._engine.retained.walk(message["topic_filter"]))
        if not serving.topics:
            serving.topics = [topic for topic, _ in serving.walk.next(PAGE)]
        batch, taken = self._engine.retained_batch(serving.topics, PAGE_BYTES)
        more = taken > 0
        del serving.topics[:taken]
        if more:
            self._serving[key] = serving
        else:
            self._serving.pop(key, None)
        self._links.send(index, "retained page", {"token": message["token"], "more": more}, batch)

    def _on_stop(self, index: int, message: Message, _: bytes) -> None:
        self._serving.pop((index, message["token"]), None)

    def _on_left(self, index: int) -> None:
        for key in [key for key in self._serving if key[0] == index]:
            del self._serving[key]
        for token in [token for token, asked in self._asked.items() if asked.keeper == index]:
            del self._asked[token]


def _is_wanted(client: Client, granted: Granted) -> bool:
    return client.connection is not None and any(granted is kept for kept in client.subscriptions.values())


def _is_full(client: Client) -> bool:
    assert client.connection is not None
    return client.connection.output_bytes > FULL_OUTPUT_BYTES or client.session.queued > client.session.max_queued // 2
