"""An HTTP server on loopback for tests: it keeps what it was asked and answers as it is told."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpServer:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    handler: Handler | None = None  # instead of status, headers and body

    def answer(self, value: Any, status: int = 200) -> None:
        self.body, self.status = json.dumps(value).encode(), status

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(Asked(request.method, request.path, dict(request.query), dict(request.headers), body))
        if self.handler is not None:
            return await self.handler(request)
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@contextlib.asynccontextmanager
async def http_server(port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[HttpServer]:
    """Down when the body is left; the same port can be given again to bring it back."""
    server = HttpServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True)
        await site.start()
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
