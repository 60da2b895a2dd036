"""One client: what the broker remembers of a client id while its session exists. All of them live in `Clients`.

    Clients   client_id -> Client
    Client    session ──▶ engine Session (packet ids, windows, queue)
              connection ──▶ engine Connection, None while it is away
              subscriptions, will, expiry

A client lives on the worker that owns its id, so nothing here is shared and nothing is locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tbmq.auth.chain import ANONYMOUS
from tbmq.auth.model import Principal
from tbmq.auth.rules import Rules
from tbmq.packets import Will

if TYPE_CHECKING:
    from tbmq._engine import Connection, Engine, Session
    from tbmq.session.timers import Timer

CONNECTED, AWAY = "@", "-"
"""The sign in front of a group's name: its members that are connected, and those that are away but keep messages."""


OPEN_RULES = Rules(ANONYMOUS.principal.rules, "")


class Routing(Protocol):
    """Tells the other workers what this one's clients want."""

    def add(self, topic_filter: str) -> None: ...
    def remove(self, topic_filter: str) -> None: ...
    def join(self, group: str, topic_filter: str, number: int, options: int) -> None: ...
    def leave(self, group: str, topic_filter: str, number: int) -> None: ...


@dataclass(slots=True)
class Granted:
    """One subscription as it was granted. The text that the client used is the key in `Client.subscriptions`."""

    topic_filter: str  # without prefix
    group: str | None  # of a shared subscription
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0

    @property
    def options(self) -> int:
        """Packed as in the trie."""
        return self.identifier << 4 | self.retain_as_published << 3 | self.no_local << 2 | self.qos


@dataclass(slots=True, eq=False)
class Client:
    client_id: str
    session: Session
    connection: Connection | None = None
    username: str | None = None
    common_name: str | None = None  # of its certificate
    principal: Principal = ANONYMOUS.principal  # who it is, by its last login
    rules: Rules = OPEN_RULES  # what it may do
    method: str | None = None  # of enhanced authentication, at CONNECT
    subscriptions: dict[str, Granted] = field(default_factory=dict)
    will: Will | None = None  # of the present connection, or waiting for its delay
    expiry_s: int = 0  # how long the session outlives the connection; 0: not at all
    asked_for_no_expiry: bool = False  # CONNECT said 0: DISCONNECT must not say otherwise
    wants_problem_information: bool = True
    send_quota: int = 0  # QoS 1 and 2 messages that may be in flight to the present connection
    expiry_timer: Timer | None = None
    will_timer: Timer | None = None
    login_timer: Timer | None = None  # its login holds until then

    @property
    def name(self) -> str:
        """For the log: a client id may hold anything, a line of the log must not."""
        return repr(self.client_id)[1:-1]

    def set_rules(self, principal: Principal) -> None:
        """Takes up what this principal may do; a connection that is there asks anew."""
        self.principal = principal
        self.rules = Rules(principal.rules, self.client_id, self.username, self.common_name)
        if self.connection is not None:
            self.connection.is_restricted = not self.rules.allows_everything_to_publish
            self.connection.forget_permissions()


class Clients:
    """The clients of this worker."""

    def __init__(self, engine: Engine, routes: Routing, max_queued: int, max_clients: int) -> None:
        self._engine = engine
        self._routes = routes
        self._max_queued = max_queued
        self._max_clients = max_clients
        self._by_id: dict[str, Client] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_id.values()))

    def get(self, client_id: str) -> Client | None:
        return self._by_id.get(client_id)

    @property
    def is_full(self) -> bool:
        """No new client may be created; those that have a session may come back."""
        return len(self._by_id) >= self._max_clients

    def create(self, client_id: str) -> Client:
        client = Client(client_id, self._engine.new_session(client_id))
        client.session.max_queued = self._max_queued
        self._by_id[client_id] = client
        return client

    def connected(self, client: Client, connection: Connection) -> None:
        client.connection = connection
        self._sign_groups(client, AWAY, CONNECTED)

    def disconnected(self, client: Client) -> None:
        """The connection is gone; whether the session stays is not said yet."""
        if any(granted.group is not None for granted in client.subscriptions.values()):
            self._engine.member_leaves(client.session)
        client.connection = None
        self._sign_groups(client, CONNECTED, AWAY)

    def _sign_groups(self, client: Client, old: str, new: str) -> None:
        for granted in client.subscriptions.values():
            if granted.group is not None:
                # In this order the group never looks empty: nothing that waits for it is given up.
                self._routes.join(new + granted.group, granted.topic_filter, client.session.number, granted.options)
                self._routes.leave(old + granted.group, granted.topic_filter, client.session.number)

    def subscribe(self, client: Client, name: str, granted: Granted) -> bool:
        """Adds or replaces one subscription of a connected client; True when it is new."""
        is_new = name not in client.subscriptions
        client.subscriptions[name] = granted
        if granted.group is not None:
            self._routes.join(CONNECTED + granted.group, granted.topic_filter, client.session.number, granted.options)
            return is_new
        self._engine.subscriptions.add(
            granted.topic_filter,
            client.session.number,
            qos=granted.qos,
            no_local=granted.no_local,
            retain_as_published=granted.retain_as_published,
            identifier=granted.identifier,
        )
        if is_new:
            self._routes.add(granted.topic_filter)
        return is_new

    def unsubscribe(self, client: Client, name: str) -> bool:
        """False when there was no such subscription."""
        granted = client.subscriptions.pop(name, None)
        if granted is None:
            return False
        if granted.group is None:
            self._engine.subscriptions.remove(granted.topic_filter, client.session.number)
            self._routes.remove(granted.topic_filter)
        else:
            sign = AWAY if client.connection is None else CONNECTED
            self._routes.leave(sign + granted.group, granted.topic_filter, client.session.number)
        return True

    def end(self, client: Client) -> None:
        """The session is over: subscriptions, queue and windows are gone. The connection must be closed already."""
        for name in list(client.subscriptions):
            self.unsubscribe(client, name)
        for timer in (client.expiry_timer, client.will_timer, client.login_timer):
            if timer is not None:
                timer.cancel()
        self._engine.drop_session(client.session)
        del self._by_id[client.client_id]
