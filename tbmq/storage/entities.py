"""What the entity store keeps, as plain data, and the rules by which it is refused.

    User                              an administrator
    Credentials ─┬─ BasicProof        client id, user name, or both; and a password, or none
      name       ├─ X509Proof         a common name, or a pattern, in the client's certificate or its chain
      type       └─ ScramProof        user name and derived keys; the password itself is nowhere
      rules
    Provider                          one way to authenticate: on or off, its place in the order, its settings
    Blocked                           who stays outside whatever they show
    Failure                           a login that was refused
    Change, Changes                   what others changed, so that a worker need not read everything again

Nothing is checked when an object is made, so that reading a thousand costs nothing; `check_...` is called by the store
before it writes. No secret is part of the text of an object.
"""

from __future__ import annotations

import ipaddress
import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

import re2  # type: ignore[import-untyped]

from tbmq._trie import check_topic_filter
from tbmq.auth.model import ALLOW_ALL, ClientType, PatternKind, Rule

MAX_NAME_CHARS = 255  # of names and keys; PostgreSQL cannot index much more than 2,700 bytes
MAX_TEXT_CHARS = 4_096  # of everything else that is one line
MAX_PATTERN_CHARS = 1_024
MAX_RULES = 256  # of one set of credentials
MAX_JSON_BYTES = 65_536
MIN_SCRAM_ITERATIONS = 4_096  # RFC 7677

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class InvalidEntity(ValueError):
    """It is not written; the text says what is wrong, and never repeats a secret."""


def new_id() -> str:
    return str(uuid.uuid4())


# --- users


class Role(StrEnum):
    ADMIN = "admin"
    VIEWER = "viewer"  # may look at everything and change nothing


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str = field(repr=False)
    role: Role = Role.ADMIN
    created_at: float = field(default_factory=time.time)


# --- credentials


class CredentialsKind(StrEnum):
    BASIC = "basic"
    X509 = "x509"
    SCRAM = "scram"


@dataclass(frozen=True, slots=True)
class BasicProof:
    client_id: str | None = None  # None: any
    username: str | None = None
    password_hash: str | None = field(default=None, repr=False)  # None: no password is asked for

    kind = CredentialsKind.BASIC


@dataclass(frozen=True, slots=True)
class X509Proof:
    common_name: str  # or a pattern that must match all of it
    is_regex: bool = False
    is_whole_chain: bool = False  # any certificate of the chain will do, not only the client's own

    kind = CredentialsKind.X509


class ScramMechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class ScramKeys:
    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramProof:
    username: str
    keys: tuple[ScramKeys, ...]  # at most one for each mechanism

    kind = CredentialsKind.SCRAM

    def keys_for(self, mechanism: str) -> ScramKeys | None:
        return next((keys for keys in self.keys if keys.mechanism == mechanism), None)


Proof = BasicProof | X509Proof | ScramProof


@dataclass(frozen=True, slots=True)
class Credentials:
    name: str  # unique, for operators
    proof: Proof  # what a client must show; no two credentials ask for the same
    client_type: ClientType = ClientType.DEVICE
    rules: tuple[Rule, ...] = ALLOW_ALL  # in order, the first that applies decides
    id: str = field(default_factory=new_id)
    created_at: float = field(default_factory=time.time)


# --- providers, blocked clients, failures


class ProviderKind(StrEnum):
    BASIC = "basic"
    X509 = "x509"
    JWT = "jwt"
    HTTP = "http"
    SCRAM = "scram"


@dataclass(frozen=True, slots=True)
class Provider:
    kind: ProviderKind  # one of each
    is_enabled: bool
    position: int  # 0 is asked first
    settings: dict[str, Json] = field(repr=False)


class BlockedKind(StrEnum):
    CLIENT_ID = "client_id"
    USERNAME = "username"
    IP = "ip"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Blocked:
    kind: BlockedKind
    value: str
    is_regex: bool = False  # the pattern must match all of it; a network is never a pattern
    reason: str = ""
    expires_at: float | None = None  # Unix time; None: for good
    id: str = field(default_factory=new_id)
    created_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Failure:
    """All of it comes from a stranger, except the reason: show it as text, nothing else."""

    client_id: str
    username: str | None
    ip: str
    reason: str
    at: float


# --- changes


class ChangeKind(StrEnum):
    USER = "user"
    CREDENTIALS = "credentials"
    PROVIDER = "provider"
    BLOCKED = "blocked"
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    kind: ChangeKind
    key: str  # name of the user, id of credentials and blocked, kind of the provider, key of the setting; empty: many


@dataclass(frozen=True, slots=True)
class Changes:
    version: int  # all up to here are told; ask from here next time
    items: tuple[Change, ...]  # oldest first
    is_complete: bool  # False: the log does not reach so far back, read everything anew; items is empty then


# --- what is refused


def check_user(user: User) -> None:
    check_name("the user name", user.name)
    _check_text("the password hash", user.password_hash)


def check_credentials(credentials: Credentials) -> None:
    check_name("the name of the credentials", credentials.name)
    check_rules(credentials.rules)
    match credentials.proof:
        case BasicProof(None, None):
            raise InvalidEntity("basic credentials need a client id, a user name, or both")
        case BasicProof(client_id, username, password_hash):
            texts = {"the client id": client_id, "the user name": username, "the password hash": password_hash}
            for what, text in texts.items():
                if text is not None:
                    _check_text(what, text)
        case X509Proof(common_name, is_regex):
            _check_text("the common name", common_name)
            if is_regex:
                check_regex(common_name)
        case ScramProof(username, keys):
            _check_text("the user name", username)
            _check_scram_keys(keys)


def _check_scram_keys(keys: tuple[ScramKeys, ...]) -> None:
    if not keys or len({one.mechanism for one in keys}) < len(keys):
        raise InvalidEntity("SCRAM credentials need keys for one mechanism or more, once for each")
    for one in keys:
        length = {ScramMechanism.SHA_256: 32, ScramMechanism.SHA_512: 64}[ScramMechanism(one.mechanism)]
        if {len(one.stored_key), len(one.server_key)} != {length} or not one.salt:
            raise InvalidEntity(f"keys for {one.mechanism} need a salt and must be {length} bytes long")
        if one.iterations < MIN_SCRAM_ITERATIONS:
            raise InvalidEntity(f"SCRAM needs {MIN_SCRAM_ITERATIONS:,} iterations or more, got {one.iterations:,}")


def check_rules(rules: Iterable[Rule]) -> None:
    rules = tuple(rules)
    if len(rules) > MAX_RULES:
        raise InvalidEntity(f"{len(rules)} rules are too many, {MAX_RULES} are taken")
    for rule in rules:
        _check_text("the pattern of a rule", rule.pattern, MAX_PATTERN_CHARS)
        if rule.kind is PatternKind.REGEX:
            check_regex(rule.pattern)
        elif check_topic_filter(rule.pattern):
            raise InvalidEntity(f"{rule.pattern!r} is no topic filter: + and # stand alone in a level, # in the last")


def check_regex(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidEntity(f"a regular expression may have {MAX_PATTERN_CHARS:,} characters, not {len(pattern):,}")
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode()
        raise InvalidEntity(f"{pattern!r} is no regular expression (RE2): {reason}") from None


def check_provider_settings(settings: dict[str, Json]) -> None:
    """Only the shape: what each key means is known to the provider."""
    if not isinstance(settings, dict):
        raise InvalidEntity("settings of a provider must be a JSON object")
    check_json("the settings of the provider", settings)


def check_blocked(blocked: Blocked) -> Blocked:
    """The same with its address in the usual form, so that `::1` and `0::1` are one."""
    value = blocked.value
    _check_text("what is blocked", value, MAX_PATTERN_CHARS)
    if blocked.reason:
        _check_text("the reason", blocked.reason)
    if blocked.is_regex:
        if blocked.kind is BlockedKind.NETWORK:
            raise InvalidEntity("a network is written as 10.0.0.0/8 and cannot be a regular expression")
        check_regex(value)
    else:
        try:
            if blocked.kind is BlockedKind.IP:
                value = str(ipaddress.ip_address(value))
            elif blocked.kind is BlockedKind.NETWORK:
                value = str(ipaddress.ip_network(value))
        except ValueError as error:
            raise InvalidEntity(f"not an address to block: {error}") from None
    return replace(blocked, value=value)


def check_json(what: str, value: Json) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidEntity(f"{what}: not JSON: {error}") from None
    if len(text) > MAX_JSON_BYTES:
        raise InvalidEntity(f"{what}: {len(text):,} bytes of JSON are too many, {MAX_JSON_BYTES:,} are taken")


def check_name(what: str, name: str) -> None:
    _check_text(what, name, MAX_NAME_CHARS)
    if name != name.strip() or not name.isprintable():
        raise InvalidEntity(f"{what} must be printable, and not begin or end with a space, got {name!r}")


def _check_text(what: str, text: str, max_chars: int = MAX_TEXT_CHARS) -> None:
    if not text:
        raise InvalidEntity(f"{what} must not be empty")
    if len(text) > max_chars:
        raise InvalidEntity(f"{what} may have {max_chars:,} characters, not {len(text):,}")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidEntity(f"{what} must be text without U+0000 and surrogates")
