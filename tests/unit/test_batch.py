"""Batches: the compiled reader and writer against the reference, against docs/batch-format.md and against damage."""

from __future__ import annotations

import ctypes
import gc
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbmq import _batch
from tbmq._batch import BatchMessage, BatchReader, BatchWriter, crc32c, crc32c_table
from tbmq.errors import BatchError
from tests.reference import batch as reference
from tests.reference.batch import Message

NOW_MS = 1_700_000_000_000
DOCUMENT = Path(__file__).parents[2] / "docs" / "batch-format.md"

EXAMPLE = [
    Message(
        publisher=b"sensor-7",
        topic=b"plant/temp",
        payload=b"21.5",
        qos=1,
        packet_id=258,
        time_ms=NOW_MS,
        expiry_s=60,
        properties=b"\x01\x01",
    ),
    Message(topic=b"a", retain=True, time_ms=NOW_MS + 5),
]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    qos = draw(st.integers(0, 2))
    return Message(
        publisher=draw(st.binary(max_size=40)),
        topic=draw(st.binary(min_size=1, max_size=60)),
        payload=draw(st.binary(max_size=200)),
        qos=qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()),
        packet_id=draw(st.integers(0, 0xFFFF)) if qos else 0,
        time_ms=NOW_MS + draw(st.integers(0, 0xFFFFFFFF)),
        expiry_s=draw(st.none() | st.integers(0, 0xFFFFFFFF)),
        properties=draw(st.binary(max_size=40)),
    )


def in_order(batch: list[Message]) -> list[Message]:
    """With the earliest time first, so that all deltas are there to be compared."""
    return sorted(batch, key=lambda message: message.time_ms)


def append_to(writer: BatchWriter, message: Message) -> None:
    fields = message._asdict()
    writer.append(fields.pop("topic"), fields.pop("payload"), **fields)


def native_write(batch: list[Message]) -> bytes:
    writer = BatchWriter()
    for message in batch:
        append_to(writer, message)
    return writer.finish()


def exact(data: bytes) -> Any:
    """The bytes in memory of exactly their size, so that AddressSanitizer sees a read of one more."""
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def native_read(data: bytes, *, verify: bool = True) -> list[tuple[Any, ...]]:
    return [tuple(message) for message in BatchReader(exact(data), verify=verify)]


def with_checksums(data: bytes) -> bytes:
    """The batch with whatever fields it has, under checksums that fit."""
    body = data[32:]
    return reference.seal_header(data[:24] + struct.pack("<I", reference.crc32c(body))) + body


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return with_checksums(data[:offset] + new + data[offset + len(new) :])


# Round trips


@given(st.lists(messages(), max_size=8).map(in_order))
def test_reference_reads_what_the_writer_wrote(batch: list[Message]) -> None:
    assert reference.read(native_write(batch)) == batch


@given(st.lists(messages(), max_size=8).map(in_order), st.booleans())
def test_reader_reads_what_the_reference_wrote(batch: list[Message], verify: bool) -> None:
    assert native_read(reference.write(batch), verify=verify) == batch


@given(st.lists(messages(), max_size=8))
def test_both_writers_give_the_same_bytes(batch: list[Message]) -> None:
    assert native_write(batch) == reference.write([m._replace(time_ms=max(m.time_ms, batch[0].time_ms)) for m in batch])


@pytest.mark.parametrize("sizes", [(0, 1, 0, 0), (0xFFFF, 0xFFFF, 0, 0), (0, 1, 70_000, 3), (1, 2, 3, 3_000_000)])
def test_pieces_of_any_size_come_back(sizes: tuple[int, int, int, int]) -> None:
    publisher, topic, properties, payload = (bytes([65 + i]) * size for i, size in enumerate(sizes))
    message = Message(publisher=publisher, topic=topic, properties=properties, payload=payload, time_ms=1)
    assert native_read(native_write([message, message])) == [message, message]


def test_message_has_its_fields_by_name() -> None:
    first, second = BatchReader(native_write(EXAMPLE))
    assert isinstance(first, BatchMessage)
    assert first._asdict() == EXAMPLE[0]._asdict()
    assert (second.retain, second.dup, second.expiry_s) == (True, False, None)


# The document


def document_block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found
    return found[1]


def document_example() -> bytes:
    return b"".join(bytes.fromhex(line[4:]) for line in document_block("hex").splitlines())


def test_example_of_the_document_is_what_both_writers_give() -> None:
    assert native_write(EXAMPLE) == document_example()
    assert reference.write(EXAMPLE) == document_example()


def test_table_of_the_example_shows_the_bytes_of_the_example() -> None:
    rows = re.findall(r"^\| 0x(\w\w) \| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == 12
    for offset, cells in rows:
        shown = bytes.fromhex(re.sub(r"[`.]", "", cells))
        assert document_example()[int(offset, 16) :].startswith(shown), offset


def test_reader_of_the_document_reads_the_example() -> None:
    source = document_block("python")
    assert sum(1 for line in source.splitlines() if line.strip()) <= 36
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    assert [Message(**fields) for fields in namespace["read_batch"](document_example())] == EXAMPLE


# Checksum

CRC_VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),  # these and the next two: RFC 3720, B.4
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
]


@pytest.mark.parametrize(("data", "expected"), CRC_VECTORS)
def test_checksum_of_known_bytes(data: bytes, expected: int) -> None:
    assert crc32c(data) == crc32c_table(data) == reference.crc32c(data) == expected


def test_both_checksum_paths_agree_at_every_size_and_alignment() -> None:
    data = bytes(i * 7 + (i >> 8) & 0xFF for i in range(2500))
    for size in (*range(70), *range(760, 776), *range(1530, 1546), 2400):
        expected = reference.crc32c(data[:size])
        for shift in (0, 1, 3):
            whole = exact(b"\0" * shift + data[:size])
            view = memoryview(whole).cast("B")[shift:]
            assert crc32c(view) == crc32c_table(view) == expected


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_checksum_continues_from_any_cut(data: bytes, cut: int) -> None:
    expected = reference.crc32c(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == expected
    assert crc32c_table(data[cut:], crc32c_table(data[:cut])) == expected


# Damage


def test_every_flipped_bit_is_refused() -> None:
    good = native_write(EXAMPLE)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchError):
            BatchReader(exact(bytes(bad)))


def test_every_flipped_bit_is_refused_or_harmless_when_not_verified() -> None:
    good = native_write(EXAMPLE)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            expected: Any = reference.read(bytes(bad), verify=False)
        except BatchError:
            with pytest.raises(BatchError):
                native_read(bytes(bad), verify=False)
        else:
            assert native_read(bytes(bad), verify=False) == expected


@pytest.mark.parametrize("verify", [True, False])
def test_every_cut_is_refused(verify: bool) -> None:
    good = native_write(EXAMPLE)
    for size in range(len(good)):
        with pytest.raises(BatchError, match="cut"):
            BatchReader(exact(good[:size]), verify=verify)
        with pytest.raises(BatchError, match="cut"):
            BatchReader.batch_bytes(exact(good[:size]))


@pytest.mark.parametrize("verify", [True, False])
def test_every_cut_of_a_body_is_refused_when_header_and_checksums_fit_it(verify: bool) -> None:
    good = native_write(EXAMPLE)
    for size in range(32, len(good)):
        cut = patched(good[:size], 12, struct.pack("<I", size - 32))
        with pytest.raises(BatchError, match="at offset"):
            native_read(cut, verify=verify)


GOOD = reference.write(EXAMPLE)
SECOND = 0x50  # where the second record starts

# What is wrong, and what the error says about it.
MALFORMED = {
    "header flags": (patched(GOOD, 5, b"\x80"), "header flags at offset 5 is 128 but must be 0"),
    "header bytes": (patched(GOOD, 6, b"\x28"), "header bytes at offset 6 is 40 but must be 32"),
    "huge count": (patched(GOOD, 8, b"\xff\xff\xff\xff"), "message count at offset 8 is 4294967295 but does not fit"),
    "count too small": (patched(GOOD, 8, b"\x01"), "25 bytes at offset 80 after the last of 1 messages"),
    "count too large": (patched(GOOD, 8, b"\x03"), "message 2 at offset 105 needs 24 bytes for its head, but only 0"),
    "base time": (patched(GOOD, 22, b"\x01"), "base time at offset 16 is .* must be below 2"),
    "body cut": (
        patched(GOOD, 12, b"\xff\xff\xff\xff"),
        "cut: the body at offset 32 has 4294967295 bytes, but only 73",
    ),
    "body and more": (GOOD + b"xy", "2 bytes after the batch, which ends at offset 105"),
    "record too long": (patched(GOOD, SECOND, b"\x1a"), "message 1 at offset 80 has 26 bytes, but only 25"),
    "record of 4 GB": (patched(GOOD, SECOND, b"\xff\xff\xff\xff"), "message 1 at offset 80 has 4294967295 bytes"),
    "record too short": (patched(GOOD, 32, b"\x18"), "message 0 at offset 32 has 24 bytes, but head, .* need 44"),
    "record of no bytes": (patched(GOOD, 32, b"\0"), "message 0 at offset 32 has 0 bytes"),
    "topic too long": (
        patched(GOOD, SECOND + 6, b"\xff\xff"),
        "message 1 at offset 80 has 25 bytes, but .* need 65559",
    ),
    "no topic": (patched(GOOD, SECOND + 6, b"\0"), "message 1 at offset 80 has no topic"),
    "publisher too long": (patched(GOOD, SECOND + 8, b"\x01"), "need 26"),
    "properties too long": (patched(GOOD, SECOND + 12, b"\xff\xff\xff\xff"), "need 4294967320"),
    "reserved flag": (patched(GOOD, SECOND + 4, b"\x24"), "reserved flag bits set: 0x24"),
    "reserved byte": (patched(GOOD, SECOND + 5, b"\x09"), "has 9 in its reserved byte"),
    "QoS 3": (patched(GOOD, SECOND + 4, b"\x03"), "has QoS 3"),
    "packet id with QoS 0": (patched(GOOD, SECOND + 10, b"\x07"), "packet id 7 with QoS 0"),
    "expiry without flag": (patched(GOOD, SECOND + 20, b"\x07"), "expiry of 7 s without the expiry flag"),
    "no messages but bytes": (patched(GOOD, 8, b"\0"), "73 bytes at offset 32 after the last of 0 messages"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_batch_is_refused_with_the_place_and_the_reason(name: str) -> None:
    data, expected = MALFORMED[name]
    with pytest.raises(BatchError, match=expected):
        BatchReader(exact(data))
    with pytest.raises(BatchError, match=expected):
        native_read(data, verify=False)
    with pytest.raises(BatchError):
        reference.read(data)


def test_unknown_version_says_which_and_what_to_do() -> None:
    with pytest.raises(
        BatchError, match="version 2 at offset 4 is unknown: this program reads version 1; read it with"
    ):
        BatchReader(patched(GOOD, 4, b"\x02"))


def test_other_bytes_are_no_batch() -> None:
    with pytest.raises(BatchError, match="no batch at offset 0"):
        BatchReader(b"\x30\x10" * 20)


def test_wrong_checksum_shows_both_values() -> None:
    with pytest.raises(BatchError, match="body checksum at offset 24 is 0xB569D186, its bytes give 0x"):
        BatchReader(GOOD[:-1] + b"b")
    with pytest.raises(BatchError, match="header checksum at offset 28 is 0x91C67B49, its bytes give 0x"):
        BatchReader(GOOD[:8] + b"\x03" + GOOD[9:])


# Several batches in one buffer


def test_split_finds_the_batches_of_a_concatenation() -> None:
    batches = [native_write(EXAMPLE), native_write([]), native_write(EXAMPLE[:1])]
    joined = exact(b"".join(batches))
    parts = list(BatchReader.split(joined))
    assert [bytes(part) for part in parts] == batches
    assert [len(BatchReader(part)) for part in parts] == [2, 0, 1]
    assert list(BatchReader.split(b"")) == []


def test_split_gives_the_good_batches_before_the_cut_one() -> None:
    parts = BatchReader.split(GOOD + GOOD[:-1])
    assert bytes(next(parts)) == GOOD
    with pytest.raises(BatchError, match="cut: the body at offset 137 has 73 bytes, but only 72"):
        next(parts)


def test_batch_bytes_is_told_where_to_look() -> None:
    assert BatchReader.batch_bytes(GOOD) == len(GOOD)
    assert BatchReader.batch_bytes(b"xyz" + GOOD + b"more", 3) == len(GOOD)
    with pytest.raises(BatchError, match="no batch at offset 0"):
        BatchReader.batch_bytes(b"xyz" + GOOD)
    with pytest.raises(BatchError, match="header at offset 1000 has 32 bytes, but only 0"):
        BatchReader.batch_bytes(GOOD, 1000)
    with pytest.raises(ValueError, match="negative"):
        BatchReader.batch_bytes(GOOD, -1)


# The writer


def test_writer_is_used_again_after_finish_and_after_reset() -> None:
    writer = BatchWriter()
    append_to(writer, EXAMPLE[0])
    first = writer.finish()
    assert (writer.count, writer.size) == (0, 32)
    append_to(writer, EXAMPLE[1])
    writer.reset()
    append_to(writer, EXAMPLE[0])
    assert (len(writer), writer.size) == (1, len(first))
    assert writer.finish() == first


def test_empty_batch_can_be_written_and_read() -> None:
    empty = BatchWriter().finish()
    assert empty == reference.write([])
    assert list(BatchReader(empty)) == []


def test_time_before_the_first_message_becomes_its_time() -> None:
    written = native_write([Message(time_ms=NOW_MS), Message(time_ms=NOW_MS - 5000), Message(time_ms=NOW_MS + 1)])
    assert [message.time_ms for message in BatchReader(written)] == [NOW_MS, NOW_MS, NOW_MS + 1]


def test_message_too_late_for_the_batch_is_refused() -> None:
    writer = BatchWriter()
    writer.append(b"t", b"", time_ms=NOW_MS)
    writer.append(b"t", b"", time_ms=NOW_MS + 0xFFFFFFFF)
    with pytest.raises(BatchError, match="start a new one"):
        writer.append(b"t", b"", time_ms=NOW_MS + 0x100000000)
    assert [message.time_ms for message in BatchReader(writer.finish())] == [NOW_MS, NOW_MS + 0xFFFFFFFF]


def test_message_without_room_is_refused_at_the_bound_and_fits_the_next_batch() -> None:
    writer = BatchWriter(max_bytes=32 + 2 * 30)
    writer.append(b"t", b"12345", time_ms=0)
    writer.append(b"t", b"12345", time_ms=0)
    assert writer.size == writer.max_bytes
    with pytest.raises(BatchError, match="2 messages, 92 of 92 bytes"):
        writer.append(b"t", b"", time_ms=0)
    assert len(BatchReader(writer.finish())) == 2
    writer.append(b"t", b"1" * 35, time_ms=0)
    assert len(writer.finish()) == 92


def test_message_too_large_for_any_batch_of_the_writer_says_so() -> None:
    with pytest.raises(BatchError, match="a message of 61 bytes with its head is too large"):
        BatchWriter(max_bytes=32 + 60).append(b"t", b"1" * 36, time_ms=0)


def test_full_tells_when_the_mark_is_reached() -> None:
    writer = BatchWriter()
    writer.append(b"t", b"12345", time_ms=0)
    assert writer.full(62)
    assert not writer.full(63)


@pytest.mark.parametrize("max_bytes", [0, 56, 32 + 2**32, -1])
def test_impossible_bound_is_refused(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        BatchWriter(max_bytes)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"qos": 3}, "qos"),
        ({"qos": -1}, "qos"),
        ({"packet_id": 1}, "packet_id"),
        ({"qos": 1, "packet_id": 65536}, "packet_id"),
        ({"time_ms": -1}, "time_ms"),
        ({"time_ms": 2**48}, "time_ms"),
        ({"expiry_s": 2**32}, "expiry_s"),
        ({"topic": b""}, "topic"),
        ({"topic": b"x" * 65536}, "topic"),
        ({"publisher": b"x" * 65536}, "publisher"),
    ],
)
def test_argument_that_the_layout_cannot_hold_is_refused(wrong: dict[str, Any], name: str) -> None:
    writer = BatchWriter()
    with pytest.raises(ValueError, match=name):
        writer.append(**{"topic": b"t", "payload": b"", "time_ms": 0, **wrong})
    assert (writer.count, writer.size) == (0, 32)


@pytest.mark.parametrize("wrong", [{"topic": "t"}, {"payload": None}, {"publisher": None}, {"properties": "p"}])
def test_argument_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, BufferError)):
        BatchWriter().append(**{"topic": b"t", "payload": b"", "time_ms": 0, **wrong})


# The reader


def test_any_contiguous_buffer_can_be_read() -> None:
    for buffer in (bytearray(GOOD), memoryview(GOOD), memoryview(b"x" + GOOD)[1:], exact(GOOD)):
        assert [tuple(message) for message in BatchReader(buffer)] == EXAMPLE
    with pytest.raises(BufferError):
        BatchReader(memoryview(GOOD * 2)[::2])
    for nothing in (None, "text", 7):
        with pytest.raises(TypeError):
            BatchReader(nothing)  # type: ignore[arg-type]


def test_reader_keeps_its_buffer_until_it_is_gone() -> None:
    buffer = bytearray(GOOD)
    reader = BatchReader(buffer)
    with pytest.raises(BufferError):
        buffer.clear()
    loop = iter(reader)
    del reader
    gc.collect()
    assert [tuple(message) for message in loop] == EXAMPLE
    del loop
    buffer.clear()


def test_buffer_is_free_again_after_a_refusal() -> None:
    buffer = bytearray(GOOD[:-1])
    with pytest.raises(BatchError):
        BatchReader(buffer)
    gc.collect()
    buffer.clear()


def test_two_loops_over_one_reader_do_not_disturb_each_other() -> None:
    reader = BatchReader(GOOD)
    pairs = [(outer.topic, inner.topic) for outer in reader for inner in reader]
    assert len(pairs) == 4
    assert (len(reader), reader.count, reader.size, reader.base_time_ms) == (2, 2, len(GOOD), NOW_MS)


def test_buffer_that_changes_after_the_check_is_still_read_within_its_bounds() -> None:
    buffer = bytearray(GOOD)
    reader = BatchReader(buffer)
    buffer[32:36] = b"\xff\xff\xff\xff"
    with pytest.raises(BatchError, match="message 0 at offset 32"):
        list(reader)


# The C interface, as the benchmarks use it


@settings(max_examples=20)
@given(st.integers(0, 2000), st.binary(max_size=20), st.binary(min_size=1, max_size=20), st.binary(max_size=100))
def test_loops_of_the_benchmark_do_what_they_say(count: int, publisher: bytes, topic: bytes, payload: bytes) -> None:
    writer = BatchWriter(max_bytes=60_000)
    done = _batch.append_many(writer, count, publisher, topic, payload)
    record_bytes = 24 + len(publisher) + len(topic) + len(payload)
    assert done == min(count, (60_000 - 32) // record_bytes)
    reader = BatchReader(writer.finish())
    assert _batch.iterate_all(reader) == _batch.iterate_all(reader) == (done, done * len(payload))
    assert {message[:3] for message in reader} == ({(publisher, topic, payload)} if done else set())
