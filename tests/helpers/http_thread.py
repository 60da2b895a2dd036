"""The HTTP server of `http_server` on a thread, for tests without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from tests.helpers.http_server import Handler, HttpServer, http_server


@contextlib.contextmanager
def http_thread(handler: Handler, port: int = 0) -> Iterator[HttpServer]:
    """Answers by `handler`. Down when the body is left; the same port can be given again to bring it back."""
    started: queue.Queue[tuple[HttpServer, Callable[[], object]]] = queue.Queue()

    async def serve() -> None:
        is_over = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with http_server(port) as server:
            server.handler = handler
            started.put((server, lambda: loop.call_soon_threadsafe(is_over.set)))
            await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))  # which ends requests that are under way
    thread.start()
    server, stop = started.get(timeout=10)
    try:
        yield server
    finally:
        stop()
        thread.join(10)
