"""Requests to servers that help with logins: an authentication server, a server of keys.

Such a server may be slow, down, broken or taken over, and none of that may hurt the broker: the time is bounded as a
whole, name look-up and body included; so are the size of the answer and the number of requests at once and waiting.
Certificates are always verified, redirects are not followed (they could lead to hosts of the inner network), nothing is
unpacked, and cookies and proxies of the environment play no part.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp


class WebError(Exception):
    """No answer, or none that can be used. The text has no more of the request than its host."""


class WebBusy(WebError):
    """Too many requests wait already."""


class Answer(NamedTuple):
    status: int
    body: bytes


class WebClient:
    """Belongs to one loop; connections are opened with the first request and kept."""

    def __init__(
        self,
        timeout_s: float,
        max_answer_bytes: int,
        max_at_once: int = 1,
        max_waiting: int = 1_000,
        ca: Path | None = None,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> None:
        """ValueError if a file of certificates cannot be used."""
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._max_at_once = max_at_once
        self._max_under_way = max_at_once + max_waiting
        self._under_way = 0
        self._places = asyncio.Semaphore(max_at_once)
        self._session: aiohttp.ClientSession | None = None
        try:
            self._tls = ssl.create_default_context(cafile=ca)
            if certificate is not None:
                self._tls.load_cert_chain(certificate, private_key)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"the certificates cannot be used: {error}") from None

    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """The answer, whatever its status; WebError if there is none in time and size."""
        if self._under_way >= self._max_under_way:
            raise WebBusy(f"{self._under_way} requests to {_host(url)} are under way")
        self._under_way += 1
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return await self._exchange(method, url, headers, body)
        except TimeoutError:
            raise WebError(f"{_host(url)} did not answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise WebError(f"{_host(url)} cannot be asked: {_reason(error)}") from None
        finally:
            self._under_way -= 1

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None) -> Answer:
        session = self._session = self._session or self._open()
        async with session.request(method, url, headers=headers, data=body, allow_redirects=False) as response:
            received = bytearray()
            async for chunk in response.content.iter_any():
                received += chunk
                if len(received) > self._max_answer_bytes:
                    raise WebError(f"{_host(url)} answered with more than {self._max_answer_bytes:,} bytes")
            return Answer(response.status, bytes(received))

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=self._max_at_once),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "tbmq"},
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            auto_decompress=False,
        )


def check_url(url: str) -> str:
    """The URL again; ValueError if it is none for a request."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(character <= " " for character in url):
        raise ValueError("must be a URL such as https://auth.example.org/mqtt")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user name or password; use a header")
    return url


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _reason(error: Exception) -> str:
    """Texts of errors may quote the URL with what the client sent; those of the system do not."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is refused: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error)
    return type(error).__name__
