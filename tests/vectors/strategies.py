"""Hypothesis strategies for good packets: every type, level and sender, with every property that is allowed there."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tbmq.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tbmq.protocol import (
    CONNACK_RETURN_CODES_V3,
    MQTT_5,
    PROPERTIES,
    REASON_CODES,
    REPEATABLE_PROPERTIES,
    SENT_BY_CLIENT,
    SENT_BY_SERVER,
    SUBACK_RETURN_CODES_V3,
    WILL,
    PacketType,
    PropertyKind,
    PropertyRule,
)

ACKS = {
    PacketType.PUBACK: Puback,
    PacketType.PUBREC: Pubrec,
    PacketType.PUBREL: Pubrel,
    PacketType.PUBCOMP: Pubcomp,
}
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
text = st.text(_CHARACTERS, max_size=12)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
filters = st.one_of(text, st.sampled_from(["#", "+/a", "$share/g/t", "a/b"]))
payloads = st.binary(max_size=40)
packet_ids = st.integers(1, 0xFFFF)
_LARGEST = {PropertyKind.BYTE: 0xFF, PropertyKind.TWO_BYTES: 0xFFFF, PropertyKind.FOUR_BYTES: 0xFFFF_FFFF}


def sent_packet_types(level: int, client: bool) -> list[PacketType]:
    types = SENT_BY_CLIENT if client else SENT_BY_SERVER
    if level < MQTT_5:
        types = types - {PacketType.AUTH}
        if not client:
            types = types - {PacketType.DISCONNECT}
    return sorted(types)


def _property_values(rule: PropertyRule) -> st.SearchStrategy[Any]:
    match rule.kind:
        case PropertyKind.STRING:
            return topics if rule.name == "response_topic" else text
        case PropertyKind.BINARY:
            return st.binary(max_size=12)
        case PropertyKind.STRING_PAIR:
            return st.tuples(text, text)
        case _:
            return st.integers(rule.minimum, min(rule.maximum, _LARGEST.get(rule.kind, rule.maximum)))


def properties(place: int, level: int, client: bool) -> st.SearchStrategy[dict[str, Any]]:
    """A section at ``place`` (a packet type, or WILL), in any order of its properties."""
    if level < MQTT_5:
        return st.just({})
    values = {}
    for rule in PROPERTIES:
        if place in (rule.from_client if client else rule.from_server):
            one = _property_values(rule)
            is_list = place in REPEATABLE_PROPERTIES.get(rule.name, ())
            values[rule.name] = st.lists(one, min_size=1, max_size=3) if is_list else one

    def chosen(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: values[name] for name in names})

    return st.lists(st.sampled_from(sorted(values)), unique=True, max_size=6).flatmap(chosen)


@st.composite
def connects(draw: st.DrawFn, level: int) -> Connect:
    section = draw(properties(PacketType.CONNECT, level, True))
    if "authentication_data" in section:
        section.setdefault("authentication_method", "m")
    wills = st.builds(Will, topics, payloads, st.integers(0, 2), st.booleans(), properties(WILL, level, True))
    username = draw(st.none() | text)
    may_have_password = username is not None or level >= MQTT_5
    password = draw(st.none() | payloads) if may_have_password else None
    return Connect(
        draw(text),
        level,
        draw(st.booleans()),
        draw(st.integers(0, 0xFFFF)),
        draw(st.none() | wills),
        username,
        password,
        section,
    )


@st.composite
def connacks(draw: st.DrawFn, level: int) -> Connack:
    codes = REASON_CODES[PacketType.CONNACK] if level >= MQTT_5 else CONNACK_RETURN_CODES_V3
    code = draw(st.sampled_from(sorted(codes)))
    return Connack(code == 0 and draw(st.booleans()), code, draw(properties(PacketType.CONNACK, level, False)))


@st.composite
def publishes(draw: st.DrawFn, level: int, client: bool) -> Publish:
    qos = draw(st.integers(0, 2))
    section = draw(properties(PacketType.PUBLISH, level, client))
    topic = draw(topics)
    if "topic_alias" in section and draw(st.booleans()):
        topic = ""
    dup, packet_id = (draw(st.booleans()), draw(packet_ids)) if qos else (False, 0)
    return Publish(topic, draw(payloads), qos, draw(st.booleans()), dup, packet_id, section)


@st.composite
def subscriptions(draw: st.DrawFn, level: int) -> Subscription:
    topic_filter, qos = draw(filters), draw(st.integers(0, 2))
    if level < MQTT_5:
        return Subscription(topic_filter, qos)
    no_local = not topic_filter.startswith("$share/") and draw(st.booleans())
    return Subscription(topic_filter, qos, no_local, draw(st.booleans()), draw(st.integers(0, 2)))


@st.composite
def auths(draw: st.DrawFn, client: bool) -> Auth:
    code = draw(st.sampled_from([0x00, 0x18, 0x19]))
    section = draw(properties(PacketType.AUTH, MQTT_5, client))
    if code or section:
        section.setdefault("authentication_method", "m")
    return Auth(code, section)


def packets_of(packet_type: PacketType, level: int, client: bool) -> st.SearchStrategy[Packet]:
    """Good packets of one type as this sender may send them at this level."""
    section = properties(packet_type, level, client)
    is_5 = level >= MQTT_5
    match packet_type:
        case PacketType.CONNECT:
            return connects(level)
        case PacketType.CONNACK:
            return connacks(level)
        case PacketType.PUBLISH:
            return publishes(level, client)
        case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
            codes = st.sampled_from(sorted(REASON_CODES[packet_type])) if is_5 else st.just(0)
            return st.builds(ACKS[packet_type], packet_ids, codes, section)
        case PacketType.SUBSCRIBE:
            return st.builds(Subscribe, packet_ids, st.lists(subscriptions(level), min_size=1, max_size=4), section)
        case PacketType.UNSUBSCRIBE:
            return st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=4), section)
        case PacketType.SUBACK:
            codes = st.sampled_from(sorted(REASON_CODES[packet_type] if is_5 else SUBACK_RETURN_CODES_V3))
            return st.builds(Suback, packet_ids, st.lists(codes, min_size=1, max_size=5), section)
        case PacketType.UNSUBACK:
            if not is_5:
                return st.builds(Unsuback, packet_ids)
            codes = st.sampled_from(sorted(REASON_CODES[packet_type]))
            return st.builds(Unsuback, packet_ids, st.lists(codes, min_size=1, max_size=5), section)
        case PacketType.PINGREQ:
            return st.just(Pingreq())
        case PacketType.PINGRESP:
            return st.just(Pingresp())
        case PacketType.DISCONNECT:
            codes = st.sampled_from(sorted(REASON_CODES[packet_type])) if is_5 else st.just(0)
            return st.builds(Disconnect, codes, section)
        case PacketType.AUTH:
            return auths(client)
