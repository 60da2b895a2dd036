"""Who may come in: everything that a worker knows of it, kept up to date with the entity store.

    CONNECT ──▶ judge_now ──▶ blocked? flapping? ──▶ Denied
                    │              no ──▶ authentication is off ──▶ Granted
                    ▼ None
                authenticate ──▶ providers in their order ──▶ Granted | Denied

    entity store ──watch──▶ providers: those that changed are built anew
                            credentials: forgotten here, then `credentials_changed`
                            blocked clients: indexed anew, then `blocked_changed`

It fails closed: a provider that is switched on and cannot be built denies everybody whom it is asked about; when its
settings go wrong later, its last good ones stay in force. A login that was under way while credentials changed is
judged again, as it may have been let in by what is no more. Failures are collected and written once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tbmq.auth.basic import BasicProvider
from tbmq.auth.batching import BatchedLookup
from tbmq.auth.blocked import BlockedClients
from tbmq.auth.chain import Chain
from tbmq.auth.flapping import Flapping
from tbmq.auth.http import HttpProvider
from tbmq.auth.jwt import JwtProvider
from tbmq.auth.lookup import CachedLookup, principal_of
from tbmq.auth.model import SKIPPED, Answer, Denied, Granted, Login, Principal, Provider
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
    Json,
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
MAX_LOOKS = 10  # at one login while credentials keep changing; then it is told to come again


class Broken:
    """Stands in for a provider that could not be built."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def authenticate(self, login: Login) -> Answer:
        return Denied(f"the provider {self.name} has wrong settings", ReasonCode.SERVER_UNAVAILABLE, is_fault=True)

    async def close(self) -> None:
        """Nothing is held."""


class Nobody:
    """The only provider when SCRAM alone is on: who does not use it is a stranger."""

    name = "nobody"

    async def authenticate(self, login: Login) -> Answer:
        return SKIPPED

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A provider that is switched on, and what it was built from."""

    settings: dict[str, Json]
    part: Provider | ScramSettings  # SCRAM stands beside the chain


class Gate:
    """One per worker. `open` first; `close` gives everything back, the store included."""

    def __init__(self, flapping: Flapping) -> None:
        self.flapping = flapping
        self.credentials_changed: Callable[[set[str] | None], Coroutine[Any, Any, None]]  # ids; None: any of them
        self.blocked_changed: Callable[[], None]
        self._store: EntityStore
        self._lookup: CachedLookup
        self.credentials_version = 0  # another one: credentials may not be what they were
        self._built: dict[ProviderKind, Built] = {}  # in their order
        self._retired: list[Provider] = []  # replaced, and to be closed when nobody uses them any more
        self._chain = Chain(())
        self._disguise = b""
        self._blocked = BlockedClients(())
        self._failures: dict[str, Failure] = {}
        self._failures_dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = asyncio.Lock()

    async def open(self, store: EntityStore) -> None:
        self._store = store
        self._lookup = CachedLookup(BatchedLookup(store.lookup))
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
        await self._close_retired(self._retired)
        await self._store.close()

    # --- asked by CONNECT --------------------------------------------------------------------------------------------

    def judge_now(self, login: Login) -> Granted | Denied | None:
        """The answer when it needs no waiting; None: `authenticate`."""
        blocked = self.find_blocked(login)
        if blocked is not None:
            return self._denied(login, blocked)
        if self.flapping.blocked_until(login.client_id, time.monotonic()) is not None:
            return self._denied(login, Denied("blocked for a while: it comes and goes too often", ReasonCode.BANNED))
        return self._chain.try_now(login)

    async def authenticate(self, login: Login) -> Granted | Denied:
        for _ in range(MAX_LOOKS):
            version = self.credentials_version
            answer = await self._chain.authenticate(login)
            if isinstance(answer, Denied):
                return self._denied(login, answer)
            blocked = self.find_blocked(login)  # meanwhile
            if blocked is not None:
                return self._denied(login, blocked)
            if version == self.credentials_version or answer.principal.credentials_id is None:
                return answer
        return self._denied(login, Denied("credentials change all the time", ReasonCode.SERVER_BUSY, is_fault=True))

    def find_blocked(self, login: Login) -> Denied | None:
        """None: it is not blocked."""
        found = self._blocked.find(login.client_id, login.username, ip_of(login.peer), time.time())
        if found is None:
            return None
        return Denied(
            f"blocked by {found.kind} {found.value!r}: {found.reason or 'no reason given'}", ReasonCode.BANNED
        )

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
        scram = self._part(ProviderKind.SCRAM)
        if not isinstance(scram, ScramSettings) or method not in {str(mechanism) for mechanism in scram.mechanisms}:
            return None
        return ScramExchange(method, self._disguise, scram.iterations)

    async def find_scram(self, username: str, method: str) -> tuple[Principal, ScramKeys] | None:
        """StoreError when the store cannot tell."""
        credentials = await self._store.lookup.find_scram(username, method)
        if credentials is None or not isinstance(credentials.proof, ScramProof):
            return None
        keys = credentials.proof.keys_for(method)
        return None if keys is None else (principal_of(credentials), keys)

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
            self.credentials_version += 1
        self._start(self._refresh(changes))

    async def _refresh(self, changes: Changes) -> None:
        """One after the other, in the order in which they were told."""
        async with self._refreshing:
            kinds = {change.key for change in _concerns(changes, ChangeKind.PROVIDER)}
            if not changes.is_complete or kinds:
                await self._until_read(lambda: self._read_providers(kinds if changes.is_complete else None))
                log.info("authentication: %s", ", ".join(self._built) or "off, everybody may enter")
            if not changes.is_complete or _concerns(changes, ChangeKind.BLOCKED):
                await self._until_read(self._read_blocked)
                self.blocked_changed()
            credentials = _concerns(changes, ChangeKind.CREDENTIALS)
            if not changes.is_complete or credentials:
                ids = {change.key for change in credentials}
                basic = self._part(ProviderKind.BASIC)
                if isinstance(basic, BasicProvider):
                    for credentials_id in ids:
                        basic.forget(credentials_id)
                await self.credentials_changed(None if not changes.is_complete or "" in ids else ids)

    async def _until_read(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await read()
            except StoreError as error:
                log.warning("cannot read a change of the entity store, trying again: %s", error)
                await asyncio.sleep(FLUSH_S)

    async def _read_providers(self, changed: set[str] | None = None) -> None:
        """`changed` names kinds that were touched. Others whose settings are the same stay as they are, with what they
        hold: verified passwords, key sets. None: any may have been."""
        built: dict[ProviderKind, Built] = {}
        for entity in await self._store.providers.all():
            old = self._built.get(entity.kind)
            if not entity.is_enabled:
                continue
            if changed is None or old is None or entity.kind in changed or old.settings != entity.settings:
                built[entity.kind] = self._build_or_keep(entity, old)
            else:
                built[entity.kind] = old
        old_parts = {kind: one.part for kind, one in self._built.items()}
        self._built = built
        parts = [one.part for one in built.values()]
        in_chain = [part for part in parts if not isinstance(part, ScramSettings)]
        self._chain = Chain(in_chain or ([Nobody()] if parts else []))
        self._retire([part for part in old_parts.values() if part not in parts and not isinstance(part, ScramSettings)])

    def _build_or_keep(self, entity: ProviderEntity, old: Built | None) -> Built:
        try:
            return Built(entity.settings, self._build(entity))
        except SettingsError as error:
            if old is not None and not isinstance(old.part, Broken):
                log.error("%s; its last good settings stay in force", error)
                return old
            log.error("%s; until that is put right, nobody is let in by %s", error, entity.kind)
            return Built(entity.settings, Broken(str(entity.kind)))

    def _retire(self, providers: list[Provider]) -> None:
        if providers:
            self._retired += providers
            close = self._close_retired
            asyncio.get_running_loop().call_later(RETIRE_S, lambda: self._start(close(providers)))

    async def _close_retired(self, providers: list[Provider]) -> None:
        for provider in list(providers):
            if provider in self._retired:
                self._retired.remove(provider)
                await provider.close()

    def _part(self, kind: ProviderKind) -> Provider | ScramSettings | None:
        built = self._built.get(kind)
        return None if built is None else built.part

    def _build(self, entity: ProviderEntity) -> Provider | ScramSettings:
        """Raises SettingsError."""
        if entity.kind is ProviderKind.SCRAM:
            return ScramSettings.from_settings(entity.settings)
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
        basic = self._part(ProviderKind.BASIC)
        return {
            "logins": self._chain.statistics(),
            "blocked": self._blocked.statistics(),
            "flapping": self.flapping.statistics(),
            "passwords": basic.statistics() if isinstance(basic, BasicProvider) else {},
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
