"""What a run shall do, and which part of it each process does."""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tbmq._loadgen import MAX_PUBLISHERS

MAX_NUMBER = 10_000_000  # client ids and topics end in seven digits
SHARE_GROUP = "bench"


class OptionsError(ValueError):
    """The options do not fit together; the text says what to change."""


class Scenario(StrEnum):
    P2P = "p2p"
    FANIN = "fanin"
    FANOUT = "fanout"
    SHARED = "shared"
    CONN = "conn"
    IDLE = "idle"

    @property
    def publishes(self) -> bool:
        return self not in (Scenario.CONN, Scenario.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    scenario: Scenario
    host: str = "127.0.0.1"
    address: str = ""  # of the host, numeric; looked up by the parent
    port: int = 1883
    publishers: int = 50
    subscribers: int = 50
    clients: int = 0  # conn: sockets that connect at the same time; idle: connections held
    rate: float = 0.0  # messages (conn: connects) per second in all; 0: as fast as possible
    payload_bytes: int = 64
    qos: int = 0
    window: int = 100  # QoS > 0: messages of one publisher that are not acknowledged yet
    protocol_level: int = 4
    topic: str = ""  # prefix of all topics; empty: one that no other run uses
    duration_s: float = 10.0
    messages: int = 0  # instead of a duration; conn: connects
    warmup_s: float = 1.0
    drain_s: float = 60.0  # at most, from the last message sent to the end of the run
    processes: int = 1
    tls: bool = False
    ca: str = ""
    is_insecure: bool = False
    websocket: bool = False
    websocket_path: str = "/mqtt"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    keep_alive_s: int = 0
    connecting: int = 64  # connections that one process opens at the same time
    connect_rate: float = 0.0  # connections opened per second before the run starts; 0: no limit
    connect_timeout_s: float = 10.0
    sources: tuple[str, ...] = ()  # local addresses, used in turn
    cores: tuple[int, ...] = ()  # one for each process, in turn
    # Of each socket; 0: the kernel's choice, which grows to megabytes and with them the time that messages wait there.
    send_buffer_bytes: int = 262_144
    run_id: str = field(default_factory=lambda: secrets.token_hex(3))

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 1, 65_535),
            ("qos", 0, 2),
            ("window", 1, 65_535),
            ("payload_bytes", 0, 200_000_000),
            ("processes", 1, 1_024),
            ("keep_alive_s", 0, 65_535),
            ("connecting", 1, 1_000_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise OptionsError(f"{name} is {getattr(self, name)}; it must be from {low:,} to {high:,}")
        if self.rate < 0 or self.connect_rate < 0:
            raise OptionsError("a rate is negative")
        if self.protocol_level not in (4, 5):
            raise OptionsError("the protocol is 3.1.1 or 5")
        if "+" in self.topic or "#" in self.topic:
            raise OptionsError(f"the topic {self.topic!r} holds a wildcard; publishers need a plain one")
        if self.scenario.publishes:
            if not 1 <= self.publishers <= MAX_PUBLISHERS or not 1 <= self.subscribers < MAX_NUMBER:
                raise OptionsError("there must be at least one publisher and one subscriber, and at most a million")
            if self.scenario is Scenario.P2P and self.publishers != self.subscribers:
                raise OptionsError("p2p has as many publishers as subscribers: use --pairs")
        elif not 1 <= self.clients < MAX_NUMBER:
            raise OptionsError(f"clients is {self.clients}; it must be from 1 to {MAX_NUMBER - 1:,}")
        if (self.ca or self.is_insecure) and not self.tls:
            raise OptionsError("--ca and --insecure are for --tls")
        if self.password is not None and self.username is None and self.protocol_level < 5:
            raise OptionsError("MQTT 3.1.1 has no password without a user name")

    @property
    def topic_prefix(self) -> str:
        return self.topic or f"bench/{self.run_id}"

    @property
    def connections(self) -> int:
        return self.publishers + self.subscribers if self.scenario.publishes else self.clients

    @property
    def copies(self) -> int:
        """How often each message is to be delivered."""
        return self.subscribers if self.scenario in (Scenario.FANIN, Scenario.FANOUT) else 1

    @property
    def is_ordered(self) -> bool:
        """Whether the order of one publisher's messages can be seen: not when they are spread over a group."""
        return self.scenario is not Scenario.SHARED

    @property
    def is_stamped(self) -> bool:
        """Whether payloads have room for number and time."""
        return self.payload_bytes >= 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The connections of one process: how many, and the number of the first."""

    index: int
    publishers: int = 0
    first_publisher: int = 0
    subscribers: int = 0
    first_subscriber: int = 0


def split(options: Options) -> list[Share]:
    """Publishers and subscribers, spread evenly; a process without any connection is left out."""
    publishers = options.publishers if options.scenario.publishes else 0
    subscribers = options.subscribers if options.scenario.publishes else options.clients
    shares = []
    for index in range(options.processes):
        first_publisher, end_publisher = _slice(publishers, options.processes, index)
        first_subscriber, end_subscriber = _slice(subscribers, options.processes, index)
        share = Share(
            index=index,
            publishers=end_publisher - first_publisher,
            first_publisher=first_publisher,
            subscribers=end_subscriber - first_subscriber,
            first_subscriber=first_subscriber,
        )
        if share.publishers or share.subscribers:
            shares.append(share)
    return shares


def _slice(count: int, parts: int, index: int) -> tuple[int, int]:
    return math.ceil(count * index / parts), math.ceil(count * (index + 1) / parts)


def to_json(options: Options, share: Share) -> dict[str, Any]:
    return {"options": asdict(options), "share": asdict(share)}


def from_json(plan: dict[str, Any]) -> tuple[Options, Share]:
    values = dict(plan["options"])
    values["scenario"] = Scenario(values["scenario"])
    values["sources"] = tuple(values["sources"])
    values["cores"] = tuple(values["cores"])
    return Options(**values), Share(**plan["share"])
