"""Who may come in: everything that a worker knows of it, kept up to date with the entity store.

    CONNECT ──▶ judge_now ──▶ blocked? flapping? ──▶ Denied
                    │              no ──▶ authentication is off ──▶ Granted
                    ▼ None
                authenticate ──▶ providers in their order ──▶ Granted | Denied

    entity store ──watch──▶ providers: built anew        credentials: forgotten here, then `credentials_changed`
                            blocked clients: indexed anew, then `blocked_changed`

It fails closed: a provider that is switched on and cannot be built denies everybody whom it is asked about; when its
settings go wrong later, the last good ones stay in force. Failures are collected and written once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tbmq.auth.basic import BasicProvider
from tbmq.auth.blocked import BlockedClients
from tbmq.auth.chain import Chain
from tbmq.auth.flapping import Flapping
from tbmq.auth.http import HttpProvider
from tbmq.auth.jwt import JwtProvider
from tbmq.auth.lookup import CachedLookup, principal_of
from tbmq.auth.model import Answer, Denied, Granted, Login, Principal, Provider
from tbmq.auth.scram import ScramExchange, ScramSettings
from tbmq.auth.settings import SettingsError
from tbmq.auth.x509 import X509Provider
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import (
    Change,
    ChangeKind,
    Changes,
    Credentials,
    Failure,
    ProviderKind,
    ScramKeys,
    ScramProof,
)
from tbmq.storage.entities import Provider as ProviderEntity
from tbmq.storage.interfaces import EntityStore, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

DISGUISE = "auth.scram_disguise"
"""The setting with the secret behind the salts of SCRAM names that do not exist; the same in all workers."""

MAX_FAILURES_PER_S = 1_000
FLUSH_S = 1.0
RETIRE_S = 30.0  # logins under way may still use the providers that were replaced


class Broken:
    """Stands in for a provider that could not be built."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def authenticate(self, login: Login) -> Answer:
        return Denied(f"the provider {self.name} has wrong settings", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)

    async def close(self) -> None:
        """Nothing is held."""


class Gate:
    """One per worker. `open` first; `close` gives everything back, the store included."""

    def __init__(self, flapping: Flapping) -> None:
        self.flapping = flapping
        self.credentials_changed: Callable[[set[str] | None], Coroutine[Any, Any, None]]  # ids; None: any of them
        self.blocked_changed: Callable[[], None]
        self._store: EntityStore
        self._lookup: CachedLookup
        self._chain = Chain(())
        self._basic: BasicProvider | None = None
        self._scram: ScramSettings | None = None  # None: off
        self._disguise = b""
        self._blocked = BlockedClients(())
        self._failures: dict[str, Failure] = {}
        self._failures_dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = asyncio.Lock()

    async def open(self, store: EntityStore) -> None:
        self._store = store
        self._lookup = CachedLookup(store.lookup)
        version = await store.changes.version()
        self._disguise = bytes.fromhex(str(await store.settings.get(DISGUISE, "")))
        await self._read_providers()
        await self._read_blocked()
        self._start(store.changes.watch(self._on_changes, version))
        self._start(self._write_failures())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._flush_failures()
        await self._chain.close()
        await self._store.close()

    # --- asked by CONNECT --------------------------------------------------------------------------------------------

    def judge_now(self, login: Login) -> Granted | Denied | None:
        """The answer when it needs no waiting; None: `authenticate`."""
        blocked = self._blocked.find(login.client_id, login.username, ip_of(login.peer), time.time())
        if blocked is not None:
            reason = f"blocked by {blocked.kind} {blocked.value!r}: {blocked.reason or 'no reason given'}"
            return self._denied(login, Denied(reason, ReasonCode.BANNED))
        if self.flapping.blocked_until(login.client_id, time.monotonic()) is not None:
            return self._denied(login, Denied("blocked for a while: it comes and goes too often", ReasonCode.BANNED))
        return self._chain.try_now(login)

    async def authenticate(self, login: Login) -> Granted | Denied:
        answer = await self._chain.authenticate(login)
        return self._denied(login, answer) if isinstance(answer, Denied) else answer

    def is_blocked(self, login: Login) -> bool:
        found = self._blocked.find(login.client_id, login.username, ip_of(login.peer), time.time())
        return found is not None

    def _denied(self, login: Login, denied: Denied) -> Denied:
        if len(self._failures) < MAX_FAILURES_PER_S or login.client_id in self._failures:
            self._failures[login.client_id] = Failure(
                login.client_id, login.username, ip_of(login.peer), denied.reason, time.time()
            )
        else:
            self._failures_dropped += 1
        return denied

    # --- SCRAM -------------------------------------------------------------------------------------------------------

    def start_exchange(self, method: str) -> ScramExchange | None:
        """None: this method is not known, or off."""
        if self._scram is None or method not in {str(mechanism) for mechanism in self._scram.mechanisms}:
            return None
        return ScramExchange(method, self._disguise, self._scram.iterations)

    async def find_scram(self, username: str, method: str) -> tuple[Principal, ScramKeys] | None:
        """StoreError when the store cannot tell."""
        credentials = await self._store.lookup.find_scram(username, method)
        if credentials is None or not isinstance(credentials.proof, ScramProof):
            return None
        keys = next(keys for keys in credentials.proof.keys if keys.mechanism == method)
        return principal_of(credentials), keys

    def deny_exchange(self, login: Login, reason: str, code: ReasonCode) -> Denied:
        return self._denied(login, Denied(reason, code))

    async def get_credentials(self, credentials_id: str) -> Credentials | None:
        """Waits for the store when it does not answer."""
        return await self._until_read(lambda: self._store.credentials.get(credentials_id))

    # --- following the store -----------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("following the entity store: %s", task.exception(), exc_info=task.exception())

    def _on_changes(self, changes: Changes) -> None:
        if not changes.is_complete or any(item.kind is ChangeKind.CREDENTIALS for item in changes.items):
            self._lookup.clear()  # at once: no login may see what was before
        self._start(self._refresh(changes))

    async def _refresh(self, changes: Changes) -> None:
        """One after the other, in the order in which they were told."""
        async with self._refreshing:
            if not changes.is_complete or _concerns(changes, ChangeKind.PROVIDER):
                await self._until_read(self._read_providers)
                log.info("authentication: %s", ", ".join(sorted(self._chain.names)) or "off, everybody may enter")
            if not changes.is_complete or _concerns(changes, ChangeKind.BLOCKED):
                await self._until_read(self._read_blocked)
                self.blocked_changed()
            credentials = _concerns(changes, ChangeKind.CREDENTIALS)
            if not changes.is_complete or credentials:
                ids = {change.key for change in credentials}
                if self._basic is not None:
                    self._basic.clear()
                await self.credentials_changed(None if not changes.is_complete or "" in ids else ids)

    async def _until_read(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await read()
            except StoreError as error:
                log.warning("cannot read a change of the entity store, trying again: %s", error)
                await asyncio.sleep(FLUSH_S)

    async def _read_providers(self) -> None:
        entities = [entity for entity in await self._store.providers.all() if entity.is_enabled]
        providers: list[Provider] = []
        basic, scram = None, None
        for entity in entities:
            try:
                if entity.kind is ProviderKind.SCRAM:
                    scram = ScramSettings.from_settings(entity.settings)
                else:
                    providers.append(self._build(entity))
            except SettingsError as error:
                if self._has_built(entity.kind):
                    log.error("%s; the providers stay as they were", error)
                    return
                log.error("%s; until that is put right, nobody is let in by %s", error, entity.kind)
                providers.append(Broken(str(entity.kind)))
        basic = next((provider for provider in providers if isinstance(provider, BasicProvider)), None)
        if scram is not None and not providers:
            providers.append(Broken("scram: it needs an MQTT 5 client that uses it, which this one does not"))
        retired, self._chain, self._basic, self._scram = self._chain, Chain(providers), basic, scram
        asyncio.get_running_loop().call_later(RETIRE_S, lambda: self._start(retired.close()))

    def _has_built(self, kind: ProviderKind) -> bool:
        if kind is ProviderKind.SCRAM:
            return self._scram is not None
        return str(kind) in self._chain.names

    def _build(self, entity: ProviderEntity) -> Provider:
        if entity.kind is ProviderKind.BASIC:
            return BasicProvider.from_settings(entity.settings, self._lookup)
        if entity.kind is ProviderKind.X509:
            return X509Provider.from_settings(entity.settings, self._lookup)
        if entity.kind is ProviderKind.JWT:
            return JwtProvider.from_settings(entity.settings)
        return HttpProvider.from_settings(entity.settings)

    async def _read_blocked(self) -> None:
        self._blocked = BlockedClients(await self._store.blocked.all())
        for entry, fault in self._blocked.unusable:
            log.error("blocked clients: %s %r blocks nobody: %s", entry.kind, entry.value, fault)

    # --- failures ----------------------------------------------------------------------------------------------------

    async def _write_failures(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush_failures()

    async def _flush_failures(self) -> None:
        failures, self._failures = list(self._failures.values()), {}
        if self._failures_dropped:
            log.warning("%d more logins were refused than are written down", self._failures_dropped)
            self._failures_dropped = 0
        if failures:
            try:
                await self._store.failures.record(failures)
            except StoreError as error:
                log.warning("%d refused logins cannot be written down: %s", len(failures), error)

    def statistics(self) -> dict[str, Any]:
        return {
            "logins": self._chain.statistics(),
            "blocked": self._blocked.statistics(),
            "flapping": self.flapping.statistics(),
            "passwords": self._basic.statistics() if self._basic is not None else {},
        }


def _concerns(changes: Changes, kind: ChangeKind) -> list[Change]:
    return [change for change in changes.items if change.kind is kind]


def ip_of(peer: str) -> str:
    """`peer` is address:port, also with IPv6."""
    return peer.rpartition(":")[0]


async def prepare(store: EntityStore, make_secret: Callable[[], str]) -> None:
    """Before the first worker opens the store: what all of them must share."""
    if not await store.settings.get(DISGUISE, ""):
        await store.settings.put(DISGUISE, make_secret())
