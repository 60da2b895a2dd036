"""What stores promise to those above them.

The entity store: users, credentials, authentication providers, blocked clients, settings. One store belongs to one
process and one loop; open it after a fork, never before. Many processes may have the same data open.

What holds for all of it:

- A change is durable, and seen by everybody who reads afterwards, when its call has returned. It happens wholly or not
  at all. When a call fails with StoreUnavailable, it is unknown whether its change was made.
- Changes of all processes happen one after the other. Each gets a version, larger than all before it, and those who
  `watch` are told within half a second.
- `InvalidEntity` (of `entities`), `AlreadyThere` and `NotThere` mean that nothing was changed.
- No text of an error holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tbmq.storage.entities import (
    Blocked,
    Changes,
    Credentials,
    Failure,
    Json,
    Provider,
    ProviderKind,
    User,
)


class StoreError(Exception):
    """Base of what a store refuses or cannot do."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, is damaged, or does not answer in time."""


class SchemaTooNew(StoreError):
    """A newer program has been here; this one must not touch the data."""


class NotThere(StoreError):
    """What was to be changed or removed does not exist."""


class AlreadyThere(StoreError):
    """`clashes` has one reason for each thing that clashes, by its place in what was given."""

    def __init__(self, clashes: dict[int, str]) -> None:
        super().__init__("; ".join(clashes.values()))
        self.clashes = clashes


class UserStore(Protocol):
    """Administrators, by name."""

    async def all(self) -> list[User]:
        """By name, in the order of code points."""

    async def find(self, name: str) -> User | None: ...

    async def add(self, user: User) -> None:
        """AlreadyThere when the name is taken."""

    async def set_password_hash(self, name: str, password_hash: str) -> None:
        """NotThere when there is no such user."""

    async def remove(self, name: str) -> None:
        """NotThere when there is no such user."""


class CredentialsStore(Protocol):
    """Credentials of MQTT clients, for operators. Names are unique, and so is what the proofs ask for."""

    async def add(self, items: Sequence[Credentials]) -> None:
        """All of them or none. AlreadyThere tells everything that clashes, with the store or among the given. More than
        `BULK` at once are told to watchers as one change with an empty key."""

    async def replace(self, credentials: Credentials) -> None:
        """Those with the same id. NotThere, AlreadyThere."""

    async def remove(self, name: str) -> Credentials:
        """What was removed. NotThere."""

    async def get(self, id: str) -> Credentials | None: ...

    async def find(self, name: str) -> Credentials | None: ...

    async def page(self, after: str = "", limit: int = 100) -> list[Credentials]:
        """By name in the order of code points, from the first whose name is larger than `after`."""


class CredentialsLookup(Protocol):
    """The same credentials, for a CONNECT. Every call reads what is committed now, by an index."""

    async def find_basic(self, client_id: str, username: str | None) -> list[Credentials]:
        """All whose proof may be asked of this client, the most specific first: for client id and user name, for the
        client id, for the user name. At most three; passwords are the caller's to check."""

    async def find_basic_many(self, logins: Sequence[tuple[str, str | None]]) -> list[list[Credentials]]:
        """The same for many clients, at the price of one; at most `BULK` of them."""

    async def find_x509(self, common_names: Sequence[str]) -> list[Credentials]:
        """All that match these names, the client's own first and then up its chain. Exact ones come before patterns,
        then the client's own name before those of the chain, then by name of the credentials."""

    async def find_scram(self, username: str, mechanism: str) -> Credentials | None:
        """Those with keys for this mechanism."""


class ProviderStore(Protocol):
    """One provider of each kind, always there; all are off in a new store."""

    async def all(self) -> list[Provider]:
        """In the order in which they are asked."""

    async def set_enabled(self, kind: ProviderKind, is_enabled: bool) -> None: ...

    async def set_settings(self, kind: ProviderKind, settings: dict[str, Json]) -> None:
        """Replaces all settings of this provider."""

    async def order(self, kinds: Sequence[ProviderKind]) -> None:
        """These first; those not named keep their order behind them."""


class BlockedStore(Protocol):
    """Who stays outside. At most `MAX_BLOCKED`: every worker has all of them in memory."""

    async def all(self) -> list[Blocked]:
        """Those that have expired as well, oldest first."""

    async def put(self, blocked: Blocked) -> Blocked:
        """As it was written. What is blocked already keeps its id; reason and expiry are replaced. What has expired is
        removed on the way. StoreError when there are too many."""

    async def remove(self, id: str) -> None:
        """NotThere."""


class FailureLog(Protocol):
    """Logins refused lately, the last one of each client id, at most `MAX_FAILURES`; over it the oldest go.

    For operators to look at, not for decisions. Not told to watchers: strangers would wake every worker.
    """

    async def record(self, failures: Sequence[Failure]) -> None:
        """Meant to be called with what a second or so has collected. Long texts are cut."""

    async def recent(self, limit: int = 100) -> list[Failure]:
        """The latest first."""

    async def clear(self) -> None: ...


class SettingsStore(Protocol):
    """Small values that all processes share, by key."""

    async def all(self) -> dict[str, Json]: ...

    async def get(self, key: str, default: Json = None) -> Json: ...

    async def put(self, key: str, value: Json) -> None: ...

    async def remove(self, key: str) -> None:
        """NotThere."""


class ChangeLog(Protocol):
    """What has changed. To follow it without a gap: take `version`, read everything, then `watch` from that version."""

    async def version(self) -> int:
        """Of the last change; 0 in a new store."""

    async def changes_since(self, version: int) -> Changes:
        """Not complete when the log, which keeps the last `MAX_CHANGES` versions, does not reach back so far, or when
        `version` is from another store's future (a backup was put back)."""

    async def watch(self, callback: Callable[[Changes], None], since: int) -> None:
        """Calls back with what was changed after `since` by anybody, this process included, in order and each once.
        Runs until it is cancelled; what the callback raises ends it. When the database is lost it says so in the log,
        tries again, and then tells what was missed."""


class EntityStore(Protocol):
    """All of the above on one database."""

    users: UserStore
    credentials: CredentialsStore
    lookup: CredentialsLookup
    providers: ProviderStore
    blocked: BlockedStore
    failures: FailureLog
    settings: SettingsStore
    changes: ChangeLog

    async def close(self) -> None:
        """Gives back all connections and threads. Calls under way fail."""


BULK = 1_000
MAX_BLOCKED = 10_000
MAX_FAILURES = 10_000
MAX_CHANGES = 10_000
