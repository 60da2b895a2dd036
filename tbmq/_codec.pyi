from typing import NamedTuple

from typing_extensions import Buffer

from tbmq.packets import Packet, Properties

class ScanResult(NamedTuple):
    packets: int
    publishes: int
    payload_bytes: int
    consumed_bytes: int

class Decoder:
    protocol_level: int
    max_packet_bytes: int
    pending_bytes: int

    def __init__(
        self,
        *,
        client: bool = False,
        protocol_level: int = 0,
        max_packet_bytes: int = 268_435_460,
        max_topic_levels: int = 128,
        max_properties: int = 1024,
    ) -> None: ...
    def feed(self, data: Buffer) -> list[Packet]: ...

def encode(packet: Packet, protocol_level: int, *, client: bool = False) -> bytes: ...
def scan(data: Buffer, protocol_level: int, *, client: bool = False) -> ScanResult: ...
def encode_properties(properties: Properties, packet: int) -> bytes: ...
