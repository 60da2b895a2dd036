"""Retained messages for new subscriptions.

An exact filter is one look-up. A wildcard can match a million topics, so they go in pages: a page per turn of the loop,
and none while the client's output is full, so that neither the loop nor the memory suffers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tbmq._engine import Engine
    from tbmq._trie import TopicWalk
    from tbmq.session.client import Client, Granted

PAGE = 200
FULL_OUTPUT_BYTES = 262_144
WAIT_S = 0.02


class RetainedReplay:
    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def start(self, client: Client, granted: Granted) -> None:
        if "+" in granted.topic_filter or "#" in granted.topic_filter:
            self._next_page(client, granted, self._engine.retained.walk(granted.topic_filter))
        else:
            self._engine.replay_retained(
                client.session, granted.topic_filter.encode(), granted.qos, granted.identifier
            )

    def _next_page(self, client: Client, granted: Granted, walk: TopicWalk) -> None:
        connection = client.connection
        if connection is None or granted not in client.subscriptions.values():
            return  # gone, or no longer wanted
        if connection.output_bytes > FULL_OUTPUT_BYTES or client.session.queued > client.session.max_queued // 2:
            self._loop.call_later(WAIT_S, self._next_page, client, granted, walk)
            return
        page = walk.next(PAGE)
        for topic, _ in page:
            self._engine.replay_retained(client.session, topic, granted.qos, granted.identifier)
        if page:
            self._loop.call_soon(self._next_page, client, granted, walk)
