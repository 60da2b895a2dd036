"""Credentials of MQTT clients: for operators, and for a CONNECT.

Each proof has one `match_key`, so that finding by a client id, a user name or a common name is an equality on a unique
index. Patterns of common names cannot be indexed: they are few, and all are tried.
"""

from __future__ import annotations

import functools
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import re2  # type: ignore[import-untyped]
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tbmq.auth.model import Action, ClientType, Effect, PatternKind, Rule
from tbmq.storage.entities import (
    BasicProof,
    ChangeKind,
    Credentials,
    CredentialsKind,
    Proof,
    ScramKeys,
    ScramMechanism,
    ScramProof,
    X509Proof,
    check_credentials,
)
from tbmq.storage.interfaces import BULK, AlreadyThere, NotThere
from tbmq.storage.sql.database import Database, Writing
from tbmq.storage.sql.schema import credentials, match_key

CHUNK = 500  # values in one statement


class SqlCredentials:
    """CredentialsStore and CredentialsLookup."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- for operators

    async def add(self, items: Sequence[Credentials]) -> None:
        for item in items:
            check_credentials(item)
        if not items:
            return
        async with self._database.write() as writing:
            await _refuse_clashes(writing.connection, items)
            await writing.connection.execute(sa.insert(credentials), [_row(item) for item in items])
            _tell(writing, [item.id for item in items])

    async def replace(self, item: Credentials) -> None:
        check_credentials(item)
        async with self._database.write() as writing:
            removed = await writing.connection.execute(sa.delete(credentials).where(credentials.c.id == item.id))
            if not removed.rowcount:
                raise NotThere(f"there are no credentials with the id {item.id!r}")
            await _refuse_clashes(writing.connection, [item])
            await writing.connection.execute(sa.insert(credentials).values(_row(item)))
            _tell(writing, [item.id])

    async def remove(self, name: str) -> Credentials:
        async with self._database.write() as writing:
            found = await _select(writing.connection, credentials.c.name == name)
            if not found:
                raise NotThere(f"there are no credentials {name!r}")
            await writing.connection.execute(sa.delete(credentials).where(credentials.c.id == found[0].id))
            _tell(writing, [found[0].id])
            return found[0]

    async def get(self, id: str) -> Credentials | None:
        return next(iter(await self._find(credentials.c.id == id)), None)

    async def find(self, name: str) -> Credentials | None:
        return next(iter(await self._find(credentials.c.name == name)), None)

    async def page(self, after: str = "", limit: int = 100) -> list[Credentials]:
        query = sa.select(credentials).where(credentials.c.name > after).order_by(credentials.c.name).limit(limit)
        async with self._database.read() as connection:
            return [_credentials(row) for row in await connection.execute(query)]

    # --- for a CONNECT

    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
        return (await self.find_basic_many([(client_id, username)]))[0]

    async def find_basic_many(self, logins: Sequence[tuple[str, str | None]]) -> list[list[Credentials]]:
        keys = [[_match_key(proof) for proof in _basic_proofs(*login)] for login in logins]
        found = await self._find_by_key(list({key for wanted in keys for key in wanted}))
        return [[found[key] for key in wanted if key in found] for wanted in keys]

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]:
        if not common_names:
            return []
        own, chain = common_names[0], common_names[1:]
        exact = [X509Proof(own), X509Proof(own, is_whole_chain=True)]
        exact += [X509Proof(name, is_whole_chain=True) for name in chain]
        patterns = []
        for item in await self._find(credentials.c.is_regex == sa.true()):
            assert isinstance(item.proof, X509Proof)
            names = common_names if item.proof.is_whole_chain else [own]
            place = next((n for n, name in enumerate(names) if _matches(item.proof.common_name, name)), None)
            if place is not None:
                patterns.append((place > 0, item.name, item))
        return await self._find_proofs(exact) + [item for _, _, item in sorted(patterns, key=lambda found: found[:2])]

    async def find_scram(self, username: str, mechanism: str) -> Credentials | None:
        for item in await self._find_proofs([ScramProof(username, ())]):
            assert isinstance(item.proof, ScramProof)
            if item.proof.keys_for(mechanism):
                return item
        return None

    async def _find_proofs(self, proofs: Sequence[Proof]) -> list[Credentials]:
        """Those that ask for exactly one of these, in the order given."""
        keys = list(dict.fromkeys(map(_match_key, proofs)))
        found = await self._find_by_key(keys)
        return [found[key] for key in keys if key in found]

    async def _find_by_key(self, keys: list[str]) -> dict[str, Credentials]:
        return {_match_key(item.proof): item for item in await self._find(credentials.c.match_key.in_(keys))}

    async def _find(self, condition: sa.ColumnElement[bool]) -> list[Credentials]:
        async with self._database.read() as connection:
            return await _select(connection, condition)


def _basic_proofs(client_id: str, username: str | None) -> list[BasicProof]:
    """What this client may be asked for, the most specific first."""
    if username is None:
        return [BasicProof(client_id)]
    return [BasicProof(client_id, username), BasicProof(client_id), BasicProof(None, username)]


async def _select(connection: AsyncConnection, condition: sa.ColumnElement[bool]) -> list[Credentials]:
    return [_credentials(row) for row in await connection.execute(sa.select(credentials).where(condition))]


def _tell(writing: Writing, ids: Sequence[str]) -> None:
    for id in ids if len(ids) <= BULK else [""]:
        writing.changed(ChangeKind.CREDENTIALS, id)


async def _refuse_clashes(connection: AsyncConnection, items: Sequence[Credentials]) -> None:
    """Nobody else writes meanwhile, so what is free now stays free until the end of this transaction."""
    names = await _owners(connection, credentials.c.name, [item.name for item in items])
    keys = await _owners(connection, credentials.c.match_key, [_match_key(item.proof) for item in items])
    clashes = {}
    for place, item in enumerate(items):
        key = _match_key(item.proof)
        if item.name in names:
            clashes[place] = f"there are credentials {item.name!r} already"
        elif key in keys:
            clashes[place] = f"{item.name!r} would match the same clients as {keys[key]!r}"
        names.setdefault(item.name, item.name)
        keys.setdefault(key, item.name)
    if clashes:
        raise AlreadyThere(clashes)


async def _owners(connection: AsyncConnection, column: sa.Column[Any], values: Sequence[str]) -> dict[str, str]:
    """Of these values of a unique column those that are taken, with the names of whom."""
    found: dict[str, str] = {}
    for start in range(0, len(values), CHUNK):
        query = sa.select(column, credentials.c.name).where(column.in_(values[start : start + CHUNK]))
        found |= {row[0]: row[1] for row in await connection.execute(query)}
    return found


# --- rows


def _match_key(proof: Proof) -> str:
    match proof:
        case BasicProof(client_id, username):
            return match_key(proof.kind, client_id, username)
        case X509Proof(common_name, is_regex, is_whole_chain):
            return match_key(proof.kind, common_name, is_regex, is_whole_chain)
        case ScramProof(username):
            return match_key(proof.kind, username)


def _row(item: Credentials) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((column.name for column in credentials.columns), None)
    row |= {
        "id": item.id,
        "name": item.name,
        "kind": item.proof.kind,
        "client_type": item.client_type,
        "match_key": _match_key(item.proof),
        "scram_keys": sa.null(),  # a NULL of SQL rather than of JSON
        "rules": [_rule_to_json(rule) for rule in item.rules],
        "created_at": item.created_at,
    }
    match item.proof:
        case BasicProof(client_id, username, password_hash):
            return row | {"client_id": client_id, "username": username, "password_hash": password_hash}
        case X509Proof(common_name, is_regex, is_whole_chain):
            return row | {"common_name": common_name, "is_regex": is_regex, "is_whole_chain": is_whole_chain}
        case ScramProof(username, keys):
            return row | {"username": username, "scram_keys": [_keys_to_json(one) for one in keys]}


def _credentials(row: sa.Row[Any]) -> Credentials:
    proof: Proof
    match CredentialsKind(row.kind):
        case CredentialsKind.BASIC:
            proof = BasicProof(row.client_id, row.username, row.password_hash)
        case CredentialsKind.X509:
            proof = X509Proof(row.common_name, row.is_regex, row.is_whole_chain)
        case CredentialsKind.SCRAM:
            proof = ScramProof(row.username, tuple(map(_keys_from_json, row.scram_keys)))
    rules = tuple(map(_rule_from_json, row.rules))
    return Credentials(row.name, proof, ClientType(row.client_type), rules, row.id, row.created_at)


def _rule_to_json(rule: Rule) -> dict[str, str]:
    return {"effect": rule.effect, "action": rule.action, "kind": rule.kind, "pattern": rule.pattern}


def _rule_from_json(value: dict[str, str]) -> Rule:
    return Rule(Effect(value["effect"]), Action(value["action"]), PatternKind(value["kind"]), value["pattern"])


def _keys_to_json(keys: ScramKeys) -> dict[str, Any]:
    secrets = {"salt": keys.salt, "stored_key": keys.stored_key, "server_key": keys.server_key}
    texts = {name: b64encode(value).decode("ascii") for name, value in secrets.items()}
    return {"mechanism": keys.mechanism, "iterations": keys.iterations} | texts


def _keys_from_json(value: dict[str, Any]) -> ScramKeys:
    return ScramKeys(
        ScramMechanism(value["mechanism"]),
        b64decode(value["salt"]),
        value["iterations"],
        b64decode(value["stored_key"]),
        b64decode(value["server_key"]),
    )


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


@functools.lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)
