"""The words of authentication and authorisation. Everything else in this package speaks them.

    CONNECT ──▶ Login ──▶ provider, provider, ... ──▶ Granted(Principal) | Denied | SKIPPED
                                                          │
                                                          └─ rules ──▶ may it publish here, subscribe to that?

A provider that knows nothing of the client skips; the first that does not skip decides; when all skip, the client is
refused. A provider that cannot answer (a server that is down, a database that is locked) denies: a fault is never an
open door.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tbmq.protocol import ReasonCode


class ClientType(StrEnum):
    DEVICE = "DEVICE"
    APPLICATION = "APPLICATION"


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class Action(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ALL = "all"


class PatternKind(StrEnum):
    FILTER = "filter"  # an MQTT topic filter; may hold ${clientid}, ${username} and ${cn}
    REGEX = "regex"  # the whole topic, or topic filter, must match


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of what a client may do. The first rule that applies decides; when none does, the answer is no."""

    effect: Effect
    action: Action
    kind: PatternKind
    pattern: str


ALLOW_ALL = (Rule(Effect.ALLOW, Action.ALL, PatternKind.REGEX, ".*"),)
"""For those who are let in without credentials of their own, and the default of new credentials."""


@dataclass(frozen=True, slots=True)
class Login:
    """What a client shows at CONNECT. A secret is never part of the text of this object."""

    client_id: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    peer: str = ""  # address:port
    common_names: tuple[str, ...] = ()  # of the verified client certificate and its chain, the client's own first


@dataclass(frozen=True, slots=True)
class Principal:
    """Who somebody turned out to be."""

    name: str  # says by whose word: "basic:<credentials id>", "jwt:<subject>"; the same name may take a session over
    client_type: ClientType
    rules: tuple[Rule, ...]
    credentials_id: str | None = None  # of the entity store, so that a change of them finds who is connected by them
    proof: object = field(default=None, repr=False, compare=False)  # of these credentials, as it was at the login


@dataclass(frozen=True, slots=True)
class Granted:
    principal: Principal
    expires_at: float | None = None  # Unix time; after it the client is not who it was, and is disconnected


@dataclass(frozen=True, slots=True)
class Denied:
    reason: str  # for the operator, never for the client: it must not learn which part was wrong
    reason_code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    is_fault: bool = False  # the provider could not answer


class Skipped:
    """This provider has nothing to say of the client."""

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED = Skipped()

Answer = Granted | Denied | Skipped


class Provider(Protocol):
    """One way to find out who somebody is."""

    name: str  # "basic", "x509", "jwt", "http"

    async def authenticate(self, login: Login) -> Answer:
        """Runs on the worker's loop and must not hold it: hashing and waiting happen elsewhere. Does not raise."""

    async def close(self) -> None:
        """Gives back connections and threads."""
