"""MQTT packets as plain data, in both directions and for every protocol level.

The compiled codec builds and reads these for everything that is not on the hot path; PUBLISH and the four acks go from
socket to socket without them. A field that a protocol level does not have keeps its default.

``properties`` maps the names of ``tbmq.protocol.PROPERTIES`` to values. A property that may be repeated in that packet
(``user_property``; ``subscription_identifier`` in PUBLISH) is a list in order of appearance, everything else is the
bare value. Below MQTT 5 it is always empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Properties = dict[str, Any]


@dataclass(slots=True)
class Will:
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    client_id: str = ""
    protocol_level: int = 5
    clean_start: bool = True  # below MQTT 5: clean session
    keep_alive_s: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connack:
    session_present: bool = False
    reason_code: int = 0  # below MQTT 5: the return code, 0 to 5
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0  # 0 exactly when qos is 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class _Ack:
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Puback(_Ack):
    pass


@dataclass(slots=True)
class Pubrec(_Ack):
    pass


@dataclass(slots=True)
class Pubrel(_Ack):
    pass


@dataclass(slots=True)
class Pubcomp(_Ack):
    pass


@dataclass(slots=True)
class Subscription:
    """One line of SUBSCRIBE. Below MQTT 5 only ``topic_filter`` and ``qos`` exist."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    topic_filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsuback:
    packet_id: int
    reason_codes: list[int] = field(default_factory=list)  # below MQTT 5: always empty
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pingreq:
    pass


@dataclass(slots=True)
class Pingresp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
