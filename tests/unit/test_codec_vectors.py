"""Every vector over both codecs, whole and in pieces; and the vectors: no name twice, no bad input missing."""

from __future__ import annotations

from collections import Counter

import pytest

from tbmq import protocol
from tbmq.packets import Auth, Connack, Disconnect, Puback, Pubcomp, Pubrec, Pubrel, Suback, Unsuback
from tbmq.protocol import PacketType
from tests.reference.implementations import CODECS, Codec, Outcome, chunks_of, decode, level_of
from tests.vectors import ALL, Vector, properties

GOOD = [vector for vector in ALL if vector.packet is not None]
BAD_INPUT_ROWS = {
    1,
    2,
    3,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    30,
    31,
    32,
    33,
    34,
    44,
}
SLOW_BYTES = 20_000
"""Vectors larger than this are cut into a few large pieces; the others into pieces of 1, 2 and 7 bytes."""

codecs = pytest.mark.parametrize("codec", CODECS, ids=str)


def expected(vector: Vector) -> Outcome:
    return Outcome(vector.packets, vector.error)


def outcome_of(codec: Codec, vector: Vector, chunks: list[bytes]) -> Outcome:
    outcome = decode(codec.decoder(**vector.decoder_arguments), chunks)
    return Outcome(outcome.packets, outcome.error)


@codecs
@pytest.mark.parametrize("vector", ALL, ids=lambda vector: vector.name)
def test_vector_gives_its_packets_and_error_when_cut_anyhow(codec: Codec, vector: Vector) -> None:
    sizes = (1, 2, 7) if len(vector.data) <= SLOW_BYTES else (4093, len(vector.data) - 1)
    want = expected(vector)
    assert outcome_of(codec, vector, [vector.data]) == want
    for size in sizes:
        got = outcome_of(codec, vector, chunks_of(vector.data, size))
        # The text of a dataclass also shows wrong types: 1 for True, a bytearray for bytes.
        assert repr(got) == repr(want), f"in pieces of {size}"


@codecs
@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector.name)
def test_good_packet_comes_back_when_encoded_again(codec: Codec, vector: Vector) -> None:
    packet = vector.packet
    assert packet is not None
    data = codec.encode(packet, level_of(packet, vector.level), client=not vector.client)
    if vector.canonical:
        assert data.hex() == vector.data.hex()
    assert decode(codec.decoder(**vector.decoder_arguments), [data]).packets == [packet]


@codecs
def test_unfinished_packet_waits_without_error(codec: Codec) -> None:
    for vector in ALL:
        if vector.needs_more:
            decoder = codec.decoder(**vector.decoder_arguments)
            assert decoder.feed(vector.data) == list(vector.before), vector.name
            consumed = sum(
                len(codec.encode(packet, vector.level, client=not vector.client)) for packet in vector.before
            )
            assert decoder.pending_bytes == len(vector.data) - consumed, vector.name


# Which codes a packet may carry, typed from chapter 3 of the specification, beside the table that the codec uses.
CODES_5 = {
    PacketType.CONNACK: "00 80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F",
    PacketType.PUBACK: "00 10 80 83 87 90 91 97 99",
    PacketType.PUBREC: "00 10 80 83 87 90 91 97 99",
    PacketType.PUBREL: "00 92",
    PacketType.PUBCOMP: "00 92",
    PacketType.SUBACK: "00 01 02 80 83 87 8F 91 97 9E A1 A2",
    PacketType.UNSUBACK: "00 11 80 83 87 8F 91",
    PacketType.DISCONNECT: "00 04 80 81 82 83 87 89 8B 8C 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2",
    PacketType.AUTH: "00 18 19",
}
WITH_CODE = {
    # body with the code in its place (XX), and the packet that it makes
    PacketType.CONNACK: ("20 03 00 XX 00", lambda code: Connack(reason_code=code)),
    PacketType.PUBACK: ("40 03 0001 XX", lambda code: Puback(1, code)),
    PacketType.PUBREC: ("50 03 0001 XX", lambda code: Pubrec(1, code)),
    PacketType.PUBREL: ("62 03 0001 XX", lambda code: Pubrel(1, code)),
    PacketType.PUBCOMP: ("70 03 0001 XX", lambda code: Pubcomp(1, code)),
    PacketType.SUBACK: ("90 04 0001 00 XX", lambda code: Suback(1, [code])),
    PacketType.UNSUBACK: ("B0 04 0001 00 XX", lambda code: Unsuback(1, [code])),
    PacketType.DISCONNECT: ("E0 01 XX", lambda code: Disconnect(code)),
    PacketType.AUTH: ("F0 06 XX 04 15 0001 6D", lambda code: Auth(code, {"authentication_method": "m"})),
}


@codecs
@pytest.mark.parametrize("packet_type", CODES_5, ids=lambda packet_type: packet_type.name)
def test_all_256_reason_codes_are_judged_by_the_table(codec: Codec, packet_type: PacketType) -> None:
    allowed = {int(code, 16) for code in CODES_5[packet_type].split()}
    template, build = WITH_CODE[packet_type]
    for code in range(256):
        data = bytes.fromhex(template.replace("XX", f"{code:02X}"))
        got = decode(codec.decoder(client=True, protocol_level=5), [data])
        want = ([build(code)], None) if code in allowed else ([], 0x82)
        assert (got.packets, got.error) == want, f"code {code:02X}"


def test_tables_say_what_the_specification_says() -> None:
    assert {
        kind: frozenset(int(c, 16) for c in codes.split()) for kind, codes in CODES_5.items()
    } == protocol.REASON_CODES
    for row, rule in zip(properties.ROWS, protocol.PROPERTIES, strict=True):
        assert (row.identifier, row.name) == (rule.identifier, rule.name)


def test_vectors_have_names_of_their_own() -> None:
    assert [name for name, times in Counter(vector.name for vector in ALL).items() if times > 1] == []


def test_every_row_of_bad_input_about_packets_has_a_vector() -> None:
    assert {vector.bad_input for vector in ALL} - {None} == BAD_INPUT_ROWS


def test_every_packet_type_is_good_and_bad_in_every_level_that_has_it() -> None:
    seen = {(vector.data[0] >> 4, level_of_data(vector), vector.packet is not None) for vector in ALL if vector.data}
    for packet_type in PacketType:
        for level in (5,) if packet_type == PacketType.AUTH else (3, 4, 5):
            assert {(packet_type, level, True), (packet_type, level, False)} <= seen, (packet_type.name, level)


def level_of_data(vector: Vector) -> int:
    """The level of the packet itself: for CONNECT it stands behind the protocol name."""
    if vector.level:
        return vector.level
    name_ends = vector.data.find(b"MQTT") + 4 if b"MQTT" in vector.data else vector.data.find(b"MQIsdp") + 6
    return vector.data[name_ends] if name_ends < len(vector.data) else 0
