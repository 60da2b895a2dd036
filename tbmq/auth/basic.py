"""User name and password against credentials of the entity store.

    store: for both ─▶ for the client id ─▶ for the user name      (at most three)
              │ each in turn: no password asked for, or verified before (cache), or verified now (threads)
              ▼
           the first that fits ─▶ Granted          none ─▶ Denied          nothing shown, nothing stored ─▶ SKIPPED

A client cannot learn whether a name exists: all refusals are the same, and where there is nothing to verify a hash of
nobody is verified instead, with the same cache before it. Imported bcrypt hashes take another time than our own, which
shows until their passwords are set anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from pydantic import Field

from tbmq.auth.cache import DigestCache
from tbmq.auth.lookup import principal_of
from tbmq.auth.model import SKIPPED, Answer, Denied, Granted, Login
from tbmq.auth.passwords import MAX_PASSWORD_BYTES, NOBODY, Hasher, HasherBusy, verify_password
from tbmq.auth.settings import read_settings
from tbmq.config.model import Section
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import BasicProof, Credentials
from tbmq.storage.interfaces import StoreError

MAX_REFUSALS = 10_000
REFUSAL_TTL_S = 60.0


class BasicSettings(Section):
    cache_ttl_s: int = Field(
        default=600, ge=0, le=86_400, description="How long a verified password need not be hashed again; 0: always."
    )
    cache_entries: int = Field(
        default=100_000, ge=0, le=10_000_000, description="Most verified logins that a worker remembers."
    )
    hash_threads: int = Field(default=1, ge=1, le=2, description="Threads of each worker that verify passwords.")
    max_waiting: int = Field(
        default=256, ge=1, le=10_000, description="Most logins of a worker that wait for their password's check."
    )


class BasicLookup(Protocol):
    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]: ...


class BasicProvider:
    name = "basic"

    def __init__(
        self, store: BasicLookup, settings: BasicSettings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        settings = settings or BasicSettings()
        self._store = store
        self._hasher = Hasher(settings.hash_threads, settings.max_waiting)
        self._verified = DigestCache(settings.cache_entries, settings.cache_ttl_s, clock)
        self._refused = DigestCache(MAX_REFUSALS, REFUSAL_TTL_S, clock)

    @classmethod
    def from_settings(cls, values: Mapping[str, Any], store: BasicLookup) -> Self:
        return cls(store, read_settings(BasicSettings, cls.name, values))

    async def authenticate(self, login: Login) -> Answer:
        try:
            candidates = await self._store.find_basic(login.client_id, login.username)
        except StoreError as error:
            return Denied(f"basic: {error}", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)
        if not candidates and login.username is None and login.password is None:
            return SKIPPED
        try:
            for credentials in candidates:
                if await self._fits(credentials, login):
                    return Granted(principal_of(credentials))
            if not candidates and login.password is not None:
                await self._is_right(NOBODY, "", login, login.password)
        except HasherBusy as busy:
            return Denied(f"basic: {busy}", ReasonCode.SERVER_BUSY, is_fault=True)
        reason = "basic: wrong or missing password" if candidates else "basic: there are no such credentials"
        return Denied(reason, ReasonCode.BAD_USERNAME_OR_PASSWORD)

    def forget(self, credentials_id: str) -> None:
        """These have changed or are gone: their next login is verified anew."""
        self._verified.forget(credentials_id)

    def clear(self) -> None:
        self._verified.clear()
        self._refused.clear()

    def statistics(self) -> dict[str, dict[str, int]]:
        return {
            "verified": self._verified.statistics(),
            "refused": self._refused.statistics(),
            "hasher": self._hasher.statistics(),
        }

    async def close(self) -> None:
        await self._hasher.close()

    async def _fits(self, credentials: Credentials, login: Login) -> bool:
        proof = credentials.proof
        if not isinstance(proof, BasicProof):
            return False
        if proof.password_hash is None:
            return True
        return login.password is not None and await self._is_right(
            proof.password_hash, credentials.id, login, login.password
        )

    async def _is_right(self, stored: str, credentials_id: str, login: Login, password: bytes) -> bool:
        if len(password) > MAX_PASSWORD_BYTES:
            return False
        right = self._verified.digest(credentials_id.encode(), stored.encode(), password)
        if self._verified.find(right):
            return True
        claim = (login.client_id.encode(), repr(login.username).encode())
        wrong = self._refused.digest(*claim, stored.encode(), password)
        if self._refused.find(wrong):
            return False
        # Many devices that share credentials come at once after a restart: the first to be verified is enough for those
        # who wait behind it.
        if await self._hasher.run(lambda: self._verified.holds(right) or verify_password(stored, password)):
            self._verified.add(right, credentials_id)
            return True
        self._refused.add(wrong)
        return False
