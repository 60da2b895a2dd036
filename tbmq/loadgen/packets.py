"""The packets that the engine sends, as templates: the bytes, and where it patches seven digits in (-1: nowhere)."""

from __future__ import annotations

from dataclasses import dataclass

from tbmq._codec import encode
from tbmq._loadgen import NUMBER_DIGITS
from tbmq.loadgen.options import SHARE_GROUP, Options, Scenario
from tbmq.packets import Connect, Publish, Subscribe, Subscription

NUMBER = "~" * NUMBER_DIGITS  # stands for the digits until they are patched in; a topic of the user will not hold it
Template = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Packets:
    connect: Template
    subscribe: Template  # empty when nobody subscribes
    publish: Template
    payload_at: int


def make(options: Options) -> Packets:
    level = options.protocol_level
    connect = Connect(
        client_id=f"bench-{options.run_id}-{NUMBER}",
        protocol_level=level,
        keep_alive_s=options.keep_alive_s,
        username=options.username,
        password=None if options.password is None else options.password.encode(),
        properties={"receive_maximum": 65_535} if level == 5 else {},
    )
    topic, topic_filter = _topics(options)
    subscribe = Subscribe(packet_id=1, subscriptions=[Subscription(topic_filter, options.qos)])
    publish = Publish(
        topic=topic, payload=bytes(options.payload_bytes), qos=options.qos, packet_id=1 if options.qos else 0
    )
    published = encode(publish, level, client=True)
    return Packets(
        connect=_template(encode(connect, level, client=True)),
        subscribe=_template(encode(subscribe, level, client=True)) if options.scenario.publishes else (b"", -1),
        publish=_template(published),
        payload_at=len(published) - options.payload_bytes,
    )


def _topics(options: Options) -> tuple[str, str]:
    """The topic to publish to, and the filter to subscribe to."""
    prefix = options.topic_prefix
    match options.scenario:
        case Scenario.P2P:
            return f"{prefix}/{NUMBER}", f"{prefix}/{NUMBER}"
        case Scenario.FANIN:
            return f"{prefix}/{NUMBER}", f"{prefix}/#"
        case Scenario.SHARED:
            return f"{prefix}/{NUMBER}", f"$share/{SHARE_GROUP}/{prefix}/#"
        case _:
            return f"{prefix}/all", f"{prefix}/all"


def _template(packet: bytes) -> Template:
    return packet, packet.find(NUMBER.encode())
