"""Before the workers: the entity store is made, or brought to this version, and has what all processes share.

On the very first start that is an administrator with a password of our choice, which is shown once and never again.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from tbmq.auth.gate import prepare
from tbmq.auth.passwords import hash_password
from tbmq.config import Config
from tbmq.storage.entities import User
from tbmq.storage.interfaces import AlreadyThere, EntityStore
from tbmq.storage.sql import open_entities

FIRST_USER = "admin"


@dataclass(frozen=True)
class Prepared:
    providers: list[str]  # those that are switched on, in their order
    password: str | None  # of the first administrator, when there was none yet


def prepare_entities(config: Config) -> Prepared:
    """Raises StoreError. Leaves neither threads nor connections behind, so that processes can be forked afterwards."""
    return asyncio.run(_prepare(config))


async def _prepare(config: Config) -> Prepared:
    store = await open_entities(config)
    try:
        await prepare(store, lambda: secrets.token_hex(32))
        providers = [str(provider.kind) for provider in await store.providers.all() if provider.is_enabled]
        return Prepared(providers, await _add_first_user(store))
    finally:
        await store.close()


async def _add_first_user(store: EntityStore) -> str | None:
    if await store.users.all():
        return None
    password = secrets.token_urlsafe(15)
    try:
        await store.users.add(User(FIRST_USER, hash_password(password)))
    except AlreadyThere:  # another node was faster
        return None
    return password
