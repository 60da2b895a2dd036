"""The MQTT specifications as tables: packet types, reason codes, properties, and where each of them is allowed.

This file is the only place that knows them. The compiled codec copies the tables into C arrays when it is imported, the
encoder and the decoder read the same rows, and the tests walk them.

When you add a property, add one row to ``PROPERTIES``; nothing else changes in the codec.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

MAX_REMAINING_LENGTH = 268_435_455
"""The largest body that four length bytes can announce."""

MQTT_3_1, MQTT_3_1_1, MQTT_5 = 3, 4, 5
"""Protocol levels as they stand in CONNECT."""

PROTOCOL_NAMES = {MQTT_3_1: "MQIsdp", MQTT_3_1_1: "MQTT", MQTT_5: "MQTT"}


class PacketType(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


SENT_BY_CLIENT = frozenset(
    {
        PacketType.CONNECT,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBSCRIBE,
        PacketType.UNSUBSCRIBE,
        PacketType.PINGREQ,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)
SENT_BY_SERVER = frozenset(
    {
        PacketType.CONNACK,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.PINGRESP,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)


class ReasonCode(IntEnum):
    """MQTT 5 reason codes. Codes with several names are listed under the most general one."""

    SUCCESS = 0x00  # also: normal disconnection, granted QoS 0
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USERNAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_ACK_OF_PUBLISH = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_ACK_OF_ACK = frozenset({0x00, 0x92})

REASON_CODES: dict[PacketType, frozenset[int]] = {
    PacketType.CONNACK: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
    ),
    PacketType.PUBACK: _ACK_OF_PUBLISH,
    PacketType.PUBREC: _ACK_OF_PUBLISH,
    PacketType.PUBREL: _ACK_OF_ACK,
    PacketType.PUBCOMP: _ACK_OF_ACK,
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    PacketType.DISCONNECT: frozenset(
        {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)}
    ),
    PacketType.AUTH: frozenset({0x00, 0x18, 0x19}),
}
"""Which MQTT 5 reason codes a packet may carry, whoever sends it."""

CONNACK_RETURN_CODES_V3 = frozenset(range(6))
SUBACK_RETURN_CODES_V3 = frozenset({0x00, 0x01, 0x02, 0x80})


class PropertyKind(IntEnum):
    """How a property's value is written on the wire, and the Python type that it becomes."""

    BYTE = 0  # int
    TWO_BYTES = 1  # int
    FOUR_BYTES = 2  # int
    VARINT = 3  # int
    STRING = 4  # str
    BINARY = 5  # bytes
    STRING_PAIR = 6  # tuple[str, str]


WILL = 0
"""Where a packet type is asked for in ``PropertyRule``: the properties of the will inside CONNECT."""


class PropertyRule(NamedTuple):
    """One row: which sender may put this property into which packets, and which values it may have."""

    identifier: int
    name: str
    kind: PropertyKind
    from_client: frozenset[int]
    from_server: frozenset[int]
    minimum: int = 0
    maximum: int = 0xFFFF_FFFF
    range_error: ReasonCode = ReasonCode.PROTOCOL_ERROR


def _packets(*types: int) -> frozenset[int]:
    return frozenset(types)


_T = PacketType
_K = PropertyKind
_NONE: frozenset[int] = frozenset()
_ACKS = _packets(_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP)

PROPERTIES: tuple[PropertyRule, ...] = (
    # identifier, name, kind, from_client, from_server, minimum, maximum, range_error
    PropertyRule(0x01, "payload_format_indicator", _K.BYTE, _packets(_T.PUBLISH, WILL), _packets(_T.PUBLISH), 0, 1),
    PropertyRule(0x02, "message_expiry_interval", _K.FOUR_BYTES, _packets(_T.PUBLISH, WILL), _packets(_T.PUBLISH)),
    PropertyRule(0x03, "content_type", _K.STRING, _packets(_T.PUBLISH, WILL), _packets(_T.PUBLISH)),
    PropertyRule(0x08, "response_topic", _K.STRING, _packets(_T.PUBLISH, WILL), _packets(_T.PUBLISH)),
    PropertyRule(0x09, "correlation_data", _K.BINARY, _packets(_T.PUBLISH, WILL), _packets(_T.PUBLISH)),
    # A client gives one identifier in SUBSCRIBE; a server repeats all that matched in PUBLISH.
    PropertyRule(
        0x0B, "subscription_identifier", _K.VARINT, _packets(_T.SUBSCRIBE), _packets(_T.PUBLISH), 1, 268_435_455
    ),
    # A server must not send it on DISCONNECT [MQTT-3.14.2-2].
    PropertyRule(
        0x11, "session_expiry_interval", _K.FOUR_BYTES, _packets(_T.CONNECT, _T.DISCONNECT), _packets(_T.CONNACK)
    ),
    PropertyRule(0x12, "assigned_client_identifier", _K.STRING, _NONE, _packets(_T.CONNACK)),
    PropertyRule(0x13, "server_keep_alive", _K.TWO_BYTES, _NONE, _packets(_T.CONNACK)),
    PropertyRule(
        0x15, "authentication_method", _K.STRING, _packets(_T.CONNECT, _T.AUTH), _packets(_T.CONNACK, _T.AUTH)
    ),
    PropertyRule(0x16, "authentication_data", _K.BINARY, _packets(_T.CONNECT, _T.AUTH), _packets(_T.CONNACK, _T.AUTH)),
    PropertyRule(0x17, "request_problem_information", _K.BYTE, _packets(_T.CONNECT), _NONE, 0, 1),
    PropertyRule(0x18, "will_delay_interval", _K.FOUR_BYTES, _packets(WILL), _NONE),
    PropertyRule(0x19, "request_response_information", _K.BYTE, _packets(_T.CONNECT), _NONE, 0, 1),
    PropertyRule(0x1A, "response_information", _K.STRING, _NONE, _packets(_T.CONNACK)),
    PropertyRule(0x1C, "server_reference", _K.STRING, _NONE, _packets(_T.CONNACK, _T.DISCONNECT)),
    PropertyRule(
        0x1F,
        "reason_string",
        _K.STRING,
        _ACKS | _packets(_T.DISCONNECT, _T.AUTH),
        _ACKS | _packets(_T.CONNACK, _T.SUBACK, _T.UNSUBACK, _T.DISCONNECT, _T.AUTH),
    ),
    PropertyRule(0x21, "receive_maximum", _K.TWO_BYTES, _packets(_T.CONNECT), _packets(_T.CONNACK), 1),
    PropertyRule(0x22, "topic_alias_maximum", _K.TWO_BYTES, _packets(_T.CONNECT), _packets(_T.CONNACK)),
    PropertyRule(
        0x23,
        "topic_alias",
        _K.TWO_BYTES,
        _packets(_T.PUBLISH),
        _packets(_T.PUBLISH),
        1,
        0xFFFF,
        ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    PropertyRule(0x24, "maximum_qos", _K.BYTE, _NONE, _packets(_T.CONNACK), 0, 1),
    PropertyRule(0x25, "retain_available", _K.BYTE, _NONE, _packets(_T.CONNACK), 0, 1),
    PropertyRule(
        0x26,
        "user_property",
        _K.STRING_PAIR,
        _ACKS | _packets(_T.CONNECT, WILL, _T.PUBLISH, _T.SUBSCRIBE, _T.UNSUBSCRIBE, _T.DISCONNECT, _T.AUTH),
        _ACKS | _packets(_T.CONNACK, _T.PUBLISH, _T.SUBACK, _T.UNSUBACK, _T.DISCONNECT, _T.AUTH),
    ),
    PropertyRule(0x27, "maximum_packet_size", _K.FOUR_BYTES, _packets(_T.CONNECT), _packets(_T.CONNACK), 1),
    PropertyRule(0x28, "wildcard_subscription_available", _K.BYTE, _NONE, _packets(_T.CONNACK), 0, 1),
    PropertyRule(0x29, "subscription_identifier_available", _K.BYTE, _NONE, _packets(_T.CONNACK), 0, 1),
    PropertyRule(0x2A, "shared_subscription_available", _K.BYTE, _NONE, _packets(_T.CONNACK), 0, 1),
)

REPEATABLE_PROPERTIES = {
    "user_property": SENT_BY_CLIENT | SENT_BY_SERVER | _packets(WILL),
    "subscription_identifier": _packets(_T.PUBLISH),
}
"""Properties that may stand more than once, and in which packets. Their value in a packet object is a list there."""
